// Who has the bytes of the budget at this moment.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

namespace elasticmem {

// Invariant: the parts sum to budget_bytes.
struct MemoryUse {
  uint64_t budget_bytes = 0;
  uint64_t weights_bytes = 0;  // dense weights and gates
  uint64_t kv_bytes = 0;       // of tokens that were written, cached pages included
  uint64_t neuron_bytes = 0;   // records in memory
  // Needs that the plan declares besides, as they are reserved in the ledger.
  uint64_t scratch_bytes = 0, staging_bytes = 0, table_bytes = 0, tokenizer_bytes = 0;
  // Kept for what comes: free blocks for the pages that the next steps begin, and the unwritten rest of pages that have
  // been begun, as far as no slots are lent there.
  uint64_t free_block_bytes = 0, page_end_bytes = 0;
  // In use by nobody: slots without a record, ends of blocks and pages that are shorter than one, and what the ledger
  // has not given out, among it the room that the plan leaves for the tables of longer sequences.
  uint64_t empty_slot_bytes = 0, tail_bytes = 0, unreserved_bytes = 0;

  uint64_t idle_bytes() const { return empty_slot_bytes + tail_bytes + unreserved_bytes; }
  uint64_t reserve_bytes() const { return free_block_bytes + page_end_bytes; }
  double reserve_share() const { return static_cast<double>(reserve_bytes()) / static_cast<double>(budget_bytes); }
  double idle_share() const { return static_cast<double>(idle_bytes()) / static_cast<double>(budget_bytes); }
};

// Every field by its name, and idle_fraction and reserve_fraction.
nlohmann::ordered_json MemoryUseJson(const MemoryUse& use);

}  // namespace elasticmem
