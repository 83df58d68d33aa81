// Activation functions, element by element: the same value gives the same bits wherever it stands in a span.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ffn_ops/sparse_ffn.h"
#include "tensor/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ffn_ops/activation.cc"
#include <hwy/foreach_target.h>
// after foreach_target
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace elasticmem {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::VFromD<D>;

// v * sigmoid(z), from exp(-|z|) so that neither end overflows or cancels.
HWY_INLINE V TimesSigmoid(V v, V z) {
  const D d;
  const V e = hn::Exp(d, hn::Neg(hn::Abs(z)));
  const V numerator = hn::IfThenElse(hn::Lt(z, hn::Zero(d)), hn::Mul(v, e), v);
  return hn::Div(numerator, hn::Add(hn::Set(d, 1.f), e));
}

HWY_INLINE V Silu(V v) { return TimesSigmoid(v, v); }

// 0.5 v (1 + tanh(sqrt(2/pi) (v + 0.044715 v^3))), as tanh(u) = 2 sigmoid(2u) - 1.
HWY_INLINE V GeluTanh(V v) {
  const D d;
  const V cubic = hn::MulAdd(hn::Mul(hn::Set(d, 0.044715f), hn::Mul(v, v)), v, v);
  return TimesSigmoid(v, hn::Mul(hn::Set(d, 1.5957691216057308f), cubic));
}

template <class Function>
HWY_INLINE void ForEach(std::span<float> x, const Function& f) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= x.size(); i += lanes) hn::StoreU(f(hn::LoadU(d, &x[i])), d, &x[i]);
  if (i < x.size()) {
    HWY_ALIGN float padded[hn::MaxLanes(d)] = {};
    std::copy(x.begin() + static_cast<ptrdiff_t>(i), x.end(), padded);
    hn::Store(f(hn::Load(d, padded)), d, padded);
    std::copy(padded, padded + (x.size() - i), x.begin() + static_cast<ptrdiff_t>(i));
  }
}

void ApplySilu(std::span<float> x) {
  ForEach(x, [](V v) HWY_ATTR { return Silu(v); });
}
void ApplyGeluTanh(std::span<float> x) {
  ForEach(x, [](V v) HWY_ATTR { return GeluTanh(v); });
}

HWY_INLINE hn::Mask<D> NonZero(V v) { return hn::Not(hn::Eq(v, hn::Zero(D()))); }  // a NaN is

void Mark(std::span<const float> gate, uint64_t* marks) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  for (size_t begin = 0; begin < gate.size(); begin += 64) {
    const size_t count = std::min<size_t>(64, gate.size() - begin);
    uint64_t word = 0;
    size_t i = 0;
    for (; i + lanes <= count; i += lanes) {
      uint8_t bits[8] = {};
      hn::StoreMaskBits(d, NonZero(hn::LoadU(d, &gate[begin + i])), bits);
      uint64_t part;
      std::memcpy(&part, bits, sizeof(part));
      word |= part << i;
    }
    for (; i < count; ++i) word |= uint64_t{gate[begin + i] != 0.f} << i;
    marks[begin / 64] = word;
  }
}

size_t Compact(std::span<const float> gate, uint32_t first, uint32_t* indices, float* values) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  const size_t lanes = hn::Lanes(d);
  size_t count = 0, i = 0;
  for (; i + lanes <= gate.size(); i += lanes) {
    const V v = hn::LoadU(d, &gate[i]);
    const auto active = NonZero(v);
    const auto index = hn::Iota(du, first + static_cast<uint32_t>(i));
    hn::CompressBlendedStore(v, active, d, values + count);
    count += hn::CompressBlendedStore(index, hn::RebindMask(du, active), du, indices + count);
  }
  for (; i < gate.size(); ++i) {
    if (gate[i] == 0.f) continue;
    indices[count] = first + static_cast<uint32_t>(i);
    values[count++] = gate[i];
  }
  return count;
}

}  // namespace HWY_NAMESPACE
}  // namespace elasticmem
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace elasticmem {

HWY_EXPORT(ApplySilu);
HWY_EXPORT(ApplyGeluTanh);
HWY_EXPORT(Compact);
HWY_EXPORT(Mark);

// Comparisons are written so that a NaN stays a NaN.
void ApplyActivation(Activation activation, std::span<float> x) {
  switch (activation) {
    case Activation::kRelu:
    case Activation::kDRelu:
      for (float& v : x) v = v < 0.f ? 0.f : v;
      return;
    case Activation::kRelu2:
      for (float& v : x) v = v < 0.f ? 0.f : v * v;
      return;
    case Activation::kSilu:
      HWY_DYNAMIC_DISPATCH(ApplySilu)(x);
      return;
    case Activation::kGelu:  // erfc keeps the left tail's relative precision
      for (float& v : x) v = static_cast<float>(0.5 * v * std::erfc(-static_cast<double>(v) * 0.70710678118654752));
      return;
    case Activation::kGeluTanh:
      HWY_DYNAMIC_DISPATCH(ApplyGeluTanh)(x);
      return;
  }
}

void MarkNonZero(std::span<const float> gate, uint64_t* marks) { HWY_DYNAMIC_DISPATCH(Mark)(gate, marks); }

size_t CompactNonZero(std::span<const float> gate, uint32_t first, uint32_t* indices, float* values) {
  return HWY_DYNAMIC_DISPATCH(Compact)(gate, first, indices, values);
}

}  // namespace elasticmem
#endif
