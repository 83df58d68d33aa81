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

// kRows rows times one token.
template <DType kType, size_t kRows>
HWY_INLINE void FloatDots(const uint8_t* const* rows, const uint8_t* const* next, size_t cols, const float* x,
                          float* out) {
  constexpr size_t kBytes = Traits(kType).block_bytes;
  VW acc[kRows];
  for (size_t r = 0; r < kRows; ++r) acc[r] = hn::Zero(DW());
  const size_t whole = cols / kWide * kWide;
  size_t i = 0;
  const auto step = [&](size_t at) HWY_ATTR {
    const VW xv = hn::LoadU(DW(), x + at);
    HWY_UNROLL(8)
    for (size_t r = 0; r < kRows; ++r) acc[r] = hn::MulAdd(LoadWeights<kType>(rows[r] + at * kBytes), xv, acc[r]);
  };
  constexpr size_t kLine = 64 / kBytes;  // elements of a cache line: one prefetch for each row
  for (; i + kLine <= whole; i += kLine) {
    for (size_t r = 0; r < kRows; ++r) hwy::Prefetch(next[r] + i * kBytes);
    HWY_UNROLL(8)
    for (size_t j = 0; j < kLine; j += kWide) step(i + j);
  }
  for (; i < whole; i += kWide) step(i);
  if (whole < cols) {
    const VW xv = LoadFloatsTail(x + whole, cols - whole);
    for (size_t r = 0; r < kRows; ++r) {
      acc[r] = hn::MulAdd(LoadWeightsTail<kType>(rows[r] + whole * kBytes, cols - whole), xv, acc[r]);
    }
  }
  for (size_t r = 0; r < kRows; ++r) out[r] = SumLanes(DW(), acc[r]);
}

constexpr size_t kTileRows = 4;
constexpr size_t kTileTokens = 3;       // 12 accumulators, 3 + 1 operands: the 16 registers of AVX2
constexpr size_t kPanelElements = 512;  // 4 rows of floats: 8 KiB
constexpr size_t kTokensInFlight = 48;

// acc[r][t] += panel row r . x row t over `n` elements, a multiple of kWide.
template <size_t kTokens>
HWY_INLINE void FloatTile(const float* panel, const float* const* x, size_t n, float* acc) {
  const DW d;
  VW sum[kTileRows][kTokens];
  HWY_UNROLL(4)
  for (size_t r = 0; r < kTileRows; ++r) {
    HWY_UNROLL(3)
    for (size_t t = 0; t < kTokens; ++t) sum[r][t] = hn::Load(d, acc + (r * kTokens + t) * kWide);
  }
  for (size_t i = 0; i < n; i += kWide) {
    VW xv[kTokens];
    HWY_UNROLL(3)
    for (size_t t = 0; t < kTokens; ++t) xv[t] = hn::LoadU(d, x[t] + i);
    HWY_UNROLL(4)
    for (size_t r = 0; r < kTileRows; ++r) {
      const VW w = hn::Load(d, panel + r * kPanelElements + i);
      HWY_UNROLL(3)
      for (size_t t = 0; t < kTokens; ++t) sum[r][t] = hn::MulAdd(w, xv[t], sum[r][t]);
    }
  }
  HWY_UNROLL(4)
  for (size_t r = 0; r < kTileRows; ++r) {
    HWY_UNROLL(3)
    for (size_t t = 0; t < kTokens; ++t) hn::Store(sum[r][t], d, acc + (r * kTokens + t) * kWide);
  }
}

