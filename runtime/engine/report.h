// What a run measured, in the one schema that --json, --report and the daemon share.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/stream_hash.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/time_series.h"

namespace elasticmem {

struct Throughput {
  uint64_t tokens = 0;
  double seconds = 0;
  double tokens_per_second() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
};

struct Report {
  std::string model_name, architecture;
  uint64_t model_bytes = 0, parameters = 0;
  uint64_t budget_bytes = 0, peak_bytes = 0, peak_rss_bytes = 0;  // the first two of all tiers together
  struct TierUse {
    std::string name;
    uint64_t budget_bytes = 0, peak_bytes = 0;
    uint64_t neurons = 0;      // there now
    double work_fraction = 0;  // of the records that layers asked for, found there
  };
  std::vector<TierUse> tiers;                                   // device, and host where there is one
  std::string device;                                           // what it is; "" without a host tier
  uint64_t copies_up = 0, copies_down = 0, copies_in_vain = 0;  // of records between the two
  std::string mode, policy, io;
  int threads = 1;
  Throughput prefill, decode;
  double ttft_seconds = 0;
  double active_fraction = 0, resident_neuron_fraction = 0, device_work_fraction = 0, memory_management_fraction = 0;
  uint64_t store_bytes_read = 0, store_reads = 0;
  double store_wait_seconds = 0, store_busy_seconds = 0, store_bytes_per_token = 0;
  uint64_t fragment_slots = 0, fragment_slots_used = 0;
  std::string text;
  std::vector<TokenId> token_ids;
  uint64_t logits_hash = 0;
  uint64_t dense_resident_bytes = 0, dense_streamed_bytes = 0, kv_bytes = 0, neuron_bytes = 0;
  uint64_t neurons_resident = 0, neurons_total = 0;
  uint64_t pool_blocks = 0, block_bytes = 0;
  MemoryUse memory;                 // when the report was made
  std::vector<SeriesPoint> series;  // may be empty

  // Everything that `engine` knows; the caller adds what was generated.
  static Report FromEngine(const Engine& engine, int threads);
  std::string ToJson() const;
  // A short table for people: what was resident where, speed, reads, peak against budget.
  std::string ToTable() const;
};

// A running XXH3 over logits, bit for bit.
class LogitsHash {
 public:
  void Add(std::span<const float> logits) { hash_.Add(std::as_bytes(logits)); }
  uint64_t value() const { return hash_.Digest(); }

 private:
  StreamHash hash_;
};

}  // namespace elasticmem
