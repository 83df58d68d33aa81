// Picks the next token from logits: greedy, or drawn after penalties, temperature, top-k, top-p and min-p.
// The neutral value of each option turns it off.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "runtime/text/tokenizer.h"

namespace elasticmem {

struct SamplingOptions {
  float temperature = 0.8f;        // 0: greedy
  int top_k = 40;                  // 0: off
  float top_p = 0.95f;             // 1: off
  float min_p = 0.05f;             // 0: off
  float repeat_penalty = 1.0f;     // 1: off; divides positive and multiplies negative logits of seen tokens
  float frequency_penalty = 0.0f;  // 0: off; subtracted once per occurrence
  float presence_penalty = 0.0f;   // 0: off; subtracted if seen at all
  int penalty_window = 64;         // how many of the last tokens count as seen; 0: none, -1: all
  uint64_t seed = 0;
  std::vector<std::pair<TokenId, float>> logit_bias;  // added to these tokens' logits; ids within the vocabulary

  // What is out of range, by option name and value.
  Status Check() const;
};

class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options) : options_(options), state_(options.seed) {}

  // The next token after `history` (prompt and generated so far). Equal logits: the lowest id wins when greedy.
  TokenId Sample(std::span<const float> logits, std::span<const TokenId> history);

 private:
  struct Candidate {
    float logit;
    TokenId id;
  };
  void ApplyPenalties(std::span<const TokenId> history);
  size_t Truncate();
  double NextUniform();

  SamplingOptions options_;
  uint64_t state_;
  std::vector<Candidate> candidates_;
};

// The index of the largest logit; the first of equals.
TokenId ArgMax(std::span<const float> logits);

}  // namespace elasticmem
