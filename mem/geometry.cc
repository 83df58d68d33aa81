#include "mem/geometry.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/units.h"

namespace elasticmem {
namespace {

constexpr std::array<uint32_t, 4> kPageTokens = {16, 32, 64, 128};
constexpr uint64_t kBlockUnitBytes = 4_KiB;
constexpr uint64_t kLargestBlockBytes = 4_MiB;
// Waste is a share of the pool; differences below this are ties.
constexpr double kTie = 1e-6;

Geometry Candidate(const GeometryShapes& shapes, uint32_t page_tokens) {
  Geometry g;
  g.page_tokens = page_tokens;
  g.page_bytes = page_tokens * shapes.kv_bytes_per_token_layer;
  g.block_bytes = RoundUp(std::max(g.page_bytes, shapes.slot_bytes), kBlockUnitBytes);
  g.capacity_blocks = static_cast<uint32_t>(std::min<uint64_t>(shapes.pool_bytes / g.block_bytes, UINT32_MAX));
  g.kv_tail_bytes = g.block_bytes - g.page_bytes;

  const auto block = static_cast<double>(g.block_bytes);
  uint64_t lost_kv_tail = g.kv_tail_bytes;
  if (shapes.slot_bytes > 0) {
    g.slot_bytes = shapes.slot_bytes;
    g.records_per_block = static_cast<uint32_t>(g.block_bytes / shapes.slot_bytes);
    g.neuron_tail_bytes = g.block_bytes % shapes.slot_bytes;
    g.neuron_tail_waste = static_cast<double>(g.neuron_tail_bytes) / block;
    // Slots lie at multiples of slot_bytes (see SlotGrid): those wholly behind the page are lent to neurons.
    const uint64_t first = CeilDiv(g.page_bytes, shapes.slot_bytes);
    if (first < g.records_per_block) lost_kv_tail -= (g.records_per_block - first) * shapes.slot_bytes;
  }
  g.kv_tail_waste = static_cast<double>(lost_kv_tail) / block;

  const double context = std::max(1u, shapes.context);
  g.last_page_waste = std::min(1.0, page_tokens / 2.0 / context);

  const double kv_bytes =
      context * shapes.layers * static_cast<double>(shapes.kv_bytes_per_token_layer) * std::max(1u, shapes.sequences);
  const double kv_share = shapes.slot_bytes == 0
                              ? 1.0
                              : std::min(1.0, kv_bytes / static_cast<double>(std::max<uint64_t>(1, shapes.pool_bytes)));
  const double remainder = shapes.pool_bytes == 0 ? 0.0
                                                  : static_cast<double>(shapes.pool_bytes % g.block_bytes) /
                                                        static_cast<double>(shapes.pool_bytes);
  g.waste = kv_share * (g.kv_tail_waste + g.last_page_waste) + (1 - kv_share) * g.neuron_tail_waste + remainder;
  return g;
}

Status CheckShapes(const GeometryShapes& shapes) {
  if (shapes.layers == 0 || shapes.kv_bytes_per_token_layer == 0) {
    return InvalidInput("a pool for {} layers of {} KV bytes a token holds nothing", shapes.layers,
                        shapes.kv_bytes_per_token_layer);
  }
  EM_CHECK(shapes.slot_bytes % 64 == 0);
  if (shapes.kv_bytes_per_token_layer > kLargestBlockBytes / kPageTokens[0] || shapes.slot_bytes > kLargestBlockBytes) {
    return InvalidInput(
        "blocks have at most {} bytes: too small for {} tokens of {} KV bytes or for a record of {} bytes",
        kLargestBlockBytes, kPageTokens[0], shapes.kv_bytes_per_token_layer, shapes.slot_bytes);
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<Geometry> SmallestGeometry(const GeometryShapes& shapes) {
  EM_RETURN_IF_ERROR(CheckShapes(shapes));
  std::optional<Geometry> best;
  uint64_t best_bytes = 0;
  for (const uint32_t page_tokens : kPageTokens) {
    const Geometry g = Candidate(shapes, page_tokens);
    const uint64_t bytes = CeilDiv<uint64_t>(std::max(1u, shapes.context), page_tokens) * g.block_bytes;
    if (g.block_bytes > kLargestBlockBytes || (best && bytes >= best_bytes)) continue;
    best = g;
    best_bytes = bytes;
  }
  EM_CHECK(best.has_value());
  return *best;
}

StatusOr<Geometry> ChooseGeometry(const GeometryShapes& shapes) {
  EM_RETURN_IF_ERROR(CheckShapes(shapes));
  std::optional<Geometry> best;
  for (const uint32_t page_tokens : kPageTokens) {  // from the smallest block up
    const Geometry g = Candidate(shapes, page_tokens);
    if (g.block_bytes > kLargestBlockBytes || g.capacity_blocks < shapes.layers) continue;
    if (!best || g.waste < best->waste - kTie) best = g;
  }
  if (best) return *best;
  const uint64_t enough = shapes.layers * Candidate(shapes, kPageTokens[0]).block_bytes;
  return Exhausted("a pool of {} bytes holds no KV page for each of the {} layers: it needs {} bytes",
                   shapes.pool_bytes, shapes.layers, enough);
}

}  // namespace elasticmem
