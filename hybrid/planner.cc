#include "hybrid/planner.h"

#include <algorithm>

namespace elasticmem {

ShrinkPlan PlanShrink(const NeuronTable& table, Tier tier, const Heat& heat, std::vector<uint32_t> neuron_blocks,
                      uint32_t count, uint32_t free_slots) {
  const SlotGrid& grid = table.grid(tier);
  std::vector<std::pair<float, uint32_t>> worth;  // (sum of heat, block)
  worth.reserve(neuron_blocks.size());
  for (const uint32_t block : neuron_blocks) {
    float sum = 0;
    for (uint32_t i = 0; i < grid.records_per_block; ++i) {
      if (const auto neuron = table.neuron_at(tier, grid.slot(block, i))) sum += heat.value(*neuron);
    }
    worth.emplace_back(sum, block);
  }
  count = std::min<uint32_t>(count, worth.size());
  std::partial_sort(worth.begin(), worth.begin() + count, worth.end());

  ShrinkPlan plan;
  std::vector<std::pair<float, NeuronId>> homeless;
  for (uint32_t b = 0; b < count; ++b) {
    plan.blocks.push_back(worth[b].second);
    for (const NeuronId neuron : table.NeuronsIn(tier, worth[b].second)) {
      homeless.emplace_back(heat.value(neuron), neuron);
    }
  }
  std::sort(homeless.begin(), homeless.end(), std::greater<>());
  for (const auto& [value, neuron] : homeless) {
    (plan.relocate.size() < free_slots ? plan.relocate : plan.drop).push_back(neuron);
  }
  return plan;
}

}  // namespace elasticmem
