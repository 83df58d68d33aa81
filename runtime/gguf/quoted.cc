#include "runtime/gguf/quoted.h"

#include <fmt/core.h>

namespace elasticmem {

std::string Quoted(std::string_view text) {
  constexpr size_t kShown = 80;
  std::string quoted = "\"";
  for (const char c : text.substr(0, kShown)) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (c >= 0x20 && c < 0x7f) {
      quoted += c;
    } else {
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  quoted += text.size() > kShown ? "...\"" : "\"";
  return quoted;
}

}  // namespace elasticmem
