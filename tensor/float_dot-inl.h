// Dot products of F32, F16 and BF16 rows with float activations: one vector accumulator a dot, fma along K in steps of
// a full vector (the tail is padded with zeros), lanes added by halving. Few tokens: 4 rows side by side straight from
// memory. Many: rows are converted once into a panel that stays in L1, and tiles of rows x tokens stay in registers;
// the accumulators are the same vectors, put down in memory between panels.
#if defined(ELASTICMEM_TENSOR_FLOAT_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ELASTICMEM_TENSOR_FLOAT_DOT_INL_H_
#undef ELASTICMEM_TENSOR_FLOAT_DOT_INL_H_
#else
#define ELASTICMEM_TENSOR_FLOAT_DOT_INL_H_
#endif

#include <algorithm>
#include <span>
#include <type_traits>

#include "base/units.h"
#include "tensor/dtype.h"
#include "tensor/quantize.h"
#include "tensor/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace elasticmem {
namespace HWY_NAMESPACE {
#if EM_SIMD

using DW = hn::CappedTag<float, 16>;
using VW = hn::VFromD<DW>;
constexpr size_t kWide = hn::MaxLanes(DW());

template <DType kType>
HWY_INLINE VW LoadWeights(const uint8_t* p) {
  if constexpr (kType == DType::kF32) {
    return hn::LoadU(DW(), reinterpret_cast<const float*>(p));
  } else if constexpr (kType == DType::kF16) {
    return LoadHalves(DW(), p);
  } else {
    static_assert(kType == DType::kBF16);
    return LoadBFloats(DW(), p);
  }
}

// The last `n` < kWide weights of a row, zeros behind them.
template <DType kType>
HWY_INLINE VW LoadWeightsTail(const uint8_t* p, size_t n) {
  alignas(64) uint8_t padded[4 * kWide] = {};
  std::memcpy(padded, p, n * Traits(kType).block_bytes);
  return LoadWeights<kType>(padded);
}
HWY_INLINE VW LoadFloatsTail(const float* p, size_t n) {
  alignas(64) float padded[kWide] = {};
  std::memcpy(padded, p, n * sizeof(float));
  return hn::Load(DW(), padded);
}

// kRows rows times kTokens tokens, straight from memory. Meanwhile the `next` rows are fetched.
template <DType kType, size_t kRows, size_t kTokens>
HWY_INLINE void FloatDots(const uint8_t* const* rows, const uint8_t* const* next, size_t cols, const float* const* x,
                          float* out, size_t out_stride) {
  constexpr size_t kBytes = Traits(kType).block_bytes;
  VW acc[kRows][kTokens];
  HWY_UNROLL(8)
  for (size_t r = 0; r < kRows; ++r) {
    HWY_UNROLL(4)
    for (size_t t = 0; t < kTokens; ++t) acc[r][t] = hn::Zero(DW());
  }
  const size_t whole = cols / kWide * kWide;
  size_t i = 0;
  const auto step = [&](size_t at) HWY_ATTR {
    VW xv[kTokens];
    HWY_UNROLL(4)
    for (size_t t = 0; t < kTokens; ++t) xv[t] = hn::LoadU(DW(), x[t] + at);
    HWY_UNROLL(8)
    for (size_t r = 0; r < kRows; ++r) {
      const VW w = LoadWeights<kType>(rows[r] + at * kBytes);
      HWY_UNROLL(4)
      for (size_t t = 0; t < kTokens; ++t) acc[r][t] = hn::MulAdd(w, xv[t], acc[r][t]);
    }
  };
  constexpr size_t kLine = 64 / kBytes;  // elements of a cache line: one prefetch for each row
  for (; i + kLine <= whole; i += kLine) {
    for (size_t r = 0; r < kRows; ++r) hwy::Prefetch(next[r] + i * kBytes);
    HWY_UNROLL(8)
    for (size_t j = 0; j < kLine; j += kWide) step(i + j);
  }
  for (; i < whole; i += kWide) step(i);
  if (whole < cols) {
    for (size_t t = 0; t < kTokens; ++t) {
      const VW xv = LoadFloatsTail(x[t] + whole, cols - whole);
      for (size_t r = 0; r < kRows; ++r) {
        const VW w = LoadWeightsTail<kType>(rows[r] + whole * kBytes, cols - whole);
        acc[r][t] = hn::MulAdd(w, xv, acc[r][t]);
      }
    }
  }
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t r = 0; r < kRows; ++r) out[t * out_stride + r] = SumLanes(DW(), acc[r][t]);
  }
}

