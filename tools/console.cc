#include "tools/console.h"

#include <algorithm>
#include <cstdio>

#include <unistd.h>

#include "base/units.h"

namespace elasticmem {
namespace {

constexpr auto kRedraw = std::chrono::milliseconds(80);
// Work that is over sooner than this is not worth a line.
constexpr auto kWorthTelling = std::chrono::milliseconds(300);
constexpr int kBarWidth = 28;

std::string Amount(double value, std::string_view unit) {
  if (unit.empty()) return FormatBytes(static_cast<uint64_t>(value));
  return fmt::format("{:.{}f} {}", value, value < 100 ? 1 : 0, unit);
}

}  // namespace

ProgressBar::ProgressBar() : terminal_(isatty(STDERR_FILENO) == 1) {}

void ProgressBar::Update(std::string_view what, uint64_t done, uint64_t total, std::string_view unit) {
  const Clock::time_point now = Clock::now();
  if (what != what_) {
    Clear();
    what_ = what;
    started_ = drawn_ = now;
    finished_ = false;
  }
  if (finished_ || total == 0) return;
  const double seconds = std::chrono::duration<double>(now - started_).count();
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  if (done >= total) {
    Clear();
    finished_ = true;
    if (now - started_ < kWorthTelling) return;
    std::fprintf(stderr, "%s: %s in %.1f s (%s/s)\n", what_.c_str(), Amount(static_cast<double>(total), unit).c_str(),
                 seconds, Amount(rate, unit).c_str());
    return;
  }
  if (!terminal_ || now - started_ < kWorthTelling || now - drawn_ < kRedraw) return;
  drawn_ = now;
  const double share = static_cast<double>(done) / static_cast<double>(total);
  std::string bar(kBarWidth, ' ');
  std::fill_n(bar.begin(), static_cast<int>(share * kBarWidth), '#');
  std::fprintf(stderr, "\r\033[K%s [%s] %3.0f %%  %s/s  %.0f s left", what_.c_str(), bar.c_str(), share * 100,
               Amount(rate, unit).c_str(),
               rate > 0 ? static_cast<double>(total - done) / rate : 0.0);
  std::fflush(stderr);
  visible_ = true;
}

void ProgressBar::Clear() {
  if (!visible_) return;
  std::fprintf(stderr, "\r\033[K");
  std::fflush(stderr);
  visible_ = false;
}

std::string FormatTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line = "  ";
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string pad(widths[c] - row[c].size(), ' ');
      line += c == 0 ? row[c] + pad : "  " + pad + row[c];
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    text += line + "\n";
  }
  return text;
}

}  // namespace elasticmem
