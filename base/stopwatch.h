// How long things take: the time of a scope, added to a counter; the time since a moment.
#pragma once

#include <chrono>
#include <cstdint>

namespace elasticmem {

class Stopwatch {
 public:
  explicit Stopwatch(uint64_t& nanos) : nanos_(nanos), start_(std::chrono::steady_clock::now()) {}
  ~Stopwatch() {
    nanos_ += static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start_).count());
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  uint64_t& nanos_;
  std::chrono::steady_clock::time_point start_;
};

inline double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace elasticmem
