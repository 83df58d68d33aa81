// The quantised formats as vectors: the integers of a block of 32, and the scales of kLanes consecutive blocks.
// A weight is scale * (u - kOffset) + minimum, u >= 0 (Q8_0: u signed). There is one scale and (kMin) one minimum a
// block, or with kHalves one for each 16.
#if defined(ELASTICMEM_TENSOR_QUANTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ELASTICMEM_TENSOR_QUANTS_INL_H_
#undef ELASTICMEM_TENSOR_QUANTS_INL_H_
#else
#define ELASTICMEM_TENSOR_QUANTS_INL_H_
#endif

#include "tensor/dtype.h"
#include "tensor/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace elasticmem {
namespace HWY_NAMESPACE {
#if EM_SIMD

template <DType kType>
struct Format {
  static constexpr size_t kBlockBytes = Traits(kType).block_bytes;
  static constexpr bool kSuper = Traits(kType).block_elements == 256;
  static constexpr bool kSigned = kType == DType::kQ8_0;
  static constexpr bool kHalves = kType == DType::kQ2_K || kType == DType::kQ3_K || kType == DType::kQ6_K;
  static constexpr bool kMin = kType == DType::kQ4_1 || kType == DType::kQ5_1 || kType == DType::kQ2_K ||
                               kType == DType::kQ4_K || kType == DType::kQ5_K;
  static constexpr int kOffset = kType == DType::kQ4_0   ? 8
                                 : kType == DType::kQ5_0 ? 16
                                 : kType == DType::kQ3_K ? 4
                                 : kType == DType::kQ6_K ? 32
                                                         : 0;
  static constexpr int kMaxU = kType == DType::kQ8_0                                                     ? 128
                               : kType == DType::kQ6_K                                                   ? 63
                               : kType == DType::kQ2_K                                                   ? 3
                               : kType == DType::kQ3_K                                                   ? 7
                               : kType == DType::kQ5_0 || kType == DType::kQ5_1 || kType == DType::kQ5_K ? 31
                                                                                                         : 15;
};

HWY_INLINE VU8 ShiftRightBytes(VU8 v, int bits) {  // bits of neighbours come in from above: mask them away
  return hn::BitCast(DU8(), hn::ShiftRightSame(hn::BitCast(DU16(), v), bits));
}
template <int kBits>
HWY_INLINE VU8 ShiftLeftBytes(VU8 v) {
  return hn::BitCast(DU8(), hn::ShiftLeft<kBits>(hn::BitCast(DU16(), v)));
}
HWY_INLINE VU8 MaskBytes(VU8 v, uint8_t mask) { return hn::And(v, hn::Set(DU8(), mask)); }

// Part `part` of 32 values: the low nibbles of 16 bytes, then their high nibbles.
HWY_INLINE VU8 SplitNibbles(const uint8_t* p, [[maybe_unused]] size_t part) {
#if EM_AVX2
  const hn::Repartition<uint32_t, DU8> d32;
  alignas(32) static constexpr uint32_t kShifts[8] = {0, 0, 0, 0, 4, 4, 4, 4};
  const auto twice = hn::BitCast(d32, hn::LoadDup128(DU8(), p));
  return MaskBytes(hn::BitCast(DU8(), hn::Shr(twice, hn::Load(d32, kShifts))), 15);
#else
  return MaskBytes(ShiftRightBytes(hn::LoadU(DU8(), p), part == 0 ? 0 : 4), 15);
#endif
}

// 16 where bit i of the 4 bytes at p is set, for the values i of part `part`.
HWY_INLINE VU8 FifthBits(const uint8_t* p, size_t part) {
  const DU8 d;
  alignas(32) static constexpr uint8_t kByte[32] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,
                                                    2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3};
  alignas(32) static constexpr uint8_t kBit[32] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128,
                                                   1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const auto bits = hn::BitCast(d, hn::Set(hn::Repartition<uint32_t, DU8>(), LoadAs<uint32_t>(p)));
  const auto spread = hn::TableLookupBytes(bits, hn::Load(d, kByte + part * kVectorBytes));
  return hn::IfThenElseZero(hn::TestBit(spread, hn::Load(d, kBit + part * kVectorBytes)), hn::Set(d, 16));
}

