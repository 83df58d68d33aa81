#include "server/generator.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace elasticmem {
namespace {

double SecondsBetween(std::chrono::steady_clock::time_point begin, std::chrono::steady_clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

Generator::Generator(Engine* engine, const GeneratorOptions& options)
    : engine_(engine), options_(options), batcher_(engine, SeeLogits(options.batcher)) {
  Publish();
  thread_ = std::thread([this] { Loop(); });
}

Generator::~Generator() {
  Join(Error(StatusCode::kUnavailable, "the server is stopping"));
}

BatcherOptions Generator::SeeLogits(BatcherOptions options) {
  options.on_logits = [this](ConversationId conversation, std::span<const float> logits) { logits_[conversation] = logits; };
  return options;
}

Status Generator::Check(const Request& request) const { return batcher_.Check(request); }

std::optional<Generator::JobId> Generator::Submit(GenerationJob job) {
  const std::lock_guard lock(mutex_);
  const uint64_t tokens = TokensOf(job.request);
  if (stop_ || refuses_ || queued_jobs_ >= options_.max_queued_jobs ||
      (queued_jobs_ > 0 && queued_tokens_ + tokens > options_.max_queued_tokens)) {
    ++snapshot_.refused;
    return std::nullopt;
  }
  ++queued_jobs_;
  queued_tokens_ += tokens;
  ++snapshot_.submitted;
  submitted_.push_back({next_id_, std::move(job), Clock::now()});
  wake_.notify_one();
  return next_id_++;
}

void Generator::Cancel(JobId job) {
  const std::lock_guard lock(mutex_);
  cancelled_.push_back(job);
  wake_.notify_one();
}

GeneratorSnapshot Generator::snapshot() const {
  const std::lock_guard lock(mutex_);
  GeneratorSnapshot snapshot = snapshot_;
  snapshot.waiting += static_cast<uint32_t>(submitted_.size());
  return snapshot;
}

void Generator::Refuse() {
  const std::lock_guard lock(mutex_);
  refuses_ = true;
}

uint32_t Generator::jobs() const {
  const std::lock_guard lock(mutex_);
  return queued_jobs_;
}

void Generator::Stop(const Status& reason) {
  const std::lock_guard lock(mutex_);
  if (!stop_) stop_ = reason;
  wake_.notify_one();
}

void Generator::Join(const Status& reason) {
  Stop(reason);
  if (thread_.joinable()) thread_.join();
}

void Generator::Loop() {
  while (TakeCommands()) RunStep();
  const Status reason = *stop_;
  while (!running_.empty()) End(running_.begin()->first, reason, "");
  Publish();
  std::deque<Waiting> left;
  {
    const std::lock_guard lock(mutex_);
    left.swap(submitted_);
  }
  for (const Waiting& waiting : left) {
    {
      const std::lock_guard lock(mutex_);
      --queued_jobs_;
    }
    waiting.job.on_event({.text = "", .logprobs = {}, .end = GenerationEvent::End{reason, "", {}}});
  }
}

// Waits until there is something to do. False: it is time to stop.
bool Generator::TakeCommands() {
  std::deque<Waiting> submitted;
  std::vector<JobId> cancelled;
  {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return stop_ || !submitted_.empty() || !cancelled_.empty() || batcher_.busy(); });
    if (stop_) return false;
    submitted.swap(submitted_);
    cancelled.swap(cancelled_);
  }
  for (Waiting& waiting : submitted) Begin(std::move(waiting));
  for (const JobId id : cancelled) {
    if (running_.contains(id)) End(id, absl::OkStatus(), "cancelled");
  }
  return true;
}

void Generator::Begin(Waiting waiting) {
  const JobId id = waiting.id;
  const ConversationId conversation = batcher_.Open(waiting.job.tenant);
  Request request = std::move(waiting.job.request);
  waiting.job.request = {};
  waiting.job.request.max_tokens = static_cast<uint32_t>(request.max_tokens);
  const auto prompt_tokens = static_cast<uint32_t>(request.prompt.size());
  StreamingDetokenizer detokenizer(engine_->model().tokenizer(), /*special=*/false, waiting.job.begins_text);
  StopFilter filter(waiting.job.stops);
  Running& running = running_
                         .emplace(id, Running{std::move(waiting.job), conversation, std::move(detokenizer),
                                              std::move(filter), {}, waiting.submitted, {}, {}})
                         .first->second;
  running.usage.prompt_tokens = prompt_tokens;
  job_of_[conversation] = id;
  const Status submitted = batcher_.Submit(conversation, std::move(request));
  if (!submitted.ok()) End(id, submitted, "");
}