// Straight from memory: up to so many rows and tokens side by side. A batch of up to two such tiles of tokens goes this
// way; from then on converting each weight once pays.
constexpr size_t kFewRows = 4;
constexpr size_t kFewTokens = EM_REGISTERS >= 32 ? 4 : 2;

// Accumulators of rows x tokens, and operands of tokens + 1: 4 x 3 fill the 16 registers of AVX2, 8 x 3 the 32 of
// AVX-512 and NEON. More rows ask less of L2, from which the tokens come.
constexpr size_t kTileRows = EM_REGISTERS >= 32 ? 8 : 4;
constexpr size_t kTileTokens = 3;
constexpr size_t kPanelElements = 512;  // kTileRows rows of floats: 8 or 16 KiB
constexpr size_t kTokensInFlight = 64;

// Keeps the compiler from loading `v` anew for each use.
HWY_INLINE void KeepInRegister([[maybe_unused]] VW& v) {
#if HWY_ARCH_X86 && !HWY_COMPILER_MSVC
  asm volatile("" : "+v"(v.raw));
#endif
}

// acc[t][r] (+)= panel row r . x row t over `n` elements, a multiple of kWide. Meanwhile the rows `next` are fetched,
// and the accumulators behind these: both come from L2.
template <size_t kTokens, bool kFirst>
HWY_INLINE void FloatTile(const float* panel, const float* const* x, const float* const* next, size_t n, float* acc) {
  const DW d;
  VW sum[kTokens][kTileRows];
  HWY_UNROLL(3)
  for (size_t t = 0; t < kTokens; ++t) {
    HWY_UNROLL(8)
    for (size_t r = 0; r < kTileRows; ++r) {
      sum[t][r] = kFirst ? hn::Zero(d) : hn::Load(d, acc + (t * kTileRows + r) * kWide);
    }
  }
  for (size_t i = 0; i < n; i += kWide) {
    VW xv[kTokens];
    HWY_UNROLL(3)
    for (size_t t = 0; t < kTokens; ++t) xv[t] = hn::LoadU(d, x[t] + i);
    if (i % 16 == 0) {
      for (size_t t = 0; t < kTokens; ++t) hwy::Prefetch(next[t] + i);
      hwy::Prefetch(acc + kTokens * kTileRows * kWide + i);
    }
    HWY_UNROLL(8)
    for (size_t r = 0; r < kTileRows; ++r) {
      VW w = hn::Load(d, panel + r * kPanelElements + i);
      KeepInRegister(w);
      HWY_UNROLL(3)
      for (size_t t = 0; t < kTokens; ++t) sum[t][r] = hn::MulAdd(w, xv[t], sum[t][r]);
    }
  }
  HWY_UNROLL(3)
  for (size_t t = 0; t < kTokens; ++t) {
    HWY_UNROLL(8)
    for (size_t r = 0; r < kTileRows; ++r) hn::Store(sum[t][r], d, acc + (t * kTileRows + r) * kWide);
  }
}

// After each tile a part of the next panel's bytes is fetched: fetch(part, parts).
template <bool kFirst, class Fetch>
HWY_INLINE void FloatTiles(const float* panel, const float* const* x, size_t tokens, size_t n, float* acc,
                           Fetch&& fetch) {
  constexpr size_t kStep = kTileRows * kTileTokens * kWide;
  size_t t = 0;
  for (; t + kTileTokens <= tokens; t += kTileTokens, acc += kStep) {
    FloatTile<kTileTokens, kFirst>(panel, x + t, x + std::min(t + kTileTokens, tokens - kTileTokens), n, acc);
    fetch(t / kTileTokens, tokens / kTileTokens);
  }
  if (tokens - t == 2) FloatTile<2, kFirst>(panel, x + t, x, n, acc);
  if (tokens - t == 1) FloatTile<1, kFirst>(panel, x + t, x, n, acc);
}

