// The scalar references of the sparse FFN's products.
#include <cmath>
#include <vector>

#include "ffn_ops/sparse_ffn.h"
#include "tensor/dot.h"

namespace elasticmem {

void GatherDotReference(DType dtype, std::span<const std::byte* const> rows, size_t cols, const ActivationRows& x,
                        float* out, size_t out_stride) {
  DotRowsReference(dtype, rows, cols, x, out, out_stride);
}

void AccumulateRowsReference(DType dtype, std::span<const std::byte* const> rows, const float* coefficients,
                             size_t col_begin, size_t col_end, float* y) {
  std::vector<float> weights(col_end - col_begin);
  const size_t offset = RowBytes(dtype, col_begin);
  for (size_t k = 0; k < rows.size(); ++k) {
    DequantizeRow(dtype, rows[k] + offset, weights.size(), weights.data());
    for (size_t j = col_begin; j < col_end; ++j) y[j] = std::fma(coefficients[k], weights[j - col_begin], y[j]);
  }
}

void AccumulateGroupReference(DType dtype, std::span<const std::byte* const> rows, const float* coefficients,
                              size_t col_begin, size_t col_end, float* y) {
  std::vector<float> sums(col_end);
  AccumulateRowsReference(dtype, rows, coefficients, col_begin, col_end, sums.data());
  for (size_t j = col_begin; j < col_end; ++j) y[j] += sums[j];
}

void AccumulateGroupForTokensReference(DType dtype, const std::byte* const* rows, std::span<const TokenList> lists,
                                       size_t col_begin, size_t col_end) {
  for (const TokenList& list : lists) {
    std::vector<const std::byte*> own;
    for (const uint32_t neuron : list.neurons) own.push_back(rows[neuron % kGroupRows]);
    AccumulateGroupReference(dtype, own, list.coefficients, col_begin, col_end, list.y);
  }
}

}  // namespace elasticmem
