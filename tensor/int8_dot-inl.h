// Dot products of quantised rows with Q16 activations where AVX-512 has VNNI: 16 rows at a time are the lanes. A block
// of 32 columns of theirs is unpacked and interleaved once for all tokens, so that one instruction multiplies 4 columns
// of 16 rows with 4 values of a token. For each part h of a block b (the block, or with kHalves each half of it), one
// chain of float sums in the order of b, h, whatever the batch:
//   high, low = sum over i in h of u_i * x_i in either plane, exactly, in int32 (and exact as floats)
//   isum = fma(254, high, low), and where the type has an offset fma(-offset, sum of x_i, isum)
//   acc = fma(isum, scale_bh * x_scale_b, acc), then the minimum's term likewise
#if defined(ELASTICMEM_TENSOR_INT8_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ELASTICMEM_TENSOR_INT8_DOT_INL_H_
#undef ELASTICMEM_TENSOR_INT8_DOT_INL_H_
#else
#define ELASTICMEM_TENSOR_INT8_DOT_INL_H_
#endif

#include <algorithm>
#include <span>

#include "tensor/float_dot-inl.h"
#include "tensor/int8_units.h"
#include "tensor/quantize.h"
#include "tensor/quants-inl.h"

// Highway 1.0.3 has no target with VNNI or AMX (its AVX3_DL asks for AVX-VNNI instead): these are functions of AVX3
// with more instructions, called where Int8UnitsHere() says so.
#undef EM_VNNI
#if HWY_TARGET == HWY_AVX3
#define EM_VNNI 1
#define EM_VNNI_ATTR __attribute__((target("avx512vnni")))
#define EM_AMX_ATTR __attribute__((target("avx512vnni,amx-tile,amx-int8")))
#else
#define EM_VNNI 0
#endif

