// Dense products: rows of a matrix handed to the shared dot kernels, a few dozen addresses at a time.
#include "dense_ops/matmul.h"

#include <algorithm>
#include <array>

#include "tensor/dot.h"
#include "tensor/interleave.h"

namespace elasticmem {
namespace {

constexpr size_t kRowsAtOnce = 64;  // a multiple of every kernel's row tile
constexpr size_t kRowsAhead = 8;

}  // namespace

void MatMulRows(const WeightRows& w, size_t row_begin, size_t row_end, const ActivationRows& x, float* y,
                size_t y_stride) {
  EM_CHECK(row_end <= w.rows);
  if (w.interleaved) {
    const size_t tiled = w.rows - w.rows % kInterleavedRows;
    const size_t end = std::min(row_end, tiled);
    EM_CHECK(row_begin % kInterleavedRows == 0 && (end % kInterleavedRows == 0));
    if (row_begin < end) {
      DotInterleavedRows(w.dtype, w.Row(row_begin), end - row_begin, w.cols, x, y + row_begin, y_stride);
    }
    row_begin = std::max(row_begin, tiled);
  }
  std::array<const std::byte*, kRowsAtOnce + kRowsAhead> rows;
  for (size_t begin = row_begin; begin < row_end; begin += kRowsAtOnce) {
    const size_t count = std::min(kRowsAtOnce, row_end - begin);
    const size_t with_ahead = std::min(count + kRowsAhead, row_end - begin);
    for (size_t i = 0; i < with_ahead; ++i) rows[i] = w.Row(begin + i);
    const std::span<const std::byte* const> all(rows.data(), with_ahead);
    DotRows(w.dtype, all.first(count), w.cols, x, y + begin, y_stride, all.subspan(count));
  }
}

void MatMulRowsReference(const WeightRows& w, size_t row_begin, size_t row_end, const ActivationRows& x, float* y,
                         size_t y_stride) {
  for (size_t r = row_begin; r < row_end; ++r) {
    const std::byte* row = w.Row(r);
    DotRowsReference(w.dtype, {&row, 1}, w.cols, x, y + r, y_stride);
  }
}

const char* KernelTargetName() { return SimdTargetName(); }

}  // namespace elasticmem
