#include "mem/block_pool.h"

#include <utility>

#include "base/units.h"

namespace elasticmem {

std::string_view Name(BlockOwner owner) {
  static constexpr std::array<std::string_view, kBlockOwners> kNames = {"free", "KV", "neuron", "cached"};
  return kNames[static_cast<size_t>(owner)];
}

BlockLease BlockLease::Share() const {
  EM_CHECK(valid());
  ++pool_->blocks_[pool_->Checked(id_)].leases;
  return BlockLease(pool_, id_);
}

StatusOr<std::unique_ptr<BlockPool>> BlockPool::Create(Budget& budget, uint32_t capacity, uint64_t block_bytes) {
  EM_CHECK(block_bytes > 0 && block_bytes % AlignedBuffer::kAlignment == 0);
  if (capacity > 0 && block_bytes > UINT64_MAX / 2 / capacity) {
    return Exhausted("a pool of {} blocks of {} bytes is more than any machine has", capacity, block_bytes);
  }
  EM_ASSIGN_OR_RETURN(Reservation tables, budget.Reserve(MemoryCategory::kTables, uint64_t{capacity} * sizeof(Block)));
  EM_ASSIGN_OR_RETURN(AlignedBuffer memory,
                      AlignedBuffer::Allocate(budget, MemoryCategory::kPool, capacity * block_bytes));
  return std::unique_ptr<BlockPool>(new BlockPool(std::move(memory), std::move(tables), capacity, block_bytes));
}

BlockPool::BlockPool(AlignedBuffer memory, Reservation tables, uint32_t capacity, uint64_t block_bytes)
    : memory_(std::move(memory)),
      tables_(std::move(tables)),
      base_(memory_.data()),
      block_bytes_(block_bytes),
      blocks_(capacity),
      free_(capacity) {
  for (uint32_t i = 0; i < capacity; ++i) blocks_[i].next_free = i + 1;
  owned_[static_cast<size_t>(BlockOwner::kFree)] = capacity;
}

BlockPool::~BlockPool() { EM_CHECK(leased() == 0); }

std::optional<std::vector<BlockLease>> BlockPool::TryAcquire(uint32_t count, BlockOwner owner) {
  if (count > free_) return std::nullopt;
  std::vector<BlockLease> leases;
  leases.reserve(count);
  for (uint32_t i = 0; i < count; ++i) leases.push_back(Take(owner));
  return leases;
}

void BlockPool::ChangeOwner(const BlockLease& lease, BlockOwner owner) {
  EM_CHECK(lease.pool_ == this && owner != BlockOwner::kFree);
  Block& block = blocks_[Checked(lease.id())];
  EM_CHECK(block.leases == 1);
  --owned_[static_cast<size_t>(block.owner)];
  ++owned_[static_cast<size_t>(owner)];
  block.owner = owner;
}

void BlockPool::CheckInvariants() const {
  std::array<uint32_t, kBlockOwners> owned{};
  for (const Block& block : blocks_) {
    ++owned[static_cast<size_t>(block.owner)];
    EM_CHECK((block.leases == 0) == (block.owner == BlockOwner::kFree));
  }
  EM_CHECK(owned == owned_);
  EM_CHECK(owned[static_cast<size_t>(BlockOwner::kFree)] == free_);
  std::vector<bool> listed(capacity());
  uint32_t at = first_free_;
  for (uint32_t i = 0; i < free_; ++i, at = blocks_[at].next_free) {
    EM_CHECK(at < capacity() && !listed[at] && blocks_[at].leases == 0);
    listed[at] = true;
  }
}

}  // namespace elasticmem
