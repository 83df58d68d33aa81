// Decides which neurons leave, which move and which come; pure functions of tables, heat and demand. NeuronResidency
// applies what they say.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "hybrid/coldest_blocks.h"
#include "hybrid/heat.h"
#include "mapping/neuron_table.h"

namespace elasticmem {

// How the pool is shared between KV and neurons, and which neurons are kept.
enum class Policy : uint8_t {
  kElastic,  // KV takes blocks from the coldest neurons as it grows, neurons take them back as it shrinks
  kStatic,   // a fixed share is KV's, and a fixed set of neurons, the hottest when loaded, fills the rest
  kLru,      // as elastic, but the least lately used neurons leave, and every missing one comes
  kOracle,   // as elastic, with true frequencies told in advance; for the bench
};
std::string_view Name(Policy policy);

// Blocks that neurons give up, and the neurons in them, the hottest first: those worth more than others that stay take
// their places, the rest is dropped.
struct ShrinkPlan {
  std::vector<uint32_t> blocks;  // coldest first
  std::vector<NeuronId> homeless;
};

// The `count` blocks of `neuron_blocks` whose neurons are worth least together; before all others those of `first`,
// which are among them. They are taken out of `neuron_blocks`. Looks at a bounded number of blocks for each that it
// chooses.
ShrinkPlan PlanShrink(const NeuronTable& table, Tier tier, const Heat& heat, ColdestBlocks& neuron_blocks,
                      uint32_t count, std::span<const uint32_t> first = {});

// The worth of the block that PlanShrink would choose first; nothing where there is none.
std::optional<float> ColdestWorth(const NeuronTable& table, Tier tier, const Heat& heat, ColdestBlocks& neuron_blocks);

// Free blocks to have now, of which there are `free`, so that no later step has to free more at once than this one does:
// needed[s] are wanted within the next s + 1 steps. What KV will need is known ahead, so it is spread over the steps.
uint32_t BlocksToHaveReady(std::span<const uint32_t> needed, uint32_t free);

// A neuron in memory, and where.
struct Resident {
  SlotId slot;
  NeuronId neuron;
};

// Of the `candidates` the coldest, if it is colder than `newcomer` by the hysteresis. Neurons that `is_protected` are
// passed over.
template <class Protected>
std::optional<Resident> PickVictim(const Heat& heat, NeuronId newcomer, std::span<const Resident> candidates,
                                   Protected&& is_protected) {
  float coldest = heat.value(newcomer) / heat.hysteresis();
  std::optional<Resident> victim;
  for (const Resident& candidate : candidates) {
    if (heat.value(candidate.neuron) >= coldest || is_protected(candidate.neuron)) continue;
    coldest = heat.value(candidate.neuron);
    victim = candidate;
  }
  return victim;
}

// Neurons that were in memory, or asked for, and found no place: the first to come when there is room again. Each is in
// it once; it is bounded, and the coldest are forgotten.
class Missed {
 public:
  static uint64_t MemoryBytes(uint64_t neurons) { return (kMost + kMostFresh) * sizeof(NeuronId) + (neurons + 7) / 8; }

  Missed(uint32_t layers, uint32_t neurons_per_layer)
      : neurons_per_layer_(neurons_per_layer), listed_(size_t{layers} * neurons_per_layer) {
    ranked_.reserve(kMost + kMostFresh);
    fresh_.reserve(kMostFresh);
  }
  void Add(NeuronId id, const Heat& heat) {
    if (heat.value(id) < floor_ || listed_[Flat(id)]) return;
    listed_[Flat(id)] = true;
    fresh_.push_back(id);
    if (fresh_.size() == kMostFresh) Merge(heat);
  }
  // Takes out one of the hottest that is still in the store; nothing where there is none.
  std::optional<NeuronId> TakeHottest(const NeuronTable& table, const Heat& heat);
  // All heat was multiplied by `factor`; all heat is other than it was.
  void Scale(float factor) { floor_ *= factor; }
  void ForgetFloor() { floor_ = 0; }

 private:
  static constexpr size_t kMost = 3072;
  static constexpr size_t kMostFresh = 1024;
  size_t Flat(NeuronId id) const { return size_t{id.layer} * neurons_per_layer_ + id.neuron; }
  void Merge(const Heat& heat);

  const uint32_t neurons_per_layer_;
  std::vector<bool> listed_;      // by neuron
  std::vector<NeuronId> ranked_;  // where sorted_: hottest last, as they were then
  std::vector<NeuronId> fresh_;   // came since
  bool sorted_ = true;
  float floor_ = 0;  // what is colder would be forgotten at once
};

}  // namespace elasticmem
