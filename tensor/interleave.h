// Interleaved rows: 16 quantised rows that lie word by word side by side, so that one 64-byte load takes the same 4
// bytes of all of them. That is what the kernels of tensor/int8_dot-inl.h multiply with: rows of dense matrices are
// brought into this order once, when they are loaded; scattered rows and streamed ones on the way, block by block.
//
// A tile takes the bytes of its 16 rows. Block b of them is at 16 * b * block_bytes: [words of a block][16 rows][4
// bytes], then, where a block's bytes are no multiple of 4, its scale: [16 rows][2 bytes]. Words begin behind a scale
// that stands in front.
#pragma once

#include <cstddef>

#include "tensor/dtype.h"

namespace elasticmem {

inline constexpr size_t kInterleavedRows = 16;

// Words of a block, where in it they begin, and where its scale of 2 bytes is that is part of none.
struct BlockWords {
  size_t count;
  size_t begin;
  bool has_scale;
  size_t scale;
};
constexpr BlockWords WordsOfBlock(DType dtype) {
  const size_t bytes = Traits(dtype).block_bytes;
  const bool has_scale = bytes % 4 != 0, in_front = has_scale && Traits(dtype).block_elements == 32;
  return {bytes / 4, in_front ? size_t{2} : size_t{0}, has_scale, in_front ? 0 : bytes - 2};
}

// 16 rows of `cols` weights, `row_bytes` apart, into a tile at `tile` (another place).
void InterleaveRows(DType dtype, const std::byte* rows, size_t row_bytes, size_t cols, std::byte* tile);
// Row r of a tile as it was.
void DeinterleaveRow(DType dtype, const std::byte* tile, size_t r, size_t cols, std::byte* row);

}  // namespace elasticmem
