// The two products of a sparse FFN over a list of scattered neuron rows:
//   coefficient_k = act(gate_k) * dot(up_k, x)        (GatherDot, then the caller's multiply)
//   y            += sum over k, in order, coefficient_k * down_k    (AccumulateGroup, AccumulateRows)
// All are deterministic: GatherDot gives each dot the same bits as MatMulRows does for the same row, and the sums go
// element by element in list order, so any split over columns or threads (AccumulateRows: over calls too) gives the
// same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"
#include "tensor/quantize.h"

namespace elasticmem {

enum class Activation : uint8_t { kRelu, kRelu2, kDRelu, kSilu, kGelu, kGeluTanh };

// out[t * out_stride + k] = dot(rows[k], x row t), cols elements a row.
void GatherDot(DType dtype, std::span<const std::byte* const> rows, size_t cols, const ActivationRows& x, float* out,
               size_t out_stride);
void GatherDotReference(DType dtype, std::span<const std::byte* const> rows, size_t cols, const ActivationRows& x,
                        float* out, size_t out_stride);

// y[j] = fma(coefficients[k], rows[k][j], y[j]) for k in order, j in [col_begin, col_end); the range is a multiple of
// the type's block (and of 32). Rows prefetched ahead of use.
void AccumulateRows(DType dtype, std::span<const std::byte* const> rows, const float* coefficients, size_t col_begin,
                    size_t col_end, float* y);
void AccumulateRowsReference(DType dtype, std::span<const std::byte* const> rows, const float* coefficients,
                             size_t col_begin, size_t col_end, float* y);

// The same summed from zero, and then added to y. Meanwhile the beginnings of the rows `ahead` are fetched.
void AccumulateGroup(DType dtype, std::span<const std::byte* const> rows, const float* coefficients, size_t col_begin,
                     size_t col_end, float* y, std::span<const std::byte* const> ahead = {});
void AccumulateGroupReference(DType dtype, std::span<const std::byte* const> rows, const float* coefficients,
                              size_t col_begin, size_t col_end, float* y);

// A group of up to kGroupRows rows that a batch of tokens shares: for each list, y += its rows' sum from zero in its
// order, the bits of AccumulateGroup. Every row is converted once for all lists.
constexpr size_t kGroupRows = 64;
struct TokenList {
  std::span<const uint32_t> neurons;  // neuron % kGroupRows: the row
  const float* coefficients;
  float* y;
};
// `rows` and `ahead` [kGroupRows]; null where no list has it. The same columns of the rows `ahead` are fetched.
void AccumulateGroupForTokens(DType dtype, const std::byte* const* rows, std::span<const TokenList> lists,
                              size_t col_begin, size_t col_end, const std::byte* const* ahead);
void AccumulateGroupForTokensReference(DType dtype, const std::byte* const* rows, std::span<const TokenList> lists,
                                       size_t col_begin, size_t col_end);

// x[i] = act(x[i]). kDRelu is ReLU here: the second ReLU is on up (Bamboo).
void ApplyActivation(Activation activation, std::span<float> x);

// Bit i % 64 of marks[i / 64] = gate[i] != 0 (so -0.0 is not active and NaN is), zeros behind the last.
void MarkNonZero(std::span<const float> gate, uint64_t* marks);

// The active ones, ascending: `first` + their index, and their value. Both have room for them; returns how many.
size_t CompactNonZero(std::span<const float> gate, uint32_t first, uint32_t* indices, float* values);

}  // namespace elasticmem
