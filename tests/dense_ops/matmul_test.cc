// Dense products: rows and tokens land where they belong, for any range. The sums themselves are tested in
// tests/tensor.
#include "dense_ops/matmul.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/tensor/kernel_testing.h"

namespace elasticmem {
namespace {

class MatMulTest : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(AllTypes, MatMulTest, testing::ValuesIn(AllTypes()), TypeName);

TEST_P(MatMulTest, WritesExactlyItsRangeOfEachToken) {
  ForEachTarget([&] {
    const size_t rows = 150, cols = 256, stride = 160;
    const RandomRows w(GetParam(), rows, cols, 1, 2);
    for (const size_t tokens : {1, 5}) {
      const PreparedRows x(FormatFor(GetParam()), tokens, cols, 2);
      std::vector<float> whole(tokens * stride, 42.f), expected(tokens * stride, 42.f);
      MatMulRows(w.View(), 0, rows, x.view, whole.data(), stride);
      MatMulRowsReference(w.View(), 0, rows, x.view, expected.data(), stride);
      for (size_t t = 0; t < tokens; ++t) {
        for (size_t r = 0; r < stride; ++r) {
          // See dot_test.cc for the bound; here it is enough that no other row or token would pass.
          const float size = r < rows ? MaxNorm(w.Values(r)) * OneNorm(x.x.data() + t * cols, cols) : 0.f;
          ASSERT_NEAR(whole[t * stride + r], expected[t * stride + r], 1e-5f * size) << "row " << r << " token " << t;
        }
      }
      for (const auto& [begin, end] : std::vector<std::pair<size_t, size_t>>{{0, 64}, {3, 4}, {61, 150}, {7, 7}}) {
        std::vector<float> part(tokens * stride, 42.f);
        MatMulRows(w.View(), begin, end, x.view, part.data(), stride);
        for (size_t t = 0; t < tokens; ++t) {
          for (size_t r = 0; r < stride; ++r) {
            const bool inside = r >= begin && r < end;
            ASSERT_EQ(part[t * stride + r], inside ? whole[t * stride + r] : 42.f) << begin << ".." << end << " " << r;
          }
        }
      }
    }
  });
}

TEST_P(MatMulTest, FollowsRowStride) {
  const size_t cols = 256;
  const RandomRows w(GetParam(), 12, cols, 3);
  const PreparedRows x(FormatFor(GetParam()), 1, cols, 4);
  WeightRows every_other = w.View();
  every_other.rows = 6;
  every_other.row_bytes *= 2;
  std::vector<float> all(12), half(6);
  MatMulRows(w.View(), 0, 12, x.view, all.data(), 12);
  MatMulRows(every_other, 0, 6, x.view, half.data(), 6);
  for (size_t r = 0; r < 6; ++r) EXPECT_EQ(half[r], all[2 * r]);
}

}  // namespace
}  // namespace elasticmem
