// The small operators of a transformer layer: norms, rotary embedding, and attention over paged KV.
// All work on one token, or on a few (token, KV head) at a time, so the caller decides how threads share them and the result
// never depends on the batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/units.h"
#include "tensor/dtype.h"

namespace elasticmem {

// out[i] = x[i] / sqrt(mean(x^2) + epsilon) * weight[i]. out may be x. Sums in double or in a fixed lane order.
void RmsNorm(std::span<const float> x, const float* weight, float epsilon, float* out);
// out[i] = (x[i] - mean) / sqrt(variance + epsilon) * weight[i] + bias[i]; bias may be null.
void LayerNorm(std::span<const float> x, const float* weight, const float* bias, float epsilon, float* out);

enum class RopeKind : uint8_t {
  kNone,
  kAdjacent,  // rotates pairs (2i, 2i+1): llama's permuted rows
  kHalves,    // rotates pairs (i, i + dims/2): qwen2, gemma3, falcon
};
// cos_sin[2i], cos_sin[2i+1] = cos, sin of position * inverse_frequency[i], i < inverse_frequency.size(), computed in
// double.
void RopeAngles(uint32_t position, std::span<const float> inverse_frequency, float* cos_sin);
// Rotates the first 2 * pairs elements of each of `heads` heads of `head_dim` in x.
void ApplyRope(RopeKind kind, const float* cos_sin, size_t pairs, size_t heads, size_t head_dim, float* x);

// A KV page: page_tokens tokens, each [K of all KV heads][V of all KV heads], in `type` (F32, F16 or Q8_0).
// Token-major, so that the unwritten end of a page is one piece.
struct KvPageLayout {
  DType type = DType::kF16;
  uint32_t page_tokens = 16;
  uint32_t kv_heads = 1;
  uint32_t head_dim = 64;  // a multiple of 32 for Q8_0

  size_t head_bytes() const { return RowBytes(type, head_dim); }
  size_t token_bytes() const { return 2 * kv_heads * head_bytes(); }
  size_t page_bytes() const { return page_tokens * token_bytes(); }
};

// Stores k and v, each [kv_heads * head_dim], as token `slot` of `page`.
void WriteKv(const KvPageLayout& layout, std::byte* page, uint32_t slot, const float* k, const float* v);

// Consecutive tokens of one sequence: row r attends to positions [begin(r), end(r)), and to `window` of them at most
// where that is not 0.
struct AttendRows {
  uint32_t first_begin = 0;
  uint32_t first_end = 0;  // of row 0: its own position + 1
  uint32_t count = 1;
  uint32_t window = 0;

  uint32_t end(uint32_t row) const { return first_end + row; }
  uint32_t begin(uint32_t row) const {
    return window > 0 && end(row) > window + first_begin ? end(row) - window : first_begin;
  }
};

// Attention of `group` query heads that share `kv_head`, for each of the rows: head g of row r is q[r * stride + g *
// head_dim ...], and so is its output. Position p is token p % page_tokens of pages[p / page_tokens].
// out = softmax(q.k * scale) . v, by a running softmax that merges tiles of kAttentionTile positions (split at absolute
// multiples, in order), so the bits depend on nothing else: neither on the other rows nor on how many tokens a page
// has. page_tokens is a multiple of kAttentionTile. `scratch` is 64-byte aligned and has AttendScratchFloats() floats.
inline constexpr uint32_t kAttentionTile = 16;
inline constexpr uint32_t kAttentionPadding = 16;  // heads are padded to a multiple of so many floats
void Attend(const KvPageLayout& layout, std::span<const std::byte* const> pages, const AttendRows& rows,
            uint32_t kv_head, const float* q, size_t stride, uint32_t group, float scale, float* scratch, float* out);
void AttendReference(const KvPageLayout& layout, std::span<const std::byte* const> pages, const AttendRows& rows,
                     uint32_t kv_head, const float* q, size_t stride, uint32_t group, float scale, float* scratch,
                     float* out);
constexpr size_t AttendScratchFloats(const KvPageLayout& layout, uint32_t rows, uint32_t group) {
  const size_t padded = RoundUp<size_t>(layout.head_dim, kAttentionPadding);
  return 2 * kAttentionTile * padded + size_t{rows} * group * (2 * padded + kAttentionTile + kAttentionPadding);
}

}  // namespace elasticmem