HWY_BEFORE_NAMESPACE();
namespace elasticmem {
namespace HWY_NAMESPACE {
#if EM_VNNI

constexpr size_t kInt8Rows = 16;
constexpr size_t kInt8Tokens = 64;  // in flight: their sums stay in L1

// out[c] lane r = 32-bit lane c of in[r].
HWY_INLINE void Interleave16Rows(const __m256i* in, __m512i* out) {
  __m512i v[8], t[8];
  HWY_UNROLL(8)
  for (size_t i = 0; i < 4; ++i) {  // lower half: a row of the first four; upper half: its neighbour four rows on
    v[i] = _mm512_inserti64x4(_mm512_castsi256_si512(in[i]), in[i + 4], 1);
    v[4 + i] = _mm512_inserti64x4(_mm512_castsi256_si512(in[8 + i]), in[12 + i], 1);
  }
  HWY_UNROLL(2)
  for (size_t i = 0; i < 8; i += 4) {
    t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    t[i + 2] = _mm512_unpacklo_epi32(v[i + 2], v[i + 3]);
    t[i + 3] = _mm512_unpackhi_epi32(v[i + 2], v[i + 3]);
    v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  HWY_UNROLL(4)
  for (size_t c = 0; c < 4; ++c) {
    out[c] = _mm512_shuffle_i32x4(v[c], v[4 + c], 0x88);
    out[4 + c] = _mm512_shuffle_i32x4(v[c], v[4 + c], 0xdd);
  }
}

// Lane r of w[c]: the integers u of columns 4c .. 4c + 3 of block b of row r, unsigned.
template <DType kType>
HWY_INLINE void InterleaveBlock(const uint8_t* const* rows, size_t b, __m512i* w) {
  using F = Format<kType>;
  if constexpr (kType == DType::kQ4_0 || kType == DType::kQ4_1) {  // both nibbles of a byte at once
    __m512i v[4], t[4];
    HWY_UNROLL(4)
    for (size_t i = 0; i < 4; ++i) {
      const auto bytes = [&](size_t r) HWY_ATTR {
        const uint8_t* p = rows[r] + b * F::kBlockBytes + (F::kBlockBytes - 16);
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
      };
      v[i] = _mm512_castsi128_si512(bytes(i));
      v[i] = _mm512_inserti32x4(v[i], bytes(4 + i), 1);
      v[i] = _mm512_inserti32x4(v[i], bytes(8 + i), 2);
      v[i] = _mm512_inserti32x4(v[i], bytes(12 + i), 3);
    }
    t[0] = _mm512_unpacklo_epi32(v[0], v[1]);
    t[1] = _mm512_unpackhi_epi32(v[0], v[1]);
    t[2] = _mm512_unpacklo_epi32(v[2], v[3]);
    t[3] = _mm512_unpackhi_epi32(v[2], v[3]);
    v[0] = _mm512_unpacklo_epi64(t[0], t[2]);
    v[1] = _mm512_unpackhi_epi64(t[0], t[2]);
    v[2] = _mm512_unpacklo_epi64(t[1], t[3]);
    v[3] = _mm512_unpackhi_epi64(t[1], t[3]);
    const __m512i nibble = _mm512_set1_epi8(15);
    HWY_UNROLL(4)
    for (size_t c = 0; c < 4; ++c) {
      w[c] = _mm512_and_si512(v[c], nibble);
      w[4 + c] = _mm512_and_si512(_mm512_srli_epi16(v[c], 4), nibble);
    }
  } else {
    __m256i in[kInt8Rows];
    HWY_UNROLL(16)
    for (size_t r = 0; r < kInt8Rows; ++r) in[r] = Quants<kType>(rows[r], b, 0).raw;
    Interleave16Rows(in, w);
    if constexpr (F::kSigned) {
      HWY_UNROLL(8)
      for (size_t c = 0; c < 8; ++c) w[c] = _mm512_xor_si512(w[c], _mm512_set1_epi8(static_cast<char>(0x80)));
    }
  }
}

// What InterleaveBlock's integers are more than the weights'.
template <DType kType>
constexpr int kUnsignedBy = Format<kType>::kSigned ? 128 : Format<kType>::kOffset;
template <DType kType>
constexpr size_t kPartsOfBlock = Format<kType>::kHalves ? 2 : 1;

// Scales of 8 blocks, lane r: row r.
struct RowScales16 {
  __m512 scale[2][8];
  __m512 minimum[2][8];
};

// The rows' addresses, as 64-bit lanes.
struct RowAddresses {
  HWY_INLINE explicit RowAddresses(const uint8_t* const* rows)
      : first(_mm512_loadu_si512(rows)), last(_mm512_loadu_si512(rows + 8)) {}
  // Lane r: the 4 bytes at `offset` in row r.
  HWY_INLINE __m512i Words(size_t offset) const {
    const auto* base = reinterpret_cast<const int*>(offset);
    const __m256i low = _mm512_i64gather_epi32(first, base, 1), high = _mm512_i64gather_epi32(last, base, 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
  __m512i first, last;
};

// The float16 in the lower, the upper half of each lane.
HWY_INLINE __m512 LowerHalves(__m512i words) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words)); }
HWY_INLINE __m512 UpperHalves(__m512i words) { return LowerHalves(_mm512_srli_epi32(words, 16)); }

HWY_INLINE __m512 ByteToFloat(__m512i words, unsigned byte) {
  return _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(words, 8 * byte), _mm512_set1_epi32(0xff)));
}
HWY_INLINE __m512 SignedByteToFloat(__m512i words, unsigned byte) {
  return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(words, 24 - 8 * byte), 24));
}

