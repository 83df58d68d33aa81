#include "hybrid/planner.h"

#include <algorithm>

#include "base/units.h"

namespace elasticmem {

std::string_view Name(Policy policy) {
  switch (policy) {
    case Policy::kElastic:
      return "elastic";
    case Policy::kStatic:
      return "static";
    case Policy::kLru:
      return "lru";
    case Policy::kOracle:
      return "oracle";
  }
  return "?";
}

namespace {

constexpr uint32_t kLooksPerBlock = 32;

float Worth(const NeuronTable& table, Tier tier, const Heat& heat, uint32_t block) {
  const SlotGrid& grid = table.grid(tier);
  float sum = 0;
  for (uint32_t i = 0; i < grid.records_per_block; ++i) {
    if (const auto neuron = table.neuron_at(tier, grid.slot(block, i))) sum += heat.value(*neuron);
  }
  return sum;
}

std::optional<uint32_t> Coldest(const NeuronTable& table, Tier tier, const Heat& heat, ColdestBlocks& blocks) {
  return blocks.Coldest([&](uint32_t block) { return Worth(table, tier, heat, block); }, kLooksPerBlock);
}

}  // namespace

std::optional<float> ColdestWorth(const NeuronTable& table, Tier tier, const Heat& heat, ColdestBlocks& neuron_blocks) {
  const std::optional<uint32_t> block = Coldest(table, tier, heat, neuron_blocks);
  return block ? std::optional(Worth(table, tier, heat, *block)) : std::nullopt;
}

ShrinkPlan PlanShrink(const NeuronTable& table, Tier tier, const Heat& heat, ColdestBlocks& neuron_blocks,
                      uint32_t count, std::span<const uint32_t> first) {
  ShrinkPlan plan;
  std::vector<std::pair<float, NeuronId>> homeless;
  while (plan.blocks.size() < count) {
    const size_t chosen = plan.blocks.size();
    const std::optional<uint32_t> block =
        chosen < first.size() ? std::optional(first[chosen]) : Coldest(table, tier, heat, neuron_blocks);
    if (!block) break;
    neuron_blocks.Remove(*block);
    plan.blocks.push_back(*block);
    for (const NeuronId neuron : table.NeuronsIn(tier, *block)) homeless.emplace_back(heat.value(neuron), neuron);
  }
  std::sort(homeless.begin(), homeless.end(), std::greater<>());
  for (const auto& [value, neuron] : homeless) plan.homeless.push_back(neuron);
  return plan;
}

uint32_t BlocksToHaveReady(std::span<const uint32_t> needed, uint32_t free) {
  uint32_t a_step = 0;
  for (uint32_t s = 0; s < needed.size(); ++s) {
    if (needed[s] > free) a_step = std::max(a_step, CeilDiv(needed[s] - free, s + 1));
  }
  return free + a_step;
}

void Missed::Merge(const Heat& heat) {
  ranked_.insert(ranked_.end(), fresh_.begin(), fresh_.end());
  fresh_.clear();
  sorted_ = false;
  if (ranked_.size() <= kMost) return;
  const auto kept = ranked_.begin() + static_cast<long>(ranked_.size() - kMost);
  std::nth_element(ranked_.begin(), kept, ranked_.end(),
                   [&](NeuronId a, NeuronId b) { return heat.value(a) < heat.value(b); });
  floor_ = heat.value(*kept);
  for (auto it = ranked_.begin(); it != kept; ++it) listed_[Flat(*it)] = false;
  ranked_.erase(ranked_.begin(), kept);
}

std::optional<NeuronId> Missed::TakeHottest(const NeuronTable& table, const Heat& heat) {
  if (ranked_.empty()) Merge(heat);
  if (!sorted_) {
    std::sort(ranked_.begin(), ranked_.end(), [&](NeuronId a, NeuronId b) {
      const float heat_a = heat.value(a), heat_b = heat.value(b);
      return heat_a != heat_b ? heat_a < heat_b : a < b;
    });
    sorted_ = true;
  }
  floor_ = 0;
  while (!ranked_.empty()) {
    const NeuronId id = ranked_.back();
    ranked_.pop_back();
    listed_[Flat(id)] = false;
    if (table.Lookup(id).tier() == Tier::kStore) return id;
  }
  return std::nullopt;
}

}  // namespace elasticmem
