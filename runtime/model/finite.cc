#include "runtime/model/finite.h"

#include <array>
#include <cstdint>
#include <cstring>

namespace elasticmem {
namespace {

// Whether any of `n` values of type T has all bits of `exponent` set. One pass without branches, so that it vectorises.
template <class T>
bool AnyHasExponent(const std::byte* row, size_t n, T exponent) {
  T found = 0;
  for (size_t i = 0; i < n; ++i) {
    T bits;
    std::memcpy(&bits, row + i * sizeof(T), sizeof(T));
    found = static_cast<T>(found | ((bits & exponent) == exponent));
  }
  return found != 0;
}

constexpr uint16_t kF16Exponent = 0x7c00;
constexpr uint16_t kBF16Exponent = 0x7f80;
constexpr uint32_t kF32Exponent = 0x7f800000;

// Where the f16 scale (and offset or second scale) of a block lie; a block with one scale names it twice.
constexpr std::array<size_t, 2> ScaleOffsets(DType dtype) {
  switch (dtype) {
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {0, 2};
    case DType::kQ2_K:
      return {80, 82};
    case DType::kQ3_K:
      return {108, 108};
    case DType::kQ6_K:
      return {208, 208};
    default:
      return {0, 0};
  }
}

}  // namespace

bool AllFinite(DType dtype, const std::byte* row, size_t elements) {
  switch (dtype) {
    case DType::kF32:
      return !AnyHasExponent(row, elements, kF32Exponent);
    case DType::kF16:
      return !AnyHasExponent(row, elements, kF16Exponent);
    case DType::kBF16:
      return !AnyHasExponent(row, elements, kBF16Exponent);
    default:
      break;
  }
  const DTypeTraits& traits = Traits(dtype);
  const std::array<size_t, 2> scales = ScaleOffsets(dtype);
  const size_t blocks = elements / traits.block_elements;
  for (size_t block = 0; block < blocks; ++block) {
    const std::byte* bytes = row + block * traits.block_bytes;
    if (AnyHasExponent(bytes + scales[0], 1, kF16Exponent)) return false;
    if (AnyHasExponent(bytes + scales[1], 1, kF16Exponent)) return false;
  }
  return true;
}

}  // namespace elasticmem
