// Rows of weights to and from float32, and rows of activations into the forms that kernels multiply with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace elasticmem {

float F16ToF32(uint16_t half);
uint16_t F32ToF16(float value);  // round to nearest even
float BF16ToF32(uint16_t bits);
uint16_t F32ToBF16(float value);

// out[i] = element i of `row`; `elements` is a multiple of the type's block. The reference that kernels are tested
// against.
void DequantizeRow(DType dtype, const std::byte* row, size_t elements, float* out);

// Writes `in` (elements a multiple of the block) as a row of `dtype`: F32, F16, BF16, Q8_0 or Q4_0; others are refused.
Status QuantizeRow(DType dtype, std::span<const float> in, std::byte* row);
constexpr bool CanQuantize(DType d) {
  return d == DType::kF32 || d == DType::kF16 || d == DType::kBF16 || d == DType::kQ8_0 || d == DType::kQ4_0;
}

// How activations are laid out for a product with weights of some type.
enum class ActivationFormat : uint8_t {
  kF32,  // floats: for F32, F16 and BF16 weights
  kQ16,  // Q16Group: for quantised weights
};

// 8 blocks of 32 activations: value i of block b is scale[b] * (254 * high[b][i] + low[b][i]). Two planes of int8 and
// not one: products stay those of int8 instructions, and the rounding of a block to 1/32258 of its largest value is
// lost in that of the weights, where rounding to 1/127 moves a model's logits by up to 0.5. sums[h][b] is the sum over
// half h of what scale multiplies, sum[b] that over the block, for types with an offset or a minimum: integers below
// 2^20. Field by field rather than block by block, because kernels treat 8 blocks as the lanes of a vector. The blocks
// past the end of a row are all zero. Quantised per row, so a row's bytes do not depend on its batch.
struct Q16Group {
  float scale[8];
  float sums[2][8];
  float sum[8];
  int8_t high[8][32];
  int8_t low[8][32];
};
static_assert(sizeof(Q16Group) == 640);
inline constexpr size_t kQ16GroupElements = 256;
inline constexpr int kQ16Step = 254;                  // |high|, |low| <= 127
inline constexpr float kQ16Largest = 127 * kQ16Step;  // what a block's largest magnitude becomes

constexpr ActivationFormat FormatFor(DType weights) {
  return IsQuantized(weights) ? ActivationFormat::kQ16 : ActivationFormat::kF32;
}
// Bytes of one prepared row, and from one to the next: an odd number of cache lines, so that a block of all tokens of a
// batch does not lie in a few sets of the cache.
constexpr size_t ActivationRowBytes(ActivationFormat format, size_t elements) {
  return format == ActivationFormat::kF32 ? elements * sizeof(float)
                                          : (elements + kQ16GroupElements - 1) / kQ16GroupElements * sizeof(Q16Group);
}

constexpr size_t ActivationStride(ActivationFormat format, size_t elements) {
  return ((ActivationRowBytes(format, elements) + 63) / 64 | 1) * 64;
}

// `x` [elements] (a multiple of 32 for kQ16) in `format` at `out`. A block with a NaN or an infinity gets a NaN scale,
// so that it is never hidden.
void PrepareActivations(ActivationFormat format, const float* x, size_t elements, std::byte* out);

// `tokens` prepared rows, `stride` bytes apart (a view).
struct ActivationRows {
  ActivationFormat format = ActivationFormat::kF32;
  const std::byte* data = nullptr;
  size_t tokens = 0;
  size_t stride = 0;

  const std::byte* Row(size_t token) const { return data + token * stride; }
};

}  // namespace elasticmem
