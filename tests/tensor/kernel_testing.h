// What the kernel tests share: random rows of every type, prepared activations, a loop over this CPU's instruction
// sets.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/units.h"
#include "tensor/int8_units.h"
#include "tensor/quantize.h"
// Highway's list must match the library's.
#include "tensor/simd_targets.h"
// then
#include <hwy/targets.h>

namespace elasticmem {

// Runs `body` once for each instruction set that was built and that this CPU has.
template <class Body>
void ForEachTarget(const Body& body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    LimitInt8UnitsForTest(Int8Units::kNone);
    body();
    LimitInt8UnitsForTest(Int8Units::kMatrix);
    if (target == HWY_AVX3 || target == HWY_NEON) {
      for (const Int8Units units : {Int8Units::kDot, Int8Units::kMatrix}) {
        if (Int8UnitsHere() < units) continue;
        SCOPED_TRACE(units == Int8Units::kDot ? "with int8 dots" : "with int8 matrix products");
        LimitInt8UnitsForTest(units);
        body();
        LimitInt8UnitsForTest(Int8Units::kMatrix);
      }
    }
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
  }
}

// The types' own float16 scales, by their offsets in a block; -1: none.
inline std::pair<int, int> ScaleOffsets(DType dtype) {
  switch (dtype) {
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kQ5_0:
      return {0, -1};
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {0, 2};
    case DType::kQ2_K:
      return {80, 82};
    case DType::kQ3_K:
      return {108, -1};
    case DType::kQ6_K:
      return {208, -1};
    default:
      return {-1, -1};
  }
}

// Rows that start `misalignment` bytes past an aligned address, `row_bytes` apart; a byte beyond the last is a fault
// under AddressSanitizer.
struct RandomRows {
  RandomRows(DType dtype, size_t rows, size_t cols, uint32_t seed, size_t misalignment = 0)
      : dtype(dtype), rows(rows), cols(cols), row_bytes(RowBytes(dtype, cols)), start(misalignment) {
    bytes.resize(misalignment + rows * row_bytes);
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    const DTypeTraits& traits = Traits(dtype);
    for (size_t i = misalignment; i < bytes.size(); i += traits.block_bytes) {
      std::byte* block = bytes.data() + i;
      if (!IsQuantized(dtype)) {
        const float value = normal(rng);
        EXPECT_TRUE(QuantizeRow(dtype, {&value, 1}, block).ok());
        continue;
      }
      for (size_t j = 0; j < traits.block_bytes; ++j) block[j] = static_cast<std::byte>(rng());
      const auto [scale, minimum] = ScaleOffsets(dtype);
      StoreScale(block + scale, normal(rng));
      if (minimum >= 0) StoreScale(block + minimum, normal(rng));
    }
  }
  static void StoreScale(std::byte* at, float value) {
    const uint16_t half = F32ToF16(0.01f * value);
    std::memcpy(at, &half, sizeof(half));
  }
  const std::byte* Row(size_t r) const { return bytes.data() + start + r * row_bytes; }
  std::vector<const std::byte*> Pointers() const {
    std::vector<const std::byte*> pointers;
    for (size_t r = 0; r < rows; ++r) pointers.push_back(Row(r));
    return pointers;
  }
  WeightRows View() const { return {dtype, bytes.data() + start, rows, cols, row_bytes}; }
  std::vector<float> Values(size_t r) const {
    std::vector<float> values(cols);
    DequantizeRow(dtype, Row(r), cols, values.data());
    return values;
  }

  DType dtype;
  size_t rows, cols, row_bytes, start;
  std::vector<std::byte> bytes;
};

inline std::vector<float> NormalFloats(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

// `tokens` random rows of activations, prepared.
struct PreparedRows {
  PreparedRows(ActivationFormat format, size_t tokens, size_t cols, uint32_t seed)
      : cols(cols), x(NormalFloats(tokens * cols, seed)) {
    const size_t stride = ActivationStride(format, cols);
    bytes.resize(tokens * stride);
    view = {format, bytes.data(), tokens, stride};
    Prepare();
  }
  void Prepare() {
    for (size_t t = 0; t < view.tokens; ++t) {
      PrepareActivations(view.format, x.data() + t * cols, cols, bytes.data() + t * view.stride);
    }
  }
  ActivationRows Token(size_t t) const { return {view.format, view.Row(t), 1, view.stride}; }

  size_t cols;
  std::vector<float> x;
  std::vector<std::byte> bytes;
  ActivationRows view;
};

inline std::string TypeName(const testing::TestParamInfo<DType>& info) { return std::string(Traits(info.param).name); }
inline std::vector<DType> AllTypes() {
  std::vector<DType> types;
  for (const DTypeTraits& traits : kDTypes) types.push_back(traits.dtype);
  return types;
}

inline float MaxNorm(const std::vector<float>& v) {
  float max = 0;
  for (const float e : v) max = std::max(max, std::fabs(e));
  return max;
}
inline float OneNorm(const float* v, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += std::fabs(v[i]);
  return static_cast<float>(sum);
}

}  // namespace elasticmem
