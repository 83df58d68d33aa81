// Which neurons are in memory: owns the neuron table, their heat, the slots lent to them and the blocks they hold.
// Neurons take every block that KV leaves; when KV wants blocks back, the coldest neurons leave.
//
// Where there is a host tier below the device's pool, a neuron is in one of them or in neither, so that both together
// hold as many as they have room for. Records from the store land on the host; from there the hottest go up and take
// the place of colder ones, which go down, by copies that run beside the steps.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "hybrid/heat.h"
#include "hybrid/planner.h"
#include "hybrid/record_copies.h"
#include "hybrid/victim_search.h"
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

struct HostTierOptions {
  Budget* budget = nullptr;  // of the host: its slots, and all tables but those that describe the device's pool
  Device* device = nullptr;
  uint32_t slots = 0;
};

// A neuron that is to be loaded, and where to.
struct Placement {
  NeuronId neuron;
  Tier tier = Tier::kDevice;
  friend auto operator<=>(const Placement&, const Placement&) = default;
};

struct ResidencyStatistics {
  uint64_t evicted_blocks = 0;
  uint64_t dropped = 0;    // neurons that left for the store
  uint64_t relocated = 0;  // neurons of evicted blocks that were worth a place elsewhere
  uint64_t promoted = 0;   // neurons that came from the store, late or ahead of need
  uint64_t moved_up = 0;   // copied from the host to the device, and down
  uint64_t moved_down = 0;
  uint64_t copies_in_vain = 0;  // started, and of no use when they were done
  uint64_t copy_waits = 0;      // times that blocks could only be had by waiting for copies into them
  uint64_t nanos = 0;           // spent on all this
};

// Invariants: a neuron block is leased here and all its slots are offered as kNeuronBlock, but for those that were
// vacated ahead of need; every resident neuron lies in a lent slot, and all other lent slots wait for a copy; of a KV
// block only the tail and the unwritten end of its page are offered. One thread; pool, budgets and device outlive it.
class NeuronResidency {
 public:
  // `budget` is the device's. Without `host` there are two tiers, and all memory is the device's.
  static StatusOr<std::unique_ptr<NeuronResidency>> Create(Budget& budget, BlockPool* pool,
                                                           const ResidencyOptions& options,
                                                           const std::optional<HostTierOptions>& host = std::nullopt);
  // What a host tier takes for each record, and besides.
  static uint64_t HostSlotBytes(uint64_t slot_bytes) { return slot_bytes + 13; }  // the slot, and its entries in tables
  static uint64_t HostFixedBytes(uint32_t neurons_per_layer, uint32_t records_per_block);

