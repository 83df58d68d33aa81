#include "hybrid/victim_search.h"

#include <algorithm>
#include <array>

namespace elasticmem {
namespace {

// Neurons looked at for one newcomer, in turn; of 8 the coldest is among the coldest eighth on average.
constexpr uint32_t kVictimWindow = 8;
// Blocks without a neuron that the search steps over at most.
constexpr uint32_t kMostSkips = 64;
// Of the newcomers that are half as hot as what is usually found, one in so many looks for a colder one.
constexpr uint32_t kHopelessLooks = 16;

}  // namespace

std::optional<Resident> VictimSearch::Find(const NeuronTable& table, const Heat& heat, NeuronId newcomer,
                                           const std::function<bool(NeuronId)>& is_protected) {
  // Most that ask are far colder than what they would find: only now and then one of those is let look.
  if (heat.value(newcomer) < usual_coldest_ / 2 && ++refused_unseen_ % kHopelessLooks != 0) return std::nullopt;
  const SlotGrid& grid = table.grid(tier_);
  std::array<Resident, kVictimWindow> candidates;
  uint32_t count = 0;
  for (uint32_t skips = 0; count < kVictimWindow && skips < kMostSkips;) {
    if (position_ == 0 && table.resident_in(tier_, block_) == 0) {
      ++skips;
      block_ = (block_ + 1) % grid.capacity_blocks;
      continue;
    }
    const SlotId slot = grid.slot(block_, position_);
    if (const auto neuron = table.neuron_at(tier_, slot)) candidates[count++] = {slot, *neuron};
    if (++position_ == grid.records_per_block) {
      position_ = 0;
      block_ = (block_ + 1) % grid.capacity_blocks;
      ++skips;
    }
  }
  const auto seen = std::span<const Resident>(candidates).first(count);
  const std::optional<Resident> victim = PickVictim(heat, newcomer, seen, is_protected);
  if (!victim && count == kVictimWindow) {
    float coldest = heat.value(seen[0].neuron);
    for (const Resident& resident : seen) coldest = std::min(coldest, heat.value(resident.neuron));
    usual_coldest_ += (coldest - usual_coldest_) / 8;
  }
  return victim;
}

}  // namespace elasticmem
