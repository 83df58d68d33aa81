// Attention over pages: against the reference, and the same bits whatever else is in the cache.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "dense_ops/transformer_ops.h"
#include "tests/tensor/kernel_testing.h"

namespace elasticmem {
namespace {

constexpr uint32_t kRows = 16;

struct Case {
  KvPageLayout layout;
  uint32_t positions;
  uint32_t group;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const DType type : {DType::kF32, DType::kF16, DType::kQ8_0}) {
    cases.push_back({{type, 16, 2, 64}, 53, 3});
    cases.push_back({{type, 32, 1, 256}, 32, 1});
    cases.push_back({{type, 128, 3, 128}, 300, 4});
  }
  cases.push_back({{DType::kF16, 16, 2, 12}, 37, 2});  // no multiple of a vector
  cases.push_back({{DType::kF32, 16, 1, 21}, 18, 1});
  return cases;
}

// Pages with random K and V written token by token.
struct Cache {
  Cache(const Case& c, uint32_t seed) : layout(c.layout) {
    const size_t elements = size_t{layout.kv_heads} * layout.head_dim;
    const size_t page_count = CeilDiv(c.positions, layout.page_tokens);
    for (size_t p = 0; p < page_count; ++p) storage.emplace_back(layout.page_bytes(), std::byte{0xff});
    for (auto& page : storage) pages.push_back(page.data());
    k = NormalFloats(c.positions * elements, seed);
    v = NormalFloats(c.positions * elements, seed + 1);
    for (uint32_t t = 0; t < c.positions; ++t) {
      WriteKv(layout, storage[t / layout.page_tokens].data(), t % layout.page_tokens, k.data() + t * elements,
              v.data() + t * elements);
    }
    q = NormalFloats(kRows * c.group * layout.head_dim, seed + 2);
  }
  // Row r of q is [group, head_dim] at r times `stride`.
  template <class Function>
  std::vector<float> Run(const Function& attend, const AttendRows& rows, uint32_t head, uint32_t group,
                         size_t stride = 0, size_t first_row = 0) const {
    if (stride == 0) stride = group * layout.head_dim;
    std::vector<float> out((rows.count - 1) * stride + group * layout.head_dim);
    const size_t floats = AttendScratchFloats(layout, rows.count, group);
    const std::unique_ptr<float, decltype(&std::free)> scratch(
        static_cast<float*>(std::aligned_alloc(64, RoundUp<size_t>(floats * sizeof(float), 64))), &std::free);
    attend(layout, pages, rows, head, q.data() + first_row * stride, stride, group, Scale(), scratch.get(), out.data());
    return out;
  }
  template <class Function>
  std::vector<float> Run(const Function& attend, uint32_t begin, uint32_t end, uint32_t head, uint32_t group) const {
    return Run(attend, AttendRows{begin, end}, head, group);
  }
  float Scale() const { return 1.f / std::sqrt(static_cast<float>(layout.head_dim)); }

