#include "tools/growth_trace.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

namespace elasticmem {
namespace {

// SplitMix64: the same on every machine, unlike the distributions of <random>.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  double Uniform() { return (static_cast<double>(Next() >> 11) + 0.5) * 0x1p-53; }  // in (0, 1)
  double Normal() {
    const double radius = std::sqrt(-2 * std::log(Uniform()));
    return radius * std::cos(2 * std::numbers::pi * Uniform());
  }
  uint32_t Length(const LengthRange& range) {
    const double length = std::round(range.median * std::exp(range.sigma * Normal()));
    return static_cast<uint32_t>(std::clamp<double>(length, range.min, range.max));
  }

 private:
  uint64_t state_;
};

// The lengths of a turn before its tokens are drawn.
struct Draft {
  uint32_t client, phase;
  uint32_t prompt, answer;
};

using Drafts = std::vector<Draft>;  // by phase, then client, then order

template <class F>
void ForClient(Drafts& drafts, uint32_t client, F&& each) {
  for (Draft& draft : drafts) {
    if (draft.client == client) each(draft);
  }
}

// As many turns as `generated_tokens` take, spread evenly over the clients of the phases; at least one for each.
Drafts DrawTurns(const GrowthSpec& spec) {
  const uint64_t places = std::accumulate(spec.phases.begin(), spec.phases.end(), uint64_t{0});
  const double mean = spec.answer.median * std::exp(spec.answer.sigma * spec.answer.sigma / 2);
  const uint64_t turns = std::max<uint64_t>(places, std::llround(static_cast<double>(spec.generated_tokens) / mean));
  Random random(spec.seed);
  Drafts drafts;
  uint64_t place = 0;
  for (uint32_t phase = 0; phase < spec.phases.size(); ++phase) {
    for (uint32_t client = 0; client < spec.phases[phase]; ++client, ++place) {
      const uint64_t count = (place + 1) * turns / places - place * turns / places;
      for (uint64_t i = 0; i < count; ++i) {
        const uint32_t prompt = random.Length(spec.prompt);
        drafts.push_back({client, phase, prompt, random.Length(spec.answer)});
      }
    }
  }
  return drafts;
}

// Drops turns of the client until those that are left fit the context at their shortest: the last turn of the phase
// that has most of them, and never a phase's only one.
Status DropTurns(const GrowthSpec& spec, uint32_t client, Drafts& drafts) {
  const uint32_t shortest = spec.prompt.min + spec.answer.min;
  std::vector<uint32_t> counts(spec.phases.size(), 0);
  ForClient(drafts, client, [&](const Draft& draft) { ++counts[draft.phase]; });
  uint64_t turns = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  for (; turns * shortest > spec.context; --turns) {
    // Of equals the last phase.
    const auto most = std::max_element(counts.rbegin(), counts.rend());
    if (*most <= 1) {
      return InvalidInput(
          "a conversation of {} turns of {} tokens or more does not fit a context of {}; raise context or lower "
          "the number of phases",
          turns, shortest, spec.context);
    }
    const uint32_t phase = static_cast<uint32_t>(counts.rend() - most) - 1;
    const auto last = std::find_if(drafts.rbegin(), drafts.rend(),
                                   [&](const Draft& draft) { return draft.client == client && draft.phase == phase; });
    drafts.erase(std::next(last).base());
    --*most;
  }
  return absl::OkStatus();
}

// Tokens that the client's conversation has with its prompts at their shortest.
uint64_t ShortestTokens(const GrowthSpec& spec, uint32_t client, Drafts& drafts) {
  uint64_t tokens = 0;
  ForClient(drafts, client, [&](const Draft& draft) { tokens += spec.prompt.min + draft.answer; });
  return tokens;
}

// Stretches or shortens answers within their range until they sum to what is asked.
Status FitAnswers(const GrowthSpec& spec, uint32_t clients, Drafts& drafts) {
  uint64_t sum = 0;
  for (const Draft& draft : drafts) sum += draft.answer;
  const double factor = static_cast<double>(spec.generated_tokens) / static_cast<double>(sum);
  sum = 0;
  for (Draft& draft : drafts) {
    const double length = std::round(draft.answer * factor);
    draft.answer = static_cast<uint32_t>(std::clamp<double>(length, spec.answer.min, spec.answer.max));
    sum += draft.answer;
  }
  std::vector<uint64_t> tokens;  // of each conversation
  for (uint32_t c = 0; c < clients; ++c) tokens.push_back(ShortestTokens(spec, c, drafts));
  const auto shorten = [&](Draft& draft) {
    if (draft.answer == spec.answer.min) return false;
    --draft.answer, --tokens[draft.client], --sum;
    return true;
  };
  const auto lengthen = [&](Draft& draft) {
    if (draft.answer == spec.answer.max || tokens[draft.client] >= spec.context) return false;
    ++draft.answer, ++tokens[draft.client], ++sum;
    return true;
  };
  // Into the contexts first, then to the sum; a token of each turn at a time, so that their proportions stay.
  for (bool changed = true; changed;) {
    changed = false;
    for (Draft& draft : drafts) {
      if (tokens[draft.client] > spec.context) changed |= shorten(draft);
    }
  }
  for (bool changed = true; changed && sum != spec.generated_tokens;) {
    changed = false;
    for (Draft& draft : drafts) {
      if (sum == spec.generated_tokens) break;
      changed |= sum > spec.generated_tokens ? shorten(draft) : lengthen(draft);
    }
  }
  if (sum == spec.generated_tokens) return absl::OkStatus();
  return InvalidInput("{} tokens to generate do not fit a trace of {} turns in contexts of {}; {} {} do",
                      spec.generated_tokens, drafts.size(), spec.context,
                      sum > spec.generated_tokens ? "at least" : "at most", sum);
}

// A turn's prompt leaves room for the later ones at their shortest.
void FitPrompts(const GrowthSpec& spec, uint32_t client, Drafts& drafts) {
  uint64_t room = spec.context - ShortestTokens(spec, client, drafts);
  ForClient(drafts, client, [&](Draft& draft) {
    draft.prompt = static_cast<uint32_t>(std::min<uint64_t>(draft.prompt, spec.prompt.min + room));
    room -= draft.prompt - spec.prompt.min;
  });
}

// Lengthens the prompts of the first client that comes with the fullest phase, evenly, until its conversation ends with
// grown_tokens, as far as prompts may be long.
void GrowOne(const GrowthSpec& spec, Drafts& drafts) {
  const size_t fullest =
      static_cast<size_t>(std::max_element(spec.phases.begin(), spec.phases.end()) - spec.phases.begin());
  const uint32_t before = fullest > 0 ? spec.phases[fullest - 1] : 0;
  const uint32_t client = std::min(before, spec.phases[fullest] - 1);
  const uint64_t goal = std::min(spec.grown_tokens, spec.context);
  uint64_t tokens = 0, turns = 0;
  ForClient(drafts, client, [&](const Draft& draft) {
    tokens += draft.prompt + draft.answer;
    ++turns;
  });
  ForClient(drafts, client, [&](Draft& draft) {
    const uint64_t wanted = tokens < goal ? (goal - tokens + turns - 1) / turns : 0;
    const uint32_t more = static_cast<uint32_t>(std::min<uint64_t>(wanted, spec.prompt.max - draft.prompt));
    draft.prompt += more;
    tokens += more;
    --turns;
  });
}

GrowthTrace DrawTokens(const GrowthSpec& spec, const Drafts& drafts) {
  GrowthTrace trace;
  Random random(spec.seed ^ 0x746f6b656e73);
  for (const uint32_t clients : spec.phases) {
    trace.phases.emplace_back().turns.resize(clients);
    trace.most_clients = std::max(trace.most_clients, clients);
  }
  for (const Draft& draft : drafts) {
    GrowthTurn turn;
    turn.answer_tokens = draft.answer;
    for (uint32_t i = 0; i < draft.prompt; ++i) turn.prompt.push_back(static_cast<TokenId>(random.Next() % spec.vocab));
    trace.phases[draft.phase].turns[draft.client].push_back(std::move(turn));
  }
  std::vector<uint64_t> conversations(trace.most_clients, 0);
  for (GrowthPhase& phase : trace.phases) {
    std::fill(conversations.begin() + phase.clients(), conversations.end(), 0);
    for (uint32_t client = 0; client < phase.clients(); ++client) {
      for (const GrowthTurn& turn : phase.turns[client]) {
        phase.prompt_tokens += turn.prompt.size();
        phase.generated_tokens += turn.answer_tokens;
        conversations[client] += turn.tokens();
      }
      phase.kv_tokens += conversations[client];
      trace.longest_tokens = std::max(trace.longest_tokens, static_cast<uint32_t>(conversations[client]));
    }
    trace.prompt_tokens += phase.prompt_tokens;
    trace.generated_tokens += phase.generated_tokens;
    trace.peak_kv_tokens = std::max(trace.peak_kv_tokens, phase.kv_tokens);
  }
  return trace;
}

}  // namespace

