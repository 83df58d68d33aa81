// Which neurons are in memory: owns the neuron table, their heat, the slots lent to them and the blocks they hold.
// Neurons take every block that KV leaves; when KV wants blocks back, the coldest neurons leave.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "hybrid/heat.h"
#include "hybrid/planner.h"
#include "mapping/fragment_map.h"
#include "mapping/neuron_table.h"
#include "mem/block_pool.h"
#include "mem/budget.h"

namespace elasticmem {

struct ResidencyOptions {
  Policy policy = Policy::kElastic;
  uint32_t layers = 0;
  uint32_t neurons_per_layer = 0;
  uint64_t slot_bytes = 0;        // slots lie at multiples of this in the pool's blocks
  uint64_t page_bytes = 0;        // what a KV page uses of its block
  uint32_t static_kv_blocks = 0;  // kStatic: what is KV's and stays so
  bool count_activations = false;
};

struct ResidencyStatistics {
  uint64_t evicted_blocks = 0;
  uint64_t dropped = 0;    // neurons that left
  uint64_t relocated = 0;  // neurons of evicted blocks that were worth a place elsewhere
  uint64_t promoted = 0;   // neurons that came, late or ahead of need
  uint64_t nanos = 0;      // spent on all this
};

// Invariants: a neuron block is leased here and all its slots are offered as kNeuronBlock; every resident neuron lies
// in a lent slot; of a KV block only the tail and the unwritten end of its page are offered. One thread; the pool
// outlives it.
class NeuronResidency {
 public:
  static StatusOr<std::unique_ptr<NeuronResidency>> Create(Budget& budget, BlockPool* pool,
                                                           const ResidencyOptions& options);

  // The neuron's record in memory, or null when it is only in the store.
  const std::byte* Record(NeuronId id) const {
    const NeuronEntry entry = table_.Lookup(id);
    if (entry.tier() == Tier::kStore) return nullptr;
    return pool_->base() + uint64_t{entry.address()} * SlotGrid::kUnitBytes;
  }

  // Takes the free blocks beyond the reserve for neurons, as far as there are neurons for them.
  void Grow();
  // Neurons give up blocks until the pool has `blocks` free ones, as far as neuron blocks go.
  void MakeFree(uint32_t blocks);
  // Grow leaves so many blocks free from now on.
  void SetReserve(uint32_t blocks);
  // How many neurons of the block that MakeFree would take first are active in a token, on average. Nothing where no
  // block is to be had, or where heat does not tell.
  std::optional<float> ColdestBlockActivity();
  // A block has become KV: its tail can be lent, and the end of its page from byte `begin` on, where nothing is written
  // yet.
  void OfferKvTail(uint32_t block);
  void OfferPageEnd(uint32_t block, uint64_t begin);
  // Bytes [begin, end) of a KV block are about to be written, or (TakeBackKv) the block to be freed: neurons there
  // leave.
  void TakeBack(uint32_t block, uint64_t begin, uint64_t end);
  void TakeBackKv(uint32_t block) { TakeBack(block, 0, pool_->block_bytes()); }

  // A slot to fill with a record that is not resident: a free one, or that of a neuron clearly colder. Null: not worth
  // it. The caller writes the record there before anyone looks it up. `is_protected` neurons keep their place.
  std::byte* Admit(NeuronId id, const std::function<bool(NeuronId)>& is_protected);
  // The same, only if a slot is free.
  std::byte* AdmitIfFree(NeuronId id);
  // A neuron of the store that deserves a free slot; nothing where none is free or none is known. For promotions.
  std::optional<NeuronId> NextPromotion();

  // Neurons are worth what `values` [layers, neurons] says from now on. Those that are not among the most valuable that
  // slots can hold leave; returns those that are and are missing, in layer order, to be read and admitted.
  std::vector<NeuronId> Place(std::span<const float> values);

  // `tokens` tokens have passed.
  void Advance(uint32_t tokens);
  Heat& heat() { return heat_; }
  const NeuronTable& table() const { return table_; }
  Policy policy() const { return options_.policy; }
  // Blocks that KV can have: what is free now or can be made so; and at most, with no neuron left.
  uint32_t obtainable_blocks() const { return pool_->free() + (fixed() ? 0 : pool_->blocks(BlockOwner::kNeuron)); }
  uint32_t most_kv_blocks() const { return fixed() ? options_.static_kv_blocks : pool_->capacity(); }
  uint32_t slots() const;  // that neurons can use now
  uint32_t resident() const { return table_.resident(Tier::kDevice); }
  // Slots in what KV leaves over (tails and page ends), and how many are lent.
  uint32_t fragment_slots() const;
  uint32_t fragment_slots_used() const {
    return fragments_.lent(SlotSource::kBlockTail) + fragments_.lent(SlotSource::kPageEnd);
  }
  uint32_t page_end_slots() const {
    return fragments_.lent(SlotSource::kPageEnd) + fragments_.lendable(SlotSource::kPageEnd);
  }
  uint32_t free_slots() const {
    return fragments_.lendable(SlotSource::kBlockTail) + fragments_.lendable(SlotSource::kPageEnd) +
           fragments_.lendable(SlotSource::kNeuronBlock);
  }
  uint32_t reserve_blocks() const { return reserve_; }
  const ResidencyStatistics& statistics() const { return statistics_; }
  void CheckInvariants() const;

 private:
  NeuronResidency(BlockPool* pool, const ResidencyOptions& options, NeuronTable table, FragmentMap fragments, Heat heat,
                  Reservation tables);

  bool fixed() const { return options_.policy == Policy::kStatic; }
  std::byte* Address(SlotId slot) const { return pool_->base() + table_.grid(Tier::kDevice).offset(slot); }
  void Shrink(uint32_t blocks);
  void AddBlock(BlockLease lease);
  std::optional<Resident> FindVictim(NeuronId id, const std::function<bool(NeuronId)>& is_protected);

  BlockPool* const pool_;
  const ResidencyOptions options_;
  Reservation tables_;
  NeuronTable table_;
  FragmentMap fragments_;
  Heat heat_;
  std::vector<BlockLease> leases_;  // by block index: of the blocks that neurons hold
  ColdestBlocks coldest_;           // the same blocks
  Missed missed_;
  uint32_t reserve_ = 0;      // free blocks that Grow leaves
  uint32_t clock_block_ = 0;  // where the search for the next victim goes on
  uint32_t clock_position_ = 0;
  float usual_coldest_ = 0;  // heat of the coldest neuron that those who look usually find
  uint32_t refused_unseen_ = 0;
  ResidencyStatistics statistics_;
};

}  // namespace elasticmem
