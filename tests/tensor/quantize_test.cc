// Conversions of rows: against values computed by the `gguf` Python package, and their own round trips.
#include "tensor/quantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <vector>

namespace elasticmem {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> RandomFloats(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

TEST(DequantizeRow, MatchesGgufPackageBitForBit) {
  std::ifstream file(EM_SOURCE_DIR "/tests/golden/quants.bin", std::ios::binary);
  ASSERT_TRUE(file) << "tests/golden/quants.bin is missing";
  for (const DTypeTraits& traits : kDTypes) {
    std::vector<std::byte> raw(2 * RowBytes(traits.dtype, 256));
    std::vector<float> expected(512), actual(512);
    file.read(reinterpret_cast<char*>(raw.data()), static_cast<std::streamsize>(raw.size()));
    file.read(reinterpret_cast<char*>(expected.data()), 512 * sizeof(float));
    ASSERT_TRUE(file);
    DequantizeRow(traits.dtype, raw.data(), 512, actual.data());
    for (size_t i = 0; i < 512; ++i) ASSERT_EQ(actual[i], expected[i]) << traits.name << " element " << i;
  }
}

TEST(HalfConversion, RoundTripsEveryHalf) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const float value = F16ToF32(static_cast<uint16_t>(h));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(F16ToF32(F32ToF16(value))));
    } else {
      ASSERT_EQ(F32ToF16(value), h) << value;
    }
    const float wide = BF16ToF32(static_cast<uint16_t>(h));
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(BF16ToF32(F32ToBF16(wide))));
    } else {
      ASSERT_EQ(F32ToBF16(wide), h) << wide;
    }
  }
}

TEST(HalfConversion, RoundsToNearestEven) {
  // For each pair of neighbouring halves: their middle goes to the even one, and one float beside it to the nearer.
  for (uint16_t h = 0; h < 0x7bff; ++h) {
    const float middle = 0.5f * (F16ToF32(h) + F16ToF32(h + 1));
    ASSERT_EQ(F32ToF16(middle), h + (h & 1)) << middle;
    ASSERT_EQ(F32ToF16(std::nextafter(middle, 0.f)), h) << middle;
    ASSERT_EQ(F32ToF16(-std::nextafter(middle, kInfinity)), 0x8000 | (h + 1)) << middle;
  }
  EXPECT_EQ(F32ToF16(65519.f), 0x7bff);
  EXPECT_EQ(F32ToF16(65520.f), 0x7c00);
  EXPECT_EQ(F32ToF16(1e-30f), 0);
}

// Q8_0: half a step d/2, plus |q| <= 127 times the rounding of d to float16 (2^-11): d * (0.5 + 127 / 2048).
// Q4_0: half a step as well, but a value at the end opposite to the extreme one is cut from 8 to 7: one whole step.
TEST(QuantizeRow, StaysWithinHalfAStep) {
  const std::vector<float> x = RandomFloats(256, 2);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0}) {
    std::vector<std::byte> row(RowBytes(dtype, x.size()));
    ASSERT_TRUE(QuantizeRow(dtype, x, row.data()).ok());
    std::vector<float> back(x.size());
    DequantizeRow(dtype, row.data(), x.size(), back.data());
    for (size_t i = 0; i < x.size(); ++i) {
      float amax = 0;
      for (size_t j = i / 32 * 32; j < i / 32 * 32 + 32; ++j) amax = std::max(amax, std::fabs(x[j]));
      float bound = 0;
      if (dtype == DType::kF16) bound = std::fabs(x[i]) * 0x1p-11f;
      if (dtype == DType::kBF16) bound = std::fabs(x[i]) * 0x1p-8f;
      if (dtype == DType::kQ8_0) bound = amax / 127 * (0.5f + 127.f / 2048);
      if (dtype == DType::kQ4_0) bound = amax / 8 * (1.f + 8.f / 2048);
      EXPECT_LE(std::fabs(back[i] - x[i]), bound * 1.0001f) << Traits(dtype).name << " element " << i;
    }
  }
}

