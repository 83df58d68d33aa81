#include "runtime/engine/engine.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/stopwatch.h"
#include "base/units.h"

namespace elasticmem {
namespace {

// A step of so many tokens tells what reading a prompt costs.
constexpr size_t kPrefillTokens = 16;
// Steps over which blocks are freed ahead of need.
constexpr uint32_t kStepsAhead = 8;
// So many steps before KV wants a block its neurons begin to go down to the host.
constexpr uint32_t kStepsToVacate = 32;

}  // namespace

// Before KV blocks go back to the pool, neurons in their tails must leave. Shared blocks stay.
void Engine::TakeBackTails(SequenceId sequence, uint32_t first_page) {
  for (uint32_t l = 0; residency_ && l < kv_->layers(); ++l) {
    for (uint32_t p = first_page; p < kv_->pages(sequence); ++p) {
      const BlockId block = kv_->block(sequence, l, p);
      if (pool_->leases(block) == 1) residency_->TakeBackKv(Index(block));
    }
  }
}

void Engine::EndSequence(SequenceId sequence) {
  TakeBackTails(sequence, 0);
  kv_->RemoveSequence(sequence);
  if (!residency_) return;
  // What was kept for the next pages of sequences is for nobody where there are none.
  if (pool_->blocks(BlockOwner::kKv) == 0) residency_->SetReserve(0);
  residency_->Grow();
}

void Engine::Truncate(SequenceId sequence, uint32_t tokens) {
  TakeBackTails(sequence, CeilDiv(tokens, kv_->page_tokens()));
  kv_->Truncate(sequence, tokens);
  if (residency_) residency_->Grow();
}

// The slices' tokens were not computed after all.
void Engine::TakeBackTokens(std::span<const StepSlice> slices) {
  for (const StepSlice& slice : slices) {
    Truncate(slice.sequence, kv_->tokens(slice.sequence) - static_cast<uint32_t>(slice.ids.size()));
  }
}

// Takes the KV pages that the slices need; the coldest neurons make way.
Status Engine::MakeRoom(std::span<const StepSlice> slices) {
  uint32_t blocks = 0;
  for (const StepSlice& slice : slices) {
    blocks += kv_->BlocksFor(slice.sequence, static_cast<uint32_t>(slice.ids.size()));
  }
  if (pool_->free() < blocks) {
    late_blocks_ += blocks - pool_->free();
    FreeBlocks(blocks);
  }
  const size_t token_bytes = plan_.geometry.page_bytes / kv_->page_tokens();
  for (size_t i = 0; i < slices.size(); ++i) {
    if (slices[i].ids.empty()) continue;
    const SequenceId sequence = slices[i].sequence;
    const uint32_t pages_before = kv_->pages(sequence);
    const auto copies = kv_->TryAppend(sequence, static_cast<uint32_t>(slices[i].ids.size()));
    if (!copies) {
      const Status status = Exhausted(
          "the KV cache is full at {} tokens: {} more want {} blocks of {}, and {} are free; raise --memory",
          kv_->tokens(sequence), slices[i].ids.size(), blocks, FormatBytes(pool_->block_bytes()), pool_->free());
      TakeBackTokens(slices.first(i));
      if (residency_) residency_->Grow();
      return status;
    }
    for (const PageCopy& copy : *copies) std::memcpy(copy.to, copy.from, copy.tokens * token_bytes);
    if (residency_)
      LendLeftovers(sequence, static_cast<uint32_t>(slices[i].ids.size()), pages_before, !copies->empty());
  }
  return absl::OkStatus();
}

// `tokens` tokens were just appended to the sequence. Neurons leave what will be written; what its pages leave over is
// lent to others: behind each new page, and in the last page what stays unwritten for long enough to pay for the reads.
void Engine::LendLeftovers(SequenceId sequence, uint32_t tokens, uint32_t pages_before, bool last_was_copied) {
  const uint32_t page_tokens = kv_->page_tokens(), after = kv_->tokens(sequence), before = after - tokens;
  const uint64_t token_bytes = plan_.geometry.page_bytes / page_tokens;
  const uint32_t pages = kv_->pages(sequence), first_new = pages_before - last_was_copied;
  for (uint32_t l = 0; l < kv_->layers(); ++l) {
    if (before % page_tokens != 0 && !last_was_copied) {
      const uint32_t end = std::min(page_tokens, before % page_tokens + tokens);
      residency_->TakeBack(Index(kv_->block(sequence, l, pages_before - 1)), before % page_tokens * token_bytes,
                           end * token_bytes);
    }
    for (uint32_t p = first_new; p < pages; ++p) residency_->OfferKvTail(Index(kv_->block(sequence, l, p)));
    const uint32_t lent_from = after - (pages - 1) * page_tokens + kPageEndLeastTokens;
    if (first_new < pages && lent_from < page_tokens) {
      residency_->OfferPageEnd(Index(kv_->block(sequence, l, pages - 1)), lent_from * token_bytes);
    }
  }
}

StatusOr<std::span<const float>> Engine::Forward(std::span<const StepSlice> slices,
                                                 std::span<const uint32_t> logits_rows) {
  const auto start = std::chrono::steady_clock::now();
  EM_RETURN_IF_ERROR(MakeRoom(slices));
  rows_.clear();
  for (const StepSlice& slice : slices) {
    uint32_t position = kv_->tokens(slice.sequence) - static_cast<uint32_t>(slice.ids.size());
    for (const TokenId id : slice.ids) rows_.push_back({slice.sequence, position++, id});
  }
  StatusOr<std::span<const float>> logits = transformer_->Step(rows_, logits_rows);
  const Status status = logits.ok() ? CheckLogits(*logits) : logits.status();
  if (!status.ok()) {
    TakeBackTokens(slices);
    return status;
  }
  const double step_seconds = SecondsSince(start);
  if (rows_.size() >= kPrefillTokens) {
    const double micros = step_seconds * 1e6 / static_cast<double>(rows_.size());
    prefill_micros_per_token_ += (prefill_micros_per_token_ > 0 ? 0.2 : 1.0) * (micros - prefill_micros_per_token_);
  }
  if (residency_) residency_->Advance(static_cast<uint32_t>(rows_.size()));
  if (prefix_) prefix_->Advance(rows_.size());
  PrepareNext(slices);
  seconds_ += SecondsSince(start);
  tokens_ += rows_.size();
  ++steps_;
  return logits;
}

// Has blocks ready for the pages that the next steps will begin, so that they don't wait for neurons to leave.
void Engine::PrepareNext(std::span<const StepSlice> slices) {
  std::array<uint32_t, kStepsAhead> needed{};
  uint32_t later = 0;
  for (const StepSlice& slice : slices) {
    if (slice.next == 0) continue;
    const uint32_t room = context_ - kv_->tokens(slice.sequence);
    for (uint32_t s = 0; s < kStepsAhead; ++s) {
      needed[s] += kv_->BlocksFor(slice.sequence, std::min(slice.next + s, room));
    }
    later += kv_->BlocksFor(slice.sequence, std::min(slice.next + kStepsToVacate - 1, room));
  }
  const uint32_t ready = BlocksToHaveReady(needed, pool_->free());
  FreeBlocks(ready);
  if (!residency_) return;
  residency_->SetReserve(std::min(ready, needed.back()));
  residency_->Grow();
  if (host_budget_) residency_->Vacate(CachedPageIsWorthLess() ? 0 : later);
}

// Which is cheaper to give up: the coldest cached pages of KV, which may have to be computed again, or the coldest
// block of neurons, which will be read again? In microseconds a token and block.
bool Engine::CachedPageIsWorthLess() {
  const auto page = prefix_ ? prefix_->Coldest() : std::nullopt;
  if (!page) return false;
  const std::optional<float> activity = residency_ ? residency_->ColdestBlockActivity() : std::nullopt;
  if (!activity) return true;
  // A text is asked for again ever more rarely the longer it has not been; half of what is asked for again comes within
  // this.
  constexpr double kTypicalReturn = 2000;
  const double age = static_cast<double>(prefix_->now() - page->last_use);
  const double returns_a_token = 0.5 / (age + kTypicalReturn);
  const double page_micros = page->tokens * prefill_micros_per_token_ / page->blocks * returns_a_token;
  const SparseFfnStatistics& ffn = sparse_ffn_->statistics();
  const uint64_t records = std::max<uint64_t>(1, ffn.wanted - ffn.resident);
  const double record_micros = static_cast<double>(reader_->statistics().busy_micros - reads_at_start_.busy_micros) /
                               static_cast<double>(records);
  return page_micros <= *activity * record_micros;
}

// Makes free blocks until there are `blocks`, as far as neurons and cached pages go; whatever is worth less goes first.
void Engine::FreeBlocks(uint32_t blocks) {
  while (pool_->free() < blocks) {
    const uint32_t before = pool_->free();
    if (CachedPageIsWorthLess()) {
      prefix_->Evict(1);
    } else if (residency_) {
      residency_->MakeFree(std::min(blocks, before + kv_->layers()));
    }
    if (pool_->free() > before) continue;
    if (prefix_) prefix_->Evict(blocks - before);
    return;
  }
}

uint32_t Engine::AdoptPrefix(uint64_t salt, std::span<const TokenId> tokens, SequenceId sequence) {
  return prefix_ ? prefix_->Adopt(salt, tokens.first(tokens.size() - 1), sequence) : 0;
}

void Engine::IndexPrefix(uint64_t salt, std::span<const TokenId> tokens, SequenceId sequence) {
  if (prefix_) prefix_->Insert(salt, tokens.first(kv_->tokens(sequence)), sequence);
}

std::optional<SavedKv> Engine::SwapOut(SequenceId sequence) {
  if (!swap_ || !swap_->IsCheaper(kv_->tokens(sequence), prefill_micros_per_token_)) return std::nullopt;
  StatusOr<SavedKv> saved = swap_->Save(sequence);
  if (!saved.ok()) return std::nullopt;  // no room, or no disk: then it is computed again
  return *std::move(saved);
}

Status Engine::SwapIn(const SavedKv& saved, SequenceId sequence) {
  EM_CHECK(kv_->tokens(sequence) == 0);
  const uint32_t blocks = BlocksOfSequence(saved.tokens);
  FreeBlocks(blocks);
  if (!kv_->TryAppend(sequence, saved.tokens)) {
    return Exhausted("{} saved tokens of KV want {} blocks, and {} are free", saved.tokens, blocks, pool_->free());
  }
  const Status status = swap_->Restore(saved, sequence);
  // Only now may neurons lie behind the pages: whole sectors were read.
  if (residency_) LendLeftovers(sequence, saved.tokens, 0, false);
  if (!status.ok()) Truncate(sequence, 0);
  return status;
}

std::span<const uint32_t> Engine::activation_counts() const {
  return residency_ ? residency_->heat().counts() : std::span<const uint32_t>();
}

StatusOr<std::span<const float>> Engine::Step(std::span<const StepSlice> slices) {
  logits_rows_.clear();
  uint32_t row = 0;
  for (const StepSlice& slice : slices) {
    row += static_cast<uint32_t>(slice.ids.size());
    if (slice.logits) logits_rows_.push_back(row - 1);
  }
  return Forward(slices, logits_rows_);
}

Status Engine::CheckLogits(std::span<const float> logits) const {
  float sum = 0;
  for (const float logit : logits) sum += std::abs(logit);
  if (std::isfinite(sum)) return absl::OkStatus();
  EM_RETURN_IF_ERROR(model_.CheckFinite());
  return Corrupt("the model gives NaN or infinite logits although all its weights are finite");
}

Status Engine::CheckTokens(std::span<const TokenId> ids) const {
  for (const TokenId id : ids) {
    if (id < 0 || static_cast<uint32_t>(id) >= model_.spec().vocab) {
      return InvalidInput("token id {} is out of range; the model has {} tokens", id, model_.spec().vocab);
    }
  }
  return absl::OkStatus();
}

// Whether all of `ids` can be appended, before the first of them is.
Status Engine::CheckAppend(SequenceId sequence, std::span<const TokenId> ids) const {
  EM_RETURN_IF_ERROR(CheckTokens(ids));
  const uint32_t before = kv_->tokens(sequence);
  if (before + uint64_t{ids.size()} > context_) {
    return InvalidInput(
        "the sequence has {} tokens and {} more do not fit a context of {}; shorten the prompt or raise --context",
        before, ids.size(), context_);
  }
  const uint64_t blocks = kv_->BlocksFor(sequence, static_cast<uint32_t>(ids.size()));
  const uint64_t obtainable = obtainable_blocks();
  if (blocks > obtainable) {
    return Exhausted("the KV cache has {} tokens; {} more want {} blocks of {}, and {} can be had; raise --memory",
                     before, ids.size(), blocks, FormatBytes(pool_->block_bytes()), obtainable);
  }
  return absl::OkStatus();
}

Status Engine::CheckCancelled() const {
  return cancelled_ && cancelled_->load() ? Error(StatusCode::kCancelled, "interrupted") : absl::OkStatus();
}

StatusOr<std::span<const float>> Engine::Append(SequenceId sequence, std::span<const TokenId> ids) {
  EM_CHECK(!ids.empty());
  EM_RETURN_IF_ERROR(CheckAppend(sequence, ids));
  while (ids.size() > plan_.prefill_chunk) {
    EM_RETURN_IF_ERROR(CheckCancelled());
    const uint32_t rest = static_cast<uint32_t>(ids.size()) - plan_.prefill_chunk;
    const StepSlice slice{sequence, ids.first(plan_.prefill_chunk), false, std::min(rest, plan_.prefill_chunk)};
    EM_RETURN_IF_ERROR(Step({&slice, 1}).status());
    ids = ids.subspan(plan_.prefill_chunk);
  }
  const StepSlice slice{sequence, ids, true};
  return Step({&slice, 1});
}

Status Engine::AppendEach(SequenceId sequence, std::span<const TokenId> ids,
                          const std::function<void(uint32_t, std::span<const float>)>& each) {
  const size_t vocab = model_.spec().vocab;
  EM_RETURN_IF_ERROR(CheckAppend(sequence, ids));
  std::vector<uint32_t> rows(transformer_->max_logits_rows());
  for (uint32_t i = 0; i < rows.size(); ++i) rows[i] = i;
  while (!ids.empty()) {
    EM_RETURN_IF_ERROR(CheckCancelled());
    const size_t n = std::min(ids.size(), rows.size());
    const uint32_t position = kv_->tokens(sequence);
    const StepSlice slice{sequence, ids.first(n)};
    EM_ASSIGN_OR_RETURN(const std::span<const float> logits, Forward({&slice, 1}, {rows.data(), n}));
    for (size_t i = 0; i < n; ++i) each(position + static_cast<uint32_t>(i), logits.subspan(i * vocab, vocab));
    ids = ids.subspan(n);
  }
  return absl::OkStatus();
}

uint64_t Engine::ReadWeightsOnce() {
  Team::Session session(*team_);
  return weights_->ReadOnce(*team_);
}

double Engine::HotMultiplyAdds() {
  Team::Session session(*team_);
  return transformer_->HotMultiplyAdds(std::min(plan_.prefill_chunk, transformer_->max_rows()));
}

EngineStatistics Engine::statistics() const {
  EngineStatistics s;
  s.steps = steps_;
  s.tokens = tokens_;
  s.seconds = seconds_;
  s.late_blocks = late_blocks_;
  s.record_bytes = store_ ? store_->layout().tail_bytes : 0;
  s.kernel_core_seconds = team_->busy_seconds();
  if (swap_) s.swap = swap_->statistics();
  s.prefill_micros_per_token = prefill_micros_per_token_;
  if (sparse_ffn_) {
    s.ffn = sparse_ffn_->statistics();
    s.management_seconds = (residency_->statistics().nanos + s.ffn.management_nanos) * 1e-9;
  }
  s.reads = reader_->statistics();
  s.reads.bytes_read -= reads_at_start_.bytes_read;
  s.reads.reads -= reads_at_start_.reads;
  s.reads.wait_micros -= reads_at_start_.wait_micros;
  s.reads.busy_micros -= reads_at_start_.busy_micros;
  return s;
}

MemoryUse Engine::memory_use() const {
  MemoryUse use;
  use.budget_bytes = budget_->total_bytes();
  use.weights_bytes = budget_->bytes(MemoryCategory::kDenseWeights) + budget_->bytes(MemoryCategory::kGates);
  use.scratch_bytes = budget_->bytes(MemoryCategory::kScratch);
  use.staging_bytes = budget_->bytes(MemoryCategory::kStaging);
  use.table_bytes = budget_->bytes(MemoryCategory::kTables);
  use.tokenizer_bytes = budget_->bytes(MemoryCategory::kTokenizer);
  const Geometry& geometry = plan_.geometry;
  const uint64_t unwritten = kv_->unwritten_tokens() * (geometry.page_bytes / geometry.page_tokens);
  const uint64_t pages = pool_->blocks(BlockOwner::kKv) + pool_->blocks(BlockOwner::kCached);
  use.kv_bytes = pages * geometry.page_bytes - unwritten;
  use.page_end_bytes = unwritten;
  use.free_block_bytes = pool_->free() * pool_->block_bytes();
  if (residency_) {
    use.neuron_bytes = residency_->resident(Tier::kDevice) * uint64_t{store_->layout().slot_bytes};
    use.page_end_bytes -= std::min(unwritten, residency_->page_end_slots() * geometry.slot_bytes);
  }
  use.unreserved_bytes = budget_->available_bytes();
  if (residency_) use.empty_slot_bytes = residency_->empty_slots() * geometry.slot_bytes;
  const uint64_t used = use.weights_bytes + use.kv_bytes + use.neuron_bytes + use.scratch_bytes + use.staging_bytes +
                        use.table_bytes + use.tokenizer_bytes + use.reserve_bytes() + use.idle_bytes();
  EM_CHECK(used <= use.budget_bytes);
  use.tail_bytes = use.budget_bytes - used;
  return use;
}

void Engine::CheckInvariants() const {
  budget_->CheckInvariants();
  if (host_budget_) host_budget_->CheckInvariants();
  pool_->CheckInvariants();
  kv_->CheckInvariants();
  if (prefix_) prefix_->CheckInvariants();
  if (residency_) residency_->CheckInvariants();
}

}  // namespace elasticmem
