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

// The `count` blocks of `neuron_blocks` whose neurons are worth least together. They are taken out of `neuron_blocks`.
// Looks at a bounded number of blocks for each that it chooses.
ShrinkPlan PlanShrink(const NeuronTable& table, Tier tier, const Heat& heat, ColdestBlocks& neuron_blocks,
                      uint32_t count);

// The worth of the block that PlanShrink would choose first; nothing where there is none.
std::optional<float> ColdestWorth(const NeuronTable& table, Tier tier, const Heat& heat, ColdestBlocks& neuron_blocks);

// Of the `candidates` the slot whose neuron is the coldest, if it is colder than `newcomer` by the hysteresis. Slots
// without a neuron and neurons that `is_protected` are passed over.
template <class Protected>
std::optional<SlotId> PickVictim(const NeuronTable& table, Tier tier, const Heat& heat, NeuronId newcomer,
                                 std::span<const SlotId> candidates, Protected&& is_protected) {
  float coldest = heat.value(newcomer) / heat.hysteresis();
  std::optional<SlotId> victim;
  for (const SlotId slot : candidates) {
    const std::optional<NeuronId> held = table.neuron_at(tier, slot);
    if (!held || heat.value(*held) >= coldest || is_protected(*held)) continue;
    coldest = heat.value(*held);
    victim = slot;
  }
  return victim;
}

// Neurons that were in memory, or asked for, and found no place: the first to come when there is room again. Bounded:
// the coldest are forgotten.
class Missed {
 public:
  static uint64_t MemoryBytes() { return (kMost + kMostFresh) * sizeof(NeuronId); }

  Missed() {
    ranked_.reserve(kMost + kMostFresh);
    fresh_.reserve(kMostFresh);
  }
  void Add(NeuronId id, const Heat& heat) {
    fresh_.push_back(id);
    if (fresh_.size() == kMostFresh) Rank(heat);
  }
  // Takes out one of the hottest that is still in the store; nothing where there is none.
  std::optional<NeuronId> TakeHottest(const NeuronTable& table, const Heat& heat);

 private:
  static constexpr size_t kMost = 3072;
  static constexpr size_t kMostFresh = 1024;
  void Rank(const Heat& heat);

  std::vector<NeuronId> ranked_;  // hottest last, as they were when ranked
  std::vector<NeuronId> fresh_;   // came since
};

}  // namespace elasticmem