TEST(QuantizeRow, RefusesTypesItCannotWrite) {
  const std::vector<float> x(256);
  std::vector<std::byte> row(1024);
  const Status status = QuantizeRow(DType::kQ6_K, x, row.data());
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(Message(status)), ::testing::HasSubstr("Q6_K"));
}

TEST(QuantizeRow, NaNAndInfinityComeBackAsNaN) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0}) {
    std::vector<float> x(64, 1.f), back(64);
    x[40] = kNaN;
    std::vector<std::byte> row(RowBytes(dtype, 64));
    ASSERT_TRUE(QuantizeRow(dtype, x, row.data()).ok());
    DequantizeRow(dtype, row.data(), 64, back.data());
    EXPECT_TRUE(std::isnan(back[40])) << Traits(dtype).name;
    EXPECT_NEAR(back[0], 1.f, 1e-3f) << Traits(dtype).name;
    if (!IsQuantized(dtype)) continue;
    x[40] = -kInfinity;
    ASSERT_TRUE(QuantizeRow(dtype, x, row.data()).ok());
    DequantizeRow(dtype, row.data(), 64, back.data());
    EXPECT_TRUE(std::isnan(back[40])) << Traits(dtype).name;
  }
}

std::vector<Q16Group> Prepare(const std::vector<float>& x) {
  std::vector<Q16Group> groups(ActivationRowBytes(ActivationFormat::kQ16, x.size()) / sizeof(Q16Group));
  std::memset(static_cast<void*>(groups.data()), 0x55, groups.size() * sizeof(Q16Group));
  PrepareActivations(ActivationFormat::kQ16, x.data(), x.size(), reinterpret_cast<std::byte*>(groups.data()));
  return groups;
}

int Quantised(const Q16Group& group, size_t block, size_t i) {
  return kQ16Step * group.high[block][i] + group.low[block][i];
}

TEST(PrepareActivations, Q16StaysWithinHalfAStepAndSums) {
  const std::vector<float> x = RandomFloats(32 * 19, 3);
  const std::vector<Q16Group> groups = Prepare(x);
  ASSERT_EQ(groups.size(), 3u);
  for (size_t b = 0; b < 24; ++b) {
    const Q16Group& group = groups[b / 8];
    const size_t j = b % 8;
    int sums[2] = {0, 0};
    for (size_t i = 0; i < 32; ++i) {
      const int q = Quantised(group, j, i);
      sums[i / 16] += q;
      const float value = b < 19 ? x[b * 32 + i] : 0.f;
      EXPECT_LE(std::fabs(group.scale[j] * static_cast<float>(q) - value), group.scale[j] * 0.505f);
      EXPECT_GE(group.high[j][i], -127);
      EXPECT_GE(group.low[j][i], -127);
    }
    EXPECT_EQ(group.sums[0][j], sums[0]);
    EXPECT_EQ(group.sums[1][j], sums[1]);
  }
}

TEST(PrepareActivations, Q16NeverHidesNaNOrInfinity) {
  for (const float bad : {kNaN, -kNaN, kInfinity, -kInfinity}) {
    for (size_t at = 0; at < 64; ++at) {
      std::vector<float> x(96, 1.f);
      x[at] = bad;
      const std::vector<Q16Group> groups = Prepare(x);
      EXPECT_TRUE(std::isnan(groups[0].scale[at / 32]));
      EXPECT_FALSE(std::isnan(groups[0].scale[2]));
    }
  }
}

TEST(PrepareActivations, Q16HandlesZeroTinyAndHugeBlocks) {
  for (const float magnitude : {0.f, 1e-44f, 1e-37f, 1e-34f, 1e-32f, 1e-30f, 1e30f, 3.4e38f}) {
    std::vector<float> x(32, magnitude);
    x[7] = -magnitude;
    const std::vector<Q16Group> groups = Prepare(x);
    for (size_t i = 0; i < 32; ++i) {
      const float value = groups[0].scale[0] * static_cast<float>(Quantised(groups[0], 0, i));
      EXPECT_NEAR(value, x[i], std::max(magnitude * 2e-5f, 1e-33f));
    }
  }
}

}  // namespace
}  // namespace elasticmem
