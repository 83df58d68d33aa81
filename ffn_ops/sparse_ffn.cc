// The gathered dots are the dense kernels' dots over a list of rows.
#include "ffn_ops/sparse_ffn.h"

#include "tensor/dot.h"

namespace elasticmem {

void GatherDot(DType dtype, std::span<const std::byte* const> rows, size_t cols, const ActivationRows& x, float* out,
               size_t out_stride) {
  DotRows(dtype, rows, cols, x, out, out_stride);
}

}  // namespace elasticmem