  // The neuron's record in memory, or null when it is only in the store.
  const std::byte* Record(NeuronId id) const { return Record(table_.Lookup(id)); }
  const std::byte* Record(NeuronEntry entry) const {
    if (entry.tier() == Tier::kStore) return nullptr;
    return Base(entry.tier()) + uint64_t{entry.address()} * SlotGrid::kUnitBytes;
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

  // A slot to fill with a record from the store: a free one, or that of a neuron clearly colder; on the host where
  // there is one, else on the device. Null: not worth it. The caller writes the record there before anyone looks it up.
  // `is_protected` neurons keep their place.
  std::byte* Admit(NeuronId id, const std::function<bool(NeuronId)>& is_protected);
  // The same, only if a slot is free.
  std::byte* AdmitIfFree(NeuronId id);
  // A neuron of the store that deserves a free slot; nothing where none is free or none is known. For promotions.
  std::optional<NeuronId> NextPromotion();

  // Neurons are worth what `values` [layers, neurons] says from now on: the most valuable belong on the device, the
  // next ones on the host, as far as their slots go. Those that are elsewhere leave; returns those that are missing, in
  // layer order, to be read and loaded. Waits for copies.
  std::vector<Placement> Place(std::span<const float> values);
  // Copies a record from the store into a free slot, at once; false where none is free.
  bool Load(const Placement& placement, std::span<const std::byte> record);

  // With a host tier; else these do nothing. None ever waits.
  // A token uses a neuron that lies on the host: it may go up, if that is said before the next MoveBetweenTiers.
  void WantOnDevice(NeuronId id) {
    if (climbers_.size() < climbers_.capacity()) climbers_.push_back(id);
  }
  // KV will soon want `blocks` blocks more than it has: the neurons of the coldest go down before that.
  void Vacate(uint32_t blocks);
  // Takes in copies that are done and starts the next. Not while a layer's records are in use.
  void MoveBetweenTiers();

  // `tokens` tokens have passed.
  void Advance(uint32_t tokens);
  Heat& heat() { return heat_; }
  const NeuronTable& table() const { return table_; }
  Policy policy() const { return options_.policy; }
  // Blocks that KV can have: what is free now or can be made so; and at most, with no neuron left.
  uint32_t obtainable_blocks() const { return pool_->free() + (fixed() ? 0 : pool_->blocks(BlockOwner::kNeuron)); }
  uint32_t most_kv_blocks() const { return fixed() ? options_.static_kv_blocks : pool_->capacity(); }
  bool has_host() const { return host_.has_value(); }
  uint32_t host_slots() const { return host_ ? table_.grid(Tier::kHost).slots() : 0; }
  uint32_t slots() const;  // that neurons can use now on the device
  uint32_t resident() const { return resident(Tier::kDevice) + resident(Tier::kHost); }
  uint32_t resident(Tier tier) const { return table_.resident(tier); }
  // Slots in what KV leaves over (tails and page ends), and how many are lent.
  uint32_t fragment_slots() const;
  uint32_t fragment_slots_used() const {
    return fragments_.lent(SlotSource::kBlockTail) + fragments_.lent(SlotSource::kPageEnd);
  }
  uint32_t page_end_slots() const {
    return fragments_.lent(SlotSource::kPageEnd) + fragments_.lendable(SlotSource::kPageEnd);
  }
  // Slots without a neuron: on the device, and where records from the store land.
  uint32_t empty_slots() const {
    return fragments_.lendable(SlotSource::kBlockTail) + fragments_.lendable(SlotSource::kPageEnd) +
           fragments_.lendable(SlotSource::kNeuronBlock);
  }
  uint32_t free_slots() const { return host_ ? host_->slots.lendable(SlotSource::kNeuronBlock) : empty_slots(); }
  uint32_t reserve_blocks() const { return reserve_; }
  std::span<const uint32_t> leaving_blocks() const { return leaving_; }  // being vacated
  size_t copies_under_way() const { return host_ ? host_->copies.size() : 0; }
  const ResidencyStatistics& statistics() const { return statistics_; }
  void CheckInvariants() const;

 private:
  // The host's slots are one block of their own, which only neurons use.
  struct HostTier {
    AlignedBuffer memory;
    FragmentMap slots;
    RecordCopies copies;
    VictimSearch victims{Tier::kHost};
  };
  struct Tables {
    NeuronTable table;
    FragmentMap fragments;
    Heat heat;
    Reservation device, others;
  };
  // Blocks vacated at once, at most.
  static constexpr uint32_t kMostLeaving = 16;

  NeuronResidency(BlockPool* pool, const ResidencyOptions& options, Tables tables, std::optional<HostTier> host);

  bool fixed() const { return options_.policy == Policy::kStatic; }
  // Where records from the store land.
  Tier landing() const { return host_ ? Tier::kHost : Tier::kDevice; }
  std::byte* Base(Tier tier) const { return tier == Tier::kDevice ? pool_->base() : host_->memory.data(); }
  FragmentMap& SlotsOf(Tier tier) { return tier == Tier::kDevice ? fragments_ : host_->slots; }
  const FragmentMap& SlotsOf(Tier tier) const { return tier == Tier::kDevice ? fragments_ : host_->slots; }
  std::byte* Address(Tier tier, SlotId slot) const { return Base(tier) + table_.grid(tier).offset(slot); }
  bool IsMoving(NeuronId id) const { return host_ && host_->copies.IsMoving(id); }
  bool IsLeaving(NeuronId id) const;
  void Shrink(uint32_t blocks);
  void AddBlock(BlockLease lease);
  std::optional<SlotId> Lend(Tier tier, SlotSource last = SlotSource::kReserve);
  std::byte* AdmitIfFree(Tier tier, NeuronId id);
  std::byte* Admit(Tier tier, NeuronId id, const std::function<bool(NeuronId)>& is_protected);
  void Clear(NeuronId id);
  void Drop(NeuronId id);

  // residency_tiers.cc
  std::vector<uint32_t> HideArrivals();
  void Show(std::span<const uint32_t> blocks);
  void WaitForCopies();
  void TakeInArrived();
  void Vacated(Tier tier, SlotId slot);
  void StartCopy(NeuronId id, Tier to, SlotId slot);
  bool SendDown(NeuronId id);
  bool SendNext(std::span<const NeuronId>& climbers);

  BlockPool* const pool_;
  const ResidencyOptions options_;
  Reservation device_tables_, other_tables_;
  NeuronTable table_;
  FragmentMap fragments_;  // of the device
  Heat heat_;
  std::vector<BlockLease> leases_;  // by block index: of the blocks that neurons hold
  ColdestBlocks coldest_;           // the same blocks
  Missed missed_;
  uint32_t reserve_ = 0;  // free blocks that Grow leaves
  VictimSearch victims_{Tier::kDevice};
  std::optional<HostTier> host_;
  std::vector<NeuronId> climbers_;       // on the host and in use since the last move
  std::vector<NeuronId> promised_;       // on the host: neurons are going down to make place for them
  std::vector<uint32_t> leaving_;        // neuron blocks that KV will want; their empty slots are withheld
  std::vector<NeuronId> leaving_queue_;  // in those, hottest last: not yet sent down
  ResidencyStatistics statistics_;
};

}  // namespace elasticmem
