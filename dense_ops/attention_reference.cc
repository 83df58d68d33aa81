// The reference for attention: a softmax over all positions at once, in double precision.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "dense_ops/transformer_ops.h"
#include "tensor/quantize.h"

namespace elasticmem {

void AttendReference(const KvPageLayout& layout, std::span<const std::byte* const> pages, uint32_t begin, uint32_t end,
                     uint32_t kv_head, const float* q, uint32_t group, float scale, float* /*scratch*/, float* out) {
  const size_t dim = layout.head_dim;
  std::vector<float> row(dim);
  const auto load = [&](uint32_t position, bool value) {
    const std::byte* token =
        pages[position / layout.page_tokens] + position % layout.page_tokens * layout.token_bytes();
    DequantizeRow(layout.type, token + (kv_head + (value ? layout.kv_heads : 0)) * layout.head_bytes(), dim,
                  row.data());
  };
  for (uint32_t g = 0; g < group; ++g) {
    std::vector<double> weights;
    double peak = -std::numeric_limits<double>::infinity();
    for (uint32_t p = begin; p < end; ++p) {
      load(p, false);
      double dot = 0;
      for (size_t i = 0; i < dim; ++i) dot += static_cast<double>(q[g * dim + i]) * row[i];
      weights.push_back(dot * scale);
      peak = std::max(peak, weights.back());
    }
    double total = 0;
    for (double& w : weights) total += w = std::exp(w - peak);
    std::vector<double> sum(dim);
    for (uint32_t p = begin; p < end; ++p) {
      load(p, true);
      for (size_t i = 0; i < dim; ++i) sum[i] += weights[p - begin] / total * row[i];
    }
    for (size_t i = 0; i < dim; ++i) out[g * dim + i] = static_cast<float>(sum[i]);
  }
}

}  // namespace elasticmem
