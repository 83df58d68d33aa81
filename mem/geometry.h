// How large a block is and how many tokens a KV page holds, chosen from the model's shapes so that KV pages and neurons
// share blocks with as little waste as there can be.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace elasticmem {

struct GeometryShapes {
  uint32_t layers = 0;
  uint64_t kv_bytes_per_token_layer = 0;  // K and V of one token in one layer, in the KV type
  uint64_t slot_bytes = 0;  // a record as it is kept in memory, multiple of 64; 0 where no neuron is pooled
  uint64_t pool_bytes = 0;  // what the pool may take
  uint32_t context = 0;     // tokens of a sequence at most
  uint32_t sequences = 1;   // expected at once
};

struct Geometry {
  uint32_t page_tokens = 0;
  uint64_t page_bytes = 0;         // page_tokens * kv_bytes_per_token_layer
  uint64_t block_bytes = 0;        // page_bytes, or one slot where that is longer, rounded up to 4 KiB
  uint64_t slot_bytes = 0;         // as asked
  uint32_t records_per_block = 0;  // floor(block_bytes / slot_bytes)
  uint32_t capacity_blocks = 0;    // floor(pool_bytes / block_bytes)
  uint64_t kv_tail_bytes = 0;      // block_bytes - page_bytes: a fragment of every KV block
  uint64_t neuron_tail_bytes = 0;  // block_bytes - records_per_block * slot_bytes
  double kv_tail_waste = 0;        // share of a KV block that neither its page nor whole slots in its tail can use
  double neuron_tail_waste = 0;    // share of a neuron block
  double last_page_waste = 0;      // expected share of a full-length sequence's KV: half a page in each layer
  double waste = 0;  // of the pool: the three weighted by the KV's share of it, and the pool's own remainder
};

// The candidate (16, 32, 64 or 128 tokens; block of 4 KiB to 4 MiB) with the least waste; the smaller block where two
// tie. Candidates of which the pool cannot hold one page a layer are out. Errors: Exhausted with the bytes that would
// do where none fits the pool, InvalidInput where a page or slot is longer than 4 MiB.
StatusOr<Geometry> ChooseGeometry(const GeometryShapes& shapes);

// The candidate in which the KV of `sequences` sequences of `context` tokens takes the fewest bytes, whatever the pool
// has.
StatusOr<Geometry> SmallestGeometry(const GeometryShapes& shapes);

}  // namespace elasticmem