// out[r] = SumLanes(vector r).
HWY_INLINE void SumLanesOfRows(const float* vectors, size_t count, float* out) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  static_assert(kWide == 16 && kTileRows == 8);
  const auto at = [&](size_t i) HWY_ATTR { return _mm512_load_ps(vectors + i * kWide); };
  // Each step halves every dot's lanes and puts two vectors' dots into one.
  const auto halves = [](__m512 a, __m512 b) HWY_ATTR {  // [a, b], 8 lanes each
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  };
  const auto quarters = [](__m512 ab, __m512 cd) HWY_ATTR {  // [a, b, c, d], 4 each
    return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  };
  const __m512 first = quarters(halves(at(0), at(1)), halves(at(2), at(3)));
  const __m512 last = quarters(halves(at(4), at(5)), halves(at(6), at(7)));
  // [0, 4, 1, 5, 2, 6, 3, 7], 2 each
  const __m512 pairs = _mm512_add_ps(_mm512_shuffle_ps(first, last, 0x44), _mm512_shuffle_ps(first, last, 0xee));
  const __m512 sums = _mm512_add_ps(pairs, _mm512_permute_ps(pairs, 0xb1));
  alignas(64) float lanes[16];
  _mm512_store_ps(lanes, sums);
  constexpr uint8_t kLane[8] = {0, 4, 8, 12, 2, 6, 10, 14};
  for (size_t r = 0; r < count; ++r) out[r] = lanes[kLane[r]];
#else
  for (size_t r = 0; r < count; ++r) out[r] = SumLanes(DW(), hn::Load(DW(), vectors + r * kWide));
#endif
}

template <DType kType>
HWY_INLINE void FillFloatPanel(const uint8_t* const* rows, size_t begin, size_t n, float* panel) {
  constexpr size_t kBytes = Traits(kType).block_bytes;
  const size_t whole = n / kWide * kWide;
  for (size_t r = 0; r < kTileRows; ++r) {
    const uint8_t* row = rows[r] + begin * kBytes;
    float* to = panel + r * kPanelElements;
    for (size_t i = 0; i < whole; i += kWide) hn::Store(LoadWeights<kType>(row + i * kBytes), DW(), to + i);
    if (whole < n) hn::Store(LoadWeightsTail<kType>(row + whole * kBytes, n - whole), DW(), to + whole);
  }
}

// Up to kTileRows rows times up to kTokensInFlight tokens. While a panel is worked on, the next one's bytes are
// fetched, at last those of the `next` kTileRows rows.
template <DType kType>
HWY_INLINE void FloatRowsTimesTokens(const uint8_t* const* rows, const uint8_t* const* next, size_t count, size_t cols,
                                     const ActivationRows& x, size_t token, size_t tokens, float* out,
                                     size_t out_stride) {
  alignas(64) float panel[kTileRows * kPanelElements];
  alignas(64) float acc[kTokensInFlight * kTileRows * kWide];
  alignas(64) float tails[kTokensInFlight][kWide];
  const uint8_t* panel_rows[kTileRows];  // rows past the last repeat it, and are dropped
  for (size_t r = 0; r < kTileRows; ++r) panel_rows[r] = rows[std::min(r, count - 1)];
  const float* at[kTokensInFlight];
  const auto add = [&](bool first, size_t n, auto&& fetch) HWY_ATTR {
    first ? FloatTiles<true>(panel, at, tokens, n, acc, fetch) : FloatTiles<false>(panel, at, tokens, n, acc, fetch);
  };
  const size_t whole = cols / kWide * kWide;
  for (size_t begin = 0; begin < whole; begin += kPanelElements) {
    const size_t n = std::min(kPanelElements, whole - begin), after = begin + n;
    FillFloatPanel<kType>(panel_rows, begin, n, panel);
    for (size_t t = 0; t < tokens; ++t) at[t] = reinterpret_cast<const float*>(x.Row(token + t)) + begin;
    const uint8_t* const* fetched = after < whole ? panel_rows : next;
    const size_t from = after < whole ? after : 0;
    const size_t lines = CeilDiv(std::min(kPanelElements, whole - from) * Traits(kType).block_bytes, size_t{64});
    add(begin == 0, n, [&](size_t part, size_t parts) HWY_ATTR {
      for (size_t line = part * lines / parts; line < (part + 1) * lines / parts; ++line) {
        for (size_t r = 0; r < kTileRows; ++r) {
          hwy::Prefetch(fetched[r] + from * Traits(kType).block_bytes + line * 64);
        }
      }
    });
  }
  if (whole < cols) {
    FillFloatPanel<kType>(panel_rows, whole, cols - whole, panel);
    for (size_t t = 0; t < tokens; ++t) {
      const auto* row = reinterpret_cast<const float*>(x.Row(token + t));
      hn::Store(LoadFloatsTail(row + whole, cols - whole), DW(), tails[t]);
      at[t] = tails[t];
    }
    add(whole == 0, kWide, [](size_t, size_t) HWY_ATTR {});
  }
  for (size_t t = 0; t < tokens; ++t) {
    SumLanesOfRows(acc + t * kTileRows * kWide, count, out + (token + t) * out_stride);
  }
}

