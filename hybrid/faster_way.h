// Which of two ways to do the same work is faster, by the number of tokens in the batch: learnt by timing both. Where
// they have the same bits, the choice is free.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace elasticmem {

class FasterWay {
 public:
  static constexpr uint32_t kRetry = 64;  // of so many choices one goes to the slower way, for times change

  // 0 or 1.
  int Choose(size_t tokens) {
    Bucket& b = BucketOf(tokens);
    if (b.nanos[0] == 0) return 0;
    if (b.nanos[1] == 0) return 1;
    const int faster = b.nanos[1] < b.nanos[0] ? 1 : 0;
    return ++b.choices % kRetry == 0 ? 1 - faster : faster;
  }

  // `way` took `nanos` for `work` units, in a batch of so many tokens.
  void Record(size_t tokens, int way, uint64_t work, uint64_t nanos) {
    if (work == 0) return;
    double& known = BucketOf(tokens).nanos[way];
    const double each = std::max(1e-3, static_cast<double>(nanos) / static_cast<double>(work));
    // A time above what is known is the system's doing more often than the work's.
    known = known == 0 ? each : known + (std::min(each, 2 * known) - known) / (each < known ? 2 : 16);
  }

 private:
  // Of the tokens counts 1, 2, 3 to 4, 5 to 8, ...
  struct Bucket {
    std::array<double, 2> nanos{};  // a unit of work; 0: never tried
    uint32_t choices = 0;
  };
  Bucket& BucketOf(size_t tokens) {
    return buckets_[std::min(buckets_.size() - 1, static_cast<size_t>(std::bit_width(tokens - 1)))];
  }

  std::array<Bucket, 16> buckets_;
};

}  // namespace elasticmem
