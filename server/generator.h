// The step thread: owns the batcher, turns requests into pieces of text, and tells those who asked. All else talks to it
// through a bounded queue; nothing that it does waits for a client.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/engine/batcher.h"
#include "runtime/text/stop_filter.h"
#include "runtime/text/tokenizer.h"

namespace elasticmem {

// What a request cost: counts and seconds.
struct GenerationUsage {
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;  // of those, found in the prefix cache
  uint32_t generated_tokens = 0;
  double queue_seconds = 0;    // until its first step began
  double prefill_seconds = 0;  // until its first token
  double decode_seconds = 0;   // from the first token to the last
};

// What the model thought of a token, as natural logarithms of probabilities before penalties and temperature.
struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;
};
struct TokenLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // the likeliest, first the likeliest
};

// A piece of the answer, or its end, or both. Events of a job come in order; after one with `end` none comes.
struct GenerationEvent {
  std::string text;  // whole characters, nothing of a stop text
  std::vector<TokenLogprobs> logprobs;  // of the tokens drawn since the last event, where the job asked for them
  struct End {
    Status status;                // not OK: what went wrong; no `reason` then
    std::string_view reason;      // "stop", "length" or "cancelled"
    GenerationUsage usage;
  };
  std::optional<End> end;
};

struct GenerationJob {
  Request request;
  uint64_t tenant = 0;               // see Batcher::Open
  std::vector<std::string> stops;    // texts that end the answer
  bool begins_text = true;           // false: the answer continues the prompt's text
  std::optional<uint32_t> logprobs;  // tell each token's, and those of so many of the likeliest
  // Called on the step thread; must not block.
  std::function<void(GenerationEvent)> on_event;
};

struct GeneratorOptions {
  BatcherOptions batcher;
  uint32_t max_queued_jobs = 64;         // that wait or run
  uint64_t max_queued_tokens = 1 << 20;  // their prompts and what they may generate
};

// How things stood after a step; counts since the start.
struct GeneratorSnapshot {
  BatcherStatistics batcher;
  EngineStatistics engine;
  MemoryUse memory;
  uint32_t running = 0, waiting = 0;
  uint64_t submitted = 0, refused = 0, finished = 0, cancelled = 0, failed = 0;
  uint64_t budget_bytes = 0, used_bytes = 0, peak_bytes = 0;
};

class Generator {
 public:
  using JobId = uint64_t;

  // The engine outlives it, and is used by nothing else meanwhile.
  Generator(Engine* engine, const GeneratorOptions& options);
  ~Generator();

  // Whether a job could ever run. InvalidInput or Exhausted, with both numbers. Any thread.
  Status Check(const Request& request) const;
  // Queues it; nothing where the queue is full (try again later). Any thread.
  std::optional<JobId> Submit(GenerationJob job);
  // At the next step boundary its end is told, unless that has happened. Any thread.
  void Cancel(JobId job);

  // How things stood after the last step. Any thread; never waits for a step.
  GeneratorSnapshot snapshot() const;

  // From now on nothing is submitted.
  void Refuse();
  // Submitted and not ended yet.
  uint32_t jobs() const;
  // Ends the thread after the step that runs; jobs that are left end with `reason`. Idempotent.
  void Stop(const Status& reason);
  // Stop, and waits for that: no sink is called any more.
  void Join(const Status& reason);

 private:
  using Clock = std::chrono::steady_clock;
  struct Running {
    GenerationJob job;
    ConversationId conversation;
    StreamingDetokenizer detokenizer;
    StopFilter filter;
    GenerationUsage usage;
    Clock::time_point submitted;
    std::optional<Clock::time_point> began, first_token;
  };
  struct Waiting {
    JobId id;
    GenerationJob job;
    Clock::time_point submitted;
  };

  void Loop();
  bool TakeCommands();
  void Begin(Waiting waiting);
  void RunStep();
  void OnToken(JobId id, Running& running, TokenId token);
  TokenLogprobs LogprobsOf(ConversationId conversation, TokenId token, uint32_t top) const;
  void End(JobId id, Status status, std::string_view reason);
  void Tell(const GenerationJob& job, GenerationEvent event) { told_.emplace_back(job.on_event, std::move(event)); }
  void Publish();
  BatcherOptions SeeLogits(BatcherOptions options);
  static uint64_t TokensOf(const Request& request) { return request.prompt.size() + request.max_tokens; }

  Engine* const engine_;
  const GeneratorOptions options_;
  Batcher batcher_;
  std::map<JobId, Running> running_;
  std::map<ConversationId, JobId> job_of_;
  std::vector<std::pair<std::function<void(GenerationEvent)>, GenerationEvent>> told_;  // but not yet heard
  struct {
    uint32_t jobs = 0;
    uint64_t tokens = 0, finished = 0, cancelled = 0, failed = 0;
  } ended_;  // since the last Publish
  std::map<ConversationId, std::span<const float>> logits_;  // of the last step; valid until the next

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::deque<Waiting> submitted_;
  std::vector<JobId> cancelled_;
  std::optional<Status> stop_;
  bool refuses_ = false;
  JobId next_id_ = 1;
  uint32_t queued_jobs_ = 0;  // submitted and running
  uint64_t queued_tokens_ = 0;
  GeneratorSnapshot snapshot_;

  std::thread thread_;
};

}  // namespace elasticmem
