// What people see on stderr: progress bars on a terminal, plain lines elsewhere; tables.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace elasticmem {

// Progress of long work. On a terminal one line is redrawn; elsewhere a line is printed when a phase ends.
class ProgressBar {
 public:
  ProgressBar();
  ~ProgressBar() { Clear(); }
  // Amounts are bytes, or as many of `unit`.
  void Update(std::string_view what, uint64_t done, uint64_t total, std::string_view unit = "");
  // Removes the bar, so that other output starts on a clean line.
  void Clear();

 private:
  using Clock = std::chrono::steady_clock;
  const bool terminal_;
  std::string what_;
  Clock::time_point started_, drawn_;
  bool visible_ = false;
  bool finished_ = false;
};

// Left-aligned first column, right-aligned others, two spaces between.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows);

}  // namespace elasticmem
