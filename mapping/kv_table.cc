#include "mapping/kv_table.h"

#include <algorithm>

#include "base/units.h"

namespace elasticmem {
namespace {

constexpr uint32_t kFirstPages = 8;  // room for pages in a new table
constexpr uint64_t kPageTableBytes = sizeof(const std::byte*) + sizeof(BlockLease);

}  // namespace

KvTable::KvTable(BlockPool* pool, Budget* budget, uint32_t layers, uint32_t page_tokens)
    : pool_(pool), budget_(budget), layers_(layers), page_tokens_(page_tokens) {
  EM_CHECK(layers > 0 && page_tokens > 0);
}

SequenceId KvTable::AddSequence() {
  uint32_t id = static_cast<uint32_t>(sequences_.size());
  if (free_ids_.empty()) {
    sequences_.emplace_back();
  } else {
    id = free_ids_.back();
    free_ids_.pop_back();
  }
  sequences_[id] = std::make_unique<Sequence>();
  ++live_;
  return SequenceId(id);
}

std::optional<SequenceId> KvTable::Fork(SequenceId sequence) {
  Get(sequence);
  const SequenceId fork = AddSequence();
  Sequence& to = Get(fork);
  const Sequence& from = Get(sequence);
  if (!GrowTable(to, from.pages)) {
    RemoveSequence(fork);
    return std::nullopt;
  }
  to.tokens = from.tokens;
  to.pages = from.pages;
  for (size_t layer = 0; layer < layers_; ++layer) {
    for (size_t page = 0; page < from.pages; ++page) {
      to.leases[layer * to.page_capacity + page] = from.leases[layer * from.page_capacity + page].Share();
      to.pointers[layer * to.page_capacity + page] = from.pointers[layer * from.page_capacity + page];
    }
  }
  return fork;
}

void KvTable::RemoveSequence(SequenceId sequence) {
  ReleasePages(Get(sequence), 0);
  sequences_[sequence.value()].reset();
  free_ids_.push_back(sequence.value());
  --live_;
}

// Room in the table for `pages` pages a layer; false, and nothing changed, where the budget has none.
bool KvTable::GrowTable(Sequence& sequence, uint32_t pages) {
  if (pages <= sequence.page_capacity) return true;
  const uint32_t capacity = std::max({pages, 2 * sequence.page_capacity, kFirstPages});
  auto tables = budget_->TryReserve(MemoryCategory::kTables, uint64_t{layers_} * capacity * kPageTableBytes);
  if (!tables) return false;
  std::vector<const std::byte*> pointers(size_t{layers_} * capacity);
  std::vector<BlockLease> leases(size_t{layers_} * capacity);
  for (size_t layer = 0; layer < layers_; ++layer) {
    for (size_t page = 0; page < sequence.pages; ++page) {
      pointers[layer * capacity + page] = sequence.pointers[layer * sequence.page_capacity + page];
      leases[layer * capacity + page] = std::move(sequence.leases[layer * sequence.page_capacity + page]);
    }
  }
  sequence.pointers = std::move(pointers);
  sequence.leases = std::move(leases);
  sequence.page_capacity = capacity;
  sequence.tables = std::move(*tables);
  return true;
}

bool KvTable::LastPageMustBeCopied(const Sequence& sequence) const {
  return sequence.tokens % page_tokens_ != 0 && pool_->leases(sequence.leases[sequence.pages - 1].id()) > 1;
}

uint32_t KvTable::BlocksFor(SequenceId id, uint32_t tokens) const {
  const Sequence& sequence = Get(id);
  if (tokens == 0) return 0;
  EM_CHECK(tokens <= UINT32_MAX - page_tokens_ - sequence.tokens);
  const uint32_t pages = CeilDiv(sequence.tokens + tokens, page_tokens_) - sequence.pages;
  return layers_ * (pages + (LastPageMustBeCopied(sequence) ? 1 : 0));
}

std::optional<std::vector<PageCopy>> KvTable::TryAppend(SequenceId id, uint32_t tokens) {
  std::vector<PageCopy> copies;
  if (tokens == 0) return copies;
  Sequence& sequence = Get(id);
  const uint32_t pages = CeilDiv(sequence.tokens + tokens, page_tokens_);
  if (BlocksFor(id, tokens) > pool_->free() || !GrowTable(sequence, pages)) return std::nullopt;

  const bool copy_last = LastPageMustBeCopied(sequence);
  if (copy_last) copies.reserve(layers_);
  const BlockId left = copy_last ? sequence.leases[sequence.pages - 1].id() : BlockId();
  for (size_t layer = 0; layer < layers_; ++layer) {
    const size_t row = layer * sequence.page_capacity;
    for (size_t page = sequence.pages - (copy_last ? 1 : 0); page < pages; ++page) {
      BlockLease fresh = *pool_->TryAcquire(BlockOwner::kKv);
      std::byte* const address = pool_->Address(fresh);
      if (page < sequence.pages) {
        copies.push_back({sequence.pointers[row + page], address, sequence.tokens % page_tokens_});
      }
      sequence.leases[row + page] = std::move(fresh);
      sequence.pointers[row + page] = address;
    }
  }
  sequence.tokens += tokens;
  sequence.pages = pages;
  if (copy_last && left_) left_(left);
  return copies;
}

void KvTable::Truncate(SequenceId id, uint32_t tokens) {
  Sequence& sequence = Get(id);
  EM_CHECK(tokens <= sequence.tokens);
  const uint32_t pages = CeilDiv(tokens, page_tokens_);
  ReleasePages(sequence, pages);
  sequence.tokens = tokens;
  sequence.pages = pages;
}

// The last page first, so that whoever keeps them sees the end of the text go before its beginning.
void KvTable::ReleasePages(Sequence& sequence, uint32_t first) {
  for (size_t page = sequence.pages; page-- > first;) {
    const BlockId block = sequence.leases[page].id();
    const bool shared = pool_->leases(block) > 1;
    for (size_t layer = 0; layer < layers_; ++layer) {
      sequence.leases[layer * sequence.page_capacity + page].Release();
      sequence.pointers[layer * sequence.page_capacity + page] = nullptr;
    }
    if (shared && left_) left_(block);
  }
}

bool KvTable::TryAdopt(SequenceId id, std::span<const std::span<const BlockLease>> pages) {
  Sequence& sequence = Get(id);
  EM_CHECK(sequence.tokens == 0 && pages.size() <= UINT32_MAX / page_tokens_);
  if (!GrowTable(sequence, static_cast<uint32_t>(pages.size()))) return false;
  for (size_t page = 0; page < pages.size(); ++page) {
    EM_CHECK(pages[page].size() == layers_);
    for (size_t layer = 0; layer < layers_; ++layer) {
      const size_t at = layer * sequence.page_capacity + page;
      sequence.leases[at] = pages[page][layer].Share();
      sequence.pointers[at] = pool_->Address(sequence.leases[at]);
    }
  }
  sequence.pages = static_cast<uint32_t>(pages.size());
  sequence.tokens = sequence.pages * page_tokens_;
  return true;
}

void KvTable::ReplacePage(SequenceId id, uint32_t page, std::span<const BlockLease> leases) {
  Sequence& sequence = Get(id);
  EM_CHECK(page < sequence.pages && leases.size() == layers_);
  for (size_t layer = 0; layer < layers_; ++layer) {
    const size_t at = layer * sequence.page_capacity + page;
    EM_CHECK(pool_->leases(sequence.leases[at].id()) == 1);
    sequence.leases[at] = leases[layer].Share();
    sequence.pointers[at] = pool_->Address(sequence.leases[at]);
  }
}

BlockLease KvTable::Share(SequenceId id, uint32_t layer, uint32_t page) const {
  const Sequence& sequence = Get(id);
  EM_CHECK(layer < layers_ && page < sequence.pages);
  return sequence.leases[size_t{layer} * sequence.page_capacity + page].Share();
}

std::span<const std::byte* const> KvTable::PagePointers(SequenceId id, uint32_t layer) const {
  const Sequence& sequence = Get(id);
  EM_CHECK(layer < layers_);
  return {sequence.pointers.data() + size_t{layer} * sequence.page_capacity, sequence.pages};
}

std::byte* KvTable::WritablePage(SequenceId id, uint32_t layer, uint32_t page) const {
  const BlockId at = block(id, layer, page);
  EM_CHECK(pool_->leases(at) == 1);
  return pool_->Address(at);
}

BlockId KvTable::block(SequenceId id, uint32_t layer, uint32_t page) const {
  const Sequence& sequence = Get(id);
  EM_CHECK(layer < layers_ && page < sequence.pages);
  return sequence.leases[size_t{layer} * sequence.page_capacity + page].id();
}

uint64_t KvTable::unwritten_tokens() const {
  uint64_t tokens = 0;
  for (const auto& sequence : sequences_) {
    if (sequence) tokens += uint64_t{sequence->pages} * page_tokens_ - sequence->tokens;
  }
  return tokens * layers_;
}

void KvTable::CheckInvariants() const {
  std::vector<uint32_t> uses(pool_->capacity());
  uint32_t live = 0;
  for (const auto& sequence : sequences_) {
    if (sequence == nullptr) continue;
    ++live;
    const Sequence& s = *sequence;
    EM_CHECK(s.pages == CeilDiv(s.tokens, page_tokens_) && s.pages <= s.page_capacity);
    EM_CHECK(s.tables.bytes() == uint64_t{layers_} * s.page_capacity * kPageTableBytes);
    EM_CHECK(s.leases.size() == size_t{layers_} * s.page_capacity && s.pointers.size() == s.leases.size());
    for (size_t layer = 0; layer < layers_; ++layer) {
      for (size_t page = 0; page < s.page_capacity; ++page) {
        const BlockLease& lease = s.leases[layer * s.page_capacity + page];
        EM_CHECK(lease.valid() == (page < s.pages));
        if (!lease.valid()) continue;
        EM_CHECK(pool_->owner(lease.id()) == BlockOwner::kKv);
        EM_CHECK(s.pointers[layer * s.page_capacity + page] == pool_->Address(lease));
        EM_CHECK(pool_->leases(lease.id()) == pool_->leases(s.leases[page].id()));
        ++uses[Index(lease.id())];
      }
    }
  }
  EM_CHECK(live == live_ && live + free_ids_.size() == sequences_.size());
  for (uint32_t index = 0; index < uses.size(); ++index) EM_CHECK(uses[index] <= pool_->leases_at(index));
}

}  // namespace elasticmem
