// Attention over paged KV by a running softmax: tile by tile, each with its own maximum, merged into what came before.
// A tile's K and V become floats once for all rows and heads of a call; what is done for each query does not depend on
// the others.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "dense_ops/transformer_ops.h"
#include "tensor/quantize.h"
#include "tensor/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dense_ops/attention.cc"
#include <hwy/foreach_target.h>
// after foreach_target
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "tensor/float_dot-inl.h"
#include "tensor/quants-inl.h"

HWY_BEFORE_NAMESPACE();
namespace elasticmem {
namespace HWY_NAMESPACE {
#if EM_SIMD

// `dim` elements of one head as floats, zeros behind them up to `padded`.
HWY_INLINE void HeadToFloats(DType type, const std::byte* head, size_t dim, size_t padded, float* to) {
  const auto* p = reinterpret_cast<const uint8_t*>(head);
  if (type == DType::kQ8_0) {
    const hn::Rebind<int8_t, DF> d8;
    for (size_t i = 0; i < dim; i += 32, p += 34) {
      const VF scale = OneHalf(p);
      for (size_t j = 0; j < 32; j += kLanes) {
        const auto q = hn::LoadU(d8, reinterpret_cast<const int8_t*>(p) + 2 + j);
        hn::StoreU(hn::Mul(scale, hn::ConvertTo(DF(), hn::PromoteTo(DI32(), q))), DF(), to + i + j);
      }
    }
    return;
  }
  const size_t whole = dim / kWide * kWide;
  const auto convert = [&]<DType kType>(std::integral_constant<DType, kType>) HWY_ATTR {
    constexpr size_t kBytes = Traits(kType).block_bytes;
    for (size_t i = 0; i < whole; i += kWide) hn::Store(LoadWeights<kType>(p + i * kBytes), DW(), to + i);
    if (whole == padded) return;
    std::fill(to + whole, to + padded, 0.f);
    if (whole < dim) hn::Store(LoadWeightsTail<kType>(p + whole * kBytes, dim - whole), DW(), to + whole);
  };
  if (type == DType::kF32) convert(std::integral_constant<DType, DType::kF32>());
  if (type == DType::kF16) convert(std::integral_constant<DType, DType::kF16>());
}

// Lane i is the sum of the lanes of vectors[i], neighbours first.
HWY_INLINE VW SumEach(VW (&vectors)[kWide]) {
  const DW d;
  HWY_UNROLL(4)
  for (size_t n = kWide; n > 1; n /= 2) {
    HWY_UNROLL(8)
    for (size_t i = 0; i < n / 2; ++i) {
      const VW lower = vectors[2 * i], upper = vectors[2 * i + 1];
      vectors[i] = hn::Add(hn::ConcatEven(d, upper, lower), hn::ConcatOdd(d, upper, lower));
    }
  }
  return vectors[0];
}

// A query head of one row and its running softmax: sum [padded] of weighted values, relative to exp(peak).
struct Query {
  const float* q;        // [padded]
  float* sum;            // [padded]
  float* scores;         // [kAttentionTile]; of the tile that is worked on
  float* state;          // peak, sum of weights, and what the sums shrink by with this tile
  uint32_t first, last;  // positions of the tile that it sees
};

// scores = q . K * scale, -inf where it does not look.
HWY_INLINE void Score(const Query& query, const float* k, size_t padded, float scale) {
  const DW d;
  for (size_t p = 0; p < kAttentionTile; p += kWide) {
    VW dots[kWide];
    HWY_UNROLL(16)
    for (size_t i = 0; i < kWide; ++i) dots[i] = hn::Zero(d);
    for (size_t j = 0; j < padded; j += kWide) {
      const VW x = hn::Load(d, query.q + j);
      HWY_UNROLL(16)
      for (size_t i = 0; i < kWide; ++i) dots[i] = hn::MulAdd(hn::Load(d, k + (p + i) * padded + j), x, dots[i]);
    }
    const VW scores = hn::Mul(SumEach(dots), hn::Set(d, scale));
    const VW lane = hn::Iota(d, static_cast<float>(p));
    const auto seen = hn::And(hn::Ge(lane, hn::Set(d, static_cast<float>(query.first))),
                              hn::Lt(lane, hn::Set(d, static_cast<float>(query.last))));
    hn::Store(hn::IfThenElse(seen, scores, hn::Set(d, -std::numeric_limits<float>::infinity())), d, query.scores + p);
  }
}

// scores = exp(scores - peak), NaN kept, after the peak has risen to theirs.
HWY_INLINE void Softmax(const Query& query) {
  const DW d;
  VW most = hn::Set(d, query.state[0]);
  for (size_t p = 0; p < kAttentionTile; p += kWide) most = hn::Max(most, hn::Load(d, query.scores + p));
  const VW peak = hn::MaxOfLanes(d, most);
  const auto exp = [&](VW v) HWY_ATTR {
    const VW shifted = hn::Sub(v, peak);
    return hn::IfThenElse(hn::IsNaN(shifted), shifted, hn::Exp(d, shifted));
  };
  VW total = hn::Zero(d);
  for (size_t p = 0; p < kAttentionTile; p += kWide) {
    const VW weights = exp(hn::Load(d, query.scores + p));
    hn::Store(weights, d, query.scores + p);
    total = hn::Add(total, weights);
  }
  const float shrink = hn::GetLane(exp(hn::Set(d, query.state[0])));  // 0 for the first tile
  query.state[0] = hn::GetLane(peak);
  query.state[1] = query.state[1] * shrink + SumLanes(d, total);
  query.state[2] = shrink;
}

// sum = sum * shrink + scores . V, for kQueries that see the same positions.
template <size_t kQueries, size_t kVectors>
HWY_INLINE void AddValueColumns(const Query* queries, const float* v, size_t padded, size_t begin) {
  const DW d;
  VW sum[kQueries][kVectors];
  HWY_UNROLL(2)
  for (size_t i = 0; i < kQueries; ++i) {
    HWY_UNROLL(4)
    for (size_t j = 0; j < kVectors; ++j) {
      sum[i][j] = hn::Mul(hn::Load(d, queries[i].sum + begin + j * kWide), hn::Set(d, queries[i].state[2]));
    }
  }
  for (uint32_t p = queries[0].first; p < queries[0].last; ++p) {
    VW value[kVectors];
    HWY_UNROLL(4)
    for (size_t j = 0; j < kVectors; ++j) value[j] = hn::Load(d, v + p * padded + begin + j * kWide);
    HWY_UNROLL(2)
    for (size_t i = 0; i < kQueries; ++i) {
      const VW weight = hn::Set(d, queries[i].scores[p]);
      HWY_UNROLL(4)
      for (size_t j = 0; j < kVectors; ++j) sum[i][j] = hn::MulAdd(weight, value[j], sum[i][j]);
    }
  }
  HWY_UNROLL(2)
  for (size_t i = 0; i < kQueries; ++i) {
    HWY_UNROLL(4)
    for (size_t j = 0; j < kVectors; ++j) hn::Store(sum[i][j], d, queries[i].sum + begin + j * kWide);
  }
}

template <size_t kQueries>
HWY_INLINE void AddValues(const Query* queries, const float* v, size_t padded) {
  size_t begin = 0;
  for (; begin + 4 * kWide <= padded; begin += 4 * kWide) AddValueColumns<kQueries, 4>(queries, v, padded, begin);
  for (; begin < padded; begin += kWide) AddValueColumns<kQueries, 1>(queries, v, padded, begin);
}

HWY_INLINE void PrefetchHead(const std::byte* head, size_t bytes) {
  PrefetchBytes(reinterpret_cast<const uint8_t*>(head), bytes);
}

// K and V of the tile's tokens [first, last) as floats [kAttentionTile, padded]; other rows of K are zeros. The heads
// of successive tokens lie too far apart for the hardware to follow, so those of the tile at `next` are fetched
// meanwhile.
HWY_INLINE void LoadTile(const KvPageLayout& layout, const std::byte* head, const std::byte* next, uint32_t first,
                         uint32_t last, size_t padded, float* k, float* v) {
  const size_t token_bytes = layout.token_bytes();
  for (uint32_t t = 0; t < kAttentionTile; ++t) {
    if (t < first || t >= last) {
      std::memset(k + t * padded, 0, padded * sizeof(float));
      continue;
    }
    HeadToFloats(layout.type, head + t * token_bytes, layout.head_dim, padded, k + t * padded);
    HeadToFloats(layout.type, head + t * token_bytes + token_bytes / 2, layout.head_dim, padded, v + t * padded);
    if (!next) continue;
    PrefetchHead(next + t * token_bytes, layout.head_bytes());
    PrefetchHead(next + t * token_bytes + token_bytes / 2, layout.head_bytes());
  }
}

#endif  // EM_SIMD

void AttendHere(const KvPageLayout& layout, std::span<const std::byte* const> pages, const AttendRows& rows,
                uint32_t kv_head, const float* q, size_t stride, uint32_t group, float scale, float* scratch,
                float* out) {
#if EM_SIMD
  const size_t dim = layout.head_dim, padded = RoundUp<size_t>(dim, kAttentionPadding);
  static_assert(kAttentionPadding % kWide == 0 && kAttentionTile % kWide == 0);
  const size_t count = size_t{rows.count} * group;
  float* k = scratch;
  float* v = k + kAttentionTile * padded;
  float* own = v + kAttentionTile * padded;  // of the queries: q, sum, scores, state
  const size_t own_floats = 2 * padded + kAttentionTile + kAttentionPadding;
  Query queries[2];
  const auto query = [&](size_t i) {
    float* at = own + i * own_floats;
    return Query{at, at + padded, at + 2 * padded, at + 2 * padded + kAttentionTile, 0, 0};
  };
  for (size_t i = 0; i < count; ++i) {
    float* at = own + i * own_floats;
    std::fill(at, at + own_floats, 0.f);
    std::copy_n(q + i / group * stride + i % group * dim, dim, at);
    query(i).state[0] = -std::numeric_limits<float>::infinity();
  }
  // Where the head lies for the token at `position`, a tile's first.
  const auto head_at = [&](uint32_t position) {
    return pages[position / layout.page_tokens] + kv_head * layout.head_bytes() +
           position % layout.page_tokens * layout.token_bytes();
  };
  const uint32_t begin = rows.begin(0), end = rows.end(rows.count - 1);
  for (uint32_t tile = begin / kAttentionTile * kAttentionTile; tile < end; tile += kAttentionTile) {
    const uint32_t next = tile + kAttentionTile;
    LoadTile(layout, head_at(tile), next < end ? head_at(next) : nullptr, std::max(begin, tile) - tile,
             std::min(end, next) - tile, padded, k, v);
    for (size_t i = 0; i < count;) {
      // Two at once where they see the same.
      size_t n = 0;
      for (; n < 2 && i + n < count; ++n) {
        const uint32_t row = static_cast<uint32_t>((i + n) / group);
        queries[n] = query(i + n);
        queries[n].first = std::clamp(rows.begin(row), tile, next) - tile;
        queries[n].last = std::clamp(rows.end(row), tile, next) - tile;
        if (n == 1 && (queries[1].first != queries[0].first || queries[1].last != queries[0].last)) break;
        if (queries[n].first >= queries[n].last) continue;
        Score(queries[n], k, padded, scale);
        Softmax(queries[n]);
      }
      if (queries[0].first < queries[0].last) {
        n == 2 ? AddValues<2>(queries, v, padded) : AddValues<1>(queries, v, padded);
      }
      i += n;
    }
  }
  for (size_t i = 0; i < count; ++i) {
    float* to = out + i / group * stride + i % group * dim;
    for (size_t j = 0; j < dim; ++j) to[j] = query(i).sum[j] / query(i).state[1];
  }
#else
  AttendReference(layout, pages, rows, kv_head, q, stride, group, scale, scratch, out);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace elasticmem
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace elasticmem {

HWY_EXPORT(AttendHere);

void WriteKv(const KvPageLayout& layout, std::byte* page, uint32_t slot, const float* k, const float* v) {
  EM_DCHECK(slot < layout.page_tokens);
  const size_t elements = size_t{layout.kv_heads} * layout.head_dim;
  std::byte* token = page + slot * layout.token_bytes();
  EM_CHECK(QuantizeRow(layout.type, {k, elements}, token).ok());
  EM_CHECK(QuantizeRow(layout.type, {v, elements}, token + layout.token_bytes() / 2).ok());
}

void Attend(const KvPageLayout& layout, std::span<const std::byte* const> pages, const AttendRows& rows,
            uint32_t kv_head, const float* q, size_t stride, uint32_t group, float scale, float* scratch, float* out) {
  EM_CHECK(rows.count > 0 && rows.first_begin < rows.first_end && kv_head < layout.kv_heads);
  EM_CHECK(layout.type == DType::kF32 || layout.type == DType::kF16 || layout.type == DType::kQ8_0);
  HWY_DYNAMIC_DISPATCH(AttendHere)(layout, pages, rows, kv_head, q, stride, group, scale, scratch, out);
}

}  // namespace elasticmem
#endif