void Generator::RunStep() {
  if (!batcher_.busy()) return Publish();
  const Clock::time_point begin = Clock::now();
  logits_.clear();
  const StatusOr<std::vector<BatchEvent>> events = batcher_.Step();
  if (!events.ok()) {
    // What a step lacks no client can mend: all who run are told, and what comes next is tried again.
    const Status status = WithContext(events.status(), "the step failed");
    while (!running_.empty()) End(running_.begin()->first, status, "");
    return Publish();
  }
  for (auto& [id, running] : running_) {
    if (running.began || !batcher_.begun(running.conversation)) continue;
    running.began = begin;
    running.usage.queue_seconds = SecondsBetween(running.submitted, begin);
    running.usage.cached_tokens = batcher_.cached_tokens(running.conversation);
  }
  for (const BatchEvent& event : *events) {
    const auto job = job_of_.find(event.conversation);
    if (job == job_of_.end()) continue;  // a stop text ended it earlier in this step
    const JobId id = job->second;
    if (event.token) OnToken(id, running_.at(id), *event.token);
    if (event.finish && running_.contains(id)) End(id, absl::OkStatus(), Name(*event.finish));
  }
  Publish();
}

void Generator::OnToken(JobId id, Running& running, TokenId token) {
  const Clock::time_point now = Clock::now();
  if (!running.first_token) {
    running.first_token = now;
    running.usage.prefill_seconds = SecondsBetween(running.began.value_or(now), now);
  }
  running.usage.decode_seconds = SecondsBetween(*running.first_token, now);
  ++running.usage.generated_tokens;
  std::string text = running.filter.Add(running.detokenizer.Add(token));
  std::vector<TokenLogprobs> logprobs;
  if (running.job.logprobs) logprobs.push_back(LogprobsOf(running.conversation, token, *running.job.logprobs));
  if (!text.empty() || !logprobs.empty()) {
    Tell(running.job, {.text = std::move(text), .logprobs = std::move(logprobs), .end = std::nullopt});
  }
  if (running.filter.stopped()) End(id, absl::OkStatus(), Name(FinishReason::kEndOfText));
}

TokenLogprobs Generator::LogprobsOf(ConversationId conversation, TokenId token, uint32_t top) const {
  const std::span<const float> logits = logits_.at(conversation);
  const float largest = logits[ArgMax(logits)];
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  const double log_sum = largest + std::log(sum);
  const auto logprob = [&](TokenId id) { return TokenLogprob{id, static_cast<float>(logits[id] - log_sum)}; };
  std::vector<TokenId> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  top = std::min<uint32_t>(top, static_cast<uint32_t>(ids.size()));
  std::partial_sort(ids.begin(), ids.begin() + top, ids.end(), [&](TokenId a, TokenId b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  TokenLogprobs out{logprob(token), {}};
  for (uint32_t i = 0; i < top; ++i) out.top.push_back(logprob(ids[i]));
  return out;
}

void Generator::End(JobId id, Status status, std::string_view reason) {
  const auto found = running_.find(id);
  EM_CHECK(found != running_.end());
  Running running = std::move(found->second);
  running_.erase(found);
  job_of_.erase(running.conversation);
  std::string text;
  if (status.ok()) text = running.filter.Finish();  // half a character that nothing completed is dropped
  batcher_.Close(running.conversation);
  ++ended_.jobs;
  ended_.tokens += running.usage.prompt_tokens + running.job.request.max_tokens;
  ++(!status.ok() ? ended_.failed : reason == "cancelled" ? ended_.cancelled : ended_.finished);
  Tell(running.job, {std::move(text), {}, GenerationEvent::End{std::move(status), reason, running.usage}});
}

// First how things stand now, then what has happened: who hears of an end and asks finds it counted.
void Generator::Publish() {
  const MemoryUse memory = engine_->memory_use();
  const EngineStatistics statistics = engine_->statistics();
  {
    const std::lock_guard lock(mutex_);
    queued_jobs_ -= ended_.jobs;
    queued_tokens_ -= ended_.tokens;
    snapshot_.finished += ended_.finished;
    snapshot_.cancelled += ended_.cancelled;
    snapshot_.failed += ended_.failed;
    snapshot_.batcher = batcher_.statistics();
    snapshot_.engine = statistics;
    snapshot_.memory = memory;
    snapshot_.running = batcher_.running();
    snapshot_.waiting = batcher_.waiting();
    snapshot_.budget_bytes = engine_->budget().total_bytes();
    snapshot_.used_bytes = engine_->budget().total_bytes() - engine_->budget().available_bytes();
    snapshot_.peak_bytes = engine_->budget().peak_bytes();
  }
  ended_ = {};
  for (auto& [hear, event] : told_) hear(std::move(event));
  told_.clear();
}

}  // namespace elasticmem
