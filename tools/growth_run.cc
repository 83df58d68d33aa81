#include "tools/growth_run.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "base/stopwatch.h"
#include "base/stream_hash.h"

namespace elasticmem {
namespace {

using Clock = std::chrono::steady_clock;

// The value that a share of `values` stays below. Reorders them.
double Quantile(std::vector<double>& values, double share) {
  if (values.empty()) return 0;
  const size_t at = std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())));
  std::nth_element(values.begin(), values.begin() + static_cast<long>(at), values.end());
  return values[at];
}

class Replay {
 public:
  Replay(Engine& engine, const GrowthTrace& trace, const GrowthReplay& options)
      : engine_(engine),
        trace_(trace),
        options_(options),
        batcher_(&engine, options.batcher),
        clients_(trace.most_clients) {}

  StatusOr<GrowthResult> Run() {
    start_statistics_ = engine_.statistics();
    if (engine_.residency()) start_residency_ = engine_.residency()->statistics();
    start_ = Clock::now();
    Record();
    for (size_t phase = 0; phase < trace_.phases.size(); ++phase) {
      EM_RETURN_IF_ERROR(RunPhase(phase));
      if (!options_.after) continue;
      // What is done between phases is nobody's time.
      const Clock::time_point pause = Clock::now();
      EM_RETURN_IF_ERROR(options_.after(phase));
      start_ += Clock::now() - pause;
    }
    return Result();
  }

 private:
  struct Client {
    std::optional<ConversationId> conversation;
    size_t next_turn = 0;  // of the phase
    StreamHash text;
    // When it got its last token: on the clock of steps that only decode, and after so many of the others.
    double last_token = 0;
    uint64_t other_steps = 0;
  };

  Status Submit(size_t phase, uint32_t client) {
    const GrowthTurn& turn = trace_.phases[phase].turns[client][clients_[client].next_turn++];
    Request request;
    request.prompt = turn.prompt;
    request.max_tokens = turn.answer_tokens;
    request.sampling.temperature = 0;
    request.ignore_eos = true;
    return batcher_.Submit(*clients_[client].conversation, std::move(request));
  }

  Status RunPhase(size_t phase) {
    GrowthPhaseResult result;
    totals_ = {};
    const uint64_t store_bytes_before = engine_.statistics().reads.bytes_read;
    result.begin_seconds = SecondsSince(start_);
    result.begin_tokens = batcher_.statistics().generated_tokens;
    if (options_.before) EM_RETURN_IF_ERROR(options_.before(phase));
    result.placing_seconds = SecondsSince(start_) - result.begin_seconds;
    const uint32_t active = trace_.phases[phase].clients();
    for (uint32_t c = 0; c < active; ++c) {
      Client& client = clients_[c];
      client.next_turn = 0;
      if (!client.conversation) {
        client.conversation = batcher_.Open();
        of_conversation_[*client.conversation] = c;
      }
      EM_RETURN_IF_ERROR(Submit(phase, c));
    }
    while (batcher_.busy()) EM_RETURN_IF_ERROR(Step(phase));
    result.memory = engine_.memory_use();
    if (engine_.residency()) {
      result.resident_fraction = static_cast<double>(engine_.residency()->resident()) / static_cast<double>(Neurons());
    }
    const uint32_t stay = phase + 1 < trace_.phases.size() ? trace_.phases[phase + 1].clients() : 0;
    for (uint32_t c = stay; c < active; ++c) {
      of_conversation_.erase(*clients_[c].conversation);
      batcher_.Close(*clients_[c].conversation);
      clients_[c].conversation.reset();
    }
    Record();
    result.seconds = SecondsSince(start_) - result.begin_seconds;
    const uint64_t tokens = batcher_.statistics().generated_tokens - result.begin_tokens;
    result.tokens_per_second = result.seconds > 0 ? static_cast<double>(tokens) / result.seconds : 0;
    result.prefill = totals_.prefill;
    result.decode = totals_.decode;
    result.mixed = totals_.mixed;
    result.store_bytes = engine_.statistics().reads.bytes_read - store_bytes_before;
    phases_.push_back(result);
    return absl::OkStatus();
  }

  Status Step(size_t phase) {
    if (options_.cancelled && options_.cancelled->load()) return Error(StatusCode::kCancelled, "interrupted");
    const uint64_t prompts_before = batcher_.statistics().prompt_tokens, rows_before = engine_.statistics().tokens;
    const Clock::time_point begin = Clock::now();
    EM_ASSIGN_OR_RETURN(const std::vector<BatchEvent> events, batcher_.Step());
    const double seconds = SecondsSince(begin);
    const uint64_t prompts = batcher_.statistics().prompt_tokens - prompts_before;
    const uint64_t decoded = engine_.statistics().tokens - rows_before - prompts;
    StepTotals& kind = prompts == 0 ? totals_.decode : decoded == 0 ? totals_.prefill : totals_.mixed;
    kind.seconds += seconds;
    ++kind.steps;
    kind.prompt_tokens += prompts;
    kind.decoded_tokens += decoded;
    if (prompts > 0) {
      ++other_steps_;
    } else if (decoded > 0) {
      step_times_.push_back({seconds, static_cast<uint32_t>(decoded)});
      decode_clock_ += seconds;
    }
    for (const BatchEvent& event : events) {
      const uint32_t c = of_conversation_.at(event.conversation);
      if (event.token) TakeToken(clients_[c], *event.token);
      if (event.finish && clients_[c].next_turn < trace_.phases[phase].turns[c].size()) {
        EM_RETURN_IF_ERROR(Submit(phase, c));
      }
    }
    Record();
    if (options_.progress) options_.progress(batcher_.statistics().generated_tokens);
    return absl::OkStatus();
  }

