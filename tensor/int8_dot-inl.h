// Dot products of quantised rows with Q16 activations where AVX-512 has VNNI: 16 rows at a time are the lanes. They lie
// interleaved (tensor/interleave.h), or a block of theirs is interleaved once for all tokens, so that one instruction
// multiplies 4 columns of 16 rows with 4 values of a token. For each part h of a block b (the block, or with kHalves
// each half of it), one chain of float sums in the order of b, h, whatever the batch:
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
#include "tensor/interleave.h"
#include "tensor/quantize.h"
#include "tensor/quants-inl.h"

// Highway 1.0.3 has no target with VNNI or AMX (its AVX3_DL asks for AVX-VNNI instead): these are functions of AVX3
// with more instructions, called where Int8UnitsHere() says so.
#undef EM_VNNI
#if HWY_TARGET == HWY_AVX3
#define EM_VNNI 1
#define EM_VNNI_ATTR __attribute__((target(HWY_TARGET_STR ",avx512vnni")))
#define EM_AMX_ATTR __attribute__((target(HWY_TARGET_STR ",avx512vnni,amx-tile,amx-int8")))
#else
#define EM_VNNI 0
#endif

HWY_BEFORE_NAMESPACE();
namespace elasticmem {
namespace HWY_NAMESPACE {
#if EM_VNNI

constexpr size_t kInt8Tokens = 64;  // in flight: their sums stay in L1

// out[c] lane r = 32-bit lane c of in[r].
HWY_INLINE void Interleave8Words(const __m256i* in, __m512i* out) {
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
HWY_INLINE void Interleave4Words(const uint8_t* const* rows, size_t at, __m512i* out) {
  __m512i v[4], t[4];
  HWY_UNROLL(4)
  for (size_t i = 0; i < 4; ++i) {
    const auto bytes = [&](size_t r)
                           HWY_ATTR { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[r] + at)); };
    v[i] = _mm512_castsi128_si512(bytes(i));
    v[i] = _mm512_inserti32x4(v[i], bytes(4 + i), 1);
    v[i] = _mm512_inserti32x4(v[i], bytes(8 + i), 2);
    v[i] = _mm512_inserti32x4(v[i], bytes(12 + i), 3);
  }
  t[0] = _mm512_unpacklo_epi32(v[0], v[1]);
  t[1] = _mm512_unpackhi_epi32(v[0], v[1]);
  t[2] = _mm512_unpacklo_epi32(v[2], v[3]);
  t[3] = _mm512_unpackhi_epi32(v[2], v[3]);
  out[0] = _mm512_unpacklo_epi64(t[0], t[2]);
  out[1] = _mm512_unpackhi_epi64(t[0], t[2]);
  out[2] = _mm512_unpacklo_epi64(t[1], t[3]);
  out[3] = _mm512_unpackhi_epi64(t[1], t[3]);
}

// 16 rows at any addresses, as 64-bit lanes.
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

// A block of 16 rows as tensor/interleave.h has it.
template <DType kType>
struct alignas(64) InterleavedBlock {
  static constexpr BlockWords kWords = WordsOfBlock(kType);
  uint8_t bytes[kWords.count * 64 + 64];
};

// Block b of 16 scattered rows.
template <DType kType>
HWY_INLINE void InterleaveBlock(const uint8_t* const* rows, size_t b, InterleavedBlock<kType>* out) {
  constexpr BlockWords kWords = WordsOfBlock(kType);
  constexpr bool kSuper = Format<kType>::kSuper;
  auto* to = reinterpret_cast<__m512i*>(out->bytes);
  const RowAddresses addresses(rows);
  const size_t block = b * Format<kType>::kBlockBytes, begin = block + kWords.begin;
  // By eights and a four; the words left are the first of a block of 32, the last of one of 256.
  constexpr size_t kLeft = kWords.count % 4, kFirst = kSuper ? 0 : kLeft;
  HWY_UNROLL(8)
  for (size_t w = 0; w + 8 <= kWords.count - kLeft; w += 8) {
    __m256i in[kInterleavedRows];
    HWY_UNROLL(16)
    for (size_t r = 0; r < kInterleavedRows; ++r) {
      in[r] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[r] + begin + 4 * (kFirst + w)));
    }
    Interleave8Words(in, to + kFirst + w);
  }
  constexpr size_t kWhole = kWords.count - kLeft;
  if constexpr (kWhole % 8 != 0) {
    Interleave4Words(rows, begin + 4 * (kFirst + kWhole - 4), to + kFirst + kWhole - 4);
  }
  HWY_UNROLL(4)
  for (size_t i = 0; i < kLeft; ++i) {
    const size_t w = kSuper ? kWhole + i : i;
    to[w] = addresses.Words(begin + 4 * w);
  }
  if constexpr (kWords.has_scale) {  // 4 bytes of the block that hold it
    const __m512i words = kSuper ? _mm512_srli_epi32(addresses.Words(block + kWords.scale - 2), 16)
                                 : addresses.Words(block + kWords.scale);
    _mm256_store_si256(reinterpret_cast<__m256i*>(to + kWords.count), _mm512_cvtepi32_epi16(words));
  }
}

