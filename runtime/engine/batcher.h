// Many conversations on one engine: continuous batching. Each step takes one token of every conversation that is
// decoding and chunks of those whose prompts are still to be read.
//
// A conversation is its tokens; its KV is a cache of them. So a conversation whose KV was taken away (preempted) is
// resumed by reading its tokens again, and its text is the same.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "base/strong_id.h"
#include "runtime/engine/batch_size.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/sampler.h"

namespace elasticmem {

using ConversationId = StrongId<struct ConversationIdTag, uint64_t>;

// What is asked of a conversation: tokens to append, and how many to generate after them.
struct Request {
  std::vector<TokenId> prompt;  // not empty
  uint32_t max_tokens = 128;
  SamplingOptions sampling;
  bool ignore_eos = false;
  int priority = 0;  // higher first
};

enum class FinishReason : uint8_t { kLength, kEndOfText, kCancelled };
std::string_view Name(FinishReason reason);

// Something happened to a conversation's request: a token was generated, or it ended, or both.
struct BatchEvent {
  ConversationId conversation;
  std::optional<TokenId> token;
  std::optional<FinishReason> finish;
};

struct BatcherOptions {
  uint32_t max_batch = 8;  // conversations that run in one step
  uint32_t max_kept = 0;   // conversations that keep KV at once; 0: as many as fit
  // Tokens of prompts a step takes while others decode, so that they are never held up for long; alone a prompt takes
  // whole steps.
  uint32_t prefill_tokens_beside_decode = 64;
  // Where a step of fewer conversations gives clearly more tokens a second, as measured, those that decode take turns.
  bool measure_batch = true;
  // Seconds since some moment; empty: the system's clock.
  std::function<double()> clock;
  // Sees the logits [vocab] from which each token is drawn.
  std::function<void(ConversationId, std::span<const float>)> on_logits;
};

struct BatcherStatistics {
  uint64_t steps = 0;
  uint64_t partial_steps = 0;  // that left out some that were ready to decode
  uint64_t prompt_tokens = 0;  // read, again after a preemption too
  uint64_t generated_tokens = 0;
  uint64_t preemptions = 0;        // KV of conversations that are answering, taken for others
  uint64_t idle_drops = 0;         // KV of conversations without a request, taken for others
  uint64_t recomputed_tokens = 0;  // read again after either
  uint64_t cached_tokens = 0;      // of prompts, found in the prefix cache
  uint64_t swapped_tokens = 0;     // of dropped KV, brought back from disk
};

// One thread. The engine outlives it, and is used by nothing else meanwhile.
class Batcher {
 public:
  Batcher(Engine* engine, const BatcherOptions& options);
  ~Batcher();

  // Conversations share the KV of common beginnings (where the engine has a prefix cache) within a tenant only.
  ConversationId Open(uint64_t tenant = 0);
  // Ends its request, if any, without an event, and frees its KV.
  void Close(ConversationId conversation);
  // Errors: InvalidInput for what can never work (a conversation longer than the context, token ids out of range, one
  // that is busy, sampling options out of range); Exhausted, with both numbers, where its KV is more than the budget
  // can ever hold.
  Status Submit(ConversationId conversation, Request request);
  // The same for a request that begins a conversation, without submitting it. Any thread.
  Status Check(const Request& request) const { return Check(request, 0); }
  // At the next step boundary; an event says so. Fine for one that has no request.
  void Cancel(ConversationId conversation);

  // Runs one step and tells what came of it; no events where nothing is to be done. Errors: those of reads, after which
  // the same step can be tried again.
  StatusOr<std::vector<BatchEvent>> Step();
  // Is there anything to do?
  bool busy() const { return active_ > 0; }
  uint32_t running() const { return running_; }
  uint32_t waiting() const { return active_ - running_; }

  // Has a step read any of it, or is one about to? How many of its first tokens were found in the prefix cache.
  bool begun(ConversationId conversation) const { return Get(conversation).running || Get(conversation).last_used > 0; }
  uint32_t cached_tokens(ConversationId conversation) const { return Get(conversation).cached; }

  // Tokens of a conversation: prompts and answers, as far as sampled.
  const std::vector<TokenId>& tokens(ConversationId conversation) const { return Get(conversation).tokens; }
  const BatcherStatistics& statistics() const { return statistics_; }
  const BatchSize& batch_size() const { return batch_size_; }
  void CheckInvariants() const;

 private:
  struct Conversation {
    SequenceId sequence;
    std::vector<TokenId> tokens;
    Request request;
    std::optional<Sampler> sampler;
    uint64_t tenant = 0;
    std::optional<SavedKv> saved;  // its KV on disk; the sequence is empty then
    uint32_t generated = 0;
    uint32_t cached = 0;     // tokens that the prefix cache had when it began
    uint32_t known = 0;      // tokens that were in the KV once; reading them again is recomputing
    uint64_t arrival = 0;    // order of requests
    uint64_t last_used = 0;  // step
    bool active = false;     // has a request
    bool running = false;    // takes part in steps
    bool cancelled = false;
  };
  using Entry = std::map<ConversationId, Conversation>::value_type;

  const Conversation& Get(ConversationId id) const;
  Status Check(const Request& request, size_t tokens_so_far) const;
  uint32_t Pending(const Conversation& c) const {
    return static_cast<uint32_t>(c.tokens.size()) - engine_->tokens(c.sequence);
  }
  void TakeOutCancelled();
  std::vector<Entry*> ByPriority();
  void Admit(const std::vector<Entry*>& order);
  void PlanSlices(const std::vector<Entry*>& order);
  void TakeTurns();
  double Now() const;
  void MakeRoom();
  Conversation* LeastWanted();
  void DropUntil(uint64_t blocks);
  void SwapIn();
  void AdoptPrefixes();
  void DropKv(Conversation& c);
  void Finish(ConversationId id, Conversation& c, FinishReason reason);
  void TakeLogits(std::span<const float> logits);

  Engine* const engine_;
  const BatcherOptions options_;
  std::map<ConversationId, Conversation> conversations_;
  uint64_t next_id_ = 1;
  uint64_t next_arrival_ = 1;
  uint32_t active_ = 0;
  uint32_t running_ = 0;
  struct Planned {
    Entry* entry;
    uint32_t tokens;
    uint32_t wanted;  // as many, or more where blocks are not ready for them
  };
  std::vector<Planned> planned_;   // the step's slices
  std::vector<Planned> left_out_;  // ready, but not in this step; tokens is 0
  bool only_decodes_ = false;
  BatchSize batch_size_;
  std::vector<StepSlice> slices_;
  std::vector<BatchEvent> events_;  // not yet told
  BatcherStatistics statistics_;
};

}  // namespace elasticmem
