// One policy's pass over a growth trace, and what was measured meanwhile.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "mem/block_pool.h"
#include "runtime/engine/batcher.h"
#include "tools/growth_trace.h"

namespace elasticmem {

// Some steps of a pass, one after another: what they did, and how things stood after them.
struct GrowthPoint {
  double seconds = 0;                                // since the pass began
  uint64_t generated_tokens = 0, prompt_tokens = 0;  // since it began
  std::array<uint32_t, kBlockOwners> blocks{};       // of the pool, by owner
  uint32_t resident_neurons = 0;
  uint64_t store_bytes = 0;  // read since it began
};

// A time series of bounded length: where it gets too long, every other point goes.
class GrowthSeries {
 public:
  static constexpr size_t kMost = 600;

  void Add(const GrowthPoint& point);
  // All of them, and the last one that was added.
  std::vector<GrowthPoint> points() const;

 private:
  std::vector<GrowthPoint> points_;
  GrowthPoint last_;
  uint64_t stride_ = 1, added_ = 0;
};

struct GrowthPhaseResult {
  double seconds = 0, begin_seconds = 0;
  double placing_seconds = 0;  // of them: placing neurons for the phase
  uint64_t begin_tokens = 0;   // generated before
  double tokens_per_second = 0;
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
  uint64_t preemptions = 0, idle_drops = 0;
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
  std::vector<GrowthPoint> series;
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

// Of the times of steps that only decoded, and the conversations in each; in order.
struct StepTime {
  double seconds = 0;
  uint32_t conversations = 0;
};
TokenTimes SummariseTokenTimes(const std::vector<StepTime>& steps);

}  // namespace elasticmem
