#include "runtime/engine/memory_use.h"

#include <nlohmann/json.hpp>

namespace elasticmem {

nlohmann::ordered_json MemoryUseJson(const MemoryUse& use) {
  return {{"weights_bytes", use.weights_bytes},
          {"kv_bytes", use.kv_bytes},
          {"neuron_bytes", use.neuron_bytes},
          {"scratch_bytes", use.scratch_bytes},
          {"staging_bytes", use.staging_bytes},
          {"table_bytes", use.table_bytes},
          {"tokenizer_bytes", use.tokenizer_bytes},
          {"reserve", {{"free_block_bytes", use.free_block_bytes}, {"page_end_bytes", use.page_end_bytes}}},
          {"reserve_fraction", use.reserve_share()},
          {"idle",
           {{"empty_slot_bytes", use.empty_slot_bytes},
            {"tail_bytes", use.tail_bytes},
            {"unreserved_bytes", use.unreserved_bytes}}},
          {"idle_fraction", use.idle_share()}};
}

}  // namespace elasticmem
