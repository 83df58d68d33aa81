// KV pages found again by the tokens that made them, so that sequences of one tenant that begin with the same text
// share its pages, and the text of a sequence that has ended need not be computed again while its pages are still
// there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "mapping/kv_table.h"
#include "mem/block_pool.h"
#include "mem/budget.h"

namespace elasticmem {

// A tree of full pages: a node is the page that follows its parent's, for one tenant (its salt) and one run of tokens,
// and holds a lease of that page's block in each layer. Hashes only find nodes; parent, salt and tokens are compared,
// so a hit is never another text.
//
// Invariants, for every node:
//   idle: no sequence holds its blocks, they have one lease each and are owned by kCached; else they are owned by kKv;
//   holds == (idle ? 0 : 1) + children with holds > 0;
//   it is in the list of those that can be evicted iff holds == 0; the list is in order of last use, and no node comes
//   before its children: so its head is always the end of a chain.
// Only sequences of the KV table and the index hold these blocks. One thread; pool and KV table outlive the index,
// which is the table's left-listener.
class PrefixIndex {
 public:
  // The node that would be evicted next.
  struct CachedPage {
    uint64_t last_use = 0;     // when a sequence last held it or what follows it, on the clock of Advance()
    uint32_t first_token = 0;  // position of the page in its text
    uint32_t tokens = 0;       // that would have to be computed again
    uint32_t blocks = 0;       // that eviction frees
  };

  // `before_free` hears of each block that is about to be freed while its bytes are still nobody else's; it may not
  // call the index or the KV table. Tables are reserved as kTables: some 4 bytes a block now, the rest as nodes come,
  // at most MaxTableBytes(). Errors: the budget's.
  static StatusOr<std::unique_ptr<PrefixIndex>> Create(Budget* budget, BlockPool* pool, KvTable* kv,
                                                       std::function<void(BlockId)> before_free);
  static uint64_t MaxTableBytes(uint32_t pool_blocks, uint32_t layers, uint32_t page_tokens);
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;
  ~PrefixIndex();  // lets go of all pages; before_free hears of none

  // How many of `tokens` lie in the longest chain that they begin with: a multiple of page_tokens. A step needs a token
  // to compute logits from, so callers look for all but the last. Holds nothing.
  uint32_t Lookup(uint64_t salt, std::span<const int32_t> tokens) const;
  // The empty `sequence` begins with that chain, shared; returns its tokens. 0, and the sequence unchanged, where
  // nothing is found or the budget has no room for the sequence's table.
  uint32_t Adopt(uint64_t salt, std::span<const int32_t> tokens, SequenceId sequence);
  // The full pages of `sequence`, whose first tokens are `tokens` and written in all layers, enter the index as far as
  // the budget has room for nodes. Where an equal page is there already the sequence uses that one from now on and its
  // own is freed, unless a fork holds that too. Costs a hash and a comparison of all tokens.
  void Insert(uint64_t salt, std::span<const int32_t> tokens, SequenceId sequence);

  // Frees at least `blocks` blocks, or all that can be, in whole pages, least recently used first and a chain from its
  // end. Returns how many. O(1) a block.
  uint32_t Evict(uint32_t blocks);
  std::optional<CachedPage> Coldest() const;
  uint32_t evictable_blocks() const { return evictable_ * layers_; }
  uint32_t pages() const { return pages_; }

  // The clock of last use, in the caller's unit: tokens of all sequences, as for Heat.
  void Advance(uint64_t ticks) { now_ += ticks; }
  uint64_t now() const { return now_; }

  // Walks everything, both ways.
  void CheckInvariants() const;

 private:
  static constexpr uint32_t kNone = ~0u;
  static constexpr uint32_t kChunkNodes = 32;

  struct Node {
    uint64_t salt = 0;
    uint64_t hash = 0;
    uint64_t last_use = 0;    // while evictable
    uint32_t parent = kNone;  // of the page before; kNone where the text begins
    uint32_t depth = 0;       // pages before it
    uint32_t next = kNone;    // in its bucket, or among the unused
    uint32_t children = 0;
    uint32_t holds = 0;
    uint32_t colder = kNone;  // neighbours in the list of the evictable
    uint32_t warmer = kNone;
    bool used = false;
    bool idle = false;
  };
  // Nodes are allocated and accounted by the chunk, and never move.
  struct Chunk {
    Reservation tables;
    std::unique_ptr<Node[]> nodes;
    std::unique_ptr<BlockLease[]> leases;  // [kChunkNodes, layers]
    std::unique_ptr<int32_t[]> tokens;     // [kChunkNodes, page_tokens]
  };

  PrefixIndex(Budget* budget, Reservation tables, BlockPool* pool, KvTable* kv,
              std::function<void(BlockId)> before_free);

  Node& node(uint32_t at) { return chunks_[at / kChunkNodes].nodes[at % kChunkNodes]; }
  const Node& node(uint32_t at) const { return chunks_[at / kChunkNodes].nodes[at % kChunkNodes]; }
  std::span<BlockLease> leases(uint32_t at) const {
    return {chunks_[at / kChunkNodes].leases.get() + size_t{at % kChunkNodes} * layers_, layers_};
  }
  std::span<int32_t> tokens(uint32_t at) const {
    return {chunks_[at / kChunkNodes].tokens.get() + size_t{at % kChunkNodes} * page_tokens_, page_tokens_};
  }
  uint32_t& bucket(uint64_t hash) { return buckets_[hash & (buckets_.size() - 1)]; }

  uint64_t HashOfPage(uint64_t salt, uint32_t parent, std::span<const int32_t> page) const;
  uint32_t Find(uint64_t salt, uint32_t parent, uint64_t hash, std::span<const int32_t> page) const;
  std::vector<uint32_t> Chain(uint64_t salt, std::span<const int32_t> tokens) const;
  uint32_t TryAdd(uint64_t salt, uint32_t parent, uint64_t hash, std::span<const int32_t> page);
  bool TryAddChunk();
  void Remove(uint32_t at);
  void PageLeft(BlockId first_layer);
  void SetIdle(uint32_t at, bool idle);
  void Hold(uint32_t at);
  void LetGo(uint32_t at);
  void Link(uint32_t at);
  void Unlink(uint32_t at);
  void CheckNodes() const;
  void CheckList() const;

  Budget* const budget_;
  BlockPool* const pool_;
  KvTable* const kv_;
  const std::function<void(BlockId)> before_free_;
  const uint32_t layers_;
  const uint32_t page_tokens_;
  Reservation tables_;              // of the vectors below
  std::vector<Chunk> chunks_;       // never more than its capacity
  std::vector<uint32_t> buckets_;   // first node by hash; a power of two of them
  std::vector<uint32_t> by_block_;  // node by index of its block in layer 0, or kNone
  uint32_t unused_ = kNone;         // first unused node
  uint32_t coldest_ = kNone;        // ends of the list of the evictable
  uint32_t warmest_ = kNone;
  uint32_t evictable_ = 0;  // nodes
  uint32_t pages_ = 0;
  uint64_t now_ = 0;
};

}  // namespace elasticmem
