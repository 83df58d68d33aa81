// y += coefficient * row over scattered rows, each element taking its fma's in list order. AccumulateRows takes four
// rows a pass: y stays in L1 and is read and written once for the four, and the next four rows are prefetched line by
// line. AccumulateGroup takes float rows all at once, a few vectors of columns at a time, whose sums stay in registers.
// AccumulateGroupForTokens converts a strip of the group's rows into a tile of floats in L1, which all lists then use so.
#include <algorithm>
#include <type_traits>

#include "ffn_ops/sparse_ffn.h"
#include "tensor/simd_targets.h"
#include "tensor/with_type.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ffn_ops/accumulate_rows.cc"
#include <hwy/foreach_target.h>
// after foreach_target
#include <hwy/highway.h>

#include "tensor/float_dot-inl.h"
#include "tensor/quants-inl.h"

HWY_BEFORE_NAMESPACE();
namespace elasticmem {
namespace HWY_NAMESPACE {
#if EM_SIMD

constexpr size_t kRowsAPass = 4;
constexpr size_t kColumnsAPass = 4096;  // 16 KiB of y
constexpr size_t kStripVectors = 4;
constexpr size_t kBytesAhead = 512;  // of each row

// y, which begins at column `begin`, += for kRows rows, float types.
template <DType kType, size_t kRows>
HWY_INLINE void AddFloatRows(const uint8_t* const* rows, const uint8_t* const* next, const float* coefficients,
                             size_t begin, size_t end, float* y) {
  constexpr size_t kBytes = Traits(kType).block_bytes;
  constexpr size_t kStep = 32;
  const DW d;
  VW c[kRows];
  for (size_t r = 0; r < kRows; ++r) c[r] = hn::Set(d, coefficients[r]);
  for (size_t j = begin; j < end; j += kStep) {
    for (size_t r = 0; r < kRows; ++r) PrefetchBytes(next[r] + j * kBytes, kStep * kBytes);
    HWY_UNROLL(8)
    for (size_t i = j; i < j + kStep; i += kWide) {
      VW sum = hn::LoadU(d, y + i - begin);
      HWY_UNROLL(8)
      for (size_t r = 0; r < kRows; ++r) sum = hn::MulAdd(c[r], LoadWeights<kType>(rows[r] + i * kBytes), sum);
      hn::StoreU(sum, d, y + i - begin);
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
    for (size_t i = 0; i < n; ++i)
      AddBlock<kType, kRows>(rows, scales, i, coefficients, b + i, y + (b + i) * 32 - begin);
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

// y begins at column `col_begin`.
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
      AddRows<kType, kRowsAPass>(row + k, next, coefficients + k, begin, end, y + (begin - col_begin));
    }
    for (; k < rows.size(); ++k) {
      const uint8_t* next = row[std::min(k + 1, rows.size() - 1)];
      AddRows<kType, 1>(row + k, &next, coefficients + k, begin, end, y + (begin - col_begin));
    }
  }
}

// kVectors vectors of columns, from byte `offset` of the rows on.
template <DType kType, size_t kVectors>
HWY_INLINE void AddStrip(std::span<const std::byte* const> rows, const float* coefficients, size_t offset, float* y) {
  constexpr size_t kVectorBytes = kWide * Traits(kType).block_bytes;
  const DW d;
  VW sum[kVectors];
  HWY_UNROLL(4)
  for (size_t i = 0; i < kVectors; ++i) sum[i] = hn::Zero(d);
  for (size_t k = 0; k < rows.size(); ++k) {
    const auto* row = reinterpret_cast<const uint8_t*>(rows[k]) + offset;
    const VW c = hn::Set(d, coefficients[k]);
    PrefetchBytes(row + kBytesAhead, kVectors * kVectorBytes);
    HWY_UNROLL(4)
    for (size_t i = 0; i < kVectors; ++i) {
      sum[i] = hn::MulAdd(c, LoadWeights<kType>(row + i * kVectorBytes), sum[i]);
    }
  }
  HWY_UNROLL(4)
  for (size_t i = 0; i < kVectors; ++i) {
    hn::StoreU(hn::Add(hn::LoadU(d, y + i * kWide), sum[i]), d, y + i * kWide);
  }
}

template <DType kType>
HWY_NOINLINE void AddGroup(std::span<const std::byte* const> rows, const float* coefficients, size_t col_begin,
                           size_t col_end, float* y, std::span<const std::byte* const> ahead) {
  if constexpr (IsQuantized(kType)) {
    constexpr size_t kColumns = 1024;
    alignas(64) float sums[kColumns];
    for (size_t begin = col_begin; begin < col_end; begin += kColumns) {
      const size_t end = std::min(begin + kColumns, col_end);
      std::fill(sums, sums + (end - begin), 0.f);
      Accumulate<kType>(rows, coefficients, begin, end, sums);
      for (size_t j = 0; j < end - begin; j += kLanes) {
        float* to = y + (begin - col_begin) + j;
        hn::StoreU(hn::Add(hn::LoadU(DF(), to), hn::Load(DF(), sums + j)), DF(), to);
      }
    }
  } else {
    constexpr size_t kBytes = Traits(kType).block_bytes, kStrip = kStripVectors * kWide;
    static_assert(32 % kWide == 0);
    size_t j = col_begin;
    for (; j + kStrip <= col_end; j += kStrip) {
      AddStrip<kType, kStripVectors>(rows, coefficients, j * kBytes, y + (j - col_begin));
    }
    for (; j < col_end; j += kWide) AddStrip<kType, 1>(rows, coefficients, j * kBytes, y + (j - col_begin));
    for (const std::byte* row : ahead) {
      PrefetchBytes(reinterpret_cast<const uint8_t*>(row) + col_begin * kBytes, kBytesAhead);
    }
  }
}

// kVectors vectors of columns of a tile of floats, whose rows are kColumns apart.
template <size_t kColumns, size_t kVectors>
HWY_INLINE void AddStripOfTile(const float* tile, const TokenList& list, float* y) {
  const DW d;
  VW sum[kVectors];
  HWY_UNROLL(4)
  for (size_t i = 0; i < kVectors; ++i) sum[i] = hn::Zero(d);
  for (size_t k = 0; k < list.neurons.size(); ++k) {
    const float* row = tile + list.neurons[k] % kGroupRows * kColumns;
    const VW c = hn::Set(d, list.coefficients[k]);
    HWY_UNROLL(4)
    for (size_t i = 0; i < kVectors; ++i) sum[i] = hn::MulAdd(c, hn::Load(d, row + i * kWide), sum[i]);
  }
  HWY_UNROLL(4)
  for (size_t i = 0; i < kVectors; ++i) {
    hn::StoreU(hn::Add(hn::LoadU(d, y + i * kWide), sum[i]), d, y + i * kWide);
  }
}

// to[j - begin] = row[j], exactly but for the sign of zeros, which no sum that begins at zero shows.
template <DType kType>
HWY_INLINE void ConvertColumns(const uint8_t* row, size_t begin, size_t end, float* to) {
  if constexpr (IsQuantized(kType)) {
    constexpr float kOne = 1;
    std::fill_n(to, end - begin, 0.f);
    AddQuantRows<kType, 1>(&row, &row, &kOne, begin, end, to);
  } else {
    constexpr size_t kBytes = Traits(kType).block_bytes;
    for (size_t j = begin; j < end; j += kWide) hn::Store(LoadWeights<kType>(row + j * kBytes), DW(), to + (j - begin));
  }
}

template <DType kType>
HWY_NOINLINE void AddGroupForTokens(const std::byte* const* rows, std::span<const TokenList> lists, size_t col_begin,
                                    size_t col_end, const std::byte* const* ahead) {
  constexpr size_t kColumns = std::max<size_t>(64, Traits(kType).block_elements);
  constexpr size_t kStrip = kStripVectors * kWide;
  alignas(64) float tile[kGroupRows * kColumns];
  for (size_t begin = col_begin; begin < col_end; begin += kColumns) {
    const size_t end = std::min(begin + kColumns, col_end);
    const size_t first_byte = RowBytes(kType, begin), bytes = RowBytes(kType, end) - first_byte;
    for (size_t r = 0; r < kGroupRows; ++r) {
      if (ahead[r]) PrefetchBytes(reinterpret_cast<const uint8_t*>(ahead[r]) + first_byte, bytes);
      if (rows[r]) ConvertColumns<kType>(reinterpret_cast<const uint8_t*>(rows[r]), begin, end, tile + r * kColumns);
    }
    for (const TokenList& list : lists) {
      size_t j = begin;
      for (; j + kStrip <= end; j += kStrip) {
        AddStripOfTile<kColumns, kStripVectors>(tile + (j - begin), list, list.y + j);
      }
      for (; j < end; j += kWide) AddStripOfTile<kColumns, 1>(tile + (j - begin), list, list.y + j);
    }
  }
}

#endif  // EM_SIMD

void AddGroupForTokensHere(DType dtype, const std::byte* const* rows, std::span<const TokenList> lists,
                           size_t col_begin, size_t col_end, [[maybe_unused]] const std::byte* const* ahead) {
#if EM_SIMD
  WithType(dtype, [&]<DType kType>(std::integral_constant<DType, kType>)
                      HWY_ATTR { AddGroupForTokens<kType>(rows, lists, col_begin, col_end, ahead); });
#else
  AccumulateGroupForTokensReference(dtype, rows, lists, col_begin, col_end);
#endif
}

void AccumulateHere(DType dtype, std::span<const std::byte* const> rows, const float* coefficients, size_t col_begin,
                    size_t col_end, float* y) {
#if EM_SIMD
  WithType(dtype, [&]<DType kType>(std::integral_constant<DType, kType>)
                      HWY_ATTR { Accumulate<kType>(rows, coefficients, col_begin, col_end, y + col_begin); });
#else
  AccumulateRowsReference(dtype, rows, coefficients, col_begin, col_end, y);
#endif
}

void AddGroupHere(DType dtype, std::span<const std::byte* const> rows, const float* coefficients, size_t col_begin,
                  size_t col_end, float* y, [[maybe_unused]] std::span<const std::byte* const> ahead) {
#if EM_SIMD
  WithType(dtype, [&]<DType kType>(std::integral_constant<DType, kType>)
                      HWY_ATTR { AddGroup<kType>(rows, coefficients, col_begin, col_end, y + col_begin, ahead); });
#else
  AccumulateGroupReference(dtype, rows, coefficients, col_begin, col_end, y);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace elasticmem
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace elasticmem {

HWY_EXPORT(AccumulateHere);
HWY_EXPORT(AddGroupHere);
HWY_EXPORT(AddGroupForTokensHere);

namespace {

void CheckColumns(DType dtype, size_t begin, size_t end) {
  EM_CHECK(begin % 32 == 0 && end % 32 == 0);
  EM_CHECK(begin % Traits(dtype).block_elements == 0 && end % Traits(dtype).block_elements == 0);
}

}  // namespace

void AccumulateRows(DType dtype, std::span<const std::byte* const> rows, const float* coefficients, size_t col_begin,
                    size_t col_end, float* y) {
  CheckColumns(dtype, col_begin, col_end);
  HWY_DYNAMIC_DISPATCH(AccumulateHere)(dtype, rows, coefficients, col_begin, col_end, y);
}

void AccumulateGroup(DType dtype, std::span<const std::byte* const> rows, const float* coefficients, size_t col_begin,
                     size_t col_end, float* y, std::span<const std::byte* const> ahead) {
  CheckColumns(dtype, col_begin, col_end);
  HWY_DYNAMIC_DISPATCH(AddGroupHere)(dtype, rows, coefficients, col_begin, col_end, y, ahead);
}

void AccumulateGroupForTokens(DType dtype, const std::byte* const* rows, std::span<const TokenList> lists,
                              size_t col_begin, size_t col_end, const std::byte* const* ahead) {
  CheckColumns(dtype, col_begin, col_end);
  HWY_DYNAMIC_DISPATCH(AddGroupForTokensHere)(dtype, rows, lists, col_begin, col_end, ahead);
}

}  // namespace elasticmem
#endif
