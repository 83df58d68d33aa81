// Where every neuron's record is: the forward table that kernels follow, (layer, neuron) -> tier and address, and the
// reverse one, slot -> neuron, that eviction and audits follow. Both change together, here only.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "mapping/slot_grid.h"
#include "mem/budget.h"

namespace elasticmem {

struct NeuronId {
  uint32_t layer = 0;
  uint32_t neuron = 0;  // model index inside the layer
  friend auto operator<=>(const NeuronId&, const NeuronId&) = default;
};

enum class Tier : uint8_t { kStore = 0, kHost = 1, kDevice = 2 };

// 32 bits: tier in the upper two, slot address in 64-byte units of that tier's pool in the lower 30 (0 for the store).
// All zero: in the store. Kernels read `pool base + address() * 64`.
class NeuronEntry {
 public:
  static constexpr uint32_t kAddressBits = 30;
  static constexpr uint32_t kAddressMask = (1u << kAddressBits) - 1;

  constexpr NeuronEntry() = default;
  constexpr NeuronEntry(Tier tier, uint32_t address) : bits_(static_cast<uint32_t>(tier) << kAddressBits | address) {}
  constexpr Tier tier() const { return static_cast<Tier>(bits_ >> kAddressBits); }
  constexpr uint32_t address() const { return bits_ & kAddressMask; }
  constexpr uint32_t bits() const { return bits_; }
  friend constexpr bool operator==(NeuronEntry, NeuronEntry) = default;

 private:
  uint32_t bits_ = 0;
};
static_assert(sizeof(NeuronEntry) == 4);

// Invariants: entry(n) == {tier, address of slot s} iff neuron_at(tier, s) == n, so a slot holds at most one neuron and
// a neuron lies in at most one slot; resident(tier) counts them. One thread.
class NeuronTable {
 public:
  // All neurons in the store, no pool yet. 4 bytes a neuron are reserved as kTables.
  static StatusOr<NeuronTable> Create(Budget& budget, uint32_t layers, uint32_t neurons_per_layer);
  NeuronTable(NeuronTable&&) = default;
  NeuronTable& operator=(NeuronTable&&) = default;

  // Tells where slots of `tier` (kHost or kDevice) are; once a tier, before its first Set. 4 bytes a slot, plus 4 a
  // block. Error: Unsupported where the pool ends beyond 64 GiB.
  Status AttachPool(Budget& budget, Tier tier, const SlotGrid& grid);

  uint32_t layers() const { return layers_; }
  uint32_t neurons_per_layer() const { return neurons_per_layer_; }
  const SlotGrid& grid(Tier tier) const { return pools_[static_cast<size_t>(tier)].grid; }

  NeuronEntry Lookup(NeuronId id) const { return entries_[Flat(id)]; }
  // Entries of one layer, by neuron: what kernels take.
  std::span<const NeuronEntry> Layer(uint32_t layer) const {
    return {entries_.data() + size_t{layer} * neurons_per_layer_, neurons_per_layer_};
  }
  // The neuron now lies in `slot`, which must be empty; where it lay before is empty afterwards. The bytes are the
  // caller's affair and must be there already.
  void Set(NeuronId id, Tier tier, SlotId slot);
  // Back to the store (which it never left: weights don't change). Fine for one that is there.
  void Clear(NeuronId id);

  std::optional<NeuronId> neuron_at(Tier tier, SlotId slot) const;
  // Neurons that lie in one block, in slot order, and how many.
  std::vector<NeuronId> NeuronsIn(Tier tier, uint32_t block) const;
  uint32_t resident_in(Tier tier, uint32_t block) const { return pools_[static_cast<size_t>(tier)].used[block]; }
  uint32_t resident(Tier tier) const { return pools_[static_cast<size_t>(tier)].resident; }

  // Walks both tables.
  void CheckInvariants() const;

 private:
  static constexpr uint32_t kNone = ~0u;
  struct Pool {
    SlotGrid grid;
    Reservation tables;
    std::vector<uint32_t> neurons;  // by slot: flat index of the neuron, or kNone
    std::vector<uint32_t> used;     // by block: slots that hold a neuron
    uint32_t resident = 0;
  };

  NeuronTable(Reservation tables, uint32_t layers, uint32_t neurons_per_layer);
  uint32_t Flat(NeuronId id) const {
    EM_DCHECK(id.layer < layers_ && id.neuron < neurons_per_layer_);
    return id.layer * neurons_per_layer_ + id.neuron;
  }
  NeuronId Unflat(uint32_t flat) const { return {flat / neurons_per_layer_, flat % neurons_per_layer_}; }

  Reservation tables_;
  uint32_t layers_;
  uint32_t neurons_per_layer_;
  std::vector<NeuronEntry> entries_;  // [layers, neurons_per_layer]
  std::array<Pool, 3> pools_;         // by tier; the store's stays empty
};

}  // namespace elasticmem