HWY_INLINE void FloatTiles(const float* panel, const float* const* x, size_t tokens, size_t n, float* acc) {
  constexpr size_t kStep = kTileRows * kTileTokens * kWide;
  size_t t = 0;
  for (; t + kTileTokens <= tokens; t += kTileTokens, acc += kStep) FloatTile<kTileTokens>(panel, x + t, n, acc);
  if (tokens - t == 2) FloatTile<2>(panel, x + t, n, acc);
  if (tokens - t == 1) FloatTile<1>(panel, x + t, n, acc);
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

template <DType kType>
HWY_INLINE void PrefetchFloatPanel(const uint8_t* const* rows, size_t begin, size_t n) {
  constexpr size_t kBytes = Traits(kType).block_bytes;
  for (size_t r = 0; r < kTileRows; ++r) PrefetchBytes(rows[r] + begin * kBytes, n * kBytes);
}

// Up to kTileRows rows times up to kTokensInFlight tokens. While a panel is worked on, the next one's bytes are
// fetched, at last those of the `next` kTileRows rows.
template <DType kType>
HWY_INLINE void FloatRowsTimesTokens(const uint8_t* const* rows, const uint8_t* const* next, size_t count, size_t cols,
                                     const ActivationRows& x, size_t token, size_t tokens, float* out,
                                     size_t out_stride) {
  alignas(64) float panel[kTileRows * kPanelElements];
  alignas(64) float acc[kTileRows * kTokensInFlight * kWide] = {};
  alignas(64) float tails[kTokensInFlight][kWide];
  const uint8_t* panel_rows[kTileRows];  // rows past the last repeat it, and are dropped
  for (size_t r = 0; r < kTileRows; ++r) panel_rows[r] = rows[std::min(r, count - 1)];
  const float* at[kTokensInFlight];
  const size_t whole = cols / kWide * kWide;
  for (size_t begin = 0; begin < whole; begin += kPanelElements) {
    const size_t n = std::min(kPanelElements, whole - begin);
    FillFloatPanel<kType>(panel_rows, begin, n, panel);
    const size_t after = begin + n;
    if (after < whole) PrefetchFloatPanel<kType>(panel_rows, after, std::min(kPanelElements, whole - after));
    if (after == whole) PrefetchFloatPanel<kType>(next, 0, std::min(kPanelElements, whole));
    for (size_t t = 0; t < tokens; ++t) at[t] = reinterpret_cast<const float*>(x.Row(token + t)) + begin;
    FloatTiles(panel, at, tokens, n, acc);
  }
  if (whole < cols) {
    FillFloatPanel<kType>(panel_rows, whole, cols - whole, panel);
    for (size_t t = 0; t < tokens; ++t) {
      const auto* row = reinterpret_cast<const float*>(x.Row(token + t));
      hn::Store(LoadFloatsTail(row + whole, cols - whole), DW(), tails[t]);
      at[t] = tails[t];
    }
    FloatTiles(panel, at, tokens, kWide, acc);
  }
  for (size_t t = 0; t < tokens; ++t) {
    const size_t tile = t / kTileTokens * kTileTokens;
    const size_t width = std::min(kTileTokens, tokens - tile);
    for (size_t r = 0; r < count; ++r) {
      const float* sum = acc + (tile * kTileRows + r * width + (t - tile)) * kWide;
      out[(token + t) * out_stride + r] = SumLanes(DW(), hn::Load(DW(), sum));
    }
  }
}

template <DType kType>
HWY_NOINLINE void FloatDotRows(std::span<const std::byte* const> rows, size_t cols, const ActivationRows& x, float* out,
                               size_t out_stride, std::span<const std::byte* const> ahead) {
  constexpr size_t kFewTokens = 2;
  const auto* const* row = reinterpret_cast<const uint8_t* const*>(rows.data());
  const auto row_after = [&](size_t k) {
    return reinterpret_cast<const uint8_t*>(k < rows.size()                  ? rows[k]
                                            : k - rows.size() < ahead.size() ? ahead[k - rows.size()]
                                                                             : rows.back());
  };
  if (x.tokens <= kFewTokens) {
    size_t k = 0;
    for (; k + kTileRows <= rows.size(); k += kTileRows) {
      const uint8_t* next[kTileRows];
      for (size_t r = 0; r < kTileRows; ++r) next[r] = row_after(k + kTileRows + r);
      for (size_t t = 0; t < x.tokens; ++t) {
        FloatDots<kType, kTileRows>(row + k, next, cols, reinterpret_cast<const float*>(x.Row(t)),
                                    out + t * out_stride + k);
      }
    }
    for (; k < rows.size(); ++k) {
      const uint8_t* next = row_after(k + 1);
      for (size_t t = 0; t < x.tokens; ++t) {
        FloatDots<kType, 1>(row + k, &next, cols, reinterpret_cast<const float*>(x.Row(t)), out + t * out_stride + k);
      }
    }
    return;
  }
  for (size_t token = 0; token < x.tokens; token += kTokensInFlight) {
    const size_t tokens = std::min(kTokensInFlight, x.tokens - token);
    for (size_t k = 0; k < rows.size(); k += kTileRows) {
      const uint8_t* next[kTileRows];
      for (size_t r = 0; r < kTileRows; ++r) next[r] = row_after(k + kTileRows + r);
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
