// Activation functions and the compaction of active neurons.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ffn_ops/sparse_ffn.h"
#include "tests/tensor/kernel_testing.h"

namespace elasticmem {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

double Expected(Activation activation, double v) {
  switch (activation) {
    case Activation::kRelu:
    case Activation::kDRelu:
      return v < 0 ? 0 : v;
    case Activation::kRelu2:
      return v < 0 ? 0 : v * v;
    case Activation::kSilu:
      return v / (1 + std::exp(-v));
    case Activation::kGelu:
      return 0.5 * v * std::erfc(-v / std::sqrt(2.0));
    default:
      return v / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
  }
}

const Activation kAll[] = {Activation::kRelu, Activation::kRelu2, Activation::kDRelu,
                           Activation::kSilu, Activation::kGelu,  Activation::kGeluTanh};

// The functions of exp(z) carry z's own rounding into the result: a relative error of a few e * (1 + |z|), e = 2^-24,
// with z = v for SiLU and 1.6 (v + 0.045 v^3), itself some four roundings, for the tanh form. Below 1e-30 only the
// absolute size matters.
TEST(ApplyActivation, IsAccurate) {
  ForEachTarget([] {
    for (const Activation activation : kAll) {
      std::vector<float> x;
      for (float v = -30.f; v <= 30.f; v += 0.0117f) x.push_back(v);
      for (const float v : {0.f, 1e-30f, -1e-30f, 1e-3f, 60.f, -60.f, -100.f, 1e4f, -1e4f}) x.push_back(v);
      std::vector<float> y = x;
      ApplyActivation(activation, y);
      for (size_t i = 0; i < x.size(); ++i) {
        const double v = x[i], expected = Expected(activation, v);
        const double z = activation == Activation::kGeluTanh ? 1.6 * std::fabs(v + 0.045 * v * v * v) : std::fabs(v);
        const double bound = std::fabs(expected) * (4 + 4 * std::min(z, 100.0)) * 0x1p-24 + 1e-30;
        ASSERT_NEAR(y[i], expected, bound) << "activation " << static_cast<int>(activation) << " of " << v;
      }
    }
  });
}

TEST(ApplyActivation, GivesTheSameBitsAtEveryPosition) {
  ForEachTarget([] {
    for (const Activation activation : kAll) {
      for (size_t n = 1; n < 40; ++n) {
        std::vector<float> x(n, -0.7315f), one(1, -0.7315f);
        ApplyActivation(activation, x);
        ApplyActivation(activation, one);
        ASSERT_THAT(x, testing::Each(one[0])) << n;
      }
    }
  });
}

TEST(ApplyActivation, KeepsNaN) {
  ForEachTarget([] {
    for (const Activation activation : kAll) {
      std::vector<float> x(19, kNaN);
      ApplyActivation(activation, x);
      for (const float v : x) ASSERT_TRUE(std::isnan(v)) << static_cast<int>(activation);
    }
  });
}

TEST(CompactNonZero, ListsAndMarksActiveNeuronsInOrder) {
  ForEachTarget([] {
    for (size_t n = 0; n < 150; ++n) {
      std::vector<float> gate = NormalFloats(n, 1);
      std::vector<uint32_t> expected;
      std::vector<uint64_t> expected_marks((n + 63) / 64), marks(expected_marks.size(), ~uint64_t{0});
      for (size_t i = 0; i < n; ++i) {
        if (i % 3 == 0) gate[i] = 0.f;
        if (i % 7 == 1) gate[i] = -0.f;
        if (i % 11 == 5) gate[i] = kNaN;
        if (i % 13 == 2) gate[i] = 1e-44f;
        if (gate[i] == 0.f) continue;
        expected.push_back(1000 + static_cast<uint32_t>(i));
        expected_marks[i / 64] |= uint64_t{1} << i % 64;
      }
      // Room for no more than the list: what follows is not touched.
      std::vector<uint32_t> indices(expected.size() + 1, 7);
      std::vector<float> values(expected.size() + 1, 7.f);
      ASSERT_EQ(CompactNonZero(gate, 1000, indices.data(), values.data()), expected.size()) << n;
      EXPECT_EQ(indices.back(), 7u);
      EXPECT_EQ(values.back(), 7.f);
      indices.pop_back();
      ASSERT_EQ(indices, expected) << n;
      for (size_t k = 0; k < expected.size(); ++k) {
        ASSERT_EQ(std::bit_cast<uint32_t>(values[k]), std::bit_cast<uint32_t>(gate[expected[k] - 1000])) << n;
      }
      MarkNonZero(gate, marks.data());
      ASSERT_EQ(marks, expected_marks) << n;
    }
  });
}

}  // namespace
}  // namespace elasticmem
