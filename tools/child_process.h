// Another program, run to its end: what it printed and when, what it read and held.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace elasticmem {

struct ChildSpec {
  std::vector<std::string> argv;  // argv[0] is the path of the program
  std::string group;              // folder of a control group to run in; "": ours
  std::chrono::seconds timeout{600};
  const std::atomic<bool>* cancelled = nullptr;
};

struct ChildResult {
  int exit_code = -1;  // -1: ended by `signal`
  int signal = 0;
  bool timed_out = false;                      // then it was killed
  double seconds = 0;                          // from start to end
  std::optional<double> first_output_seconds;  // when stdout had its first byte
  std::string out;                             // its first kMaxOutput bytes
  std::string err;                             // its last kMaxOutput bytes
  uint64_t peak_resident_bytes = 0;
  uint64_t read_bytes = 0;  // from disks, as the kernel counted them for the process
};
inline constexpr size_t kMaxOutput = 256 << 10;

// Stdin is empty. Errors: the program cannot be started (names it); cancelled. A child that is killed takes its own
// with it.
StatusOr<ChildResult> RunChild(const ChildSpec& spec);

}  // namespace elasticmem