GrowthSpec GrowthSpec::ForContext(uint32_t context) {
  constexpr uint32_t kWhole = 2048;
  GrowthSpec spec;
  spec.context = context;
  if (context >= kWhole) return spec;
  const auto scaled = [&](uint32_t tokens) {
    return std::max<uint32_t>(2, static_cast<uint32_t>(uint64_t{tokens} * context / kWhole));
  };
  for (LengthRange* range : {&spec.prompt, &spec.answer}) {
    range->median = scaled(range->median);
    range->min = scaled(range->min);
    range->max = scaled(range->max);
  }
  spec.grown_tokens = scaled(spec.grown_tokens);
  return spec;
}

StatusOr<GrowthTrace> MakeGrowthTrace(const GrowthSpec& spec) {
  EM_CHECK(spec.vocab > 0 && spec.prompt.min > 0 && spec.answer.min > 0);
  if (spec.phases.empty()) return InvalidInput("the trace has no phases; expected the number of clients in each");
  for (size_t i = 0; i < spec.phases.size(); ++i) {
    if (spec.phases[i] == 0 || spec.phases[i] > 1024) {
      return InvalidInput("phase {} has {} clients; expected 1 to 1024", i + 1, spec.phases[i]);
    }
  }
  const uint32_t clients = *std::max_element(spec.phases.begin(), spec.phases.end());
  // Bounds the work of drawing a trace that cannot fit anyway.
  if (spec.generated_tokens == 0 || spec.generated_tokens > uint64_t{clients} * spec.context * spec.phases.size()) {
    return InvalidInput("{} tokens to generate; expected 1 to what {} contexts of {} tokens hold over {} phases",
                        spec.generated_tokens, clients, spec.context, spec.phases.size());
  }
  Drafts drafts = DrawTurns(spec);
  for (uint32_t c = 0; c < clients; ++c) EM_RETURN_IF_ERROR(DropTurns(spec, c, drafts));
  EM_RETURN_IF_ERROR(FitAnswers(spec, clients, drafts));
  for (uint32_t c = 0; c < clients; ++c) FitPrompts(spec, c, drafts);
  GrowOne(spec, drafts);
  return DrawTokens(spec, drafts);
}

}  // namespace elasticmem
