// Dot products for every type, compiled once per instruction set and chosen at run time.
#include "tensor/dot.h"

#include <type_traits>

#include "tensor/interleave.h"
#include "tensor/simd_targets.h"
#include "tensor/with_type.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/dot.cc"
#include <hwy/foreach_target.h>
// after foreach_target
#include <hwy/highway.h>

#include "tensor/float_dot-inl.h"
#include "tensor/int8_dot-inl.h"
#include "tensor/quant_dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace elasticmem {
namespace HWY_NAMESPACE {
#if EM_SIMD

template <DType kType>
void Dots(std::span<const std::byte* const> rows, size_t cols, const ActivationRows& x, float* out, size_t out_stride,
          std::span<const std::byte* const> ahead) {
  if constexpr (!IsQuantized(kType)) {
    FloatDotRows<kType>(rows, cols, x, out, out_stride, ahead);
  } else {
#if EM_VNNI
    if (Int8UnitsHere() != Int8Units::kNone) return Int8DotRows<kType>(rows, cols, x, out, out_stride, ahead);
#endif
    auto dot_rows = QuantDotRows<kType, Int8Units::kNone>;
#if EM_ARM_INT8
    if (Int8UnitsHere() == Int8Units::kDot) dot_rows = QuantDotRows<kType, Int8Units::kDot>;
    if (Int8UnitsHere() == Int8Units::kMatrix) dot_rows = QuantDotRows<kType, Int8Units::kMatrix>;
#endif
    dot_rows(rows, cols, x, out, out_stride, ahead);
  }
}

template <DType kType>
void DotsOfTiles([[maybe_unused]] const std::byte* tiles, [[maybe_unused]] size_t rows, [[maybe_unused]] size_t cols,
                 [[maybe_unused]] const ActivationRows& x, [[maybe_unused]] float* out,
                 [[maybe_unused]] size_t out_stride) {
#if EM_VNNI
  if constexpr (IsQuantized(kType)) return Int8DotInterleaved<kType>(tiles, rows, cols, x, out, out_stride);
#endif
  EM_CHECK(false);  // see WantsInterleavedRows
}

#endif  // EM_SIMD

void DotRowsHere(DType dtype, std::span<const std::byte* const> rows, size_t cols, const ActivationRows& x, float* out,
                 size_t out_stride, [[maybe_unused]] std::span<const std::byte* const> ahead) {
#if EM_SIMD
  WithType(dtype, [&]<DType kType>(std::integral_constant<DType, kType>)
                      HWY_ATTR { Dots<kType>(rows, cols, x, out, out_stride, ahead); });
#else
  DotRowsReference(dtype, rows, cols, x, out, out_stride);
#endif
}

void DotTilesHere([[maybe_unused]] DType dtype, [[maybe_unused]] const std::byte* tiles, [[maybe_unused]] size_t rows,
                  [[maybe_unused]] size_t cols, [[maybe_unused]] const ActivationRows& x, [[maybe_unused]] float* out,
                  [[maybe_unused]] size_t out_stride) {
#if EM_SIMD
  WithType(dtype, [&]<DType kType>(std::integral_constant<DType, kType>)
                      HWY_ATTR { DotsOfTiles<kType>(tiles, rows, cols, x, out, out_stride); });
#else
  EM_CHECK(false);
#endif
}

// Whether this target's kernels take interleaved rows on this machine.
bool TakesTiles() { return EM_VNNI && Int8UnitsHere() != Int8Units::kNone; }

const char* TargetName() {
#if EM_VNNI
  if (Int8UnitsHere() == Int8Units::kMatrix) return "AVX3+AMX";
  if (Int8UnitsHere() == Int8Units::kDot) return "AVX3+VNNI";
#endif
#if EM_SIMD && EM_ARM_INT8
  if (Int8UnitsHere() == Int8Units::kMatrix) return "NEON+i8mm";
  if (Int8UnitsHere() == Int8Units::kDot) return "NEON+dotprod";
#endif
  return hwy::TargetName(HWY_TARGET);
}

}  // namespace HWY_NAMESPACE
}  // namespace elasticmem
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace elasticmem {

HWY_EXPORT(DotRowsHere);
HWY_EXPORT(DotTilesHere);
HWY_EXPORT(TakesTiles);
HWY_EXPORT(TargetName);

void DotRows(DType dtype, std::span<const std::byte* const> rows, size_t cols, const ActivationRows& x, float* out,
             size_t out_stride, std::span<const std::byte* const> ahead) {
  EM_CHECK(x.format == FormatFor(dtype) && cols % Traits(dtype).block_elements == 0);
  if (rows.empty()) return;
  HWY_DYNAMIC_DISPATCH(DotRowsHere)(dtype, rows, cols, x, out, out_stride, ahead);
}

void DotInterleavedRows(DType dtype, const std::byte* tiles, size_t rows, size_t cols, const ActivationRows& x,
                        float* out, size_t out_stride) {
  EM_CHECK(x.format == FormatFor(dtype) && cols % Traits(dtype).block_elements == 0);
  EM_CHECK(rows % kInterleavedRows == 0 && WantsInterleavedRows(dtype));
  HWY_DYNAMIC_DISPATCH(DotTilesHere)(dtype, tiles, rows, cols, x, out, out_stride);
}

const char* SimdTargetName() { return HWY_DYNAMIC_DISPATCH(TargetName)(); }

bool WantsInterleavedRows(DType dtype) { return IsQuantized(dtype) && HWY_DYNAMIC_DISPATCH(TakesTiles)(); }

}  // namespace elasticmem
#endif