// Row k of `rows` and then `ahead`; the last one where there are no more.
HWY_INLINE const uint8_t* RowAfter(std::span<const std::byte* const> rows, std::span<const std::byte* const> ahead,
                                   size_t k) {
  const std::byte* row = k < rows.size()                  ? rows[k]
                         : k - rows.size() < ahead.size() ? ahead[k - rows.size()]
                                                          : rows.back();
  return reinterpret_cast<const uint8_t*>(row);
}

// kTokens tokens from `token` on; the last tile of rows fetches the rows `ahead`.
template <DType kType, size_t kTokens>
HWY_INLINE void FewTokens(std::span<const std::byte* const> rows, size_t cols, const ActivationRows& x, size_t token,
                          float* out, size_t out_stride, std::span<const std::byte* const> ahead) {
  const auto* const* row = reinterpret_cast<const uint8_t* const*>(rows.data());
  const float* at[kTokens];
  for (size_t t = 0; t < kTokens; ++t) at[t] = reinterpret_cast<const float*>(x.Row(token + t));
  out += token * out_stride;
  size_t k = 0;
  const auto dots = [&]<size_t kRows>(std::integral_constant<size_t, kRows>) HWY_ATTR {
    const uint8_t* next[kRows];
    for (size_t r = 0; r < kRows; ++r) next[r] = RowAfter(rows, ahead, k + kRows + r);
    FloatDots<kType, kRows, kTokens>(row + k, next, cols, at, out + k, out_stride);
    k += kRows;
  };
  while (k + kFewRows <= rows.size()) dots(std::integral_constant<size_t, kFewRows>());
  static_assert(kFewRows == 4);
  if (rows.size() - k == 3) dots(std::integral_constant<size_t, 3>());
  if (rows.size() - k == 2) dots(std::integral_constant<size_t, 2>());
  if (rows.size() - k == 1) dots(std::integral_constant<size_t, 1>());
}

template <DType kType>
HWY_NOINLINE void FloatDotRows(std::span<const std::byte* const> rows, size_t cols, const ActivationRows& x, float* out,
                               size_t out_stride, std::span<const std::byte* const> ahead) {
  if (x.tokens <= 2 * kFewTokens) {
    // The second tile of tokens finds the rows in the cache.
    for (size_t token = 0; token < x.tokens;) {
      const size_t left = x.tokens - token;
      const size_t tokens = left <= kFewTokens ? left : CeilDiv<size_t>(left, 2);
      const auto some = [&]<size_t kTokens>(std::integral_constant<size_t, kTokens>)
                            HWY_ATTR { FewTokens<kType, kTokens>(rows, cols, x, token, out, out_stride, ahead); };
      static_assert(kFewTokens == 2 || kFewTokens == 4);
      if (tokens == 1) some(std::integral_constant<size_t, 1>());
      if (tokens == 2) some(std::integral_constant<size_t, 2>());
      if constexpr (kFewTokens == 4) {
        if (tokens == 3) some(std::integral_constant<size_t, 3>());
        if (tokens == 4) some(std::integral_constant<size_t, 4>());
      }
      token += tokens;
    }
    return;
  }
  const auto* const* row = reinterpret_cast<const uint8_t* const*>(rows.data());
  for (size_t token = 0; token < x.tokens; token += kTokensInFlight) {
    const size_t tokens = std::min(kTokensInFlight, x.tokens - token);
    for (size_t k = 0; k < rows.size(); k += kTileRows) {
      const uint8_t* next[kTileRows];
      for (size_t r = 0; r < kTileRows; ++r) next[r] = RowAfter(rows, ahead, k + kTileRows + r);
      FloatRowsTimesTokens<kType>(row + k, next, std::min(kTileRows, rows.size() - k), cols, x, token, tokens, out + k,
                                  out_stride);
    }
  }
}

#endif  // EM_SIMD
}  // namespace HWY_NAMESPACE
}  // namespace elasticmem
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled for each target
