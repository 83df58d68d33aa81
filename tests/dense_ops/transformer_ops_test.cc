// Norms and rotary embedding against their formulas.
#include "dense_ops/transformer_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/tensor/kernel_testing.h"

namespace elasticmem {
namespace {

// Sums are in double; what is left are three float roundings of the result.
TEST(RmsNorm, DividesByTheRootMeanSquare) {
  for (const size_t n : {1, 3, 64, 2047}) {
    const std::vector<float> x = NormalFloats(n, 1), weight = NormalFloats(n, 2);
    std::vector<float> out(n);
    RmsNorm(x, weight.data(), 1e-5f, out.data());
    double sum = 0;
    for (const float v : x) sum += static_cast<double>(v) * v;
    for (size_t i = 0; i < n; ++i) {
      const double expected = x[i] / std::sqrt(sum / static_cast<double>(n) + 1e-5f) * weight[i];
      ASSERT_NEAR(out[i], expected, std::fabs(expected) * 3 * 0x1p-24);
    }
    std::vector<float> in_place = x;
    RmsNorm(in_place, weight.data(), 1e-5f, in_place.data());
    EXPECT_EQ(in_place, out);
  }
}

TEST(LayerNorm, CentresAndScales) {
  const size_t n = 100;
  std::vector<float> x = NormalFloats(n, 3);
  for (float& v : x) v += 50.f;  // a mean far from zero must not cost precision
  const std::vector<float> weight = NormalFloats(n, 4), bias = NormalFloats(n, 5);
  std::vector<float> out(n), without_bias(n);
  LayerNorm(x, weight.data(), bias.data(), 1e-5f, out.data());
  LayerNorm(x, weight.data(), nullptr, 1e-5f, without_bias.data());
  double mean = 0, variance = 0;
  for (const float v : x) mean += v / static_cast<double>(n);
  for (const float v : x) variance += (v - mean) * (v - mean) / static_cast<double>(n);
  for (size_t i = 0; i < n; ++i) {
    const double expected = (x[i] - mean) / std::sqrt(variance + 1e-5f) * weight[i];
    // Rounding the mean (50) to float moves x - mean by up to 50 e; the rest are a few e of the result.
    const double bound = (50 * std::fabs(weight[i]) + 4 * std::fabs(expected) + 2 * std::fabs(bias[i])) * 0x1p-23;
    ASSERT_NEAR(without_bias[i], expected, bound);
    ASSERT_NEAR(out[i], expected + bias[i], bound);
  }
}

TEST(Norms, PassNaNOn) {
  std::vector<float> x = NormalFloats(32, 6), weight(32, 1.f), out(32);
  x[5] = std::numeric_limits<float>::quiet_NaN();
  RmsNorm(x, weight.data(), 1e-5f, out.data());
  EXPECT_TRUE(std::isnan(out[0]));
  LayerNorm(x, weight.data(), nullptr, 1e-5f, out.data());
  EXPECT_TRUE(std::isnan(out[0]));
}

TEST(RopeAngles, StayAccurateAtHighPositions) {
  const std::vector<float> frequencies = {1.f, 0.1f, 0.0123f};
  std::vector<float> cos_sin(6);
  RopeAngles(131071, frequencies, cos_sin.data());
  for (size_t i = 0; i < 3; ++i) {
    const double angle = 131071.0 * static_cast<double>(frequencies[i]);
    EXPECT_NEAR(cos_sin[2 * i], std::cos(angle), 1e-7);
    EXPECT_NEAR(cos_sin[2 * i + 1], std::sin(angle), 1e-7);
  }
}

TEST(ApplyRope, RotatesAdjacentPairsOrHalves) {
  const size_t heads = 2, dim = 10, pairs = 4;  // two elements a head are left alone
  std::vector<float> cos_sin(2 * pairs);
  const std::vector<float> frequencies = {1.f, 0.5f, 0.25f, 0.125f};
  RopeAngles(7, frequencies, cos_sin.data());
  const std::vector<float> x = NormalFloats(heads * dim, 7);
  for (const RopeKind kind : {RopeKind::kAdjacent, RopeKind::kHalves}) {
    std::vector<float> y = x;
    ApplyRope(kind, cos_sin.data(), pairs, heads, dim, y.data());
    for (size_t h = 0; h < heads; ++h) {
      for (size_t i = 0; i < pairs; ++i) {
        const size_t a = h * dim + (kind == RopeKind::kAdjacent ? 2 * i : i);
        const size_t b = a + (kind == RopeKind::kAdjacent ? 1 : pairs);
        EXPECT_NEAR(y[a], x[a] * cos_sin[2 * i] - x[b] * cos_sin[2 * i + 1], 1e-6f);
        EXPECT_NEAR(y[b], x[a] * cos_sin[2 * i + 1] + x[b] * cos_sin[2 * i], 1e-6f);
      }
      EXPECT_EQ(y[h * dim + 8], x[h * dim + 8]);
      EXPECT_EQ(y[h * dim + 9], x[h * dim + 9]);
    }
  }
  std::vector<float> y = x;
  ApplyRope(RopeKind::kNone, cos_sin.data(), pairs, heads, dim, y.data());
  EXPECT_EQ(y, x);
}

}  // namespace
}  // namespace elasticmem