// Of the blocks b .. b + n - 1 of 16 rows; the products are those of LoadScales.
template <DType kType>
HWY_INLINE void InterleaveScales(const uint8_t* const* rows, size_t b, size_t n, RowScales16* out) {
  using F = Format<kType>;
  if constexpr (!F::kSuper) {
    const RowAddresses at(rows);
    for (size_t i = 0; i < n; ++i) {
      const __m512i words = at.Words((b + i) * F::kBlockBytes);
      out->scale[0][i] = LowerHalves(words);
      if constexpr (F::kMin) out->minimum[0][i] = UpperHalves(words);
    }
  } else if constexpr (kType == DType::kQ4_K || kType == DType::kQ5_K) {
    const RowAddresses at(rows);
    const size_t p = b / 8 * F::kBlockBytes;
    const __m512i head = at.Words(p), a = at.Words(p + 4), m = at.Words(p + 8), c = at.Words(p + 12);
    const __m512 d = LowerHalves(head), d_min = _mm512_sub_ps(_mm512_setzero_ps(), UpperHalves(head));
    const auto bits = [](__m512i v, unsigned shift, int mask)
                          HWY_ATTR { return _mm512_and_si512(_mm512_srli_epi32(v, shift), _mm512_set1_epi32(mask)); };
    const auto top = [&](__m512i v) HWY_ATTR { return _mm512_slli_epi32(bits(v, 6, 0x03030303), 4); };
    const __m512i scales[2] = {bits(a, 0, 0x3f3f3f3f), _mm512_or_si512(bits(c, 0, 0x0f0f0f0f), top(a))};
    const __m512i minimums[2] = {bits(m, 0, 0x3f3f3f3f), _mm512_or_si512(bits(c, 4, 0x0f0f0f0f), top(m))};
    HWY_UNROLL(8)
    for (unsigned i = 0; i < 8; ++i) {
      out->scale[0][i] = _mm512_mul_ps(d, ByteToFloat(scales[i / 4], i % 4));
      out->minimum[0][i] = _mm512_mul_ps(d_min, ByteToFloat(minimums[i / 4], i % 4));
    }
  } else if constexpr (kType == DType::kQ6_K) {
    const RowAddresses at(rows);
    const size_t p = b / 8 * F::kBlockBytes;
    const __m512 d = UpperHalves(at.Words(p + 206));  // the last two bytes of the block
    HWY_UNROLL(4)
    for (size_t q = 0; q < 4; ++q) {
      const __m512i words = at.Words(p + 192 + 4 * q);
      HWY_UNROLL(4)
      for (unsigned i = 0; i < 4; ++i) out->scale[i % 2][2 * q + i / 2] = _mm512_mul_ps(d, SignedByteToFloat(words, i));
    }
  } else {
    __m256i scale[2][kInt8Rows], minimum[2][kInt8Rows];
    for (size_t r = 0; r < kInt8Rows; ++r) {
      const Scales s = LoadScales<kType>(rows[r], b, n);
      for (size_t h = 0; h < kPartsOfBlock<kType>; ++h) {
        scale[h][r] = _mm256_castps_si256(s.scale[h].raw);
        if constexpr (F::kMin) minimum[h][r] = _mm256_castps_si256(s.minimum[h].raw);
      }
    }
    for (size_t h = 0; h < kPartsOfBlock<kType>; ++h) {
      Interleave16Rows(scale[h], reinterpret_cast<__m512i*>(out->scale[h]));
      if constexpr (F::kMin) Interleave16Rows(minimum[h], reinterpret_cast<__m512i*>(out->minimum[h]));
    }
  }
}

// acc + the terms of part h of a block: `high` and `low` are the sums of the planes, x_sum that of the activations.
template <DType kType>
HWY_INLINE __m512 AddPart(__m512i high, __m512i low, float x_sum, float x_scale, const RowScales16& s, size_t i,
                          size_t h, __m512 acc) {
  const __m512 sum = _mm512_set1_ps(x_sum), scale = _mm512_set1_ps(x_scale);
  __m512 isum = _mm512_fmadd_ps(_mm512_set1_ps(kQ16Step), _mm512_cvtepi32_ps(high), _mm512_cvtepi32_ps(low));
  if constexpr (kUnsignedBy<kType> != 0) isum = _mm512_fnmadd_ps(_mm512_set1_ps(kUnsignedBy<kType>), sum, isum);
  acc = _mm512_fmadd_ps(isum, _mm512_mul_ps(s.scale[h][i], scale), acc);
  if constexpr (Format<kType>::kMin) acc = _mm512_fmadd_ps(sum, _mm512_mul_ps(s.minimum[h][i], scale), acc);
  return acc;
}

