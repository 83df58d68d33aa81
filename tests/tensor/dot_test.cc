// Dot products of every type on every instruction set: close to the reference, and the same bits in every batch and
// split.
#include "tensor/dot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include "tensor/interleave.h"
#include "tests/tensor/kernel_testing.h"

namespace elasticmem {
namespace {

std::vector<float> Dots(const RandomRows& w, const ActivationRows& x, size_t first = 0, size_t count = SIZE_MAX) {
  std::vector<const std::byte*> rows = w.Pointers();
  count = std::min(count, rows.size() - first);
  std::vector<float> out(x.tokens * count, std::numeric_limits<float>::quiet_NaN());
  DotRows(w.dtype, {rows.data() + first, count}, w.cols, x, out.data(), count);
  return out;
}

bool SameBits(float a, float b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

class DotTest : public testing::TestWithParam<DType> {
 protected:
  // Column counts that leave every kind of tail: for blocks, groups of 8 blocks, vectors and panels.
  std::vector<size_t> Columns() const {
    switch (Traits(GetParam()).block_elements) {
      case 1:
        return {1, 7, 8, 31, 64, 100, 512, 545, 2048, 2049};
      case 32:
        return {32, 64, 96, 224, 256, 288, 2048, 2048 + 160};
      default:
        return {256, 512, 2048, 2304};
    }
  }
};
INSTANTIATE_TEST_SUITE_P(AllTypes, DotTest, testing::ValuesIn(AllTypes()), TypeName);

#if HWY_ARCH_ARM_A64
// ARM's instructions for int8 products make the integers of the sums, and nothing else.
TEST_P(DotTest, HasTheSameBitsWithAndWithoutInt8Instructions) {
  if (Int8UnitsHere() == Int8Units::kNone) GTEST_SKIP() << "this CPU has none";
  for (const size_t cols : Columns()) {
    const RandomRows w(GetParam(), 13, cols, 21);
    for (const size_t tokens : {1, 4, 37}) {
      const PreparedRows x(FormatFor(GetParam()), tokens, cols, 22);
      LimitInt8UnitsForTest(Int8Units::kNone);
      const std::vector<float> without = Dots(w, x.view);
      for (const Int8Units units : {Int8Units::kDot, Int8Units::kMatrix}) {
        LimitInt8UnitsForTest(units);
        const std::vector<float> with = Dots(w, x.view);
        for (size_t i = 0; i < with.size(); ++i) ASSERT_TRUE(SameBits(with[i], without[i])) << cols << " " << tokens;
      }
    }
  }
}
#endif

// The sums are chains of roundings of relative size e = 2^-24 (2e where there is no fma), at least 4 lanes wide, and a
// block of 32 counts as one term (its sum of integers is exact). A chain of n roundings over terms that add up to S in
// magnitude errs by at most n * e * S. Float types: n = K/4 + 8, S = sum |w x|, bounded by max|w| * |x|_1. Quantised:
// n = K/32/4 + 8, and the terms are those of scale and minimum apart: |s u| <= |w| + |m| and |m| <= max|w| (some u is
// 0), so S <= 3 max|w| |x|_1. A fifth of n more covers the reference's float weights. With VNNI or AMX there is one
// lane, to which a block adds 1, 2 or 4 terms (halves, minimums): n = 4 K/32 + 8.
TEST_P(DotTest, StaysWithinRoundingOfReference) {
  ForEachTarget([&] {
    for (const size_t cols : Columns()) {
      const RandomRows w(GetParam(), 13, cols, static_cast<uint32_t>(cols));
      for (const size_t tokens : {1, 2, 5, 37}) {
        const PreparedRows x(FormatFor(GetParam()), tokens, cols, 9);
        const std::vector<float> actual = Dots(w, x.view);
        std::vector<float> expected(actual.size());
        const std::vector<const std::byte*> rows = w.Pointers();
        DotRowsReference(GetParam(), rows, cols, x.view, expected.data(), w.rows);
        const double terms = IsQuantized(GetParam()) ? 3.0 : 1.0;
        const bool one_lane = std::string_view(SimdTargetName()).find('+') != std::string_view::npos;
        const double terms_a_lane = IsQuantized(GetParam()) ? (one_lane ? 1.0 / 8 : 1.0 / 128) : 1.0 / 4;
        const double chain = static_cast<double>(cols) * terms_a_lane + 8;
        for (size_t t = 0; t < tokens; ++t) {
          for (size_t r = 0; r < w.rows; ++r) {
            const double size = terms * MaxNorm(w.Values(r)) * OneNorm(x.x.data() + t * cols, cols);
            const double bound = 1.2 * chain * 0x1p-23 * size;
            ASSERT_NEAR(actual[t * w.rows + r], expected[t * w.rows + r], bound)
                << cols << " columns, token " << t << " of " << tokens << ", row " << r;
          }
        }
      }
    }
  });
}

TEST_P(DotTest, GivesABatchTheBitsOfEachTokenAlone) {
  ForEachTarget([&] {
    for (const size_t cols : Columns()) {
      const RandomRows w(GetParam(), 11, cols, 1);
      for (const size_t tokens : {2, 3, 4, 8, 32, 33, 50, 97}) {
        const PreparedRows x(FormatFor(GetParam()), tokens, cols, 2);
        const std::vector<float> batch = Dots(w, x.view);
        for (size_t t = 0; t < tokens; ++t) {
          const std::vector<float> alone = Dots(w, x.Token(t));
          for (size_t r = 0; r < w.rows; ++r) {
            ASSERT_TRUE(SameBits(batch[t * w.rows + r], alone[r]))
                << cols << " columns, token " << t << " of " << tokens << ", row " << r << ": " << batch[t * w.rows + r]
                << " against " << alone[r];
          }
        }
      }
    }
  });
}

TEST_P(DotTest, GivesTheSameBitsForAnyRangeOfRows) {
  ForEachTarget([&] {
    const size_t cols = Columns().back();
    const RandomRows w(GetParam(), 21, cols, 3);
    for (const size_t tokens : {1, 6}) {
      const PreparedRows x(FormatFor(GetParam()), tokens, cols, 4);
      const std::vector<float> all = Dots(w, x.view);
      for (const auto& [first, count] :
           std::vector<std::pair<size_t, size_t>>{{0, 1}, {1, 3}, {5, 16}, {3, 9}, {20, 1}}) {
        const std::vector<float> part = Dots(w, x.view, first, count);
        for (size_t t = 0; t < tokens; ++t) {
          for (size_t r = 0; r < count; ++r) {
            ASSERT_TRUE(SameBits(part[t * count + r], all[t * w.rows + first + r])) << first << " + " << r;
          }
        }
      }
    }
  });
}

TEST_P(DotTest, GivesTheSameBitsAtAnyAddress) {
  ForEachTarget([&] {
    const size_t cols = Columns()[Columns().size() - 2];
    for (const size_t tokens : {1, 6}) {
      const PreparedRows x(FormatFor(GetParam()), tokens, cols, 5);
      const RandomRows aligned(GetParam(), 9, cols, 6, 0);
      const std::vector<float> expected = Dots(aligned, x.view);
      for (const size_t misalignment : {2, 6, 14, 33, 62}) {
        if (!IsQuantized(GetParam()) && misalignment % 2 != 0) continue;
        const RandomRows moved(GetParam(), 9, cols, 6, misalignment);
        const std::vector<float> actual = Dots(moved, x.view);
        for (size_t i = 0; i < actual.size(); ++i) ASSERT_TRUE(SameBits(actual[i], expected[i])) << misalignment;
      }
    }
  });
}

TEST_P(DotTest, InterleavedRowsGiveTheSameBits) {
  ForEachTarget([&] {
    if (!WantsInterleavedRows(GetParam())) return;
    for (const size_t cols : Columns()) {
      const RandomRows w(GetParam(), 48, cols, 12);
      std::vector<std::byte> tiles(48 * w.row_bytes);
      for (size_t r = 0; r < 48; r += kInterleavedRows) {
        InterleaveRows(GetParam(), w.Row(r), w.row_bytes, cols, tiles.data() + r * w.row_bytes);
      }
      for (const size_t tokens : {1, 3, 4, 17, 70}) {
        const PreparedRows x(FormatFor(GetParam()), tokens, cols, 13);
        const std::vector<float> expected = Dots(w, x.view);
        std::vector<float> out(tokens * 48);
        DotInterleavedRows(GetParam(), tiles.data(), 48, cols, x.view, out.data(), 48);
        for (size_t i = 0; i < out.size(); ++i) {
          ASSERT_TRUE(SameBits(out[i], expected[i])) << cols << " columns, token " << i / 48 << ", row " << i % 48;
        }
      }
    }
  });
}

TEST_P(DotTest, InterleavedRowsComeBackAsTheyWere) {
  if (!IsQuantized(GetParam())) return;
  const size_t cols = Columns().back();
  const RandomRows w(GetParam(), kInterleavedRows, cols, 14);
  std::vector<std::byte> tile(w.bytes.size()), row(w.row_bytes);
  InterleaveRows(GetParam(), w.Row(0), w.row_bytes, cols, tile.data());
  EXPECT_NE(std::memcmp(tile.data(), w.Row(0), tile.size()), 0);
  for (size_t r = 0; r < kInterleavedRows; ++r) {
    DeinterleaveRow(GetParam(), tile.data(), r, cols, row.data());
    EXPECT_EQ(std::memcmp(row.data(), w.Row(r), row.size()), 0) << r;
  }
}

TEST_P(DotTest, NaNInOneRowOrTokenSpoilsThatOutputOnly) {
  ForEachTarget([&] {
    const size_t cols = Columns().back();
    for (const size_t tokens : {1, 2, 7}) {
      RandomRows w(GetParam(), 10, cols, 7);
      const size_t last_block = w.row_bytes - Traits(GetParam()).block_bytes;
      std::byte* row = w.bytes.data() + 4 * w.row_bytes + last_block;
      const float nan = std::numeric_limits<float>::quiet_NaN();
      const uint16_t half_nan = 0x7e00;
      if (IsQuantized(GetParam())) {
        std::memcpy(row + ScaleOffsets(GetParam()).first, &half_nan, 2);
      } else {
        ASSERT_TRUE(QuantizeRow(GetParam(), {&nan, 1}, row).ok());
      }
      PreparedRows x(FormatFor(GetParam()), tokens, cols, 8);
      if (tokens > 1) x.x[(tokens - 1) * cols + cols / 2] = nan;
      x.Prepare();
      const std::vector<float> out = Dots(w, x.view);
      for (size_t t = 0; t < tokens; ++t) {
        for (size_t r = 0; r < w.rows; ++r) {
          const bool spoiled = r == 4 || (tokens > 1 && t == tokens - 1);
          ASSERT_EQ(std::isnan(out[t * w.rows + r]), spoiled) << "token " << t << " row " << r;
        }
      }
    }
  });
}

TEST(DotHalf, TakesEveryFiniteHalfAndInfinity) {
  ForEachTarget([] {
    for (uint32_t h = 0; h < 65536; ++h) {
      std::vector<uint16_t> row(16, 0);
      row[h % 16] = static_cast<uint16_t>(h);
      std::vector<float> x(16, 1.f);
      const auto* address = reinterpret_cast<const std::byte*>(row.data());
      float out = 0;
      DotRows(DType::kF16, {&address, 1}, 16,
              {ActivationFormat::kF32, reinterpret_cast<const std::byte*>(x.data()), 1, 64}, &out, 1);
      const float expected = F16ToF32(static_cast<uint16_t>(h));
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(out)) << h;
      } else {
        ASSERT_EQ(out, expected) << h;
      }
    }
  });
}

}  // namespace
}  // namespace elasticmem
