// Slots that may be lent to neurons, by where they come from: whole neuron blocks, and the fragments that KV leaves
// over. What is lent from a fragment is wanted back sooner or later.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "mapping/neuron_table.h"
#include "mapping/slot_grid.h"
#include "mem/budget.h"

namespace elasticmem {

// Ordered from the loan that lasts longest to the one that is wanted back first.
enum class SlotSource : uint8_t {
  kNeuronBlock,  // a block owned by neurons
  kBlockTail,    // behind the page of a KV block: as long as the block is KV's
  kPageEnd,      // the unwritten end of a sequence's last page: until tokens arrive
  kReserve,      // a free block kept for KV growth: until a page boundary is crossed
};
inline constexpr size_t kSlotSources = 4;
std::string_view Name(SlotSource source);

// Invariants: a slot is withheld (not ours to lend), lendable or lent; lendable(source) + lent(source) == the slots
// offered from that source and not taken back; no slot is lent twice. The rule of safe return: a slot is taken back
// only after the neuron table has forgotten it, so that no kernel can follow an entry to bytes which are about to be
// overwritten; TakeBack checks it. One thread.
class FragmentMap {
 public:
  // For the slots of `grid`; 9 bytes a slot are reserved as kTables. All slots start withheld.
  static StatusOr<FragmentMap> Create(Budget& budget, Tier tier, const SlotGrid& grid);
  FragmentMap(FragmentMap&&) = default;
  FragmentMap& operator=(FragmentMap&&) = default;

  // Offers the withheld slots that lie wholly in bytes [begin, end) of `block`; returns how many. Slots that are
  // offered already keep their state but change their source (a block that changed its owner keeps its loans).
  uint32_t Offer(uint32_t block, uint64_t begin, uint64_t end, SlotSource source);
  // Lends the slot whose loan is likely to last longest; nothing where all are lent. `last` is the least lasting source
  // that will do.
  std::optional<SlotId> Lend(SlotSource last = SlotSource::kReserve);
  // The borrower is done with it: lendable again. The neuron table must have forgotten it.
  void Return(SlotId slot, const NeuronTable& table);

  // Lent slots that touch bytes [begin, end) of `block`: Clear() or relocate the neurons in them, then TakeBack.
  std::vector<SlotId> Loans(uint32_t block, uint64_t begin, uint64_t end) const;
  // Withholds every slot that touches bytes [begin, end) of `block`; no neuron may be in `table` at any of them.
  void TakeBack(uint32_t block, uint64_t begin, uint64_t end, const NeuronTable& table);

  bool lent(SlotId slot) const { return state_[slot.value()] >= kLent; }
  uint32_t lendable(SlotSource source) const { return lendable_[static_cast<size_t>(source)]; }
  uint32_t lent(SlotSource source) const { return lent_[static_cast<size_t>(source)]; }
  // Also checks that every neuron of our tier in `table` lies in a slot that is lent.
  void CheckInvariants(const NeuronTable& table) const;

 private:
  // state_ holds kWithheld, or kLendable + source, or kLent + source.
  static constexpr uint8_t kWithheld = 0;
  static constexpr uint8_t kLendable = 1;
  static constexpr uint8_t kLent = kLendable + kSlotSources;

  static constexpr uint32_t kNone = ~0u;

  FragmentMap(Reservation tables, Tier tier, const SlotGrid& grid);
  // Lists of lendable slots, by source, doubly linked through links_.
  void AddFree(uint32_t slot, size_t source);
  void RemoveFree(uint32_t slot, size_t source);
  // Positions of the slots of a block that touch bytes [begin, end).
  std::pair<uint32_t, uint32_t> PositionsTouching(uint64_t begin, uint64_t end) const;

  struct Links {
    uint32_t previous = kNone;
    uint32_t next = kNone;
  };

  Reservation tables_;
  Tier tier_;
  SlotGrid grid_;
  std::vector<uint8_t> state_;  // by slot
  std::vector<Links> links_;    // by slot, while lendable
  std::array<uint32_t, kSlotSources> first_free_;
  std::array<uint32_t, kSlotSources> lendable_{};
  std::array<uint32_t, kSlotSources> lent_{};
};

}  // namespace elasticmem