// The integers u of part `part` of block `b` of a row.
template <DType kType>
HWY_INLINE VU8 Quants(const uint8_t* row, size_t b, size_t part) {
  const DU8 d;
  const size_t at = part * kVectorBytes;
  const uint8_t* p = row + (Format<kType>::kSuper ? b / 8 : b) * Format<kType>::kBlockBytes;
  const size_t j = b % 8;  // block within a super-block
  const size_t quarter = j % 4;
  if constexpr (kType == DType::kQ8_0) {
    return hn::LoadU(d, p + 2 + at);
  } else if constexpr (kType == DType::kQ4_0) {
    return SplitNibbles(p + 2, part);
  } else if constexpr (kType == DType::kQ4_1) {
    return SplitNibbles(p + 4, part);
  } else if constexpr (kType == DType::kQ5_0) {
    return hn::Or(SplitNibbles(p + 6, part), FifthBits(p + 2, part));
  } else if constexpr (kType == DType::kQ5_1) {
    return hn::Or(SplitNibbles(p + 8, part), FifthBits(p + 4, part));
  } else if constexpr (kType == DType::kQ2_K) {
    return MaskBytes(ShiftRightBytes(hn::LoadU(d, p + 16 + j / 4 * 32 + at), static_cast<int>(2 * quarter)), 3);
  } else if constexpr (kType == DType::kQ3_K) {
    const auto low =
        MaskBytes(ShiftRightBytes(hn::LoadU(d, p + 32 + j / 4 * 32 + at), static_cast<int>(2 * quarter)), 3);
    const auto high = MaskBytes(ShiftRightBytes(hn::LoadU(d, p + at), static_cast<int>(j)), 1);
    return hn::Or(low, ShiftLeftBytes<2>(high));
  } else if constexpr (kType == DType::kQ4_K) {
    return MaskBytes(ShiftRightBytes(hn::LoadU(d, p + 16 + j / 2 * 32 + at), static_cast<int>(j % 2 * 4)), 15);
  } else if constexpr (kType == DType::kQ5_K) {
    const auto low =
        MaskBytes(ShiftRightBytes(hn::LoadU(d, p + 48 + j / 2 * 32 + at), static_cast<int>(j % 2 * 4)), 15);
    const auto high = MaskBytes(ShiftRightBytes(hn::LoadU(d, p + 16 + at), static_cast<int>(j)), 1);
    return hn::Or(low, ShiftLeftBytes<4>(high));
  } else {
    static_assert(kType == DType::kQ6_K);
    const uint8_t* low_bits = p + j / 4 * 64 + quarter % 2 * 32;
    const auto low = MaskBytes(ShiftRightBytes(hn::LoadU(d, low_bits + at), static_cast<int>(quarter / 2 * 4)), 15);
    const uint8_t* high_bits = p + 128 + j / 4 * 32;
    const auto high = MaskBytes(ShiftRightBytes(hn::LoadU(d, high_bits + at), static_cast<int>(2 * quarter)), 3);
    return hn::Or(low, ShiftLeftBytes<4>(high));
  }
}

// Scales of kLanes blocks, a block a lane: [0] of the block, or with kHalves [h] of its half h. minimum: kMin.
struct Scales {
  VF scale[2];
  VF minimum[2];
};

// scale * the first, the second of each pair of integers.
HWY_INLINE void ScaleHalves(VF scale, VI16 pairs, VF* halves) {
  const VI32 both = hn::BitCast(DI32(), pairs);
  halves[0] = hn::Mul(scale, hn::ConvertTo(DF(), hn::ShiftRight<16>(hn::ShiftLeft<16>(both))));
  halves[1] = hn::Mul(scale, hn::ConvertTo(DF(), hn::ShiftRight<16>(both)));
}

// float16 at p, p + stride, ... in the first n lanes, 0 in the others.
HWY_INLINE VF StridedHalves(const uint8_t* p, size_t stride, size_t n) {
#if EM_AVX2
  if (n == 8) {
    const auto h = [&](size_t i) { return static_cast<short>(LoadAs<uint16_t>(p + i * stride)); };
    return VF{_mm256_cvtph_ps(_mm_set_epi16(h(7), h(6), h(5), h(4), h(3), h(2), h(1), h(0)))};
  }
#endif
  alignas(16) uint16_t halves[kLanes] = {};
  for (size_t i = 0; i < n; ++i) halves[i] = LoadAs<uint16_t>(p + i * stride);
  return HalvesToFloat(DF(), hn::Load(hn::Rebind<uint16_t, DF>(), halves));
}

// The same for two float16 side by side.
HWY_INLINE void StridedHalfPairs(const uint8_t* p, size_t stride, size_t n, VF* first, VF* second) {
#if EM_AVX2
  if (n == 8) {
    const auto w = [&](size_t i) { return LoadAs<int32_t>(p + i * stride); };
    const __m256i pairs = _mm256_set_epi32(w(7), w(6), w(5), w(4), w(3), w(2), w(1), w(0));
    const __m256i low = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff)), high = _mm256_srli_epi32(pairs, 16);
    // [low 0..3, high 0..3 | low 4..7, high 4..7] -> [low 0..7 | high 0..7]
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
    *first = VF{_mm256_cvtph_ps(_mm256_castsi256_si128(packed))};
    *second = VF{_mm256_cvtph_ps(_mm256_extracti128_si256(packed, 1))};
    return;
  }
#endif
  *first = StridedHalves(p, stride, n);
  *second = StridedHalves(p + 2, stride, n);
}

HWY_INLINE VF OneHalf(const uint8_t* p) {
  return HalvesToFloat(DF(), hn::Set(hn::Rebind<uint16_t, DF>(), LoadAs<uint16_t>(p)));
}

