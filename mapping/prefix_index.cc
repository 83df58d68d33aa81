#include "mapping/prefix_index.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "base/stream_hash.h"
#include "base/units.h"

namespace elasticmem {
namespace {

// Every node holds a block in each layer, and no block is in two nodes.
uint32_t MaxNodes(uint32_t pool_blocks, uint32_t layers) { return pool_blocks / layers; }
uint64_t Buckets(uint32_t nodes) { return std::bit_ceil(std::max<uint64_t>(nodes, 1)); }

}  // namespace

StatusOr<std::unique_ptr<PrefixIndex>> PrefixIndex::Create(Budget* budget, BlockPool* pool, KvTable* kv,
                                                           std::function<void(BlockId)> before_free) {
  const uint32_t nodes = MaxNodes(pool->capacity(), kv->layers());
  const uint64_t bytes =
      CeilDiv(nodes, kChunkNodes) * sizeof(Chunk) + (Buckets(nodes) + pool->capacity()) * sizeof(uint32_t);
  EM_ASSIGN_OR_RETURN(Reservation tables, budget->Reserve(MemoryCategory::kTables, bytes));
  return std::unique_ptr<PrefixIndex>(new PrefixIndex(budget, std::move(tables), pool, kv, std::move(before_free)));
}

uint64_t PrefixIndex::MaxTableBytes(uint32_t pool_blocks, uint32_t layers, uint32_t page_tokens) {
  const uint32_t nodes = MaxNodes(pool_blocks, layers);
  const uint64_t node_bytes = sizeof(Node) + layers * sizeof(BlockLease) + page_tokens * sizeof(int32_t);
  return CeilDiv(nodes, kChunkNodes) * (sizeof(Chunk) + kChunkNodes * node_bytes) +
         (Buckets(nodes) + pool_blocks) * sizeof(uint32_t);
}

PrefixIndex::PrefixIndex(Budget* budget, Reservation tables, BlockPool* pool, KvTable* kv,
                         std::function<void(BlockId)> before_free)
    : budget_(budget),
      pool_(pool),
      kv_(kv),
      before_free_(std::move(before_free)),
      layers_(kv->layers()),
      page_tokens_(kv->page_tokens()),
      tables_(std::move(tables)),
      buckets_(Buckets(MaxNodes(pool->capacity(), layers_)), kNone),
      by_block_(pool->capacity(), kNone) {
  chunks_.reserve(CeilDiv(MaxNodes(pool->capacity(), layers_), kChunkNodes));
  kv_->SetLeftListener([this](BlockId first_layer) { PageLeft(first_layer); });
}

PrefixIndex::~PrefixIndex() { kv_->SetLeftListener(nullptr); }

// The parent's index stands for the text before this page: it can't be used again while it has children.
uint64_t PrefixIndex::HashOfPage(uint64_t salt, uint32_t parent, std::span<const int32_t> page) const {
  const std::array<uint64_t, 3> key = {salt, parent, HashOf(std::as_bytes(page))};
  return HashOf(std::as_bytes(std::span(key)));
}

uint32_t PrefixIndex::Find(uint64_t salt, uint32_t parent, uint64_t hash, std::span<const int32_t> page) const {
  uint32_t at = buckets_[hash & (buckets_.size() - 1)];
  for (; at != kNone; at = node(at).next) {
    const Node& n = node(at);
    if (n.hash == hash && n.parent == parent && n.salt == salt && std::ranges::equal(tokens(at), page)) break;
  }
  return at;
}

// Nodes of the longest chain that `tokens` begin with, from the beginning of the text.
std::vector<uint32_t> PrefixIndex::Chain(uint64_t salt, std::span<const int32_t> text) const {
  std::vector<uint32_t> chain;
  uint32_t parent = kNone;
  for (; text.size() >= page_tokens_; text = text.subspan(page_tokens_)) {
    const auto page = text.first(page_tokens_);
    parent = Find(salt, parent, HashOfPage(salt, parent, page), page);
    if (parent == kNone) break;
    chain.push_back(parent);
  }
  return chain;
}

uint32_t PrefixIndex::Lookup(uint64_t salt, std::span<const int32_t> text) const {
  return static_cast<uint32_t>(Chain(salt, text).size()) * page_tokens_;
}

uint32_t PrefixIndex::Adopt(uint64_t salt, std::span<const int32_t> text, SequenceId sequence) {
  EM_CHECK(kv_->tokens(sequence) == 0);
  const std::vector<uint32_t> chain = Chain(salt, text);
  if (chain.empty()) return 0;
  std::vector<std::span<const BlockLease>> pages;
  pages.reserve(chain.size());
  for (const uint32_t at : chain) {
    SetIdle(at, false);  // before there are more leases: a block has one when it changes its owner
    pages.push_back(leases(at));
  }
  if (kv_->TryAdopt(sequence, pages)) return kv_->tokens(sequence);
  for (const uint32_t at : chain) SetIdle(at, pool_->leases(leases(at)[0].id()) == 1);
  return 0;
}

void PrefixIndex::Insert(uint64_t salt, std::span<const int32_t> text, SequenceId sequence) {
  EM_CHECK(text.size() <= kv_->tokens(sequence));
  uint32_t parent = kNone;
  for (uint32_t page = 0; (page + 1) * size_t{page_tokens_} <= text.size(); ++page) {
    const auto page_tokens = text.subspan(page * size_t{page_tokens_}, page_tokens_);
    const uint64_t hash = HashOfPage(salt, parent, page_tokens);
    const BlockId block = kv_->block(sequence, 0, page);
    uint32_t at = Find(salt, parent, hash, page_tokens);
    if (at != kNone) {
      if (by_block_[Index(block)] != at && pool_->leases(block) == 1) {
        for (uint32_t layer = 0; layer < layers_ && before_free_; ++layer) {
          before_free_(kv_->block(sequence, layer, page));
        }
        SetIdle(at, false);
        kv_->ReplacePage(sequence, page, leases(at));
      }
    } else {
      if (by_block_[Index(block)] != kNone) return;  // shared with another tenant's sequence: it stays theirs
      at = TryAdd(salt, parent, hash, page_tokens);
      if (at == kNone) return;
      for (uint32_t layer = 0; layer < layers_; ++layer) leases(at)[layer] = kv_->Share(sequence, layer, page);
      by_block_[Index(block)] = at;
    }
    parent = at;
  }
}

uint32_t PrefixIndex::Evict(uint32_t blocks) {
  uint32_t freed = 0;
  for (; freed < blocks && coldest_ != kNone; freed += layers_) {
    const uint32_t at = coldest_;
    for (const BlockLease& lease : leases(at)) {
      if (before_free_) before_free_(lease.id());
    }
    Remove(at);
  }
  return freed;
}

std::optional<PrefixIndex::CachedPage> PrefixIndex::Coldest() const {
  if (coldest_ == kNone) return std::nullopt;
  const Node& n = node(coldest_);
  return CachedPage{n.last_use, n.depth * page_tokens_, page_tokens_, layers_};
}

// A node without leases that counts as held by a sequence; kNone where the budget has no room.
uint32_t PrefixIndex::TryAdd(uint64_t salt, uint32_t parent, uint64_t hash, std::span<const int32_t> page) {
  if (unused_ == kNone && !TryAddChunk()) return kNone;
  const uint32_t at = unused_;
  Node& n = node(at);
  unused_ = n.next;
  n = Node();
  n.salt = salt;
  n.hash = hash;
  n.parent = parent;
  n.next = std::exchange(bucket(hash), at);
  n.holds = 1;
  n.used = true;
  if (parent != kNone) {
    n.depth = node(parent).depth + 1;
    ++node(parent).children;
    Hold(parent);
  }
  std::ranges::copy(page, tokens(at).begin());
  ++pages_;
  return at;
}

bool PrefixIndex::TryAddChunk() {
  EM_CHECK(chunks_.size() < chunks_.capacity());
  const uint64_t node_bytes = sizeof(Node) + layers_ * sizeof(BlockLease) + page_tokens_ * sizeof(int32_t);
  auto tables = budget_->TryReserve(MemoryCategory::kTables, kChunkNodes * node_bytes);
  if (!tables) return false;
  const auto first = static_cast<uint32_t>(chunks_.size()) * kChunkNodes;
  chunks_.push_back({std::move(*tables), std::make_unique<Node[]>(kChunkNodes),
                     std::make_unique<BlockLease[]>(size_t{kChunkNodes} * layers_),
                     std::make_unique<int32_t[]>(size_t{kChunkNodes} * page_tokens_)});
  for (uint32_t at = first + kChunkNodes; at-- > first;) node(at).next = std::exchange(unused_, at);
  return true;
}

// Of a node that can be evicted.
void PrefixIndex::Remove(uint32_t at) {
  Node& n = node(at);
  EM_CHECK(n.holds == 0 && n.children == 0);
  Unlink(at);
  uint32_t* link = &bucket(n.hash);
  while (*link != at) link = &node(*link).next;
  *link = n.next;
  by_block_[Index(leases(at)[0].id())] = kNone;
  for (BlockLease& lease : leases(at)) lease.Release();
  if (n.parent != kNone) --node(n.parent).children;
  n.used = false;
  n.next = std::exchange(unused_, at);
  --pages_;
}

void PrefixIndex::PageLeft(BlockId first_layer) {
  const uint32_t at = by_block_[Index(first_layer)];
  if (at != kNone && pool_->leases(first_layer) == 1) SetIdle(at, true);
}

void PrefixIndex::SetIdle(uint32_t at, bool idle) {
  if (node(at).idle == idle) return;
  node(at).idle = idle;
  for (const BlockLease& lease : leases(at)) pool_->ChangeOwner(lease, idle ? BlockOwner::kCached : BlockOwner::kKv);
  if (idle) {
    LetGo(at);
  } else {
    Hold(at);
  }
}

// One more sequence or held child holds the node; the first makes it hold its parent.
void PrefixIndex::Hold(uint32_t at) {
  for (; at != kNone && node(at).holds++ == 0; at = node(at).parent) Unlink(at);
}

void PrefixIndex::LetGo(uint32_t at) {
  for (; at != kNone && --node(at).holds == 0; at = node(at).parent) Link(at);
}

void PrefixIndex::Link(uint32_t at) {
  Node& n = node(at);
  n.last_use = now_;
  n.warmer = kNone;
  n.colder = std::exchange(warmest_, at);
  (n.colder == kNone ? coldest_ : node(n.colder).warmer) = at;
  ++evictable_;
}

void PrefixIndex::Unlink(uint32_t at) {
  const Node& n = node(at);
  (n.colder == kNone ? coldest_ : node(n.colder).warmer) = n.warmer;
  (n.warmer == kNone ? warmest_ : node(n.warmer).colder) = n.colder;
  --evictable_;
}

void PrefixIndex::CheckInvariants() const {
  CheckNodes();
  CheckList();
  const uint32_t capacity = static_cast<uint32_t>(chunks_.size()) * kChunkNodes;
  std::vector<bool> found(capacity);
  uint32_t chained = 0, unused = 0, indexed = 0;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    for (uint32_t at = buckets_[b]; at != kNone; at = node(at).next, ++chained) {
      EM_CHECK(node(at).used && !found[at] && (node(at).hash & (buckets_.size() - 1)) == b);
      found[at] = true;
    }
  }
  for (uint32_t at = unused_; at != kNone; at = node(at).next, ++unused) {
    EM_CHECK(!node(at).used && !found[at]);
    found[at] = true;
    for (const BlockLease& lease : leases(at)) EM_CHECK(!lease.valid());
  }
  for (const uint32_t at : by_block_) indexed += at != kNone;
  EM_CHECK(chained == pages_ && indexed == pages_ && pages_ + unused == capacity);
}

