// One policy's pass over a growth trace, and what was measured meanwhile.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/batcher.h"
#include "runtime/engine/time_series.h"
#include "tools/growth_trace.h"

namespace elasticmem {

// Time in steps of one kind, and what they did.
struct StepTotals {
  double seconds = 0;
  uint64_t steps = 0, prompt_tokens = 0, decoded_tokens = 0;  // rows of the steps
};

struct GrowthPhaseResult {
  double seconds = 0, begin_seconds = 0;
  double placing_seconds = 0;  // of them: placing neurons for the phase
  uint64_t begin_tokens = 0;   // generated before
  double tokens_per_second = 0;
  StepTotals prefill, decode, mixed;  // steps that only read prompts, only decoded, did both
  uint64_t store_bytes = 0;
  double resident_fraction = 0;  // of the neurons, at the end
  MemoryUse memory;              // at the end
};

// Seconds that a conversation waits for its next token, where no prompt is read in the same step.
struct TokenTimes {
  double p50 = 0, p99 = 0;
  // p99 of a step's time over the median of the steps around it with the same conversations at once.
  double p99_over_median = 0;
};

struct GrowthResult {
  double makespan_seconds = 0;  // of the phases, not of loading
  double tokens_per_second = 0;
  uint64_t generated_tokens = 0, prompt_tokens = 0, recomputed_tokens = 0;
  uint64_t cached_tokens = 0, swapped_tokens = 0;
  uint64_t preemptions = 0, idle_drops = 0;
  uint64_t partial_steps = 0;  // that left out conversations because fewer are faster
  uint64_t store_bytes = 0, store_reads = 0;
  double store_wait_seconds = 0;
  double management_fraction = 0;  // of the time in steps
  TokenTimes token_times;
  ResidencyStatistics residency;
  uint64_t late_blocks = 0;  // that a step waited for
  uint32_t pool_blocks = 0;
  uint64_t block_bytes = 0;
  uint64_t budget_bytes = 0, peak_bytes = 0;
  uint64_t neurons = 0;
  uint64_t text_hash = 0;  // of all generated tokens, by client and order
  std::vector<GrowthPhaseResult> phases;
  std::vector<SeriesPoint> series;
};

struct GrowthReplay {
  BatcherOptions batcher;
  // Before a phase and after it; the time of the former counts.
  std::function<Status(size_t phase)> before, after;
  std::function<void(uint64_t generated_tokens)> progress;
  const std::atomic<bool>* cancelled = nullptr;  // looked at between steps
};

// Runs the trace on a fresh engine: in each phase its clients ask turn after turn without think time, and when all have
// their answers, those that the next phase has not leave. Errors: those of the engine, where a conversation cannot fit
// the policy's KV, and Cancelled.
StatusOr<GrowthResult> RunGrowthTrace(Engine& engine, const GrowthTrace& trace, const GrowthReplay& replay);

// A step that only decoded. In order; `waits` are how long conversations waited for a token, in such steps alone:
// longer than one where they take turns.
struct StepTime {
  double seconds = 0;
  uint32_t conversations = 0;
};
TokenTimes SummariseTokenTimes(const std::vector<StepTime>& steps, std::vector<double> waits);

}  // namespace elasticmem