HWY_INLINE VF BytesToFloat(uint64_t bytes, size_t first) {
  uint8_t b[8];
  std::memcpy(b, &bytes, 8);
  return hn::ConvertTo(DF(), hn::PromoteTo(DI32(), hn::LoadU(hn::Rebind<uint8_t, DF>(), b + first)));
}

// The 8 scales and 8 minimums, 6 bits each, of a Q4_K or Q5_K super-block's 12 bytes.
HWY_INLINE void UnpackScalesK4(const uint8_t* p, uint64_t* scales, uint64_t* minimums) {
  const uint32_t a = LoadAs<uint32_t>(p), b = LoadAs<uint32_t>(p + 4), c = LoadAs<uint32_t>(p + 8);
  const uint32_t scales_high = (c & 0x0f0f0f0fu) | (a >> 6 & 0x03030303u) << 4;
  const uint32_t minimums_high = (c >> 4 & 0x0f0f0f0fu) | (b >> 6 & 0x03030303u) << 4;
  *scales = (a & 0x3f3f3f3fu) | uint64_t{scales_high} << 32;
  *minimums = (b & 0x3f3f3f3fu) | uint64_t{minimums_high} << 32;
}

// The 16 scales of a Q3_K super-block, 6 bits each: those of the blocks first .. first + kLanes - 1 as pairs, less 32.
HWY_INLINE VI16 UnpackScalesQ3(const uint8_t* p, size_t first) {
  const uint32_t a = LoadAs<uint32_t>(p), b = LoadAs<uint32_t>(p + 4), c = LoadAs<uint32_t>(p + 8);
  const uint64_t low =
      ((a & 0x0f0f0f0fu) | (c & 0x03030303u) << 4) | uint64_t{(b & 0x0f0f0f0fu) | (c >> 2 & 0x03030303u) << 4} << 32;
  const uint64_t high = ((a >> 4 & 0x0f0f0f0fu) | (c >> 4 & 0x03030303u) << 4) |
                        uint64_t{(b >> 4 & 0x0f0f0f0fu) | (c >> 6 & 0x03030303u) << 4} << 32;
#if EM_AVX2
  (void)first;
  const hn::Full128<uint8_t> d;
  const auto bytes = hn::Vec128<uint8_t>{_mm_set_epi64x(static_cast<int64_t>(high), static_cast<int64_t>(low))};
#else
  const hn::Half<DU8> d;
  const auto bytes = hn::BitCast(d, hn::Set(hn::Repartition<uint64_t, decltype(d)>(), first == 0 ? low : high));
#endif
  const auto centered = hn::Sub(bytes, hn::Set(d, 32));
  return hn::PromoteTo(DI16(), hn::BitCast(hn::RebindToSigned<decltype(d)>(), centered));
}

// Scales of the blocks b .. b + n - 1 (n <= kLanes; b a multiple of kLanes); the other lanes are 0.
template <DType kType>
HWY_INLINE Scales LoadScales(const uint8_t* row, size_t b, size_t n) {
  using F = Format<kType>;
  Scales s;
  if constexpr (!F::kSuper) {
    const uint8_t* p = row + b * F::kBlockBytes;
    if constexpr (F::kMin) {
      StridedHalfPairs(p, F::kBlockBytes, n, &s.scale[0], &s.minimum[0]);
    } else {
      s.scale[0] = StridedHalves(p, F::kBlockBytes, n);
    }
  } else {
    const uint8_t* p = row + b / 8 * F::kBlockBytes;
    const size_t first = b % 8;
    const hn::Rebind<int8_t, DI16> pairs;
    if constexpr (kType == DType::kQ4_K || kType == DType::kQ5_K) {
      uint64_t scales, minimums;
      UnpackScalesK4(p + 4, &scales, &minimums);
      s.scale[0] = hn::Mul(OneHalf(p), BytesToFloat(scales, first));
      s.minimum[0] = hn::Neg(hn::Mul(OneHalf(p + 2), BytesToFloat(minimums, first)));
    } else if constexpr (kType == DType::kQ6_K) {
      ScaleHalves(OneHalf(p + 208),
                  hn::PromoteTo(DI16(), hn::LoadU(pairs, reinterpret_cast<const int8_t*>(p) + 192 + 2 * first)),
                  s.scale);
    } else if constexpr (kType == DType::kQ3_K) {
      ScaleHalves(OneHalf(p + 108), UnpackScalesQ3(p + 96, first), s.scale);
    } else {
      static_assert(kType == DType::kQ2_K);
      const auto bytes =
          hn::BitCast(DI16(), hn::PromoteTo(DU16(), hn::LoadU(hn::Rebind<uint8_t, DI16>(), p + 2 * first)));
      ScaleHalves(OneHalf(p + 80), hn::And(bytes, hn::Set(DI16(), 15)), s.scale);
      ScaleHalves(hn::Neg(OneHalf(p + 82)), hn::ShiftRight<4>(bytes), s.minimum);
    }
  }
  return s;
}

#endif  // EM_SIMD
}  // namespace HWY_NAMESPACE
}  // namespace elasticmem
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled for each target