// Each node against its blocks and its children.
void PrefixIndex::CheckNodes() const {
  const uint32_t capacity = static_cast<uint32_t>(chunks_.size()) * kChunkNodes;
  std::vector<uint32_t> children(capacity), held_children(capacity);
  uint32_t used = 0, idle = 0;
  for (uint32_t at = 0; at < capacity; ++at) {
    const Node& n = node(at);
    if (!n.used) continue;
    ++used;
    idle += n.idle;
    EM_CHECK(n.hash == HashOfPage(n.salt, n.parent, tokens(at)));
    EM_CHECK(by_block_[Index(leases(at)[0].id())] == at);
    for (const BlockLease& lease : leases(at)) {
      EM_CHECK(lease.valid() && (pool_->leases(lease.id()) == 1) == n.idle);
      EM_CHECK(pool_->owner(lease.id()) == (n.idle ? BlockOwner::kCached : BlockOwner::kKv));
    }
    EM_CHECK(n.depth == (n.parent == kNone ? 0 : node(n.parent).depth + 1));
    if (n.parent == kNone) continue;
    EM_CHECK(node(n.parent).used && node(n.parent).salt == n.salt);
    ++children[n.parent];
    held_children[n.parent] += n.holds > 0;
  }
  EM_CHECK(used == pages_ && idle * layers_ == pool_->blocks(BlockOwner::kCached));
  for (uint32_t at = 0; at < capacity; ++at) {
    const Node& n = node(at);
    if (n.used) EM_CHECK(n.children == children[at] && n.holds == (n.idle ? 0 : 1) + held_children[at]);
  }
}

// The list of the evictable: whole, in order, and no node before its children.
void PrefixIndex::CheckList() const {
  const uint32_t capacity = static_cast<uint32_t>(chunks_.size()) * kChunkNodes;
  std::vector<uint32_t> children_before(capacity);
  uint32_t listed = 0, evictable = 0, colder = kNone;
  for (uint32_t at = coldest_; at != kNone; colder = at, at = node(at).warmer, ++listed) {
    const Node& n = node(at);
    EM_CHECK(listed < capacity && n.used && n.holds == 0 && n.colder == colder && n.last_use <= now_);
    EM_CHECK(colder == kNone || node(colder).last_use <= n.last_use);
    EM_CHECK(children_before[at] == n.children);
    if (n.parent != kNone) ++children_before[n.parent];
  }
  for (uint32_t at = 0; at < capacity; ++at) evictable += node(at).used && node(at).holds == 0;
  EM_CHECK(colder == warmest_ && listed == evictable_ && evictable == evictable_);
}

}  // namespace elasticmem
