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

// Invariants: a neuron block is leased here and all its slots are offered as kNeuronBlock; every resident neuron lies in a lent
// slot; of a KV block only the tail is offered. One thread; the pool outlives it.
class NeuronResidency {
 public:
  // Slots lie at multiples of slot_bytes in the pool's blocks. `page_bytes`: what a KV page uses of its block.
  static StatusOr<std::unique_ptr<NeuronResidency>> Create(Budget& budget, BlockPool* pool, uint32_t layers,
                                                           uint32_t neurons_per_layer, uint64_t slot_bytes,
                                                           uint64_t page_bytes);

  // The neuron's record in memory, or null when it is only in the store.
  const std::byte* Record(NeuronId id) const {
    const NeuronEntry entry = table_.Lookup(id);
    if (entry.tier() == Tier::kStore) return nullptr;
    return pool_->base() + uint64_t{entry.address()} * SlotGrid::kUnitBytes;
  }

  // Takes all free blocks for neurons, as far as there are neurons for them.
  void Grow();
  // Drops or relocates neurons until the pool has `blocks` free ones, as far as neuron blocks go.
  void MakeFree(uint32_t blocks);
  // A block has become KV: its tail can be lent. A KV block is about to be freed: its tail is taken back.
  void OfferKvTail(uint32_t block);
  void TakeBackKvTail(uint32_t block);

  // A slot to fill with a record that is not resident: a free one, or that of a neuron clearly colder. Null: not worth it.
  // The caller writes the record there before anyone looks it up. `is_protected` neurons keep their place.
  std::byte* Admit(NeuronId id, const std::function<bool(NeuronId)>& is_protected);
  // The same, only if a slot is free.
  std::byte* AdmitIfFree(NeuronId id);

  Heat& heat() { return heat_; }
  const NeuronTable& table() const { return table_; }
  uint32_t slots() const;      // that neurons can use now
  uint32_t resident() const { return table_.resident(Tier::kDevice); }
  uint32_t fragment_slots() const;  // slots in fragments, and how many are lent
  uint32_t fragment_slots_used() const { return fragments_.lent(SlotSource::kBlockTail); }
  uint64_t management_nanos() const { return nanos_; }  // spent on planning and moving
  void CheckInvariants() const;

 private:
  NeuronResidency(BlockPool* pool, NeuronTable table, FragmentMap fragments, Heat heat, uint64_t page_bytes)
      : pool_(pool), table_(std::move(table)), fragments_(std::move(fragments)), heat_(std::move(heat)),
        page_bytes_(page_bytes) {}

  std::byte* Address(SlotId slot) const { return pool_->base() + table_.grid(Tier::kDevice).offset(slot); }
  void Apply(const ShrinkPlan& plan);

  BlockPool* pool_;
  NeuronTable table_;
  FragmentMap fragments_;
  Heat heat_;
  uint64_t page_bytes_;
  std::vector<BlockLease> blocks_;  // that neurons hold
  uint32_t clock_ = 0;              // where the search for the next victim starts
  uint64_t nanos_ = 0;
};

}  // namespace elasticmem
