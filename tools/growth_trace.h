// The growth trace: a fixed amount of work in which conversations come, grow and go, so that the KV cache rises and
// falls. Pure: the same spec gives the same trace, and every policy of a comparison replays the same one.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "runtime/text/tokenizer.h"

namespace elasticmem {

// Lengths are drawn log-normally around the median and clipped.
struct LengthRange {
  uint32_t median, min, max;
  double sigma;  // of the logarithm
};

struct GrowthSpec {
  // Lengths as they are, or in proportion where the context is shorter than 2,048 tokens.
  static GrowthSpec ForContext(uint32_t context);

  uint64_t seed = 1;
  // Clients in each phase. Client c takes part where there are more than c, so those that came last leave first; one
  // that comes back begins a new conversation.
  std::vector<uint32_t> phases = {1, 2, 4, 8, 8, 4, 2, 1};
  uint64_t generated_tokens = 3000;  // in all, exactly
  uint32_t context = 2048;           // that no conversation passes
  uint32_t vocab = 0;
  LengthRange prompt = {120, 64, 1024, 0.7};
  LengthRange answer = {60, 16, 256, 0.6};
  // One client of the fullest phases has long prompts, so that its conversation ends with so many tokens.
  uint32_t grown_tokens = 2000;
};

// A prompt and the length of its answer.
struct GrowthTurn {
  std::vector<TokenId> prompt;
  uint32_t answer_tokens = 0;
  uint32_t tokens() const { return static_cast<uint32_t>(prompt.size()) + answer_tokens; }
};

struct GrowthPhase {
  uint32_t clients() const { return static_cast<uint32_t>(turns.size()); }

  std::vector<std::vector<GrowthTurn>> turns;  // of each client, in order; at least one
  uint64_t prompt_tokens = 0, generated_tokens = 0;
  uint64_t kv_tokens = 0;  // of all conversations when it ends
};

struct GrowthTrace {
  std::vector<GrowthPhase> phases;
  uint64_t prompt_tokens = 0, generated_tokens = 0;
  uint32_t most_clients = 0;
  uint32_t longest_tokens = 0;  // of one conversation
  uint64_t peak_kv_tokens = 0;  // of all conversations at once
};

// Each client has about the same number of turns in each phase, as many as the asked tokens take with answers of the
// expected length. A conversation that would pass the context has its later prompts shortened, then turns dropped.
// Errors: InvalidInput where the asked tokens don't fit into the contexts of the clients, or phases have none.
StatusOr<GrowthTrace> MakeGrowthTrace(const GrowthSpec& spec);

}  // namespace elasticmem
