// Dot products of rows of weights, given by their addresses, with prepared activations: what dense matrices and
// scattered neuron rows share, so that both give the same bits.
//
// Each dot has one order of sums, fixed by the weight type, the number of columns and the instruction set:
//   float types: vector lanes along K, one accumulator a dot, then a fixed tree;
//   quantised:   each block of 32 is an exact integer sum, scaled into accumulator (block mod lanes), then the same
//   tree; with VNNI, into one accumulator.
// Batches of tokens run other loops over the same sums. NaN weights or activations give NaN.
#pragma once

#include <cstddef>
#include <span>

#include "tensor/dtype.h"
#include "tensor/quantize.h"

namespace elasticmem {

// out[t * out_stride + k] = dot(rows[k], x row t), cols elements a row; x.format == FormatFor(dtype). `ahead` are rows
// that the caller will ask for next: the last rows' work prefetches them.
void DotRows(DType dtype, std::span<const std::byte* const> rows, size_t cols, const ActivationRows& x, float* out,
             size_t out_stride, std::span<const std::byte* const> ahead = {});

// Whether the kernels that run here take rows of the type interleaved.
bool WantsInterleavedRows(DType dtype);

// The same bits for rows that lie in tiles (tensor/interleave.h), where WantsInterleavedRows(dtype); `rows` is a
// multiple of 16.
void DotInterleavedRows(DType dtype, const std::byte* tiles, size_t rows, size_t cols, const ActivationRows& x,
                        float* out, size_t out_stride);

// DotRows from DequantizeRow in double precision, rounded at the end.
void DotRowsReference(DType dtype, std::span<const std::byte* const> rows, size_t cols, const ActivationRows& x,
                      float* out, size_t out_stride);

// The name of the instruction set that the kernels run with here: "AVX2", "AVX3", "AVX3+VNNI", "AVX3+AMX", "NEON+i8mm", ...
const char* SimdTargetName();

}  // namespace elasticmem
