// The reference for attention: a softmax over all positions at once, in double precision.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "dense_ops/transformer_ops.h"
#include "tensor/quantize.h"

namespace elasticmem {

void AttendReference(const KvPageLayout& layout, std::span<const std::byte* const> pages, const AttendRows& rows,
                     uint32_t kv_head, const float* q, size_t stride, uint32_t group, float scale, float* /*scratch*/,
                     float* out) {
  const size_t dim = layout.head_dim;
  std::vector<float> row(dim);
  const auto load = [&](uint32_t position, bool value) {
    const std::byte* token =
        pages[position / layout.page_tokens] + position % layout.page_tokens * layout.token_bytes();
    DequantizeRow(layout.type, token + (kv_head + (value ? layout.kv_heads : 0)) * layout.head_bytes(), dim,
                  row.data());
  };
  for (uint32_t i = 0; i < rows.count * group; ++i) {
    const uint32_t begin = rows.begin(i / group), end = rows.end(i / group);
    const size_t at = i / group * stride + i % group * dim;
    std::vector<double> weights;
    double peak = -std::numeric_limits<double>::infinity();
    for (uint32_t p = begin; p < end; ++p) {
      load(p, false);
      double dot = 0;
      for (size_t j = 0; j < dim; ++j) dot += static_cast<double>(q[at + j]) * row[j];
      weights.push_back(dot * scale);
      peak = std::max(peak, weights.back());
    }
    double total = 0;
    for (double& w : weights) total += w = std::exp(w - peak);
    std::vector<double> sum(dim);
    for (uint32_t p = begin; p < end; ++p) {
      load(p, true);
      for (size_t j = 0; j < dim; ++j) sum[j] += weights[p - begin] / total * row[j];
    }
    for (size_t j = 0; j < dim; ++j) out[at + j] = static_cast<float>(sum[j]);
  }
}

}  // namespace elasticmem
