// The products over scattered rows: the same bits as dense ones, and as any split of columns or of the list.
#include "ffn_ops/sparse_ffn.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "dense_ops/matmul.h"
#include "tests/tensor/kernel_testing.h"

namespace elasticmem {
namespace {

// Every third row and some from the end, out of order: what an active set looks like.
std::vector<const std::byte*> ScatteredRows(const RandomRows& w) {
  std::vector<const std::byte*> rows;
  for (size_t r = 0; r < w.rows; r += 3) rows.push_back(w.Row(r));
  rows.push_back(w.Row(w.rows - 1));
  std::swap(rows[1], rows[rows.size() / 2]);
  return rows;
}

class SparseFfnTest : public testing::TestWithParam<DType> {
 protected:
  bool exact() const {  // instruction sets without fma round the product first
    return std::string(KernelTargetName()) != "SSE4";
  }
};
INSTANTIATE_TEST_SUITE_P(AllTypes, SparseFfnTest, testing::ValuesIn(AllTypes()), TypeName);

TEST_P(SparseFfnTest, GatherDotHasTheBitsOfMatMulRows) {
  ForEachTarget([&] {
    const RandomRows w(GetParam(), 40, 512, 1, 2);
    for (const size_t tokens : {1, 3, 9}) {
      const PreparedRows x(FormatFor(GetParam()), tokens, 512, 2);
      std::vector<float> dense(tokens * w.rows);
      MatMulRows(w.View(), 0, w.rows, x.view, dense.data(), w.rows);
      const std::vector<const std::byte*> rows = ScatteredRows(w);
      std::vector<float> sparse(tokens * rows.size());
      GatherDot(GetParam(), rows, 512, x.view, sparse.data(), rows.size());
      for (size_t t = 0; t < tokens; ++t) {
        for (size_t k = 0; k < rows.size(); ++k) {
          const size_t r = static_cast<size_t>(rows[k] - w.Row(0)) / w.row_bytes;
          ASSERT_EQ(sparse[t * rows.size() + k], dense[t * w.rows + r]) << "row " << r << " token " << t;
        }
      }
    }
  });
}

// With fma each step is one rounding of the same exact value in kernel and reference, so the bits are equal. Without, a
// step rounds twice: n steps err by at most 2 n e sum |c w| plus n e |y|, e = 2^-24.
TEST_P(SparseFfnTest, AccumulateRowsMatchesReference) {
  ForEachTarget([&] {
    for (const size_t count : {1, 2, 3, 4, 5, 23}) {
      const size_t cols = Traits(GetParam()).block_elements == 256 ? 768 : 736;
      const RandomRows w(GetParam(), count, cols, 3, 2);
      const std::vector<const std::byte*> rows = w.Pointers();
      const std::vector<float> c = NormalFloats(count, 4);
      std::vector<float> expected = NormalFloats(cols, 5), actual = expected;
      const float start = MaxNorm(expected);
      AccumulateRowsReference(GetParam(), rows, c.data(), 0, cols, expected.data());
      AccumulateRows(GetParam(), rows, c.data(), 0, cols, actual.data());
      float largest = 0;
      for (size_t r = 0; r < count; ++r) largest = std::max(largest, MaxNorm(w.Values(r)));
      const float n = static_cast<float>(count);
      const float bound = exact() ? 0.f : n * 0x1p-23f * (OneNorm(c.data(), count) * largest + start);
      for (size_t j = 0; j < cols; ++j) ASSERT_NEAR(actual[j], expected[j], bound) << count << " rows, column " << j;
    }
  });
}

TEST_P(SparseFfnTest, AccumulateRowsGivesTheSameBitsForAnySplit) {
  ForEachTarget([&] {
    const size_t cols = 5120, count = 11;  // more columns than one pass takes
    const RandomRows w(GetParam(), count, cols, 6);
    const std::vector<const std::byte*> rows = w.Pointers();
    const std::vector<float> c = NormalFloats(count, 7);
    const std::vector<float> start = NormalFloats(cols, 8);
    std::vector<float> whole = start;
    AccumulateRows(GetParam(), rows, c.data(), 0, cols, whole.data());
    for (const size_t list_split : {1, 3, 6}) {
      for (const size_t column_split : {256, 1792, 4864}) {
        std::vector<float> parts = start;
        for (const auto& [begin, end] : {std::pair<size_t, size_t>{column_split, cols}, {0, column_split}}) {
          const std::span<const std::byte* const> all(rows);
          AccumulateRows(GetParam(), all.first(list_split), c.data(), begin, end, parts.data());
          AccumulateRows(GetParam(), all.subspan(list_split), c.data() + list_split, begin, end, parts.data());
        }
        ASSERT_EQ(parts, whole) << list_split << " rows first, columns cut at " << column_split;
      }
    }
  });
}

TEST_P(SparseFfnTest, AccumulateGroupAddsWhatAccumulateRowsSumsFromZero) {
  ForEachTarget([&] {
    const size_t cols = 2560;
    const RandomRows w(GetParam(), 64, cols, 13);
    const std::vector<const std::byte*> all = w.Pointers();
    const std::vector<float> c = NormalFloats(64, 14), start = NormalFloats(cols, 15);
    for (const size_t count : {1, 3, 8, 64}) {
      const std::span<const std::byte* const> rows = std::span(all).first(count);
      std::vector<float> expected(cols), actual = start;
      AccumulateRows(GetParam(), rows, c.data(), 0, cols, expected.data());
      for (size_t j = 0; j < cols; ++j) expected[j] += start[j];
      for (const auto& [begin, end] : {std::pair<size_t, size_t>{0, 1280}, {1536, cols}, {1280, 1536}}) {
        AccumulateGroup(GetParam(), rows, c.data(), begin, end, actual.data(), std::span(all).last(5));
      }
      ASSERT_EQ(actual, expected) << count << " rows";
    }
  });
}

// Three tokens that share a group: all of it, some of it, one row that only it uses.
TEST_P(SparseFfnTest, AccumulateGroupForTokensHasTheBitsOfAccumulateGroup) {
  ForEachTarget([&] {
    const bool super = Traits(GetParam()).block_elements == 256;
    const size_t cols = super ? 1024 : 1120;
    const RandomRows w(GetParam(), kGroupRows, cols, 16);
    std::vector<std::vector<uint32_t>> neurons(3);
    for (uint32_t n = 128; n < 192; ++n) {
      if (n != 150) neurons[0].push_back(n);
      if (n % 7 == 1 && n != 150) neurons[1].push_back(n);
    }
    neurons[2] = {150};
    std::vector<const std::byte*> rows = w.Pointers(), nothing(kGroupRows, nullptr);
    const std::vector<float> c = NormalFloats(kGroupRows, 17), start = NormalFloats(3 * cols, 18);
    std::vector<float> expected = start, actual = start;
    std::vector<TokenList> lists;
    for (size_t t = 0; t < 3; ++t) {
      std::vector<const std::byte*> own;
      for (const uint32_t n : neurons[t]) own.push_back(w.Row(n % kGroupRows));
      AccumulateGroup(GetParam(), own, c.data() + t, 0, cols, expected.data() + t * cols);
      lists.push_back({neurons[t], c.data() + t, actual.data() + t * cols});
    }
    const std::byte* alone[kGroupRows] = {};
    alone[150 % kGroupRows] = rows[150 % kGroupRows];
    rows[150 % kGroupRows] = nullptr;
    for (const auto& [begin, end] : {std::pair<size_t, size_t>{0, 256}, {512, cols}, {256, 512}}) {
      AccumulateGroupForTokens(GetParam(), rows.data(), std::span(lists).first(2), begin, end, alone);
      AccumulateGroupForTokens(GetParam(), alone, std::span(lists).last(1), begin, end, nothing.data());
    }
    ASSERT_EQ(actual, expected);
  });
}

TEST_P(SparseFfnTest, AccumulateRowsTouchesOnlyItsColumns) {
  ForEachTarget([&] {
    const RandomRows w(GetParam(), 5, 768, 9);
    const std::vector<float> c = NormalFloats(5, 10);
    std::vector<float> y(768, 42.f);
    AccumulateRows(GetParam(), w.Pointers(), c.data(), 256, 512, y.data());
    EXPECT_TRUE(std::all_of(y.begin(), y.begin() + 256, [](float v) { return v == 42.f; }));
    EXPECT_TRUE(std::all_of(y.begin() + 512, y.end(), [](float v) { return v == 42.f; }));
    EXPECT_FALSE(std::any_of(y.begin() + 256, y.begin() + 512, [](float v) { return v == 42.f; }));
  });
}

TEST_P(SparseFfnTest, AccumulateRowsPassesNaNOn) {
  ForEachTarget([&] {
    const RandomRows w(GetParam(), 6, 256, 11);
    std::vector<float> c = NormalFloats(6, 12), y(256, 0.f);
    c[4] = std::numeric_limits<float>::quiet_NaN();
    AccumulateRows(GetParam(), w.Pointers(), c.data(), 0, 256, y.data());
    EXPECT_TRUE(std::all_of(y.begin(), y.end(), [](float v) { return std::isnan(v); }));
  });
}

TEST(AccumulateRows, AcceptsAnEmptyList) {
  std::vector<float> y(64, 1.f);
  AccumulateRows(DType::kF16, {}, nullptr, 0, 64, y.data());
  EXPECT_EQ(y, std::vector<float>(64, 1.f));
}

}  // namespace
}  // namespace elasticmem
