// y += coefficient * row over scattered rows. Four rows a pass: y stays in L1 and is read and written once for the
// four, each element still takes its fma's in list order, and the next four rows are prefetched line by line.
#include <algorithm>

#include "ffn_ops/sparse_ffn.h"
#include "tensor/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ffn_ops/accumulate_rows.cc"
#include <hwy/foreach_target.h>
// after foreach_target
#include <hwy/highway.h>

#include "tensor/quants-inl.h"

HWY_BEFORE_NAMESPACE();
namespace elasticmem {
namespace HWY_NAMESPACE {
#if EM_SIMD

constexpr size_t kRowsAPass = 4;
constexpr size_t kColumnsAPass = 4096;  // 16 KiB of y

template <DType kType>
HWY_INLINE VF LoadFloats(const uint8_t* p) {
  if constexpr (kType == DType::kF32) {
    return hn::LoadU(DF(), reinterpret_cast<const float*>(p));
  } else if constexpr (kType == DType::kF16) {
    return LoadHalves(DF(), p);
  } else {
    return LoadBFloats(DF(), p);
  }
}

// y[begin, end) += for kRows rows, float types.
template <DType kType, size_t kRows>
HWY_INLINE void AddFloatRows(const uint8_t* const* rows, const uint8_t* const* next, const float* coefficients,
                             size_t begin, size_t end, float* y) {
  constexpr size_t kBytes = Traits(kType).block_bytes;
  constexpr size_t kStep = 32;
  VF c[kRows];
  for (size_t r = 0; r < kRows; ++r) c[r] = hn::Set(DF(), coefficients[r]);
  for (size_t j = begin; j < end; j += kStep) {
    for (size_t r = 0; r < kRows; ++r) PrefetchBytes(next[r] + j * kBytes, kStep * kBytes);
    HWY_UNROLL(8)
    for (size_t i = j; i < j + kStep; i += kLanes) {
      VF sum = hn::LoadU(DF(), y + i);
      HWY_UNROLL(4)
      for (size_t r = 0; r < kRows; ++r) sum = hn::MulAdd(c[r], LoadFloats<kType>(rows[r] + i * kBytes), sum);
      hn::StoreU(sum, DF(), y + i);
    }
  }
}

// Scales of up to kLanes blocks of one row; kHalves: for each half of a block.
struct RowScales {
  alignas(32) float scale[2][kLanes];
  alignas(32) float minimum[2][kLanes];
};

template <DType kType>
HWY_INLINE void LoadRowScales(const uint8_t* row, size_t b, size_t n, RowScales* out) {
  using F = Format<kType>;
  const DF df;
  const Scales s = LoadScales<kType>(row, b, n);
  for (size_t h = 0; h < (F::kHalves ? 2 : 1); ++h) {
    hn::Store(s.scale[h], df, out->scale[h]);
    if constexpr (F::kMin) hn::Store(s.minimum[h], df, out->minimum[h]);
  }
}

// y[32] += for block b of kRows rows; their scales are in lane `lane`. Weights round as DequantizeRow's do.
template <DType kType, size_t kRows>
HWY_INLINE void AddBlock(const uint8_t* const* rows, const RowScales* scales, size_t lane, const float* coefficients,
                         size_t b, float* y) {
  using F = Format<kType>;
  const DF df;
  const hn::Rebind<int8_t, DF> d8;
  constexpr size_t kVectors = 32 / kLanes;
  VF sum[kVectors];
  for (size_t i = 0; i < kVectors; ++i) sum[i] = hn::LoadU(df, y + i * kLanes);
  HWY_UNROLL(4)
  for (size_t r = 0; r < kRows; ++r) {
    alignas(32) int8_t q[32];
    for (size_t part = 0; part < kParts; ++part) {
      const VU8 u = Quants<kType>(rows[r], b, part);
      const VI8 centered = hn::Sub(hn::BitCast(DI8(), u), hn::Set(DI8(), F::kOffset));
      hn::Store(centered, DI8(), q + part * kVectorBytes);
    }
    const VF c = hn::Set(df, coefficients[r]);
    HWY_UNROLL(8)
    for (size_t i = 0; i < kVectors; ++i) {
      const size_t half = F::kHalves ? i / (kVectors / 2) : 0;
      const VF value = hn::ConvertTo(df, hn::PromoteTo(DI32(), hn::LoadU(d8, q + i * kLanes)));
      VF w = hn::Mul(value, hn::Set(df, scales[r].scale[half][lane]));
      if constexpr (F::kMin) w = hn::Add(w, hn::Set(df, scales[r].minimum[half][lane]));
      sum[i] = hn::MulAdd(c, w, sum[i]);
    }
  }
  for (size_t i = 0; i < kVectors; ++i) hn::StoreU(sum[i], df, y + i * kLanes);
}

template <DType kType, size_t kRows>
HWY_INLINE void AddQuantRows(const uint8_t* const* rows, const uint8_t* const* next, const float* coefficients,
                             size_t begin, size_t end, float* y) {
  constexpr size_t kGroupBytes = Traits(kType).block_bytes * kLanes * 32 / Traits(kType).block_elements;
  RowScales scales[kRows];
  size_t ahead = RowBytes(kType, begin);
  for (size_t b = begin / 32; b < end / 32; b += kLanes, ahead += kGroupBytes) {
    const size_t n = std::min(kLanes, end / 32 - b);
    for (size_t r = 0; r < kRows; ++r) {
      PrefetchBytes(next[r] + ahead, kGroupBytes);
      LoadRowScales<kType>(rows[r], b, n, &scales[r]);
    }
    for (size_t i = 0; i < n; ++i) AddBlock<kType, kRows>(rows, scales, i, coefficients, b + i, y + (b + i) * 32);
  }
}

template <DType kType, size_t kRows>
HWY_INLINE void AddRows(const uint8_t* const* rows, const uint8_t* const* next, const float* coefficients, size_t begin,
                        size_t end, float* y) {
  if constexpr (IsQuantized(kType)) {
    AddQuantRows<kType, kRows>(rows, next, coefficients, begin, end, y);
  } else {
    AddFloatRows<kType, kRows>(rows, next, coefficients, begin, end, y);
  }
}

template <DType kType>
HWY_NOINLINE void Accumulate(std::span<const std::byte* const> rows, const float* coefficients, size_t col_begin,
                             size_t col_end, float* y) {
  const auto* const* row = reinterpret_cast<const uint8_t* const*>(rows.data());
  for (size_t begin = col_begin; begin < col_end; begin += kColumnsAPass) {
    const size_t end = std::min(begin + kColumnsAPass, col_end);
    size_t k = 0;
    for (; k + kRowsAPass <= rows.size(); k += kRowsAPass) {
      const uint8_t* next[kRowsAPass];
      for (size_t r = 0; r < kRowsAPass; ++r) next[r] = row[std::min(k + kRowsAPass + r, rows.size() - 1)];
      AddRows<kType, kRowsAPass>(row + k, next, coefficients + k, begin, end, y);
    }
    for (; k < rows.size(); ++k) {
      const uint8_t* next = row[std::min(k + 1, rows.size() - 1)];
      AddRows<kType, 1>(row + k, &next, coefficients + k, begin, end, y);
    }
  }
}

#endif  // EM_SIMD

void AccumulateHere(DType dtype, std::span<const std::byte* const> rows, const float* coefficients, size_t col_begin,
                    size_t col_end, float* y) {
#if EM_SIMD
#define EM_CASE(type) \
  case DType::type:   \
    return Accumulate<DType::type>(rows, coefficients, col_begin, col_end, y)
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
#else
  AccumulateRowsReference(dtype, rows, coefficients, col_begin, col_end, y);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace elasticmem
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace elasticmem {

HWY_EXPORT(AccumulateHere);

void AccumulateRows(DType dtype, std::span<const std::byte* const> rows, const float* coefficients, size_t col_begin,
                    size_t col_end, float* y) {
  EM_CHECK(col_begin % 32 == 0 && col_end % 32 == 0);
  EM_CHECK(col_begin % Traits(dtype).block_elements == 0 && col_end % Traits(dtype).block_elements == 0);
  HWY_DYNAMIC_DISPATCH(AccumulateHere)(dtype, rows, coefficients, col_begin, col_end, y);
}

}  // namespace elasticmem
#endif