  KvPageLayout layout;
  std::vector<std::vector<std::byte>> storage;
  std::vector<const std::byte*> pages;
  std::vector<float> k, v, q;
};

// A score errs by d/4 roundings over sum |q k| scale <= |q| |k| scale (both about sqrt(d)): delta <= (d/4 + 4) e
// sqrt(d), e = 2^-24, with |q||k| up to 2d for the longest of some hundred. Weights then err by 2 delta relatively,
// sums over n positions by n e more; the output is a mean of values of at most max|v|. Factor 2 where there is no fma.
TEST(Attend, StaysWithinRoundingOfReference) {
  ForEachTarget([] {
    for (const Case& c : Cases()) {
      const Cache cache(c, 11);
      const double d = c.layout.head_dim;
      const double delta = (d / 4 + 4) * 0x1p-24 * 2 * std::sqrt(d);
      const double bound = 2 * (2 * delta + (c.positions + 8) * 0x1p-24) * MaxNorm(cache.v);
      for (uint32_t head = 0; head < c.layout.kv_heads; ++head) {
        for (const auto& [begin, end] : {std::pair<uint32_t, uint32_t>{0, c.positions}, {0, 1}, {5, c.positions - 1}}) {
          const std::vector<float> actual = cache.Run(Attend, begin, end, head, c.group);
          const std::vector<float> expected = cache.Run(AttendReference, begin, end, head, c.group);
          for (size_t i = 0; i < actual.size(); ++i) {
            ASSERT_NEAR(actual[i], expected[i], bound) << Traits(c.layout.type).name << " dim " << d << " positions "
                                                       << begin << ".." << end << " element " << i;
          }
        }
      }
    }
  });
}

TEST(Attend, ReadsBackWhatWriteKvStored) {
  const Case c{{DType::kF32, 16, 2, 8}, 20, 1};
  const Cache cache(c, 21);
  for (const uint32_t position : {0u, 15u, 16u, 19u}) {
    const std::vector<float> out = cache.Run(Attend, position, position + 1, 1, 1);
    for (size_t i = 0; i < 8; ++i) EXPECT_EQ(out[i], cache.v[position * 16 + 8 + i]);
  }
}

TEST(Attend, GivesAQueryTheSameBitsInAnyGroup) {
  ForEachTarget([] {
    for (const Case& c : Cases()) {
      const Cache cache(c, 31);
      const std::vector<float> all = cache.Run(Attend, 0, c.positions, 0, c.group);
      const std::vector<float> first = cache.Run(Attend, 0, c.positions, 0, 1);
      ASSERT_EQ(std::memcmp(all.data(), first.data(), c.layout.head_dim * sizeof(float)), 0);
    }
  });
}

TEST(Attend, GivesARowTheSameBitsAloneAndAmongOthers) {
  ForEachTarget([] {
    for (const Case& c : Cases()) {
      const Cache cache(c, 35);
      const size_t stride = c.group * c.layout.head_dim;
      for (const uint32_t window : {0u, 7u, 33u}) {
        for (const uint32_t count : {2u, 5u, kRows}) {
          const AttendRows rows{0, c.positions - count + 1, count, window};
          const std::vector<float> all = cache.Run(Attend, rows, 0, c.group);
          for (uint32_t r = 0; r < count; ++r) {
            const AttendRows own{rows.begin(r), rows.end(r)};
            ASSERT_EQ(own.end(0) - own.begin(0), std::min(rows.end(r), window > 0 ? window : rows.end(r)));
            const std::vector<float> alone = cache.Run(Attend, own, 0, c.group, stride, r);
            ASSERT_EQ(std::memcmp(alone.data(), all.data() + r * stride, stride * sizeof(float)), 0)
                << "row " << r << " of " << count << ", window " << window;
          }
        }
      }
    }
  });
}

TEST(Attend, IgnoresWhatLiesOutsideItsRange) {
  ForEachTarget([] {
    for (const Case& c : Cases()) {
      Cache cache(c, 41);
      const uint32_t begin = 3, end = c.positions - 2;
      const std::vector<float> before = cache.Run(Attend, begin, end, 0, c.group);
      const std::vector<float> poison(c.layout.kv_heads * c.layout.head_dim, std::numeric_limits<float>::quiet_NaN());
      for (const uint32_t t : {0u, 2u, end, end + 1}) {
        WriteKv(c.layout, cache.storage[t / c.layout.page_tokens].data(), t % c.layout.page_tokens, poison.data(),
                poison.data());
      }
      ASSERT_EQ(cache.Run(Attend, begin, end, 0, c.group), before);
    }
  });
}

TEST(Attend, NaNInKOrVReachesTheOutput) {
  ForEachTarget([] {
    for (const Case& c : Cases()) {
      for (const bool in_value : {false, true}) {
        Cache cache(c, 51);
        const size_t elements = size_t{c.layout.kv_heads} * c.layout.head_dim;
        std::vector<float> k(elements, 0.1f), v(elements, 0.1f);
        (in_value ? v : k).assign(elements, std::numeric_limits<float>::quiet_NaN());
        WriteKv(c.layout, cache.storage[0].data(), 9, k.data(), v.data());
        for (const float f : cache.Run(Attend, 0, c.positions, 0, c.group)) ASSERT_TRUE(std::isnan(f));
      }
    }
  });
}

TEST(Attend, SurvivesScoresFarApart) {
  ForEachTarget([] {
    const Case c{{DType::kF32, 16, 1, 8}, 48, 1};
    Cache cache(c, 61);
    std::vector<float> q(8, 1.f);
    cache.q = q;
    // Scores of -3000, 0 and 3000 on three pages: only the last page's token counts.
    for (const auto& [position, value] : {std::pair<uint32_t, float>{2, -1000.f}, {20, 0.f}, {40, 1000.f}}) {
      const std::vector<float> k(8, value), v(8, value);
      WriteKv(c.layout, cache.storage[position / 16].data(), position % 16, k.data(), v.data());
    }
    for (const float f : cache.Run(Attend, 0, 48, 0, 1)) ASSERT_EQ(f, 1000.f);
  });
}

}  // namespace
}  // namespace elasticmem