  void TakeToken(Client& client, TokenId id) {
    client.text.Add(std::as_bytes(std::span(&id, 1)));
    // Its own prompt is one of the other steps: the first token of an answer is not waited for here.
    if (client.other_steps == other_steps_) waits_.push_back(decode_clock_ - client.last_token);
    client.last_token = decode_clock_;
    client.other_steps = other_steps_;
  }

  uint64_t Neurons() const { return uint64_t{engine_.model().spec().layers} * engine_.model().spec().ff; }

  void Record() {
    SeriesPoint point = SeriesPoint::Of(engine_, start_statistics_.reads.bytes_read);
    point.seconds = SecondsSince(start_);
    point.generated_tokens = batcher_.statistics().generated_tokens;
    point.prompt_tokens = batcher_.statistics().prompt_tokens;
    series_.Add(point);
  }

  GrowthResult Result() {
    GrowthResult r;
    const EngineStatistics now = engine_.statistics();
    const BatcherStatistics& batching = batcher_.statistics();
    for (const GrowthPhaseResult& phase : phases_) r.makespan_seconds += phase.seconds;
    r.generated_tokens = batching.generated_tokens;
    r.tokens_per_second = static_cast<double>(r.generated_tokens) / r.makespan_seconds;
    r.prompt_tokens = batching.prompt_tokens;
    r.recomputed_tokens = batching.recomputed_tokens;
    r.cached_tokens = batching.cached_tokens;
    r.swapped_tokens = batching.swapped_tokens;
    r.partial_steps = batching.partial_steps;
    r.preemptions = batching.preemptions;
    r.idle_drops = batching.idle_drops;
    r.store_bytes = now.reads.bytes_read - start_statistics_.reads.bytes_read;
    r.store_reads = now.reads.reads - start_statistics_.reads.reads;
    r.store_wait_seconds = static_cast<double>(now.reads.wait_micros - start_statistics_.reads.wait_micros) * 1e-6;
    const double in_steps = now.seconds - start_statistics_.seconds;
    if (in_steps > 0) {
      r.management_fraction = (now.management_seconds - start_statistics_.management_seconds) / in_steps;
    }
    r.late_blocks = now.late_blocks - start_statistics_.late_blocks;
    r.token_times = SummariseTokenTimes(step_times_, std::move(waits_));
    if (const NeuronResidency* residency = engine_.residency()) {
      r.residency = residency->statistics();
      r.residency.evicted_blocks -= start_residency_.evicted_blocks;
      r.residency.dropped -= start_residency_.dropped;
      r.residency.relocated -= start_residency_.relocated;
      r.residency.promoted -= start_residency_.promoted;
      r.residency.nanos -= start_residency_.nanos;
    }
    r.pool_blocks = engine_.pool().capacity();
    r.block_bytes = engine_.pool().block_bytes();
    r.budget_bytes = engine_.budget().total_bytes();
    r.peak_bytes = engine_.budget().peak_bytes();
    r.neurons = Neurons();
    StreamHash all;
    for (Client& client : clients_) {
      const uint64_t text = client.text.Digest();
      all.Add(std::as_bytes(std::span(&text, 1)));
    }
    r.text_hash = all.Digest();
    r.phases = std::move(phases_);
    r.series = series_.points();
    return r;
  }

  Engine& engine_;
  const GrowthTrace& trace_;
  const GrowthReplay& options_;
  Batcher batcher_;
  std::vector<Client> clients_;
  std::map<ConversationId, uint32_t> of_conversation_;
  Clock::time_point start_;
  EngineStatistics start_statistics_;
  ResidencyStatistics start_residency_;
  TimeSeries series_;
  struct {
    StepTotals prefill, decode, mixed;
  } totals_;  // of the phase
  std::vector<StepTime> step_times_;
  std::vector<double> waits_;
  double decode_clock_ = 0;   // seconds in steps that only decoded
  uint64_t other_steps_ = 0;  // steps that read prompts
  std::vector<GrowthPhaseResult> phases_;
};

}  // namespace

TokenTimes SummariseTokenTimes(const std::vector<StepTime>& steps, std::vector<double> waits) {
  constexpr size_t kBefore = 32;  // steps that a step is compared with
  TokenTimes times;
  std::vector<double> ratios, around;
  for (size_t i = 0; i < steps.size(); ++i) {
    around.clear();
    for (size_t j = i; j-- > 0 && around.size() < kBefore && steps[j].conversations == steps[i].conversations;) {
      around.push_back(steps[j].seconds);
    }
    if (around.size() < kBefore / 4) continue;
    const double median = Quantile(around, 0.5);
    if (median > 0) ratios.push_back(steps[i].seconds / median);
  }
  times.p50 = Quantile(waits, 0.5);
  times.p99 = Quantile(waits, 0.99);
  times.p99_over_median = Quantile(ratios, 0.99);
  return times;
}

StatusOr<GrowthResult> RunGrowthTrace(Engine& engine, const GrowthTrace& trace, const GrowthReplay& replay) {
  return Replay(engine, trace, replay).Run();
}

}  // namespace elasticmem
