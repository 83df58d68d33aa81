#include "tensor/interleave.h"

#include <cstring>
#include <type_traits>

namespace elasticmem {
namespace {

// copy(place in the row, place in the tile, bytes) for every piece of row r.
template <class Copy>
void ForPieces(DType dtype, size_t r, size_t cols, Copy&& copy) {
  const BlockWords words = WordsOfBlock(dtype);
  const size_t block = Traits(dtype).block_bytes;
  for (size_t b = 0; b < cols / Traits(dtype).block_elements; ++b) {
    const size_t row = b * block, tile = b * block * kInterleavedRows;
    for (size_t w = 0; w < words.count; ++w) {
      copy(row + words.begin + 4 * w, tile + (w * kInterleavedRows + r) * 4, std::integral_constant<size_t, 4>());
    }
    if (words.has_scale) {
      copy(row + words.scale, tile + words.count * kInterleavedRows * 4 + r * 2, std::integral_constant<size_t, 2>());
    }
  }
}

}  // namespace

void InterleaveRows(DType dtype, const std::byte* rows, size_t row_bytes, size_t cols, std::byte* tile) {
  for (size_t r = 0; r < kInterleavedRows; ++r) {
    const std::byte* row = rows + r * row_bytes;
    ForPieces(dtype, r, cols,
              [&](size_t in_row, size_t in_tile, auto bytes) { std::memcpy(tile + in_tile, row + in_row, bytes); });
  }
}

void DeinterleaveRow(DType dtype, const std::byte* tile, size_t r, size_t cols, std::byte* row) {
  ForPieces(dtype, r, cols,
            [&](size_t in_row, size_t in_tile, auto bytes) { std::memcpy(row + in_row, tile + in_tile, bytes); });
}

}  // namespace elasticmem
