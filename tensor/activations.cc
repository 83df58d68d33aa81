// Activations into the forms that kernels multiply with.
#include <cmath>
#include <cstring>
#include <limits>

#include "tensor/quantize.h"
#include "tensor/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/activations.cc"
#include <hwy/foreach_target.h>
// after foreach_target
#include <hwy/highway.h>

#include "tensor/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace elasticmem {
namespace HWY_NAMESPACE {

constexpr uint32_t kInfinityBits = 0x7f800000u;
constexpr float kSmallest = 1e-33f;  // below it a scale is subnormal and its inverse may overflow: the block is zero

// Block `b` of `group` from 32 floats. Rounding is to nearest even on every instruction set, so all give the same
// bytes.
void QuantizeBlock(const float* x, size_t b, Q16Group* group) {
#if EM_SIMD
  const DF df;
  const DI32 di;
  constexpr size_t kVectors = 32 / kLanes;
  VF v[kVectors];
  VI32 largest = hn::Zero(di);  // magnitudes compare as integers, and a NaN is the largest
  for (size_t i = 0; i < kVectors; ++i) {
    v[i] = hn::LoadU(df, x + i * kLanes);
    largest = hn::Max(largest, hn::BitCast(di, hn::Abs(v[i])));
  }
  const uint32_t bits = static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(di, largest)));
#else
  uint32_t bits = 0;
  for (size_t i = 0; i < 32; ++i) bits = std::max(bits, LoadAs<uint32_t>(x + i) & 0x7fffffffu);
#endif
  float amax;
  std::memcpy(&amax, &bits, sizeof(amax));
  if (bits >= kInfinityBits || amax < kSmallest) {
    group->scale[b] = bits >= kInfinityBits ? std::numeric_limits<float>::quiet_NaN() : 0.f;
    return;
  }
  group->scale[b] = amax / kQ16Largest;
  const float inverse = kQ16Largest / amax;
  constexpr float kToHigh = 1.f / kQ16Step;
#if EM_SIMD
  const hn::Rebind<int8_t, DI32> d8;
  for (size_t half = 0; half < 2; ++half) {
    VI32 sum = hn::Zero(di);
    for (size_t i = half * kVectors / 2; i < (half + 1) * kVectors / 2; ++i) {
      const VI32 q = hn::NearestInt(hn::Mul(v[i], hn::Set(df, inverse)));
      const VI32 high = hn::NearestInt(hn::Mul(hn::ConvertTo(df, q), hn::Set(df, kToHigh)));
      const VI32 low = hn::Sub(q, hn::Mul(high, hn::Set(di, kQ16Step)));
      hn::StoreU(hn::DemoteTo(d8, high), d8, group->high[b] + i * kLanes);
      hn::StoreU(hn::DemoteTo(d8, low), d8, group->low[b] + i * kLanes);
      sum = hn::Add(sum, q);
    }
    group->sums[half][b] = static_cast<float>(hn::GetLane(hn::SumOfLanes(di, sum)));
  }
#else
  for (size_t i = 0; i < 32; ++i) {
    const int q = static_cast<int>(std::nearbyint(x[i] * inverse));
    const int high = static_cast<int>(std::nearbyint(static_cast<float>(q) * kToHigh));
    group->high[b][i] = static_cast<int8_t>(high);
    group->low[b][i] = static_cast<int8_t>(q - high * kQ16Step);
    group->sums[i / 16][b] += static_cast<float>(q);
  }
#endif
  group->sum[b] = group->sums[0][b] + group->sums[1][b];
}

void QuantizeActivations(const float* x, size_t elements, Q16Group* groups) {
  for (size_t i = 0; i < elements; i += 32) QuantizeBlock(x + i, i / 32 % 8, groups + i / kQ16GroupElements);
}

}  // namespace HWY_NAMESPACE
}  // namespace elasticmem
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace elasticmem {

HWY_EXPORT(QuantizeActivations);

void PrepareActivations(ActivationFormat format, const float* x, size_t elements, std::byte* out) {
  if (format == ActivationFormat::kF32) {
    std::memcpy(out, x, elements * sizeof(float));
    return;
  }
  EM_DCHECK(elements % 32 == 0);
  std::memset(out, 0, ActivationRowBytes(format, elements));
  HWY_DYNAMIC_DISPATCH(QuantizeActivations)(x, elements, reinterpret_cast<Q16Group*>(out));
}

}  // namespace elasticmem
#endif
