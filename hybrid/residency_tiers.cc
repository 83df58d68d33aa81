// How neurons move between device and host.
//
// A copy must never write where KV may be by the time it lands. So records go up only into slots that KV does not
// write: those of neuron blocks, which Shrink passes over while something is on its way there, and block tails. What
// happens to a neuron while its copy is under way cancels the copy, whose slot is free again when it is done.
#include <algorithm>

#include "base/stopwatch.h"
#include "hybrid/residency.h"

namespace elasticmem {

bool NeuronResidency::IsLeaving(NeuronId id) const {
  if (leaving_.empty()) return false;
  const NeuronEntry entry = table_.Lookup(id);
  if (entry.tier() != Tier::kDevice) return false;
  const SlotGrid& grid = table_.grid(Tier::kDevice);
  return std::find(leaving_.begin(), leaving_.end(), grid.block(grid.slot_at(entry.address()))) != leaving_.end();
}

// Blocks that records are on their way to, out of the planner's sight until Show.
std::vector<uint32_t> NeuronResidency::HideArrivals() {
  std::vector<uint32_t> blocks;
  if (!host_) return blocks;
  for (const RecordCopies::Copy& copy : host_->copies.all()) {
    if (copy.to != Tier::kDevice) continue;
    const uint32_t block = table_.grid(Tier::kDevice).block(copy.slot);
    if (!coldest_.contains(block)) continue;  // a tail
    coldest_.Remove(block);
    blocks.push_back(block);
  }
  return blocks;
}

void NeuronResidency::Show(std::span<const uint32_t> blocks) {
  for (const uint32_t block : blocks) coldest_.Add(block, 0);
}

void NeuronResidency::WaitForCopies() {
  if (host_->copies.size() > 0) ++statistics_.copy_waits;
  host_->copies.Wait();
  TakeInArrived();
}

// No neuron lies in the slot any more, and it is not to be filled again where its block is leaving.
void NeuronResidency::Vacated(Tier tier, SlotId slot) {
  if (tier == Tier::kHost) return host_->slots.Return(slot, table_);
  const SlotGrid& grid = table_.grid(Tier::kDevice);
  const uint32_t block = grid.block(slot);
  if (std::find(leaving_.begin(), leaving_.end(), block) != leaving_.end()) {
    const uint64_t begin = grid.offset_in_block(slot);
    fragments_.TakeBack(block, begin, begin + grid.slot_bytes, table_);
  } else {
    fragments_.Return(slot, table_);
  }
  if (!coldest_.contains(block)) return;
  coldest_.Remove(block);  // it is worth less now: the bound starts anew
  coldest_.Add(block, 0);
}

void NeuronResidency::TakeInArrived() {
  while (const std::optional<RecordCopies::Copy> copy = host_->copies.TakeDone()) {
    if (copy->cancelled) {
      ++statistics_.copies_in_vain;
      if (!copy->slot_taken) SlotsOf(copy->to).Return(copy->slot, table_);
      continue;
    }
    const NeuronEntry from = table_.Lookup(copy->neuron);
    table_.Set(copy->neuron, copy->to, copy->slot);
    Vacated(from.tier(), table_.grid(from.tier()).slot_at(from.address()));
    ++(copy->to == Tier::kDevice ? statistics_.moved_up : statistics_.moved_down);
  }
}

void NeuronResidency::StartCopy(NeuronId id, Tier to, SlotId slot) {
  host_->copies.Start(id, to, slot, Address(to, slot), {Record(id), options_.slot_bytes});
}

// Starts a copy down, where the host has a free slot or a clearly colder neuron.
bool NeuronResidency::SendDown(NeuronId id) {
  std::optional<SlotId> slot = Lend(Tier::kHost);
  if (!slot) {
    const auto victim = host_->victims.Find(table_, heat_, id, [&](NeuronId other) {
      return IsMoving(other) || std::find(promised_.begin(), promised_.end(), other) != promised_.end();
    });
    if (!victim) return false;
    Drop(victim->neuron);
    slot = victim->slot;
  }
  StartCopy(id, Tier::kHost, *slot);
  return true;
}

// Starts the next copy; false where nothing is worth one. `climbers`, hottest first, loses those that are served.
bool NeuronResidency::SendNext(std::span<const NeuronId>& climbers) {
  while (!leaving_queue_.empty()) {
    const NeuronId id = leaving_queue_.back();
    leaving_queue_.pop_back();
    if (IsLeaving(id) && !IsMoving(id) && SendDown(id)) return true;
  }
  const auto can_climb = [&](NeuronId id) { return table_.Lookup(id).tier() == Tier::kHost && !IsMoving(id); };
  const auto take_next = [&]() -> std::optional<NeuronId> {
    while (!promised_.empty()) {
      const NeuronId id = promised_.front();
      promised_.erase(promised_.begin());
      if (can_climb(id)) return id;
    }
    for (; !climbers.empty(); climbers = climbers.subspan(1)) {
      if (!can_climb(climbers[0])) continue;
      const NeuronId id = climbers[0];
      climbers = climbers.subspan(1);
      return id;
    }
    return std::nullopt;
  };
  if (const std::optional<SlotId> slot = Lend(Tier::kDevice, SlotSource::kBlockTail)) {
    const std::optional<NeuronId> id = take_next();
    if (id) {
      StartCopy(*id, Tier::kDevice, *slot);
    } else {
      fragments_.Return(*slot, table_);
    }
    return id.has_value();
  }
  // No place is free: the next one up sends a colder one down, and follows when that has left.
  while (!climbers.empty() && !can_climb(climbers[0])) climbers = climbers.subspan(1);
  if (climbers.empty() || promised_.size() >= RecordCopies::kMost) return false;
  const auto victim =
      victims_.Find(table_, heat_, climbers[0], [&](NeuronId other) { return IsMoving(other) || IsLeaving(other); });
  if (!victim) return false;
  promised_.push_back(climbers[0]);
  climbers = climbers.subspan(1);
  if (SendDown(victim->neuron)) return true;
  Drop(victim->neuron);
  Vacated(Tier::kDevice, victim->slot);
  return true;
}

void NeuronResidency::MoveBetweenTiers() {
  if (!host_) return;
  const Stopwatch watch(statistics_.nanos);
  TakeInArrived();
  if (!fixed()) {
    const auto most = climbers_.begin() + std::min<long>(RecordCopies::kMost, static_cast<long>(climbers_.size()));
    std::partial_sort(climbers_.begin(), most, climbers_.end(),
                      [&](NeuronId a, NeuronId b) { return heat_.value(a) > heat_.value(b); });
    std::span<const NeuronId> climbers(climbers_.begin(), most);
    while (!host_->copies.full() && SendNext(climbers)) {
    }
  }
  if (host_->copies.size() == 0) promised_.clear();  // their places went to others
  climbers_.clear();
}

void NeuronResidency::Vacate(uint32_t blocks) {
  if (!host_ || fixed()) return;
  const Stopwatch watch(statistics_.nanos);
  const uint32_t wanted = std::min(blocks > pool_->free() ? blocks - pool_->free() : 0, kMostLeaving);
  for (; leaving_.size() > wanted; leaving_.pop_back()) {
    fragments_.Offer(leaving_.back(), 0, pool_->block_bytes(), SlotSource::kNeuronBlock);
  }
  std::erase_if(leaving_queue_, [&](NeuronId id) { return !IsLeaving(id); });
  if (leaving_.size() == wanted) return;
  std::vector<uint32_t> hidden = HideArrivals();
  for (const uint32_t block : leaving_) {
    coldest_.Remove(block);
    hidden.push_back(block);
  }
  const ShrinkPlan plan =
      PlanShrink(table_, Tier::kDevice, heat_, coldest_, wanted - static_cast<uint32_t>(leaving_.size()));
  Show(hidden);
  Show(plan.blocks);
  const SlotGrid& grid = table_.grid(Tier::kDevice);
  for (const uint32_t block : plan.blocks) {
    leaving_.push_back(block);
    for (uint32_t position = 0; position < grid.records_per_block; ++position) {
      const SlotId slot = grid.slot(block, position);
      if (fragments_.lent(slot)) continue;
      const uint64_t begin = grid.offset_in_block(slot);
      fragments_.TakeBack(block, begin, begin + grid.slot_bytes, table_);
    }
  }
  leaving_queue_.insert(leaving_queue_.end(), plan.homeless.rbegin(), plan.homeless.rend());
}

}  // namespace elasticmem