HWY_INLINE __m512i WordOf(const uint8_t* block, size_t w) { return _mm512_loadu_si512(block + 64 * w); }
// The float16 in the lower, the upper half of each lane.
HWY_INLINE __m512 LowerHalves(__m512i words) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words)); }
HWY_INLINE __m512 UpperHalves(__m512i words) { return LowerHalves(_mm512_srli_epi32(words, 16)); }

// Each byte shifted, for bytes whose neighbours' bits come in. By a constant once loops are unrolled.
HWY_INLINE __m512i ShiftRight(__m512i bytes, int by) {
  if (by == 0) return bytes;
  return by > 0 ? _mm512_srli_epi16(bytes, static_cast<unsigned>(by))
                : _mm512_slli_epi16(bytes, static_cast<unsigned>(-by));
}
HWY_INLINE __m512i BitsAt(__m512i bytes, int shift, uint8_t mask) {
  return _mm512_and_si512(ShiftRight(bytes, shift), _mm512_set1_epi8(static_cast<char>(mask)));
}
// Of each byte the bits of `low` in `low_mask`, and of the others those of `high` in `mask`.
HWY_INLINE __m512i Joined(__m512i low, uint8_t low_mask, __m512i high, uint8_t mask) {
  constexpr int kFirstWhereThird = 0xe4;
  const __m512i joined =
      _mm512_ternarylogic_epi32(low, high, _mm512_set1_epi8(static_cast<char>(low_mask)), kFirstWhereThird);
  return _mm512_and_si512(joined, _mm512_set1_epi8(static_cast<char>(mask)));
}

// 16 in each byte where bit 4 c + its place in the word is set in the lane's `bits`.
HWY_INLINE __m512i FifthBits(__m512i bits, size_t c) {
  const __m512i byte = _mm512_add_epi8(_mm512_set1_epi8(static_cast<char>(c / 2)),
                                       _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0));
  const __m512i bit = _mm512_set1_epi32(c % 2 == 0 ? 0x08040201 : static_cast<int>(0x80402010));
  return _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(_mm512_shuffle_epi8(bits, byte), bit), _mm512_set1_epi8(16));
}

// Lane r of w[c]: the integers u of columns 4c .. 4c + 3 of row r in part j of the block (of 8, where it is one of
// 256), unsigned.
template <DType kType>
HWY_INLINE void UnpackQuants(const uint8_t* block, size_t j, __m512i* w) {
  const auto word = [&](size_t i) HWY_ATTR { return WordOf(block, i); };
  [[maybe_unused]] const int part = static_cast<int>(j), quarter = part % 4;
  HWY_UNROLL(8)
  for (size_t c = 0; c < 8; ++c) {
    if constexpr (kType == DType::kQ8_0) {
      w[c] = _mm512_xor_si512(word(c), _mm512_set1_epi8(static_cast<char>(0x80)));
    } else if constexpr (!Format<kType>::kSuper) {
      constexpr bool kFifth = kType == DType::kQ5_0 || kType == DType::kQ5_1;
      constexpr size_t kNibbles = (Format<kType>::kMin ? 1 : 0) + (kFifth ? 1 : 0);
      const __m512i nibbles = word(kNibbles + c % 4), mask = _mm512_set1_epi8(15);
      w[c] = _mm512_and_si512(c < 4 ? nibbles : _mm512_srli_epi16(nibbles, 4), mask);
      if constexpr (kFifth) w[c] = _mm512_or_si512(w[c], FifthBits(word(kNibbles - 1), c));
    } else if constexpr (kType == DType::kQ2_K) {
      w[c] = BitsAt(word(4 + j / 4 * 8 + c), 2 * quarter, 3);
    } else if constexpr (kType == DType::kQ3_K) {
      w[c] = Joined(ShiftRight(word(8 + j / 4 * 8 + c), 2 * quarter), 3, ShiftRight(word(c), part - 2), 7);
    } else if constexpr (kType == DType::kQ4_K) {
      w[c] = BitsAt(word(4 + j / 2 * 8 + c), part % 2 * 4, 15);
    } else if constexpr (kType == DType::kQ5_K) {
      w[c] = Joined(ShiftRight(word(12 + j / 2 * 8 + c), part % 2 * 4), 15, ShiftRight(word(4 + c), part - 4), 31);
    } else {
      static_assert(kType == DType::kQ6_K);
      w[c] = Joined(ShiftRight(word(j / 4 * 16 + j % 2 * 8 + c), quarter / 2 * 4), 15,
                    ShiftRight(word(32 + j / 4 * 8 + c), 2 * quarter - 4), 63);
    }
  }
}

