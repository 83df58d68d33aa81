// Norms and rotary embedding. They cost little beside the products, so they are plain loops with sums in double.
#include "dense_ops/transformer_ops.h"

#include <cmath>

namespace elasticmem {

void RmsNorm(std::span<const float> x, const float* weight, float epsilon, float* out) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * v;
  const float scale = static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(x.size()) + epsilon));
  for (size_t i = 0; i < x.size(); ++i) out[i] = x[i] * scale * weight[i];
}

void LayerNorm(std::span<const float> x, const float* weight, const float* bias, float epsilon, float* out) {
  const double n = static_cast<double>(x.size());
  double sum = 0;
  for (const float v : x) sum += v;
  const double mean = sum / n;
  double squares = 0;
  for (const float v : x) squares += (v - mean) * (v - mean);
  const float scale = static_cast<float>(1.0 / std::sqrt(squares / n + epsilon));
  const float center = static_cast<float>(mean);
  for (size_t i = 0; i < x.size(); ++i) {
    const float normed = (x[i] - center) * scale * weight[i];
    out[i] = bias != nullptr ? normed + bias[i] : normed;
  }
}

void RopeAngles(uint32_t position, std::span<const float> inverse_frequency, float* cos_sin) {
  for (size_t i = 0; i < inverse_frequency.size(); ++i) {
    const double angle = static_cast<double>(position) * static_cast<double>(inverse_frequency[i]);
    cos_sin[2 * i] = static_cast<float>(std::cos(angle));
    cos_sin[2 * i + 1] = static_cast<float>(std::sin(angle));
  }
}

void ApplyRope(RopeKind kind, const float* cos_sin, size_t pairs, size_t heads, size_t head_dim, float* x) {
  if (kind == RopeKind::kNone) return;
  const size_t first_step = kind == RopeKind::kAdjacent ? 2 : 1;         // from pair i to pair i + 1
  const size_t second_offset = kind == RopeKind::kAdjacent ? 1 : pairs;  // from a pair's first element to its second
  for (size_t h = 0; h < heads; ++h) {
    float* head = x + h * head_dim;
    for (size_t i = 0; i < pairs; ++i) {
      float& a = head[i * first_step];
      float& b = head[i * first_step + second_offset];
      const float c = cos_sin[2 * i], s = cos_sin[2 * i + 1];
      const float rotated = a * c - b * s;
      b = a * s + b * c;
      a = rotated;
    }
  }
}

}  // namespace elasticmem
