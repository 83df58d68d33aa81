#include "base/units.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

namespace elasticmem {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr std::array<Unit, 8> kUnits = {{{"", 1},
                                         {"B", 1},
                                         {"KiB", 1024.0},
                                         {"MiB", 1024.0 * 1024},
                                         {"GiB", 1024.0 * 1024 * 1024},
                                         {"KB", 1e3},
                                         {"MB", 1e6},
                                         {"GB", 1e9}}};

}  // namespace

StatusOr<uint64_t> ParseBytes(std::string_view text, uint64_t whole_bytes) {
  const auto wrong = [&] {
    return InvalidInput(
        "\"{}\" is not a size: write a number and one of B, KiB, MiB, GiB, KB, MB, GB or % (for example 1.5GiB or 75%)",
        text);
  };
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return wrong();
  std::string_view unit(end, text.data() + text.size() - end);
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  double scale = -1;
  if (unit == "%") scale = static_cast<double>(whole_bytes) / 100;
  for (const Unit& u : kUnits) {
    if (unit == u.name) scale = u.bytes;
  }
  if (scale < 0) return wrong();
  const double bytes = number * scale;
  if (bytes >= 9e18) return InvalidInput("\"{}\" is more bytes than any machine has", text);
  return static_cast<uint64_t>(bytes);
}

std::string FormatBytes(uint64_t bytes) {
  const auto b = static_cast<double>(bytes);
  if (bytes < 1_KiB) return fmt::format("{} B", bytes);
  if (bytes < 1_MiB) return fmt::format("{:.1f} KiB", b / 1_KiB);
  if (bytes < 1_GiB) return fmt::format("{:.1f} MiB", b / 1_MiB);
  return fmt::format("{:.2f} GiB", b / 1_GiB);
}

}  // namespace elasticmem
