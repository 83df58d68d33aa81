// Decides which neurons leave and which stay; pure functions of tables and heat. NeuronResidency applies what they say.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "hybrid/heat.h"
#include "mapping/neuron_table.h"

namespace elasticmem {

// Blocks that neurons give up, and what becomes of the neurons in them.
struct ShrinkPlan {
  std::vector<uint32_t> blocks;     // coldest first
  std::vector<NeuronId> relocate;   // the hottest of their neurons, hottest first: to free slots elsewhere
  std::vector<NeuronId> drop;
};

// The `count` of `neuron_blocks` whose neurons are worth least together. `free_slots` neurons may be relocated: so many slots
// are free outside the chosen blocks.
ShrinkPlan PlanShrink(const NeuronTable& table, Tier tier, const Heat& heat, std::vector<uint32_t> neuron_blocks,
                      uint32_t count, uint32_t free_slots);

// Of the `candidates` the slot whose neuron is the coldest, if it is colder than `newcomer` by the hysteresis. Slots without a
// neuron and neurons that `is_protected` are passed over.
template <class Protected>
std::optional<SlotId> PickVictim(const NeuronTable& table, Tier tier, const Heat& heat, NeuronId newcomer,
                                 std::span<const SlotId> candidates, Protected&& is_protected) {
  // A newcomer must be this much hotter, or two neurons of like heat would take turns.
  constexpr float kHysteresis = 1.25f;
  float coldest = heat.value(newcomer) / kHysteresis;
  std::optional<SlotId> victim;
  for (const SlotId slot : candidates) {
    const std::optional<NeuronId> held = table.neuron_at(tier, slot);
    if (!held || is_protected(*held) || heat.value(*held) >= coldest) continue;
    coldest = heat.value(*held);
    victim = slot;
  }
  return victim;
}

}  // namespace elasticmem
