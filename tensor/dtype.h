// Element types of weights as GGUF files store them, and the sizes of their rows.
// A row of n elements is n / block_elements blocks of block_bytes; layouts are those of the GGUF format.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/status.h"

namespace elasticmem {

enum class DType : uint8_t { kF32, kF16, kBF16, kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ2_K, kQ3_K, kQ4_K, kQ5_K, kQ6_K };
inline constexpr int kDTypeCount = 13;

struct DTypeTraits {
  DType dtype;
  std::string_view name;    // as people write it: "Q4_K"
  uint32_t gguf_type;       // its number in GGUF files
  uint32_t block_elements;  // elements a block holds
  uint32_t block_bytes;
};

inline constexpr std::array<DTypeTraits, kDTypeCount> kDTypes = {{
    {DType::kF32, "F32", 0, 1, 4},
    {DType::kF16, "F16", 1, 1, 2},
    {DType::kBF16, "BF16", 30, 1, 2},
    {DType::kQ8_0, "Q8_0", 8, 32, 34},
    {DType::kQ4_0, "Q4_0", 2, 32, 18},
    {DType::kQ4_1, "Q4_1", 3, 32, 20},
    {DType::kQ5_0, "Q5_0", 6, 32, 22},
    {DType::kQ5_1, "Q5_1", 7, 32, 24},
    {DType::kQ2_K, "Q2_K", 10, 256, 84},
    {DType::kQ3_K, "Q3_K", 11, 256, 110},
    {DType::kQ4_K, "Q4_K", 12, 256, 144},
    {DType::kQ5_K, "Q5_K", 13, 256, 176},
    {DType::kQ6_K, "Q6_K", 14, 256, 210},
}};
static_assert([] {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (static_cast<int>(kDTypes[i].dtype) != i) return false;
  }
  return true;
}());

constexpr const DTypeTraits& Traits(DType dtype) { return kDTypes[static_cast<size_t>(dtype)]; }
constexpr bool IsQuantized(DType dtype) { return Traits(dtype).block_elements > 1; }

// Bytes of a row of `elements`, which must be a multiple of the type's block.
constexpr size_t RowBytes(DType dtype, size_t elements) {
  return elements / Traits(dtype).block_elements * Traits(dtype).block_bytes;
}

// The type with this GGUF number or name (any case); nothing if we do not read it.
std::optional<DType> DTypeFromGguf(uint32_t gguf_type);
std::optional<DType> DTypeFromName(std::string_view name);

// `rows` rows of `cols` weights of one type, `row_bytes` apart (a view: it owns nothing). `interleaved`: every 16 of
// them lie as a tile of tensor/interleave.h; the rest, fewer than 16 at the end, as rows.
struct WeightRows {
  DType dtype = DType::kF32;
  const std::byte* data = nullptr;
  size_t rows = 0;
  size_t cols = 0;
  size_t row_bytes = 0;
  bool interleaved = false;

  // Where row `row` begins; if it is part of a tile (the first of it), the tile.
  const std::byte* Row(size_t row) const { return data + row * row_bytes; }
};

}  // namespace elasticmem
