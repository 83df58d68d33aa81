// Dot products for every type, compiled once per instruction set and chosen at run time.
#include "tensor/dot.h"

#include <string_view>
#include <type_traits>

#include "tensor/interleave.h"
#include "tensor/simd_targets.h"

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
    QuantDotRows<kType>(rows, cols, x, out, out_stride, ahead);
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

// work(the type as a constant)
template <class Work>
void WithType(DType dtype, Work&& work) {
#define EM_CASE(type) \
  case DType::type:   \
    return work(std::integral_constant<DType, DType::type>())
  switch (dtype) {
    EM_CASE(kF32);
    EM_CASE(kF16);
    EM_CASE(kBF16);
    EM_CASE(kQ8_0);
    EM_CASE(kQ4_0);
    EM_CASE(kQ4_1);
    EM_CASE(kQ5_0);
    EM_CASE(kQ5_1);
    EM_CASE(kQ2_K);
    EM_CASE(kQ3_K);
    EM_CASE(kQ4_K);
    EM_CASE(kQ5_K);
    EM_CASE(kQ6_K);
  }
#undef EM_CASE
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

const char* TargetName() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace elasticmem
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace elasticmem {

HWY_EXPORT(DotRowsHere);
HWY_EXPORT(DotTilesHere);
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

const char* SimdTargetName() {
  const char* name = HWY_DYNAMIC_DISPATCH(TargetName)();
  if (std::string_view(name) != "AVX3") return name;
  switch (Int8UnitsHere()) {
    case Int8Units::kNone:
      break;
    case Int8Units::kVnni:
      return "AVX3+VNNI";
    case Int8Units::kAmx:
      return "AVX3+AMX";
  }
  return name;
}

}  // namespace elasticmem
#endif
