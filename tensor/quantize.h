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

// out[i] = element i of `row`; `elements` is a multiple of the type's block. The reference that kernels are tested against.
void DequantizeRow(DType dtype, const std::byte* row, size_t elements, float* out);

// Writes `in` (elements a multiple of the block) as a row of `dtype`: F32, F16, BF16, Q8_0 or Q4_0; others are refused.
Status QuantizeRow(DType dtype, std::span<const float> in, std::byte* row);
constexpr bool CanQuantize(DType d) {
  return d == DType::kF32 || d == DType::kF16 || d == DType::kBF16 || d == DType::kQ8_0 || d == DType::kQ4_0;
}

// How activations are laid out for a product with weights of some type.
enum class ActivationFormat : uint8_t {
  kF32,  // floats: for F32, F16 and BF16 weights
  kQ8,   // Q8Block: for quantised weights
};

// 32 activations: value i is scale * q[i]. sums[h] is the sum of q over half h, for types with an offset.
// Quantised per row, so a row's bytes do not depend on the batch it is in.
struct Q8Block {
  float scale;
  int16_t sums[2];
  int8_t q[32];
};
static_assert(sizeof(Q8Block) == 40);

constexpr ActivationFormat FormatFor(DType weights) {
  return IsQuantized(weights) ? ActivationFormat::kQ8 : ActivationFormat::kF32;
}
// Bytes of one prepared row; rows start `RoundUp(.., 64)` apart.
constexpr size_t ActivationRowBytes(ActivationFormat format, size_t elements) {
  return format == ActivationFormat::kF32 ? elements * sizeof(float) : (elements + 31) / 32 * sizeof(Q8Block);
}

// `x` [elements] (a multiple of 32 for kQ8) in `format` at `out`.
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
