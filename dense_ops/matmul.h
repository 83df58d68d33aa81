// y = W x for dense weights of every type, one range of rows at a time (the caller shares ranges out to threads).
//
// Each output is one dot product whose order of sums over K is fixed by the weight type and K alone: not by the number
// of tokens, the range of rows, or threads. So a row of a batch gets the same bits as it would alone.
#pragma once

#include "tensor/dtype.h"
#include "tensor/quantize.h"

namespace elasticmem {

// y[t * y_stride + r] = dot(w row r, x row t) for r in [row_begin, row_end) and every token t.
// x.format == FormatFor(w.dtype). Rows of w may start at any 2-byte aligned address. Interleaved rows are taken in
// whole tiles: the range begins with one, and ends with one or with the last row.
void MatMulRows(const WeightRows& w, size_t row_begin, size_t row_end, const ActivationRows& x, float* y,
                size_t y_stride);

// The scalar reference: the same contract, from DequantizeRow in double precision.
void MatMulRowsReference(const WeightRows& w, size_t row_begin, size_t row_end, const ActivationRows& x, float* y,
                         size_t y_stride);

// The name of the instruction set that the kernels run with here: "AVX2", "AVX3", ...
const char* KernelTargetName();

}  // namespace elasticmem
