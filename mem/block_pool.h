// The one pool of equal-sized blocks that KV pages and neurons share. A block is leased, may be shared, and changes its
// owner without moving.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/strong_id.h"
#include "mem/budget.h"

namespace elasticmem {

// kCached: KV pages of no running sequence, kept for reuse.
enum class BlockOwner : uint8_t { kFree, kKv, kNeuron, kCached };
inline constexpr size_t kBlockOwners = 4;
std::string_view Name(BlockOwner owner);

// Index of a block in the low half, its generation in the high half: an id kept beyond its lease is caught in debug
// builds.
using BlockId = StrongId<struct BlockIdTag, uint64_t>;
constexpr uint32_t Index(BlockId id) { return static_cast<uint32_t>(id.value()); }
constexpr uint32_t Generation(BlockId id) { return static_cast<uint32_t>(id.value() >> 32); }

class BlockPool;

// Holds one block until it goes. Move-only; must not outlive the pool.
class BlockLease {
 public:
  BlockLease() = default;  // of nothing
  BlockLease(BlockLease&& other) noexcept : pool_(other.pool_), id_(other.id_) { other.pool_ = nullptr; }
  BlockLease& operator=(BlockLease&& other) noexcept {
    if (this != &other) {
      Release();
      pool_ = other.pool_;
      id_ = other.id_;
      other.pool_ = nullptr;
    }
    return *this;
  }
  ~BlockLease() { Release(); }

  bool valid() const { return pool_ != nullptr; }
  BlockId id() const { return id_; }
  // A second lease of the same block, which is free again when both are gone.
  BlockLease Share() const;
  inline void Release();

 private:
  friend class BlockPool;
  BlockLease(BlockPool* pool, BlockId id) : pool_(pool), id_(id) {}

  BlockPool* pool_ = nullptr;
  BlockId id_;
};

// Invariants: free + leased == capacity; a block is free iff no lease holds it iff its owner is kFree; generations only
// grow. All operations on one block are O(1). One thread. Neither copied nor moved: leases point to it.
class BlockPool {
 public:
  // `capacity` blocks of `block_bytes` (a multiple of 4096), reserved as kPool; the pool's own tables as kTables.
  static StatusOr<std::unique_ptr<BlockPool>> Create(Budget& budget, uint32_t capacity, uint64_t block_bytes);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;
  ~BlockPool();  // every lease must be gone

  // One block, or nothing where none is free. Contents are whatever the last owner left. `owner` is not kFree.
  std::optional<BlockLease> TryAcquire(BlockOwner owner) {
    if (free_ == 0) [[unlikely]]
      return std::nullopt;
    return Take(owner);
  }
  // `count` blocks or none.
  std::optional<std::vector<BlockLease>> TryAcquire(uint32_t count, BlockOwner owner);
  // Hands the block to another owner where it lies. It must be held by exactly one lease.
  void ChangeOwner(const BlockLease& lease, BlockOwner owner);

  std::byte* Address(BlockId id) const { return base_ + Checked(id) * block_bytes_; }
  std::byte* Address(const BlockLease& lease) const { return Address(lease.id()); }
  BlockOwner owner(BlockId id) const { return blocks_[Checked(id)].owner; }
  uint32_t leases(BlockId id) const { return blocks_[Checked(id)].leases; }  // how many hold it
  // Is the block free, or held by whom? For audits, which walk indices.
  BlockOwner owner_at(uint32_t index) const { return blocks_[index].owner; }
  uint32_t leases_at(uint32_t index) const { return blocks_[index].leases; }

  std::byte* base() const { return base_; }
  uint64_t block_bytes() const { return block_bytes_; }
  uint32_t capacity() const { return static_cast<uint32_t>(blocks_.size()); }
  uint32_t free() const { return free_; }
  uint32_t leased() const { return capacity() - free_; }
  uint32_t blocks(BlockOwner owner) const { return owned_[static_cast<size_t>(owner)]; }

  void CheckInvariants() const;

 private:
  friend class BlockLease;
  struct Block {
    uint32_t generation = 0;
    uint32_t leases = 0;
    uint32_t next_free = 0;  // while free
    BlockOwner owner = BlockOwner::kFree;
  };

  BlockPool(AlignedBuffer memory, Reservation tables, uint32_t capacity, uint64_t block_bytes);

  uint32_t Checked(BlockId id) const {
    EM_DCHECK(Index(id) < blocks_.size() && blocks_[Index(id)].generation == Generation(id) &&
              blocks_[Index(id)].leases > 0);
    return Index(id);
  }
  BlockLease Take(BlockOwner owner) {
    EM_DCHECK(owner != BlockOwner::kFree);
    const uint32_t index = first_free_;
    Block& block = blocks_[index];
    first_free_ = block.next_free;
    block.leases = 1;
    block.owner = owner;
    --free_;
    --owned_[static_cast<size_t>(BlockOwner::kFree)];
    ++owned_[static_cast<size_t>(owner)];
    return BlockLease(this, BlockId(uint64_t{block.generation} << 32 | index));
  }
  void Drop(BlockId id) {
    const uint32_t index = Checked(id);
    Block& block = blocks_[index];
    if (--block.leases > 0) return;
    --owned_[static_cast<size_t>(block.owner)];
    ++owned_[static_cast<size_t>(BlockOwner::kFree)];
    block.owner = BlockOwner::kFree;
    ++block.generation;
    block.next_free = first_free_;
    first_free_ = index;
    ++free_;
  }

  AlignedBuffer memory_;
  Reservation tables_;
  std::byte* const base_;
  const uint64_t block_bytes_;
  std::vector<Block> blocks_;
  uint32_t first_free_ = 0;
  uint32_t free_ = 0;
  std::array<uint32_t, kBlockOwners> owned_{};
};

inline void BlockLease::Release() {
  if (pool_ != nullptr) {
    pool_->Drop(id_);
    pool_ = nullptr;
  }
}

}  // namespace elasticmem