// What UnpackQuants' integers are more than the weights'.
template <DType kType>
constexpr int kUnsignedBy = Format<kType>::kSigned ? 128 : Format<kType>::kOffset;
template <DType kType>
constexpr size_t kPartsOfBlock = Format<kType>::kHalves ? 2 : 1;

// Of a block: [half of 32 columns, or 0][32 columns of 256], lane r: row r.
struct RowScales16 {
  __m512 scale[2][8];
  __m512 minimum[2][8];
};

HWY_INLINE __m512 ByteToFloat(__m512i words, unsigned byte) {
  return _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(words, 8 * byte), _mm512_set1_epi32(0xff)));
}
HWY_INLINE __m512 SignedByteToFloat(__m512i words, unsigned byte) {
  return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(words, 24 - 8 * byte), 24));
}

// The products are those of LoadScales.
template <DType kType>
HWY_INLINE void UnpackScales(const uint8_t* block, RowScales16* out) {
  using F = Format<kType>;
  constexpr BlockWords kWords = WordsOfBlock(kType);
  const auto word = [&](size_t i) HWY_ATTR { return WordOf(block, i); };
  const auto bits = [](__m512i v, unsigned shift, int mask)
                        HWY_ATTR { return _mm512_and_si512(_mm512_srli_epi32(v, shift), _mm512_set1_epi32(mask)); };
  const auto top = [&](__m512i v, unsigned shift) HWY_ATTR { return _mm512_slli_epi32(bits(v, shift, 0x03030303), 4); };
  const auto own_scale = [&]() HWY_ATTR {
    const uint8_t* p = block + 64 * kWords.count;
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  };
  if constexpr (!F::kSuper) {
    out->scale[0][0] = F::kMin ? LowerHalves(word(0)) : own_scale();
    if constexpr (F::kMin) out->minimum[0][0] = UpperHalves(word(0));
  } else if constexpr (kType == DType::kQ4_K || kType == DType::kQ5_K) {
    const __m512i head = word(0), a = word(1), m = word(2), c = word(3);
    const __m512 d = LowerHalves(head), d_min = _mm512_sub_ps(_mm512_setzero_ps(), UpperHalves(head));
    const __m512i scales[2] = {bits(a, 0, 0x3f3f3f3f), _mm512_or_si512(bits(c, 0, 0x0f0f0f0f), top(a, 6))};
    const __m512i minimums[2] = {bits(m, 0, 0x3f3f3f3f), _mm512_or_si512(bits(c, 4, 0x0f0f0f0f), top(m, 6))};
    HWY_UNROLL(8)
    for (unsigned i = 0; i < 8; ++i) {
      out->scale[0][i] = _mm512_mul_ps(d, ByteToFloat(scales[i / 4], i % 4));
      out->minimum[0][i] = _mm512_mul_ps(d_min, ByteToFloat(minimums[i / 4], i % 4));
    }
  } else if constexpr (kType == DType::kQ2_K) {
    const __m512i head = word(20);
    const __m512 d = LowerHalves(head), d_min = _mm512_sub_ps(_mm512_setzero_ps(), UpperHalves(head));
    HWY_UNROLL(16)
    for (unsigned i = 0; i < 16; ++i) {
      const __m512i both = word(i / 4);
      out->scale[i % 2][i / 2] = _mm512_mul_ps(d, ByteToFloat(bits(both, 0, 0x0f0f0f0f), i % 4));
      out->minimum[i % 2][i / 2] = _mm512_mul_ps(d_min, ByteToFloat(bits(both, 4, 0x0f0f0f0f), i % 4));
    }
  } else {
    const __m512 d = own_scale();
    __m512i scales[4];
    if constexpr (kType == DType::kQ6_K) {
      for (size_t i = 0; i < 4; ++i) scales[i] = word(48 + i);
    } else {
      static_assert(kType == DType::kQ3_K);
      const __m512i a = word(24), b = word(25), c = word(26);
      const __m512i raw[4] = {
          _mm512_or_si512(bits(a, 0, 0x0f0f0f0f), top(c, 0)), _mm512_or_si512(bits(b, 0, 0x0f0f0f0f), top(c, 2)),
          _mm512_or_si512(bits(a, 4, 0x0f0f0f0f), top(c, 4)), _mm512_or_si512(bits(b, 4, 0x0f0f0f0f), top(c, 6))};
      for (size_t i = 0; i < 4; ++i) scales[i] = _mm512_sub_epi8(raw[i], _mm512_set1_epi8(32));
    }
    HWY_UNROLL(16)
    for (unsigned i = 0; i < 16; ++i) {
      out->scale[i % 2][i / 2] = _mm512_mul_ps(d, SignedByteToFloat(scales[i / 4], i % 4));
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
EM_AMX_ATTR HWY_INLINE void AddAmxTokens(const __m512i* w, const RowScales16& s, size_t i, size_t b,
                                         const ActivationRows& x, size_t token, size_t tokens, __m512* acc) {
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
      ScaleSums<kType>(sums[t / 16 % 2 ^ 1], s, i, group(t - 16), x.stride, b % 8,
                       std::min<size_t>(16, tokens + 16 - t), acc + t - 16);
    }
  }
}

// 16 rows that lie interleaved, or up to 16 scattered ones and those that come after them, of which the same places are
// fetched.
template <DType kType>
struct ScatteredTile {
  HWY_INLINE ScatteredTile(std::span<const std::byte* const> all, std::span<const std::byte* const> ahead, size_t first)
      : count(std::min(kInterleavedRows, all.size() - first)) {
    for (size_t r = 0; r < kInterleavedRows; ++r) {
      // Lanes past the last row repeat it, and are dropped.
      rows[r] = reinterpret_cast<const uint8_t*>(all[first + std::min(r, count - 1)]);
      next[r] = RowAfter(all, ahead, first + kInterleavedRows + r);
    }
  }
  HWY_INLINE const uint8_t* Block(size_t b, InterleavedBlock<kType>& room) const {
    constexpr size_t kBytes = Format<kType>::kBlockBytes, kRows = Format<kType>::kSuper ? kInterleavedRows : 2;
    constexpr size_t kGroup = kBytes * (kInterleavedRows / kRows);
    const size_t first = b * kRows % kInterleavedRows;
    for (size_t r = first; r < first + kRows; ++r)
      PrefetchBytes(next[r] + b * kRows / kInterleavedRows * kGroup, kGroup);
    InterleaveBlock<kType>(rows, b, &room);
    return room.bytes;
  }
  size_t count;
  const uint8_t* rows[kInterleavedRows];
  const uint8_t* next[kInterleavedRows];
};
// The next tile is fetched meanwhile, in order from four places at once: one stream of a core does not fill the memory
// bus.
template <DType kType>
struct InterleavedTile {
  HWY_INLINE const uint8_t* Block(size_t b, InterleavedBlock<kType>&) const {
    constexpr size_t kBytes = kInterleavedRows * Format<kType>::kBlockBytes;
    const size_t quarter = tile_bytes / 4;
    const uint8_t* next = data + tile_bytes + b * (kBytes / 4);
    HWY_UNROLL(4)
    for (size_t q = 0; q < 4; ++q) PrefetchBytes(next + q * quarter, kBytes / 4);
    return data + b * kBytes;
  }
  static constexpr size_t count = kInterleavedRows;
  const uint8_t* data;
  size_t tile_bytes;
};

constexpr size_t kFewInt8Tokens = 3;  // with AMX a tile of more is faster than its tokens one by one

HWY_INLINE void StoreTokens(const __m512* acc, size_t rows, size_t tokens, float* out, size_t out_stride) {
  const __mmask16 mask = static_cast<__mmask16>((1u << rows) - 1);
  for (size_t t = 0; t < tokens; ++t) _mm512_mask_storeu_ps(out + t * out_stride, mask, acc[t]);
}

template <DType kType, class Tile>
EM_VNNI_ATTR HWY_NOINLINE void VnniTile(const Tile& tile, size_t cols, const ActivationRows& x, size_t token,
                                        size_t tokens, float* out, size_t out_stride) {
  constexpr size_t kParts = Format<kType>::kSuper ? 8 : 1;  // of 32 columns
  __m512 acc[kInt8Tokens];
  for (size_t t = 0; t < tokens; ++t) acc[t] = _mm512_setzero_ps();
  InterleavedBlock<kType> room;
  RowScales16 scales;
  for (size_t b = 0; b < cols / (32 * kParts); ++b) {
    const uint8_t* block = tile.Block(b, room);
    UnpackScales<kType>(block, &scales);
    HWY_UNROLL(8)
    for (size_t j = 0; j < kParts; ++j) {
      __m512i w[8];
      UnpackQuants<kType>(block, j, w);
      const size_t at = b * kParts + j;
      for (size_t t = 0; t < tokens; ++t) {
        const Q16Group& g = reinterpret_cast<const Q16Group*>(x.Row(token + t))[at / 8];
        acc[t] = AddVnniBlock<kType>(w, scales, j, g, at % 8, acc[t]);
      }
    }
  }
  StoreTokens(acc, tile.count, tokens, out, out_stride);
}

template <DType kType, class Tile>
EM_AMX_ATTR HWY_NOINLINE void AmxTile(const Tile& tile, size_t cols, const ActivationRows& x, size_t token,
                                      size_t tokens, float* out, size_t out_stride) {
  constexpr size_t kParts = Format<kType>::kSuper ? 8 : 1;
  __m512 acc[kInt8Tokens];
  for (size_t t = 0; t < tokens; ++t) acc[t] = _mm512_setzero_ps();
  InterleavedBlock<kType> room;
  RowScales16 scales;
  for (size_t b = 0; b < cols / (32 * kParts); ++b) {
    const uint8_t* block = tile.Block(b, room);
    UnpackScales<kType>(block, &scales);
    HWY_UNROLL(8)
    for (size_t j = 0; j < kParts; ++j) {
      alignas(64) __m512i w[8];
      UnpackQuants<kType>(block, j, w);
      AddAmxTokens<kType>(w, scales, j, b * kParts + j, x, token, tokens, acc);
    }
  }
  StoreTokens(acc, tile.count, tokens, out, out_stride);
}

// `count` rows; tile(k) are the 16 from row k on.
template <DType kType, class TileAt>
HWY_INLINE void Int8Tiles(size_t count, size_t cols, const ActivationRows& x, float* out, size_t out_stride,
                          TileAt&& tile) {
  using Tile = decltype(tile(0));
  const bool amx = x.tokens > kFewInt8Tokens && Int8UnitsHere() == Int8Units::kMatrix;
  if (amx) ShapeTiles<kType>(x.tokens % 16);
  for (size_t token = 0; token < x.tokens; token += kInt8Tokens) {
    const size_t tokens = std::min(kInt8Tokens, x.tokens - token);
    for (size_t k = 0; k < count; k += kInterleavedRows) {
      const auto run = amx ? AmxTile<kType, Tile> : VnniTile<kType, Tile>;
      run(tile(k), cols, x, token, tokens, out + token * out_stride + k, out_stride);
    }
  }
  if (amx) ReleaseTiles();
}

template <DType kType>
void Int8DotRows(std::span<const std::byte* const> rows, size_t cols, const ActivationRows& x, float* out,
                 size_t out_stride, std::span<const std::byte* const> ahead) {
  Int8Tiles<kType>(rows.size(), cols, x, out, out_stride,
                   [&](size_t k) HWY_ATTR { return ScatteredTile<kType>(rows, ahead, k); });
}

template <DType kType>
void Int8DotInterleaved(const std::byte* tiles, size_t rows, size_t cols, const ActivationRows& x, float* out,
                        size_t out_stride) {
  Int8Tiles<kType>(rows, cols, x, out, out_stride, [&](size_t k) HWY_ATTR {
    return InterleavedTile<kType>{reinterpret_cast<const uint8_t*>(tiles) + k * RowBytes(kType, cols),
                                  kInterleavedRows * RowBytes(kType, cols)};
  });
}

#undef EM_AMX_ATTR
#undef EM_VNNI_ATTR
#endif  // EM_VNNI
}  // namespace HWY_NAMESPACE
}  // namespace elasticmem
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled for each target
