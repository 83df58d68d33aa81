#include "runtime/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

namespace elasticmem {

Status SamplingOptions::Check() const {
  if (!(temperature >= 0) || temperature > 100) return InvalidInput("--temp is {}; expected 0 to 100", temperature);
  if (top_k < 0) return InvalidInput("--top-k is {}; expected 0 (off) or more", top_k);
  if (!(top_p > 0 && top_p <= 1)) return InvalidInput("--top-p is {}; expected more than 0, up to 1 (off)", top_p);
  if (!(min_p >= 0 && min_p <= 1)) return InvalidInput("--min-p is {}; expected 0 (off) to 1", min_p);
  if (!(repeat_penalty > 0) || repeat_penalty > 100) {
    return InvalidInput("--repeat-penalty is {}; expected more than 0 (1 is off)", repeat_penalty);
  }
  if (!std::isfinite(frequency_penalty)) return InvalidInput("--frequency-penalty is {}", frequency_penalty);
  if (!std::isfinite(presence_penalty)) return InvalidInput("--presence-penalty is {}", presence_penalty);
  if (penalty_window < -1) return InvalidInput("--repeat-last-n is {}; expected -1 (all) or more", penalty_window);
  return absl::OkStatus();
}

TokenId ArgMax(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// splitmix64: one multiply-xor chain per draw, the same on every machine.
double Sampler::NextUniform() {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1.0p-53;
}

void Sampler::ApplyPenalties(std::span<const TokenId> history) {
  const bool none = options_.repeat_penalty == 1 && options_.frequency_penalty == 0 && options_.presence_penalty == 0;
  if (none || options_.penalty_window == 0) return;
  if (options_.penalty_window > 0 && history.size() > static_cast<size_t>(options_.penalty_window)) {
    history = history.last(options_.penalty_window);
  }
  std::unordered_map<TokenId, int> counts;
  for (TokenId id : history) ++counts[id];
  for (const auto& [id, count] : counts) {
    if (id < 0 || static_cast<size_t>(id) >= candidates_.size()) continue;
    float& logit = candidates_[id].logit;
    logit = logit > 0 ? logit / options_.repeat_penalty : logit * options_.repeat_penalty;
    logit -= options_.frequency_penalty * static_cast<float>(count) + options_.presence_penalty;
  }
}

// Sorts the best candidates to the front and returns how many stay after top-k, top-p and min-p.
size_t Sampler::Truncate() {
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  size_t keep = candidates_.size();
  if (options_.top_k > 0) keep = std::min(keep, static_cast<size_t>(options_.top_k));
  if (keep < candidates_.size()) {
    std::partial_sort(candidates_.begin(), candidates_.begin() + keep, candidates_.end(), better);
  } else {
    std::sort(candidates_.begin(), candidates_.end(), better);
  }
  const float top = candidates_[0].logit;
  if (options_.top_p < 1) {
    double total = 0;
    for (size_t i = 0; i < keep; ++i) total += std::exp(static_cast<double>(candidates_[i].logit) - top);
    double sum = 0;
    for (size_t i = 0; i < keep; ++i) {
      sum += std::exp(static_cast<double>(candidates_[i].logit) - top);
      if (sum >= options_.top_p * total) {
        keep = i + 1;
        break;
      }
    }
  }
  if (options_.min_p > 0) {
    const float least = top + std::log(options_.min_p);
    while (keep > 1 && candidates_[keep - 1].logit < least) --keep;
  }
  return keep;
}

TokenId Sampler::Sample(std::span<const float> logits, std::span<const TokenId> history) {
  const bool penalised =
      options_.repeat_penalty != 1 || options_.frequency_penalty != 0 || options_.presence_penalty != 0;
  if (options_.temperature == 0 && !penalised && options_.logit_bias.empty()) return ArgMax(logits);
  candidates_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) candidates_[i] = {logits[i], static_cast<TokenId>(i)};
  for (const auto& [id, bias] : options_.logit_bias) candidates_[id].logit += bias;
  ApplyPenalties(history);
  if (options_.temperature == 0) {
    return std::max_element(candidates_.begin(), candidates_.end(),
                            [](const Candidate& a, const Candidate& b) {
                              return a.logit != b.logit ? a.logit < b.logit : a.id > b.id;
                            })
        ->id;
  }
  const size_t keep = Truncate();
  const float top = candidates_[0].logit;
  double total = 0;
  const auto weight = [&](size_t i) {
    return std::exp((static_cast<double>(candidates_[i].logit) - top) / options_.temperature);
  };
  for (size_t i = 0; i < keep; ++i) total += weight(i);
  double left = NextUniform() * total;
  for (size_t i = 0; i + 1 < keep; ++i) {
    left -= weight(i);
    if (left < 0) return candidates_[i].id;
  }
  return candidates_[keep - 1].id;
}

}  // namespace elasticmem
