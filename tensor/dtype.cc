#include "tensor/dtype.h"

#include <algorithm>

namespace elasticmem {
namespace {

constexpr char Upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

}  // namespace

std::optional<DType> DTypeFromGguf(uint32_t gguf_type) {
  for (const DTypeTraits& traits : kDTypes) {
    if (traits.gguf_type == gguf_type) return traits.dtype;
  }
  return std::nullopt;
}

std::optional<DType> DTypeFromName(std::string_view name) {
  const auto same = [](char a, char b) { return Upper(a) == Upper(b); };
  for (const DTypeTraits& traits : kDTypes) {
    if (std::equal(name.begin(), name.end(), traits.name.begin(), traits.name.end(), same)) return traits.dtype;
  }
  return std::nullopt;
}

}  // namespace elasticmem
