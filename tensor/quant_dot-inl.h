// Dot products of quantised rows with Q16 activations. For each part h of a block b of 32 (the block, or with kHalves
// each half of it):
//   isum = sum over i in h of (u_i - offset) * q_i        exactly, in int32
//   acc[b mod kLanes] = fma(isum, scale_bh * x_scale_b, acc[..]), then the minimum's term likewise
// and the accumulators are added by halving. One token: lanes are the blocks of one row. Many tokens: lanes are rows,
// the weights are unpacked once and interleaved, and accumulators for all tokens lie in memory. Both do the same sums.
// kUnits is what makes the integer sums: where ARM has instructions for that, they are the same integers.
#if defined(ELASTICMEM_TENSOR_QUANT_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ELASTICMEM_TENSOR_QUANT_DOT_INL_H_
#undef ELASTICMEM_TENSOR_QUANT_DOT_INL_H_
#else
#define ELASTICMEM_TENSOR_QUANT_DOT_INL_H_
#endif

#include <algorithm>
#include <span>

#include "tensor/int8_units.h"
#include "tensor/quantize.h"
#include "tensor/quants-inl.h"

HWY_BEFORE_NAMESPACE();
namespace elasticmem {
namespace HWY_NAMESPACE {
#if EM_SIMD

HWY_INLINE VI32 Interleave64(bool upper, VI32 a, VI32 b) {
  const DI32 d;
  const hn::Repartition<int64_t, DI32> d64;
  const auto a64 = hn::BitCast(d64, a), b64 = hn::BitCast(d64, b);
  return hn::BitCast(d, upper ? hn::InterleaveUpper(d64, a64, b64) : hn::InterleaveLower(d64, a64, b64));
}
// Lane i of each 128-bit part: the sum of the 4 lanes of p[i] in that part. kAs16: lanes are pairs of int16, added as
// such.
template <bool kAs16>
HWY_INLINE VI32 AddQuads(const VI32* p) {
  const DI32 d;
  const auto add = [](VI32 a, VI32 b) HWY_ATTR {
    if constexpr (kAs16) {
      return hn::BitCast(DI32(), hn::Add(hn::BitCast(DI16(), a), hn::BitCast(DI16(), b)));
    } else {
      return hn::Add(a, b);
    }
  };
  const VI32 a = add(hn::InterleaveLower(d, p[0], p[1]), hn::InterleaveUpper(d, p[0], p[1]));
  const VI32 b = add(hn::InterleaveLower(d, p[2], p[3]), hn::InterleaveUpper(d, p[2], p[3]));
  return add(Interleave64(false, a, b), Interleave64(true, a, b));
}

#undef EM_ARM_INT8
#if HWY_TARGET == HWY_NEON && HWY_ARCH_ARM_A64
#define EM_ARM_INT8 1
// Highway 1.0.3 has no target with these instructions, and functions of such a target could not be inlined: so, words.
// sum + lane i: a . x over the 4 bytes of lane i.
HWY_INLINE VI32 AddDots(VI32 sum, VI8 a, VI8 x) {
  asm(".arch armv8.2-a+crypto+dotprod+i8mm\n\tsdot %0.4s, %1.16b, %2.16b" : "+w"(sum.raw) : "w"(a.raw), "w"(x.raw));
  return sum;
}
// sum + lane 2 i + j: half i of a . half j of x.
HWY_INLINE VI32 AddHalfDots(VI32 sum, VI8 a, VI8 x) {
  asm(".arch armv8.2-a+crypto+dotprod+i8mm\n\tsmmla %0.4s, %1.16b, %2.16b" : "+w"(sum.raw) : "w"(a.raw), "w"(x.raw));
  return sum;
}
#else
#define EM_ARM_INT8 0
#endif
HWY_INLINE VI32 JoinSums(VI32 high, VI32 low) { return hn::Add(hn::Mul(high, hn::Set(DI32(), kQ16Step)), low); }

// How many products of pairs an int16 has room for: each is at most 2 * 127 * kMaxU.
template <DType kType>
constexpr size_t kRoom16 = 32767 / (2 * 127 * Format<kType>::kMaxU);

template <DType kType>
constexpr size_t kScalesPerBlock = Format<kType>::kHalves ? 2 : 1;

// The activations' side of kLanes blocks.
struct XScales {
  VF scale;
  VF sums[2];  // by half, or [0] of the whole block
};

// sums over pairs of both planes -> sums of what an activation's scale multiplies.
HWY_INLINE VI32 JoinPlanes(VI16 high, VI16 low) {
  return hn::Add(MaddPairs(high, hn::Set(DI16(), kQ16Step)), MaddPairs(low, hn::Set(DI16(), 1)));
}

// acc + the blocks' terms, from the integer sums of their kScalesPerBlock parts without the offset.
template <DType kType>
HWY_INLINE VF AddScaled(const VI32* sums, const Scales& w, const XScales& x, VF acc) {
  using F = Format<kType>;
  const DF df;
  HWY_UNROLL(2)
  for (size_t h = 0; h < kScalesPerBlock<kType>; ++h) {
    const VF x_sum = x.sums[h];
    VI32 sum = sums[h];
    if constexpr (F::kOffset != 0) {
      constexpr int kShift = hwy::CeilLog2(static_cast<uint32_t>(F::kOffset));
      static_assert(1 << kShift == F::kOffset);
      sum = hn::Sub(sum, hn::ShiftLeft<kShift>(hn::ConvertTo(DI32(), x_sum)));
    }
    acc = hn::MulAdd(hn::ConvertTo(df, sum), hn::Mul(w.scale[h], x.scale), acc);
    if constexpr (F::kMin) acc = hn::MulAdd(x_sum, hn::Mul(w.minimum[h], x.scale), acc);
  }
  return acc;
}

template <DType kType>
HWY_INLINE VI16 PairDots(VU8 u, const int8_t* q) {
  const VI8 x = hn::LoadU(DI8(), q);
  return Format<kType>::kSigned ? PairDotSigned(hn::BitCast(DI8(), u), x) : PairDot(u, x);
}

// Part `part` of the blocks b .. b + 3, of which n exist, with the activations of blocks j .. j + 3 of a group: lane i
// of each 128-bit part is the sum over that part of block i.
template <DType kType, Int8Units kUnits>
HWY_INLINE VI32 FourBlocks(const uint8_t* row, size_t b, size_t n, size_t part, const Q16Group& x, size_t j) {
#if EM_ARM_INT8
  if constexpr (kUnits != Int8Units::kNone) {
    VI32 sums[4];
    HWY_UNROLL(4)
    for (size_t i = 0; i < 4; ++i) {
      sums[i] = hn::Zero(DI32());
      if (i >= n) continue;
      const VI8 u = hn::BitCast(DI8(), Quants<kType>(row, b + i, part));
      const VI32 high = AddDots(sums[i], u, hn::LoadU(DI8(), x.high[j + i] + part * kVectorBytes));
      sums[i] = JoinSums(high, AddDots(sums[i], u, hn::LoadU(DI8(), x.low[j + i] + part * kVectorBytes)));
    }
    return AddQuads<false>(sums);
  }
#endif
  constexpr bool kAs16 = kRoom16<kType> >= 4;
  VI32 p[4], low[4];
  HWY_UNROLL(4)
  for (size_t i = 0; i < 4; ++i) {
    if (i >= n) {
      p[i] = low[i] = hn::Zero(DI32());
      continue;
    }
    const VU8 u = Quants<kType>(row, b + i, part);
    const VI16 high_pairs = PairDots<kType>(u, x.high[j + i] + part * kVectorBytes);
    const VI16 low_pairs = PairDots<kType>(u, x.low[j + i] + part * kVectorBytes);
    if constexpr (kAs16) {
      p[i] = hn::BitCast(DI32(), high_pairs);
      low[i] = hn::BitCast(DI32(), low_pairs);
    } else {
      p[i] = JoinPlanes(high_pairs, low_pairs);
    }
  }
  const VI32 sums = AddQuads<kAs16>(p);
  if constexpr (!kAs16) return sums;
  return JoinPlanes(hn::BitCast(DI16(), sums), hn::BitCast(DI16(), AddQuads<kAs16>(low)));
}

// acc + the terms of the blocks b .. b + n - 1 of one row; b is a multiple of kLanes.
template <DType kType, Int8Units kUnits>
HWY_INLINE VF AddBlocks(const uint8_t* row, size_t b, size_t n, const Q16Group& x, VF acc) {
  const DI32 d;
  const size_t first = b % 8;
  VI32 halves[2];  // lane i: the sum over half 0, half 1 of block i
  if constexpr (kParts == 1) {
    const VI32 low = FourBlocks<kType, kUnits>(row, b, n, 0, x, 0);
    const VI32 high = FourBlocks<kType, kUnits>(row, b + 4, n > 4 ? n - 4 : 0, 0, x, 4);
    halves[0] = hn::ConcatLowerLower(d, high, low);
    halves[1] = hn::ConcatUpperUpper(d, high, low);
  } else {
    for (size_t part = 0; part < 2; ++part) halves[part] = FourBlocks<kType, kUnits>(row, b, n, part, x, first);
  }
  if constexpr (!Format<kType>::kHalves) halves[0] = hn::Add(halves[0], halves[1]);
  const DF df;
  const XScales xs = {
      hn::LoadU(df, x.scale + first),
      {hn::LoadU(df, (Format<kType>::kHalves ? x.sums[0] : x.sum) + first), hn::LoadU(df, x.sums[1] + first)}};
  return AddScaled<kType>(halves, LoadScales<kType>(row, b, n), xs, acc);
}

// Bytes of kLanes blocks.
template <DType kType>
constexpr size_t kGroupBytes = Format<kType>::kBlockBytes* kLanes / (Format<kType>::kSuper ? 8 : 1);

// One dot. `next` is a row whose bytes will be wanted soon.
template <DType kType, Int8Units kUnits>
HWY_INLINE float QuantDot(const uint8_t* row, size_t blocks, const Q16Group* x, const uint8_t* next) {
  VF acc = hn::Zero(DF());
  size_t b = 0;
  for (; b + kLanes <= blocks; b += kLanes) {
    PrefetchBytes(next, kGroupBytes<kType>);
    next += kGroupBytes<kType>;
    acc = AddBlocks<kType, kUnits>(row, b, kLanes, x[b / 8], acc);
  }
  if constexpr (!Format<kType>::kSuper) {
    if (b < blocks) acc = AddBlocks<kType, kUnits>(row, b, blocks - b, x[b / 8], acc);
  }
  return SumLanes(DF(), acc);
}

// kLanes rows of one block, interleaved: vector c holds elements 4c .. 4c+3 of each row.
template <DType kType>
struct Panel {
  alignas(32) uint8_t q[8 * kVectorBytes];
};

template <DType kType>
HWY_INLINE void FillPanel(const uint8_t* const* rows, size_t b, Panel<kType>* panel) {
  const DI32 d;
  const DU8 d8;
  for (size_t part = 0; part < kParts; ++part) {
    VI32 v[kLanes];
    for (size_t r = 0; r < kLanes; ++r) v[r] = hn::BitCast(d, Quants<kType>(rows[r], b, part));
    // Within 128-bit parts, 4 x 4 transposes of rows 0..3 and, where vectors have two parts, of rows 4..7.
    VI32 t[kLanes];
    for (size_t r = 0; r < kLanes; r += 4) {
      const VI32 a = hn::InterleaveLower(d, v[r], v[r + 1]), c = hn::InterleaveLower(d, v[r + 2], v[r + 3]);
      const VI32 e = hn::InterleaveUpper(d, v[r], v[r + 1]), g = hn::InterleaveUpper(d, v[r + 2], v[r + 3]);
      t[r] = Interleave64(false, a, c);
      t[r + 1] = Interleave64(true, a, c);
      t[r + 2] = Interleave64(false, e, g);
      t[r + 3] = Interleave64(true, e, g);
    }
    for (size_t c = 0; c < 4; ++c) {
      if constexpr (kParts == 1) {
        hn::Store(hn::BitCast(d8, hn::ConcatLowerLower(d, t[c + 4], t[c])), d8, panel->q + c * kVectorBytes);
        hn::Store(hn::BitCast(d8, hn::ConcatUpperUpper(d, t[c + 4], t[c])), d8, panel->q + (c + 4) * kVectorBytes);
      } else {
        hn::Store(hn::BitCast(d8, t[c]), d8, panel->q + (4 * part + c) * kVectorBytes);
      }
    }
  }
}

// Scales of kLanes blocks of kLanes rows, transposed: [part of a block][block][row].
struct PanelScales {
  alignas(32) float scale[2][kLanes][kLanes];
  alignas(32) float minimum[2][kLanes][kLanes];
};

HWY_INLINE void StoreColumn(VF v, float (*columns)[kLanes], size_t r) {
  alignas(32) float lanes[kLanes];
  hn::Store(v, DF(), lanes);
  for (size_t i = 0; i < kLanes; ++i) columns[i][r] = lanes[i];
}

template <DType kType>
HWY_INLINE void FillPanelScales(const uint8_t* const* rows, size_t count, size_t b, size_t n, PanelScales* out) {
  for (size_t r = 0; r < count; ++r) {
    const Scales s = LoadScales<kType>(rows[r], b, n);
    for (size_t h = 0; h < kScalesPerBlock<kType>; ++h) {
      StoreColumn(s.scale[h], out->scale[h], r);
      if constexpr (Format<kType>::kMin) StoreColumn(s.minimum[h], out->minimum[h], r);
    }
  }
}

template <DType kType>
HWY_INLINE Scales LoadPanelScales(const PanelScales& s, size_t i) {
  Scales w;
  for (size_t h = 0; h < kScalesPerBlock<kType>; ++h) {
    w.scale[h] = hn::Load(DF(), s.scale[h][i]);
    if constexpr (Format<kType>::kMin) w.minimum[h] = hn::Load(DF(), s.minimum[h][i]);
  }
  return w;
}

// What PanelDot reads of a panel: its vectors, or with kMatrix 8 columns of rows 0 and 1, then of rows 2 and 3, and so
// on.
template <Int8Units kUnits>
HWY_INLINE void LoadPanel(const uint8_t* q, VU8* w) {
  HWY_UNROLL(8)
  for (size_t c = 0; c < 8; ++c) w[c] = hn::Load(DU8(), q + c * kVectorBytes);
  if constexpr (kUnits != Int8Units::kMatrix) return;
  HWY_UNROLL(4)
  for (size_t c = 0; c < 8; c += 2) {
    const VI32 a = hn::BitCast(DI32(), w[c]), b = hn::BitCast(DI32(), w[c + 1]);
    w[c] = hn::BitCast(DU8(), hn::InterleaveLower(DI32(), a, b));
    w[c + 1] = hn::BitCast(DU8(), hn::InterleaveUpper(DI32(), a, b));
  }
}

// sums[h]: the integer sum of part h of one block without the offset; lane r is row r.
template <DType kType, Int8Units kUnits>
HWY_INLINE void PanelDot(const VU8* w, const int8_t* high, const int8_t* low, VI32* sums) {
  using F = Format<kType>;
#if EM_ARM_INT8
  if constexpr (kUnits != Int8Units::kNone) {
    const DI8 d8;
    const hn::Half<DI8> half;
    constexpr size_t kWords = 8 / kScalesPerBlock<kType>;
    HWY_UNROLL(2)
    for (size_t h = 0; h < kScalesPerBlock<kType>; ++h) {
      VI32 first = hn::Zero(DI32()), second = first;  // high and low, or both of rows 0 and 1, then of rows 2 and 3
      HWY_UNROLL(8)
      for (size_t c = h * kWords; c < (h + 1) * kWords; c += kUnits == Int8Units::kMatrix ? 2 : 1) {
        if constexpr (kUnits == Int8Units::kMatrix) {
          const VI8 x = hn::Combine(d8, hn::LoadU(half, low + 4 * c), hn::LoadU(half, high + 4 * c));
          first = AddHalfDots(first, hn::BitCast(d8, w[c]), x);
          second = AddHalfDots(second, hn::BitCast(d8, w[c + 1]), x);
        } else {
          const auto words = [&](const int8_t* x)
                                 HWY_ATTR { return hn::BitCast(d8, hn::Set(DI32(), LoadAs<int32_t>(x + 4 * c))); };
          first = AddDots(first, hn::BitCast(d8, w[c]), words(high));
          second = AddDots(second, hn::BitCast(d8, w[c]), words(low));
        }
      }
      const DI32 d;
      sums[h] = kUnits == Int8Units::kMatrix
                    ? JoinSums(hn::ConcatEven(d, second, first), hn::ConcatOdd(d, second, first))
                    : JoinSums(first, second);
    }
    return;
  }
#endif
  constexpr size_t kRoom = kRoom16<kType>;
  constexpr size_t kChunk = kRoom >= 8 && !F::kHalves ? 8 : kRoom >= 4 ? 4 : kRoom >= 2 ? 2 : 1;
  constexpr size_t kPerScale = 8 / kScalesPerBlock<kType>;
  const auto product = [](VU8 u, const int8_t* q) HWY_ATTR {
    const VI8 x = hn::BitCast(DI8(), hn::Set(DI32(), LoadAs<int32_t>(q)));
    return F::kSigned ? PairDotSigned(hn::BitCast(DI8(), u), x) : PairDot(u, x);
  };
  HWY_UNROLL(8)
  for (size_t c = 0; c < 8; c += kChunk) {
    VI16 high_pairs = product(w[c], high + 4 * c), low_pairs = product(w[c], low + 4 * c);
    HWY_UNROLL(8)
    for (size_t i = c + 1; i < c + kChunk; ++i) {
      high_pairs = hn::Add(high_pairs, product(w[i], high + 4 * i));
      low_pairs = hn::Add(low_pairs, product(w[i], low + 4 * i));
    }
    const VI32 joined = JoinPlanes(high_pairs, low_pairs);
    VI32& sum = sums[c / kPerScale];
    sum = c % kPerScale == 0 ? joined : hn::Add(sum, joined);
  }
}

constexpr size_t kTokensAtOnce = 32;  // their accumulators and one block of each fit in half of a 32 KiB L1

// One interleaved block times every token.
template <DType kType, Int8Units kUnits>
HWY_INLINE void AddPanel(const Panel<kType>& panel, const Scales& s, size_t b, const ActivationRows& x, size_t token,
                         size_t tokens, float* acc) {
  const DF df;
  VU8 w[8];
  LoadPanel<kUnits>(panel.q, w);
  const size_t j = b % 8;
  for (size_t t = 0; t < tokens; ++t, acc += kLanes * kLanes) {
    const Q16Group& g = reinterpret_cast<const Q16Group*>(x.Row(token + t))[b / 8];
    VI32 sums[2];
    PanelDot<kType, kUnits>(w, g.high[j], g.low[j], sums);
    const XScales xs = {hn::Set(df, g.scale[j]),
                        {hn::Set(df, Format<kType>::kHalves ? g.sums[0][j] : g.sum[j]), hn::Set(df, g.sums[1][j])}};
    float* lane_acc = acc + b % kLanes * kLanes;
    hn::Store(AddScaled<kType>(sums, s, xs, hn::Load(df, lane_acc)), df, lane_acc);
  }
}

// Up to kLanes rows times up to kTokensAtOnce tokens. The same places of the `next` kLanes rows are fetched meanwhile.
template <DType kType, Int8Units kUnits>
HWY_INLINE void QuantTile(const uint8_t* const* rows, const uint8_t* const* next, size_t count, size_t blocks,
                          const ActivationRows& x, size_t token, size_t tokens, float* out, size_t out_stride) {
  const DF df;
  const uint8_t* panel_rows[kLanes];  // lanes past the last row repeat it, and are dropped
  for (size_t r = 0; r < kLanes; ++r) panel_rows[r] = rows[std::min(r, count - 1)];
  alignas(64) float acc[kTokensAtOnce * kLanes * kLanes];
  std::memset(acc, 0, tokens * kLanes * kLanes * sizeof(float));
  PanelScales scales;
  Panel<kType> panel;
  for (size_t b = 0; b < blocks; ++b) {
    if (b % kLanes == 0) {
      for (size_t r = 0; r < kLanes; ++r) PrefetchBytes(next[r] + b / kLanes * kGroupBytes<kType>, kGroupBytes<kType>);
      FillPanelScales<kType>(panel_rows, kLanes, b, std::min(kLanes, blocks - b), &scales);
    }
    FillPanel<kType>(panel_rows, b, &panel);
    AddPanel<kType, kUnits>(panel, LoadPanelScales<kType>(scales, b % kLanes), b, x, token, tokens, acc);
  }
  for (size_t t = 0; t < tokens; ++t) {
    alignas(32) float sums[kLanes];
    hn::Store(SumVectors<kLanes>(df, acc + t * kLanes * kLanes), df, sums);
    std::memcpy(out + (token + t) * out_stride, sums, count * sizeof(float));
  }
}

template <DType kType, Int8Units kUnits>
HWY_NOINLINE void QuantDotRows(std::span<const std::byte* const> rows, size_t cols, const ActivationRows& x, float* out,
                               size_t out_stride, std::span<const std::byte* const> ahead) {
  const size_t blocks = cols / 32;
  const auto* const* row = reinterpret_cast<const uint8_t* const*>(rows.data());
  constexpr size_t kFewTokens = 3;  // up to here unpacking and interleaving costs more than it saves
  const auto row_after = [&](size_t k) {
    return reinterpret_cast<const uint8_t*>(k < rows.size()                  ? rows[k]
                                            : k - rows.size() < ahead.size() ? ahead[k - rows.size()]
                                                                             : rows.back());
  };
  if (x.tokens <= kFewTokens) {
    const size_t distance = std::clamp<size_t>(4096 / RowBytes(kType, cols), 1, 8);
    for (size_t k = 0; k < rows.size(); ++k) {
      const uint8_t* next = row_after(k + distance);
      for (size_t t = 0; t < x.tokens; ++t) {
        out[t * out_stride + k] = QuantDot<kType, kUnits>(row[k], blocks, reinterpret_cast<const Q16Group*>(x.Row(t)), next);
      }
    }
    return;
  }
  for (size_t token = 0; token < x.tokens; token += kTokensAtOnce) {
    const size_t tokens = std::min(kTokensAtOnce, x.tokens - token);
    for (size_t k = 0; k < rows.size(); k += kLanes) {
      const uint8_t* next[kLanes];
      for (size_t r = 0; r < kLanes; ++r) next[r] = row_after(k + kLanes + r);
      QuantTile<kType, kUnits>(row + k, next, std::min(kLanes, rows.size() - k), blocks, x, token, tokens, out + k, out_stride);
    }
  }
}

#endif  // EM_SIMD
}  // namespace HWY_NAMESPACE
}  // namespace elasticmem
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled for each target