// acc + one token's terms of block j of its group `g`.
template <DType kType>
EM_VNNI_ATTR HWY_INLINE __m512 AddVnniBlock(const __m512i* w, const RowScales16& s, size_t i, const Q16Group& g,
                                            size_t j, __m512 acc) {
  constexpr size_t kParts = kPartsOfBlock<kType>, kSteps = 8 / kParts;
  HWY_UNROLL(2)
  for (size_t h = 0; h < kParts; ++h) {
    __m512i high[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};  // two chains each: shorter
    __m512i low[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    HWY_UNROLL(8)
    for (size_t c = h * kSteps; c < (h + 1) * kSteps; ++c) {
      high[c % 2] = _mm512_dpbusd_epi32(high[c % 2], w[c], _mm512_set1_epi32(LoadAs<int32_t>(g.high[j] + 4 * c)));
      low[c % 2] = _mm512_dpbusd_epi32(low[c % 2], w[c], _mm512_set1_epi32(LoadAs<int32_t>(g.low[j] + 4 * c)));
    }
    acc = AddPart<kType>(_mm512_add_epi32(high[0], high[1]), _mm512_add_epi32(low[0], low[1]),
                         kParts == 2 ? g.sums[h][j] : g.sum[j], g.scale[j], s, i, h, acc);
  }
  return acc;
}

// The sums of up to 16 tokens: [part of the block][high, low][token][row].
struct AmxSums {
  alignas(64) int32_t sums[2][2][16][16];
};

// The same for a tile of tokens x 32 columns on AMX, the same exact sums. kWhole: 16 tokens, else as many as ShapeTiles
// was told. Tiles: 0 to 3 sums, 4 and 5 tokens, 6 and 7 rows.
template <DType kType, bool kWhole>
EM_AMX_ATTR HWY_INLINE void MultiplyTiles(const Q16Group* g, size_t stride, size_t j, AmxSums* out) {
  HWY_UNROLL(2)
  for (size_t h = 0; h < kPartsOfBlock<kType>; ++h) {
    const int8_t* high = g->high[j] + 16 * h;
    const int8_t* low = g->low[j] + 16 * h;
    if constexpr (kWhole) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_loadd(4, high, stride);
      if (h == 0) _tile_dpbsud(0, 4, 6);
      if (h == 1) _tile_dpbsud(0, 4, 7);
      _tile_loadd(4, low, stride);
      if (h == 0) _tile_dpbsud(1, 4, 6);
      if (h == 1) _tile_dpbsud(1, 4, 7);
      _tile_stored(0, out->sums[h][0], 64);
      _tile_stored(1, out->sums[h][1], 64);
    } else {
      _tile_zero(2);
      _tile_zero(3);
      _tile_loadd(5, high, stride);
      if (h == 0) _tile_dpbsud(2, 5, 6);
      if (h == 1) _tile_dpbsud(2, 5, 7);
      _tile_loadd(5, low, stride);
      if (h == 0) _tile_dpbsud(3, 5, 6);
      if (h == 1) _tile_dpbsud(3, 5, 7);
      _tile_stored(2, out->sums[h][0], 64);
      _tile_stored(3, out->sums[h][1], 64);
    }
  }
  asm volatile("" ::: "memory");  // the intrinsics do not say that they write
}

