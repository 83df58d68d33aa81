// Vector operations that the kernels share, once per instruction set. Vectors have at most 8 floats, so that the blocks
// of a Q16Group are their lanes; kernels for float weights use the full width.
#if defined(ELASTICMEM_TENSOR_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ELASTICMEM_TENSOR_SIMD_INL_H_
#undef ELASTICMEM_TENSOR_SIMD_INL_H_
#else
#define ELASTICMEM_TENSOR_SIMD_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

// Targets without vectors run the references instead.
#undef EM_SIMD
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
#define EM_SIMD 0
#else
#define EM_SIMD 1
#endif
#undef EM_AVX2
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
#define EM_AVX2 1
#else
#define EM_AVX2 0
#endif

// Vector registers, for the size of tiles.
#undef EM_REGISTERS
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_NEON
#define EM_REGISTERS 32
#else
#define EM_REGISTERS 16
#endif

HWY_BEFORE_NAMESPACE();
namespace elasticmem {
namespace HWY_NAMESPACE {
template <class T>
HWY_INLINE T LoadAs(const void* p) {
  T v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

HWY_INLINE void PrefetchBytes(const uint8_t* p, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) hwy::Prefetch(p + i);
}

#if EM_SIMD

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 8>;
using DI32 = hn::RebindToSigned<DF>;
using DI16 = hn::Repartition<int16_t, DF>;
using DU16 = hn::Repartition<uint16_t, DF>;
using DI8 = hn::Repartition<int8_t, DF>;
using DU8 = hn::Repartition<uint8_t, DF>;
using VF = hn::VFromD<DF>;
using VI32 = hn::VFromD<DI32>;
using VI16 = hn::VFromD<DI16>;
using VU16 = hn::VFromD<DU16>;
using VI8 = hn::VFromD<DI8>;
using VU8 = hn::VFromD<DU8>;

constexpr size_t kLanes = hn::MaxLanes(DF());
constexpr size_t kVectorBytes = 4 * kLanes;
constexpr size_t kParts = 32 / kVectorBytes;  // vectors that hold 32 bytes

// float16 to float32, exact, with infinities and NaN (which Highway 1.0.3 loses where there is no instruction).
template <class D>
HWY_INLINE hn::VFromD<D> HalvesToFloat(D d, hn::VFromD<hn::Rebind<uint16_t, D>> halves) {
#if EM_AVX2
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), halves));
#else
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::PromoteTo(du, halves);
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)));
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffu));
  // Normal: exponent rebiased by adding 112, twice for infinities and NaN. Subnormal: the mantissa as an integer.
  const auto shifted = hn::ShiftLeft<13>(magnitude);
  const auto rebias = hn::Set(du, 112u << 23);
  auto normal = hn::Add(shifted, rebias);
  const hn::RebindToSigned<D> di;
  const auto is_special = hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x7bff));
  normal = hn::Add(normal, hn::And(hn::BitCast(du, hn::VecFromMask(di, is_special)), rebias));
  const auto subnormal = hn::Mul(hn::ConvertTo(d, hn::BitCast(di, magnitude)), hn::Set(d, 0x1p-24f));
  const auto is_normal = hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x03ff));
  const auto value = hn::IfThenElse(hn::RebindMask(d, is_normal), hn::BitCast(d, normal), subnormal);
  return hn::Or(value, hn::BitCast(d, sign));
#endif
}

template <class D>
HWY_INLINE hn::VFromD<D> LoadHalves(D d, const uint8_t* p) {
  const hn::Rebind<uint16_t, D> d16;
  return HalvesToFloat(d, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p)));
}
template <class D>
HWY_INLINE hn::VFromD<D> LoadBFloats(D d, const uint8_t* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p)))));
}

// The sum of all lanes by halving: lane i + lane i + n/2, and so on; SumVectors is the same over an array.
template <class D>
HWY_INLINE float SumLanes([[maybe_unused]] D d, hn::VFromD<D> v) {
  if constexpr (hn::MaxLanes(D()) == 1) {
    return hn::GetLane(v);
  } else {
    const hn::Half<D> half;
    return SumLanes(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}
template <size_t kCount, class D>
HWY_INLINE hn::VFromD<D> SumVectors(D d, const float* vectors) {
  if constexpr (kCount == 1) {
    return hn::Load(d, vectors);
  } else {
    constexpr size_t kLane = hn::MaxLanes(D());
    alignas(64) float halves[kCount / 2 * kLane];
    for (size_t i = 0; i < kCount / 2; ++i) {
      const auto sum = hn::Add(hn::Load(d, vectors + i * kLane), hn::Load(d, vectors + (i + kCount / 2) * kLane));
      hn::Store(sum, d, halves + i * kLane);
    }
    return SumVectors<kCount / 2>(d, halves);
  }
}

// The int8 product, in one place: lane i of PairDot is a[2i] * x[2i] + a[2i+1] * x[2i+1], of MaddPairs the same for
// int16. x is in [-127, 127]. In PairDot a is in [0, 127], in PairDotSigned it is any int8.
HWY_INLINE VI32 MaddPairs(VI16 a, VI16 b) {
#if EM_AVX2
  return VI32{_mm256_madd_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_SSE4
  return VI32{_mm_madd_epi16(a.raw, b.raw)};
#else
  const DI32 d;
  const auto a32 = hn::BitCast(d, a), b32 = hn::BitCast(d, b);
  const auto even = hn::Mul(hn::ShiftRight<16>(hn::ShiftLeft<16>(a32)), hn::ShiftRight<16>(hn::ShiftLeft<16>(b32)));
  return hn::Add(even, hn::Mul(hn::ShiftRight<16>(a32), hn::ShiftRight<16>(b32)));
#endif
}
HWY_INLINE VI16 PairDotSigned(VI8 a, VI8 x) {
#if EM_AVX2
  return VI16{_mm256_maddubs_epi16(_mm256_abs_epi8(a.raw), _mm256_sign_epi8(x.raw, a.raw))};
#elif HWY_TARGET == HWY_SSE4
  return VI16{_mm_maddubs_epi16(_mm_abs_epi8(a.raw), _mm_sign_epi8(x.raw, a.raw))};
#else
  const DI16 d;
  const auto a16 = hn::BitCast(d, a), x16 = hn::BitCast(d, x);
  const auto even = hn::Mul(hn::ShiftRight<8>(hn::ShiftLeft<8>(a16)), hn::ShiftRight<8>(hn::ShiftLeft<8>(x16)));
  return hn::Add(even, hn::Mul(hn::ShiftRight<8>(a16), hn::ShiftRight<8>(x16)));
#endif
}
HWY_INLINE VI16 PairDot(VU8 a, VI8 x) {
#if EM_AVX2
  return VI16{_mm256_maddubs_epi16(a.raw, x.raw)};
#elif HWY_TARGET == HWY_SSE4
  return VI16{_mm_maddubs_epi16(a.raw, x.raw)};
#else
  return PairDotSigned(hn::BitCast(DI8(), a), x);
#endif
}

#endif  // EM_SIMD
}  // namespace HWY_NAMESPACE
}  // namespace elasticmem
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled for each target
