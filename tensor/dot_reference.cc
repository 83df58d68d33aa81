// The reference for dot products: plain loops in double precision.
#include <vector>

#include "tensor/dot.h"

namespace elasticmem {

void DotRowsReference(DType dtype, std::span<const std::byte* const> rows, size_t cols, const ActivationRows& x,
                      float* out, size_t out_stride) {
  EM_CHECK(x.format == FormatFor(dtype));
  std::vector<float> weights(cols);
  for (size_t k = 0; k < rows.size(); ++k) {
    DequantizeRow(dtype, rows[k], cols, weights.data());
    for (size_t t = 0; t < x.tokens; ++t) {
      double sum = 0;
      if (x.format == ActivationFormat::kF32) {
        const auto* values = reinterpret_cast<const float*>(x.Row(t));
        for (size_t i = 0; i < cols; ++i) sum += static_cast<double>(weights[i]) * values[i];
      } else {
        const auto* groups = reinterpret_cast<const Q16Group*>(x.Row(t));
        for (size_t i = 0; i < cols; ++i) {
          const Q16Group& group = groups[i / kQ16GroupElements];
          const size_t block = i / 32 % 8;
          const int q = kQ16Step * group.high[block][i % 32] + group.low[block][i % 32];
          sum += static_cast<double>(weights[i]) * group.scale[block] * q;
        }
      }
      out[t * out_stride + k] = static_cast<float>(sum);
    }
  }
}

}  // namespace elasticmem