template <DType kType>
HWY_INLINE void ScaleSums(const AmxSums& in, const RowScales16& s, size_t i, const Q16Group* g, size_t stride, size_t j,
                          size_t tokens, __m512* acc) {
  constexpr size_t kParts = kPartsOfBlock<kType>;
  for (size_t t = 0; t < tokens; ++t) {
    const auto& x = *reinterpret_cast<const Q16Group*>(reinterpret_cast<const std::byte*>(g) + t * stride);
    HWY_UNROLL(2)
    for (size_t h = 0; h < kParts; ++h) {
      acc[t] = AddPart<kType>(_mm512_load_si512(in.sums[h][0][t]), _mm512_load_si512(in.sums[h][1][t]),
                              kParts == 2 ? x.sums[h][j] : x.sum[j], x.scale[j], s, i, h, acc[t]);
    }
  }
}

// The operand of ldtilecfg.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

template <DType kType>
EM_AMX_ATTR HWY_NOINLINE void ShapeTiles(size_t last_tokens) {
  TileShapes shapes;
  const auto set = [&](size_t tile, size_t rows, size_t row_bytes) {
    shapes.rows[tile] = static_cast<uint8_t>(rows);
    shapes.row_bytes[tile] = static_cast<uint16_t>(row_bytes);
  };
  for (const size_t tile : {0, 1}) set(tile, 16, 64);
  for (const size_t tile : {2, 3}) set(tile, std::max<size_t>(1, last_tokens), 64);
  set(4, 16, 32 / kPartsOfBlock<kType>);
  set(5, std::max<size_t>(1, last_tokens), 32 / kPartsOfBlock<kType>);
  for (const size_t tile : {6, 7}) set(tile, 8 / kPartsOfBlock<kType>, 64);
  asm volatile("" ::: "memory");
  _tile_loadconfig(&shapes);
}

EM_AMX_ATTR HWY_NOINLINE void ReleaseTiles() { _tile_release(); }

// One block of 16 rows times every token.
template <DType kType>
EM_AMX_ATTR HWY_INLINE void AddAmxTokens(const __m512i* w, const RowScales16& s, size_t b, const ActivationRows& x,
                                         size_t token, size_t tokens, __m512* acc) {
  _tile_loadd(6, w, 64);
  if constexpr (kPartsOfBlock<kType> == 2) _tile_loadd(7, w + 4, 64);
  const auto group = [&](size_t t) { return reinterpret_cast<const Q16Group*>(x.Row(token + t)) + b / 8; };
  // One tile is multiplied while the sums of the one before it are scaled.
  AmxSums sums[2];
  for (size_t t = 0; t < tokens + 16; t += 16) {
    if (t + 16 <= tokens) {
      MultiplyTiles<kType, true>(group(t), x.stride, b % 8, &sums[t / 16 % 2]);
    } else if (t < tokens) {
      MultiplyTiles<kType, false>(group(t), x.stride, b % 8, &sums[t / 16 % 2]);
    }
    if (t > 0) {
      ScaleSums<kType>(sums[t / 16 % 2 ^ 1], s, b % 8, group(t - 16), x.stride, b % 8,
                       std::min<size_t>(16, tokens + 16 - t), acc + t - 16);
    }
  }
}

// Up to 16 rows, and those that come after them: at every block the same places of some are fetched.
template <DType kType>
struct TileRows {
  HWY_INLINE TileRows(std::span<const std::byte* const> all, std::span<const std::byte* const> ahead, size_t first)
      : count(std::min(kInt8Rows, all.size() - first)) {
    for (size_t r = 0; r < kInt8Rows; ++r) {
      // Lanes past the last row repeat it, and are dropped.
      rows[r] = reinterpret_cast<const uint8_t*>(all[first + std::min(r, count - 1)]);
      next[r] = RowAfter(all, ahead, first + kInt8Rows + r);
    }
  }
  HWY_INLINE void Fetch(size_t b) const {
    constexpr size_t kGroup = Format<kType>::kBlockBytes * (Format<kType>::kSuper ? 1 : 8);
    for (size_t r = b % 8 * 2; r < b % 8 * 2 + 2; ++r) PrefetchBytes(next[r] + b / 8 * kGroup, kGroup);
  }
  HWY_INLINE void Store(const __m512* acc, size_t tokens, float* out, size_t out_stride) const {
    const __mmask16 mask = static_cast<__mmask16>((1u << count) - 1);
    for (size_t t = 0; t < tokens; ++t) _mm512_mask_storeu_ps(out + t * out_stride, mask, acc[t]);
  }
  size_t count;
  const uint8_t* rows[kInt8Rows];
  const uint8_t* next[kInt8Rows];
};

