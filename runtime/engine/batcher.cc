#include "runtime/engine/batcher.h"

#include <algorithm>
#include <chrono>
#include <tuple>

#include "base/units.h"

namespace elasticmem {
namespace {

// Whoever was left out of so many steps goes first, whatever its priority.
constexpr uint64_t kMostStepsLeftOut = 32;

}  // namespace

std::string_view Name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength:
      return "length";
    case FinishReason::kEndOfText:
      return "stop";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "?";
}

Batcher::Batcher(Engine* engine, const BatcherOptions& options)
    : engine_(engine), options_(options), batch_size_(std::max(1u, options.max_batch)) {
  EM_CHECK(options.max_batch >= 1 && options.max_batch <= engine->max_step_logits() &&
           options.max_batch <= engine->max_step_tokens());
}

Batcher::~Batcher() {
  for (auto& [id, c] : conversations_) engine_->EndSequence(c.sequence);
}

const Batcher::Conversation& Batcher::Get(ConversationId id) const {
  const auto found = conversations_.find(id);
  EM_CHECK(found != conversations_.end());
  return found->second;
}

ConversationId Batcher::Open(uint64_t tenant) {
  const ConversationId id(next_id_++);
  conversations_[id].sequence = engine_->NewSequence();
  conversations_[id].tenant = tenant;
  return id;
}

void Batcher::Close(ConversationId id) {
  const auto found = conversations_.find(id);
  EM_CHECK(found != conversations_.end());
  Conversation& c = found->second;
  active_ -= c.active;
  running_ -= c.running;
  if (c.saved) engine_->ForgetSaved(*c.saved);
  engine_->IndexPrefix(c.tenant, c.tokens, c.sequence);
  engine_->EndSequence(c.sequence);
  conversations_.erase(found);
}

Status Batcher::Check(const Request& request, size_t tokens_so_far) const {
  if (request.prompt.empty()) return InvalidInput("the prompt is empty");
  EM_RETURN_IF_ERROR(request.sampling.Check());
  EM_RETURN_IF_ERROR(engine_->CheckTokens(request.prompt));
  const uint64_t total = tokens_so_far + request.prompt.size() + request.max_tokens;
  if (total > engine_->context()) {
    return InvalidInput("{} tokens so far, {} of the prompt and {} to generate do not fit a context of {}",
                        tokens_so_far, request.prompt.size(), request.max_tokens, engine_->context());
  }
  const uint64_t blocks = engine_->BlocksOfSequence(static_cast<uint32_t>(total));
  if (blocks > engine_->most_kv_blocks()) {
    return Exhausted(
        "{} tokens need {} blocks of KV, and the budget can hold {} with no neuron left; shorten the request "
        "or raise --memory",
        total, blocks, engine_->most_kv_blocks());
  }
  return absl::OkStatus();
}

Status Batcher::Submit(ConversationId id, Request request) {
  Conversation& c = const_cast<Conversation&>(Get(id));
  if (c.active) return InvalidInput("conversation {} is still answering; cancel that first", id.value());
  EM_RETURN_IF_ERROR(Check(request, c.tokens.size()));
  c.tokens.insert(c.tokens.end(), request.prompt.begin(), request.prompt.end());
  c.request = std::move(request);
  c.sampler.emplace(c.request.sampling);
  c.generated = 0;
  c.arrival = next_arrival_++;
  c.active = true;
  ++active_;
  return absl::OkStatus();
}

void Batcher::Cancel(ConversationId id) {
  Conversation& c = const_cast<Conversation&>(Get(id));
  c.cancelled = c.active;
}

void Batcher::Finish(ConversationId id, Conversation& c, FinishReason reason) {
  active_ -= c.active;
  running_ -= c.running;
  c.active = c.running = c.cancelled = false;
  engine_->IndexPrefix(c.tenant, c.tokens, c.sequence);
  if (!events_.empty() && events_.back().conversation == id) {
    events_.back().finish = reason;
  } else {
    events_.push_back({id, std::nullopt, reason});
  }
}

void Batcher::TakeOutCancelled() {
  for (auto& [id, c] : conversations_) {
    if (!c.cancelled) continue;
    // What was not read yet is not part of the conversation any more.
    c.tokens.resize(std::max<size_t>(engine_->tokens(c.sequence), std::min<size_t>(c.known, c.tokens.size())));
    Finish(id, c, FinishReason::kCancelled);
  }
}

// Those with a request, who goes first: by priority, then by arrival.
std::vector<Batcher::Entry*> Batcher::ByPriority() {
  std::vector<Entry*> order;
  for (Entry& entry : conversations_) {
    if (entry.second.active) order.push_back(&entry);
  }
  std::sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) {
    if (a->second.request.priority != b->second.request.priority) {
      return a->second.request.priority > b->second.request.priority;
    }
    return a->second.arrival < b->second.arrival;
  });
  return order;
}

