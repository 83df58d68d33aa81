// Attention over paged KV by a running softmax: tile by tile, each with its own maximum, merged into what came before.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "dense_ops/transformer_ops.h"
#include "tensor/quantize.h"
#include "tensor/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dense_ops/attention.cc"
#include <hwy/foreach_target.h>
// after foreach_target
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "tensor/quants-inl.h"

HWY_BEFORE_NAMESPACE();
namespace elasticmem {
namespace HWY_NAMESPACE {
#if EM_SIMD

// `dim` elements of one head as floats: `row` itself where it holds floats, else converted into `to`.
HWY_INLINE const float* HeadAsFloats(DType type, const std::byte* row, size_t dim, float* to) {
  const auto* p = reinterpret_cast<const uint8_t*>(row);
  if (type == DType::kF32) return reinterpret_cast<const float*>(row);
  size_t i = 0;
  if (type == DType::kF16) {
    for (; i + kLanes <= dim; i += kLanes) hn::StoreU(LoadHalves(DF(), p + 2 * i), DF(), to + i);
    for (; i < dim; ++i) to[i] = F16ToF32(LoadAs<uint16_t>(p + 2 * i));
    return to;
  }
  const hn::Rebind<int8_t, DF> d8;
  for (; i < dim; i += 32, p += 34) {
    const VF scale = OneHalf(p);
    for (size_t j = 0; j < 32; j += kLanes) {
      const auto q = hn::LoadU(d8, reinterpret_cast<const int8_t*>(p) + 2 + j);
      hn::StoreU(hn::Mul(scale, hn::ConvertTo(DF(), hn::PromoteTo(DI32(), q))), DF(), to + i + j);
    }
  }
  return to;
}

HWY_INLINE float HeadDot(const float* a, const float* b, size_t dim) {
  VF even = hn::Zero(DF()), odd = even;
  size_t i = 0;
  for (; i + 2 * kLanes <= dim; i += 2 * kLanes) {
    even = hn::MulAdd(hn::LoadU(DF(), a + i), hn::LoadU(DF(), b + i), even);
    odd = hn::MulAdd(hn::LoadU(DF(), a + i + kLanes), hn::LoadU(DF(), b + i + kLanes), odd);
  }
  float sum = SumLanes(DF(), hn::Add(even, odd));
  for (; i < dim; ++i) sum += a[i] * b[i];
  return sum;
}

// sum[i] = fma(weight, row[i], sum[i])
HWY_INLINE void AddWeighted(float weight, const float* row, size_t dim, float* sum) {
  const VF w = hn::Set(DF(), weight);
  size_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    hn::StoreU(hn::MulAdd(w, hn::LoadU(DF(), row + i), hn::LoadU(DF(), sum + i)), DF(), sum + i);
  }
  for (; i < dim; ++i) sum[i] = std::fma(weight, row[i], sum[i]);
}

// x[i] = exp(x[i] - peak), NaN kept; returns their sum in order.
HWY_INLINE float ExpAndSum(float* x, size_t n, float peak) {
  const auto exp = [peak](VF v) HWY_ATTR {
    const VF shifted = hn::Sub(v, hn::Set(DF(), peak));
    return hn::IfThenElse(hn::IsNaN(shifted), shifted, hn::Exp(DF(), shifted));
  };
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(exp(hn::LoadU(DF(), x + i)), DF(), x + i);
  if (i < n) {
    alignas(32) float padded[kLanes] = {};
    std::memcpy(padded, x + i, (n - i) * sizeof(float));
    hn::Store(exp(hn::Load(DF(), padded)), DF(), padded);
    std::memcpy(x + i, padded, (n - i) * sizeof(float));
  }
  float sum = 0;
  for (i = 0; i < n; ++i) sum += x[i];
  return sum;
}

// The running softmax of `group` query heads: sum [group, dim] of weighted values, relative to exp(peak [group]).
struct Running {
  float* scores;  // [group, kAttentionTile]
  float* sum;
  float* peak;
  float* total;  // [group], sum of weights
  float* row;    // [dim], one head's K or V as floats
};

HWY_INLINE void PrefetchHead(const std::byte* head, size_t bytes) {
  PrefetchBytes(reinterpret_cast<const uint8_t*>(head), bytes);
}

// Tokens [first, last) of one page, a tile; `head` is this head's K of the page's token 0, `next` that of the token
// after the tile. The heads of successive tokens lie too far apart for the hardware to follow, so V is fetched while K
// is worked on, and the next tile's K while V is.
void AddTile(const KvPageLayout& layout, const std::byte* head, const std::byte* next, uint32_t first, uint32_t last,
             const float* q, uint32_t group, float scale, const Running& s) {
  const size_t dim = layout.head_dim, token_bytes = layout.token_bytes();
  const size_t count = last - first;
  for (uint32_t t = first; t < last; ++t) {
    PrefetchHead(head + t * token_bytes + token_bytes / 2, layout.head_bytes());
    const float* k = HeadAsFloats(layout.type, head + t * token_bytes, dim, s.row);
    for (uint32_t g = 0; g < group; ++g) {
      s.scores[g * kAttentionTile + (t - first)] = HeadDot(q + g * dim, k, dim) * scale;
    }
  }
  for (uint32_t g = 0; g < group; ++g) {
    float* scores = s.scores + g * kAttentionTile;
    const float peak = std::max(s.peak[g], *std::max_element(scores, scores + count));
    const float shrink = std::exp(s.peak[g] - peak);  // 0 for the first tile
    s.peak[g] = peak;
    s.total[g] = s.total[g] * shrink + ExpAndSum(scores, count, peak);
    if (shrink != 1.f) {
      for (size_t i = 0; i < dim; ++i) s.sum[g * dim + i] *= shrink;
    }
  }
  for (uint32_t t = first; t < last; ++t) {
    PrefetchHead(next + (t - first) * token_bytes, layout.head_bytes());
    const float* v = HeadAsFloats(layout.type, head + t * token_bytes + token_bytes / 2, dim, s.row);
    for (uint32_t g = 0; g < group; ++g) {
      AddWeighted(s.scores[g * kAttentionTile + (t - first)], v, dim, s.sum + g * dim);
    }
  }
}

#endif  // EM_SIMD

void AttendHere(const KvPageLayout& layout, std::span<const std::byte* const> pages, uint32_t begin, uint32_t end,
                uint32_t kv_head, const float* q, uint32_t group, float scale, float* scratch, float* out) {
#if EM_SIMD
  const size_t dim = layout.head_dim;
  Running s;
  s.scores = scratch;
  s.sum = s.scores + group * kAttentionTile;
  s.peak = s.sum + group * dim;
  s.total = s.peak + group;
  s.row = s.total + group;
  std::fill(s.sum, s.sum + group * dim, 0.f);
  std::fill(s.peak, s.peak + group, -std::numeric_limits<float>::infinity());
  std::fill(s.total, s.total + group, 0.f);
  for (uint32_t position = begin; position < end;) {
    const uint32_t page = position / layout.page_tokens, first = position % layout.page_tokens;
    const uint32_t last = first + std::min(kAttentionTile - first % kAttentionTile, end - position);
    position += last - first;
    const std::byte* head = pages[page] + kv_head * layout.head_bytes();
    const std::byte* next = position == end ? head
                                            : pages[position / layout.page_tokens] + kv_head * layout.head_bytes() +
                                                  position % layout.page_tokens * layout.token_bytes();
    AddTile(layout, head, next, first, last, q, group, scale, s);
  }
  for (uint32_t g = 0; g < group; ++g) {
    for (size_t i = 0; i < dim; ++i) out[g * dim + i] = s.sum[g * dim + i] / s.total[g];
  }
#else
  AttendReference(layout, pages, begin, end, kv_head, q, group, scale, scratch, out);
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

void Attend(const KvPageLayout& layout, std::span<const std::byte* const> pages, uint32_t begin, uint32_t end,
            uint32_t kv_head, const float* q, uint32_t group, float scale, float* scratch, float* out) {
  EM_CHECK(begin < end && kv_head < layout.kv_heads);
  EM_CHECK(layout.type == DType::kF32 || layout.type == DType::kF16 || layout.type == DType::kQ8_0);
  HWY_DYNAMIC_DISPATCH(AttendHere)(layout, pages, begin, end, kv_head, q, group, scale, scratch, out);
}

}  // namespace elasticmem
#endif
