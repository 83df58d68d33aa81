// Which block holds which KV page: (sequence, layer, page) -> block. Pages are taken as tokens come, shared between
// forks and with the prefix index, and copied before a shared one is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/strong_id.h"
#include "mem/block_pool.h"
#include "mem/budget.h"

namespace elasticmem {

using SequenceId = StrongId<struct SequenceIdTag, uint32_t>;

// A page whose first `tokens` tokens must be copied before anything else happens to either block.
struct PageCopy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  uint32_t tokens = 0;
};

// Invariants, for every sequence and layer: pages == ceil(tokens / page_tokens); pointers[p] is the address of the
// block of page p; every block is owned by kKv; no page that a sequence may still write is held by another lease once
// it has been appended to; a page is shared in all layers or in none. One thread; the pool and the budget outlive it.
class KvTable {
 public:
  KvTable(BlockPool* pool, Budget* budget, uint32_t layers, uint32_t page_tokens);
  KvTable(const KvTable&) = delete;
  KvTable& operator=(const KvTable&) = delete;

  uint32_t layers() const { return layers_; }
  uint32_t page_tokens() const { return page_tokens_; }

  // A new, empty sequence. Ids of removed ones are used again.
  SequenceId AddSequence();
  // A new sequence of the same tokens that shares all pages. Nothing where the budget has no room for its table.
  std::optional<SequenceId> Fork(SequenceId sequence);
  void RemoveSequence(SequenceId sequence);

  // Makes room for `tokens` more tokens in every layer. Where the last page is shared and partly filled it is replaced
  // by a fresh block, and what to copy comes back (one a layer): do it at once. Nothing, and nothing changed, where the
  // pool has not BlocksFor() free blocks or the budget no room for the table.
  std::optional<std::vector<PageCopy>> TryAppend(SequenceId sequence, uint32_t tokens);
  // Blocks that TryAppend would take.
  uint32_t BlocksFor(SequenceId sequence, uint32_t tokens) const;
  // Keeps the first `tokens` tokens, at most those that are there.
  void Truncate(SequenceId sequence, uint32_t tokens);

  // The empty `sequence` begins with these full pages, [pages][layers], shared with whoever holds them. False, and
  // nothing changed, where the budget has no room for the table.
  bool TryAdopt(SequenceId sequence, std::span<const std::span<const BlockLease>> pages);
  // The sequence lets go of a page that it alone holds and uses this one, [layers], which holds the same bytes.
  void ReplacePage(SequenceId sequence, uint32_t page, std::span<const BlockLease> leases);
  // A second lease of a page's block.
  BlockLease Share(SequenceId sequence, uint32_t layer, uint32_t page) const;
  // `listener` hears each time a sequence has let go of a page that others still hold, with its block in layer 0; all
  // layers are done by then. It may change owners, not this table. Null: nobody listens.
  void SetLeftListener(std::function<void(BlockId)> listener) { left_ = std::move(listener); }

  uint32_t tokens(SequenceId sequence) const { return Get(sequence).tokens; }
  uint32_t pages(SequenceId sequence) const { return Get(sequence).pages; }
  uint32_t sequences() const { return live_; }
  // That begun pages have room for, in all layers; a shared one counts for each sequence.
  uint64_t unwritten_tokens() const;
  bool contains(SequenceId sequence) const {
    return sequence.value() < sequences_.size() && sequences_[sequence.value()] != nullptr;
  }

  // Addresses of the sequence's pages in one layer, in order: what attention takes. Valid until the sequence changes.
  std::span<const std::byte* const> PagePointers(SequenceId sequence, uint32_t layer) const;
  // The page to write a token into; it must not be shared.
  std::byte* WritablePage(SequenceId sequence, uint32_t layer, uint32_t page) const;
  BlockId block(SequenceId sequence, uint32_t layer, uint32_t page) const;

  // Also against the pool: each block has at least as many leases as pages that use it.
  void CheckInvariants() const;

 private:
  struct Sequence {
    uint32_t tokens = 0;
    uint32_t pages = 0;
    uint32_t page_capacity = 0;
    Reservation tables;
    std::vector<const std::byte*> pointers;  // [layers, page_capacity]
    std::vector<BlockLease> leases;          // [layers, page_capacity]
  };

  const Sequence& Get(SequenceId sequence) const {
    EM_CHECK(contains(sequence));
    return *sequences_[sequence.value()];
  }
  Sequence& Get(SequenceId sequence) { return const_cast<Sequence&>(std::as_const(*this).Get(sequence)); }
  bool GrowTable(Sequence& sequence, uint32_t pages);
  bool LastPageMustBeCopied(const Sequence& sequence) const;
  void ReleasePages(Sequence& sequence, uint32_t first);

  BlockPool* const pool_;
  Budget* const budget_;
  const uint32_t layers_;
  const uint32_t page_tokens_;
  std::function<void(BlockId)> left_;
  std::vector<std::unique_ptr<Sequence>> sequences_;  // by id; null where removed
  std::vector<uint32_t> free_ids_;
  uint32_t live_ = 0;
};

}  // namespace elasticmem