// The first max_batch in order run, as far as their KV fits together. One that does not run yet is let in only with
// room to grow, so that it does not have to leave again at once.
void Batcher::Admit(const std::vector<Entry*>& order) {
  constexpr uint32_t kRoomToGrow = 64;
  uint64_t blocks = 0;
  bool full = false;
  running_ = 0;
  const uint32_t most = options_.max_kept > 0 ? std::min(options_.max_kept, options_.max_batch) : options_.max_batch;
  for (Entry* entry : order) {
    Conversation& c = entry->second;
    const uint32_t growth = c.running ? 0 : std::min(c.request.max_tokens - c.generated, kRoomToGrow);
    const uint64_t own = engine_->BlocksOfSequence(static_cast<uint32_t>(c.tokens.size()) + growth);
    full |= running_ == most || (running_ > 0 && blocks + own > engine_->most_kv_blocks());
    c.running = !full;
    running_ += c.running;
    blocks += c.running ? own : 0;
  }
}

double Batcher::Now() const {
  if (options_.clock) return options_.clock();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Of those that are ready to decode as many as is fastest stay in the step: by priority, and among equals those that
// have waited longest.
void Batcher::TakeTurns() {
  const uint32_t ready = static_cast<uint32_t>(planned_.size());
  const uint32_t batch = batch_size_.Choose(ready);
  if (batch == ready) return;
  const auto key = [&](const Planned& p) {
    const Conversation& c = p.entry->second;
    const bool overdue = statistics_.steps - c.last_used > kMostStepsLeftOut;
    return std::tuple(!overdue, -int64_t{c.request.priority}, c.last_used);
  };
  std::stable_sort(planned_.begin(), planned_.end(),
                   [&](const Planned& a, const Planned& b) { return key(a) < key(b); });
  for (auto it = planned_.begin() + batch; it != planned_.end(); ++it) left_out_.push_back({it->entry, 0, 1});
  planned_.resize(batch);
  ++statistics_.partial_steps;
}

// One token of each that decodes, then chunks of prompts, in order: no more of them than there are free blocks for, so
// that those who decode don't wait while neurons leave. The rest is made ready for the next step.
void Batcher::PlanSlices(const std::vector<Entry*>& order) {
  planned_.clear();
  left_out_.clear();
  uint32_t room = engine_->max_step_tokens(), free = engine_->pool().free();
  for (Entry* entry : order) {
    if (!entry->second.running || Pending(entry->second) != 1) continue;
    planned_.push_back({entry, 1, 1});
    const uint32_t blocks = engine_->BlocksFor(entry->second.sequence, 1);
    free -= std::min(free, blocks);
    --room;
  }
  const bool some_decode = !planned_.empty();
  only_decodes_ = some_decode;
  if (some_decode) room = std::min(room, options_.prefill_tokens_beside_decode);
  for (Entry* entry : order) {
    const uint32_t pending = entry->second.running ? Pending(entry->second) : 0;
    if (pending <= 1 || room == 0) continue;
    Planned chunk{entry, std::min(pending, room), std::min(pending, room)};
    room -= chunk.wanted;
    const SequenceId sequence = entry->second.sequence;
    while (some_decode && chunk.tokens > 0 && engine_->BlocksFor(sequence, chunk.tokens) > free) --chunk.tokens;
    free -= std::min(free, engine_->BlocksFor(sequence, chunk.tokens));
    (chunk.tokens > 0 ? planned_ : left_out_).push_back(chunk);
    only_decodes_ &= chunk.tokens == 0;
  }
  if (only_decodes_ && options_.measure_batch) TakeTurns();
}

// To disk where that is cheaper than reading its tokens again. Else, where there is a prefix cache, its pages stay
// there as long as nobody needs their blocks.
void Batcher::DropKv(Conversation& c) {
  ++(c.active ? statistics_.preemptions : statistics_.idle_drops);
  c.known = std::max(c.known, engine_->tokens(c.sequence));
  c.saved = engine_->SwapOut(c.sequence);
  if (!c.saved) engine_->IndexPrefix(c.tenant, c.tokens, c.sequence);
  engine_->EndSequence(c.sequence);
  c.sequence = engine_->NewSequence();
}

// The conversation whose KV is the first to go: one that does not run, without a request rather than with one, the
// longest unused first. Null: none.
Batcher::Conversation* Batcher::LeastWanted() {
  Conversation* least = nullptr;
  for (auto& [id, c] : conversations_) {
    if (c.running || engine_->tokens(c.sequence) == 0) continue;
    if (!least || std::pair(c.active, c.last_used) < std::pair(least->active, least->last_used)) least = &c;
  }
  return least;
}

// Takes KV from conversations that don't run until so many blocks can be had, as far as there are such.
void Batcher::DropUntil(uint64_t blocks) {
  while (blocks > engine_->obtainable_blocks()) {
    Conversation* victim = LeastWanted();
    if (!victim) return;
    DropKv(*victim);
  }
}

// Room for the planned slices. The engine refuses the step where that is not enough.
void Batcher::MakeRoom() {
  uint64_t blocks = 0;
  uint32_t kept = 0;
  for (const std::vector<Planned>* some : {&planned_, &left_out_}) {
    for (const Planned& p : *some) {
      blocks += engine_->BlocksFor(p.entry->second.sequence, p.wanted);
      kept += engine_->tokens(p.entry->second.sequence) == 0;
    }
  }
  for (const auto& [id, c] : conversations_) kept += engine_->tokens(c.sequence) > 0;
  for (; options_.max_kept > 0 && kept > options_.max_kept; --kept) {
    Conversation* victim = LeastWanted();
    if (!victim) break;
    DropKv(*victim);
  }
  DropUntil(blocks);
}

// Conversations that run again get their KV back. Where that fails their tokens are read again.
void Batcher::SwapIn() {
  for (auto& [id, c] : conversations_) {
    if (!c.running || !c.saved) continue;
    DropUntil(engine_->BlocksOfSequence(c.saved->tokens));
    if (engine_->SwapIn(*c.saved, c.sequence).ok()) statistics_.swapped_tokens += c.saved->tokens;
    engine_->ForgetSaved(*c.saved);
    c.saved.reset();
  }
}

// Conversations that begin to read take what is known of their tokens already.
void Batcher::AdoptPrefixes() {
  for (auto& [id, c] : conversations_) {
    if (!c.running || engine_->tokens(c.sequence) > 0) continue;
    const uint32_t found = engine_->AdoptPrefix(c.tenant, c.tokens, c.sequence);
    statistics_.cached_tokens += found;
    if (c.last_used == 0) c.cached = found;
    c.known = std::max(c.known, found);
  }
}

void Batcher::TakeLogits(std::span<const float> logits) {
  const size_t vocab = engine_->model().spec().vocab;
  size_t row = 0;
  for (size_t i = 0; i < planned_.size(); ++i) {
    const StepSlice& slice = slices_[i];
    Entry& entry = *planned_[i].entry;
    Conversation& c = entry.second;
    c.last_used = statistics_.steps;
    const uint32_t before = engine_->tokens(c.sequence) - static_cast<uint32_t>(slice.ids.size());
    statistics_.recomputed_tokens += std::min<uint32_t>(slice.ids.size(), c.known > before ? c.known - before : 0);
    c.known = std::max(c.known, engine_->tokens(c.sequence));
    if (slice.ids.size() > 1 || c.generated == 0) statistics_.prompt_tokens += slice.ids.size();
    if (!slice.logits) continue;
    const std::span<const float> own = logits.subspan(row++ * vocab, vocab);
    if (options_.on_logits) options_.on_logits(entry.first, own);
    const TokenId id = c.sampler->Sample(own, c.tokens);
    const bool end = !c.request.ignore_eos && engine_->model().tokenizer().IsEndOfGeneration(id);
    if (end) {
      Finish(entry.first, c, FinishReason::kEndOfText);
      continue;
    }
    c.tokens.push_back(id);
    ++c.generated;
    ++statistics_.generated_tokens;
    events_.push_back({entry.first, id, std::nullopt});
    if (c.generated >= c.request.max_tokens) Finish(entry.first, c, FinishReason::kLength);
  }
}

StatusOr<std::vector<BatchEvent>> Batcher::Step() {
  TakeOutCancelled();
  const std::vector<Entry*> order = ByPriority();
  if (order.empty()) return std::exchange(events_, {});
  Admit(order);
  SwapIn();
  AdoptPrefixes();
  PlanSlices(order);
  MakeRoom();
  slices_.clear();
  for (const Planned& p : planned_) {
    const Conversation& c = p.entry->second;
    const uint32_t at = engine_->tokens(c.sequence);
    const uint32_t rest = static_cast<uint32_t>(c.tokens.size()) - at - p.tokens;
    slices_.push_back({c.sequence, std::span(c.tokens).subspan(at, p.tokens), rest == 0,
                       rest > 0 ? std::min(rest, p.wanted) : c.generated + 1 < c.request.max_tokens});
  }
  // Their pages are due as well.
  for (const Planned& p : left_out_) slices_.push_back({p.entry->second.sequence, {}, false, p.wanted});
  const double begin = Now();
  StatusOr<std::span<const float>> logits = engine_->Step(slices_);
  if (logits.ok() && only_decodes_) batch_size_.Measured(static_cast<uint32_t>(planned_.size()), Now() - begin);
  // The budget may have no room for the tables of a longer sequence, though there are blocks.
  while (logits.status().code() == StatusCode::kResourceExhausted) {
    Conversation* victim = LeastWanted();
    if (!victim) break;
    DropKv(*victim);
    logits = engine_->Step(slices_);
  }
  EM_RETURN_IF_ERROR(logits.status());
  ++statistics_.steps;
  TakeLogits(*logits);
  return std::exchange(events_, {});
}

void Batcher::CheckInvariants() const {
  uint32_t active = 0, running = 0;
  for (const auto& [id, c] : conversations_) {
    active += c.active;
    running += c.running;
    EM_CHECK(c.active || !c.running);
    EM_CHECK(engine_->tokens(c.sequence) <= c.tokens.size());
    EM_CHECK(!c.saved || (engine_->tokens(c.sequence) == 0 && !c.running && c.saved->tokens <= c.tokens.size()));
  }
  EM_CHECK(active == active_ && running == running_);
  engine_->CheckInvariants();
}

}  // namespace elasticmem