constexpr size_t kFewInt8Tokens = 3;  // with AMX a tile of more is faster than its tokens one by one

template <DType kType>
EM_VNNI_ATTR HWY_NOINLINE void VnniTile(const TileRows<kType>& rows, size_t blocks, const ActivationRows& x,
                                        size_t token, size_t tokens, float* out, size_t out_stride) {
  __m512 acc[kInt8Tokens];
  for (size_t t = 0; t < tokens; ++t) acc[t] = _mm512_setzero_ps();
  RowScales16 scales;
  for (size_t b = 0; b < blocks; ++b) {
    if (b % 8 == 0) InterleaveScales<kType>(rows.rows, b, std::min<size_t>(8, blocks - b), &scales);
    rows.Fetch(b);
    __m512i w[8];
    InterleaveBlock<kType>(rows.rows, b, w);
    for (size_t t = 0; t < tokens; ++t) {
      const Q16Group& g = reinterpret_cast<const Q16Group*>(x.Row(token + t))[b / 8];
      acc[t] = AddVnniBlock<kType>(w, scales, b % 8, g, b % 8, acc[t]);
    }
  }
  rows.Store(acc, tokens, out, out_stride);
}

template <DType kType>
EM_AMX_ATTR HWY_NOINLINE void AmxTile(const TileRows<kType>& rows, size_t blocks, const ActivationRows& x, size_t token,
                                      size_t tokens, float* out, size_t out_stride) {
  __m512 acc[kInt8Tokens];
  for (size_t t = 0; t < tokens; ++t) acc[t] = _mm512_setzero_ps();
  RowScales16 scales;
  for (size_t b = 0; b < blocks; ++b) {
    if (b % 8 == 0) InterleaveScales<kType>(rows.rows, b, std::min<size_t>(8, blocks - b), &scales);
    rows.Fetch(b);
    alignas(64) __m512i w[8];
    InterleaveBlock<kType>(rows.rows, b, w);
    AddAmxTokens<kType>(w, scales, b, x, token, tokens, acc);
  }
  rows.Store(acc, tokens, out, out_stride);
}

template <DType kType>
void Int8DotRows(std::span<const std::byte* const> rows, size_t cols, const ActivationRows& x, float* out,
                 size_t out_stride, std::span<const std::byte* const> ahead) {
  const bool amx = x.tokens > kFewInt8Tokens && Int8UnitsHere() == Int8Units::kAmx;
  if (amx) ShapeTiles<kType>(x.tokens % 16);
  for (size_t token = 0; token < x.tokens; token += kInt8Tokens) {
    const size_t tokens = std::min(kInt8Tokens, x.tokens - token);
    for (size_t k = 0; k < rows.size(); k += kInt8Rows) {
      const TileRows<kType> tile(rows, ahead, k);
      const auto run = amx ? AmxTile<kType> : VnniTile<kType>;
      run(tile, cols / 32, x, token, tokens, out + token * out_stride + k, out_stride);
    }
  }
  if (amx) ReleaseTiles();
}

#undef EM_AMX_ATTR
#undef EM_VNNI_ATTR
#endif  // EM_VNNI
}  // namespace HWY_NAMESPACE
}  // namespace elasticmem
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled for each target
