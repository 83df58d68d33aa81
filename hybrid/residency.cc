#include "hybrid/residency.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_set>

#include "base/stopwatch.h"

namespace elasticmem {
namespace {

// Slots of neuron blocks looked at for one newcomer, in turn; of 8 the coldest is among the coldest eighth on average.
constexpr uint32_t kVictimWindow = 8;

}  // namespace

StatusOr<std::unique_ptr<NeuronResidency>> NeuronResidency::Create(Budget& budget, BlockPool* pool, uint32_t layers,
                                                                   uint32_t neurons_per_layer, uint64_t slot_bytes,
                                                                   uint64_t page_bytes) {
  SlotGrid grid;
  grid.block_bytes = pool->block_bytes();
  grid.slot_bytes = slot_bytes;
  grid.records_per_block = static_cast<uint32_t>(pool->block_bytes() / slot_bytes);
  grid.capacity_blocks = pool->capacity();
  EM_ASSIGN_OR_RETURN(NeuronTable table, NeuronTable::Create(budget, layers, neurons_per_layer));
  EM_RETURN_IF_ERROR(table.AttachPool(budget, Tier::kDevice, grid));
  EM_ASSIGN_OR_RETURN(FragmentMap fragments, FragmentMap::Create(budget, Tier::kDevice, grid));
  EM_ASSIGN_OR_RETURN(Heat heat, Heat::Create(budget, layers, neurons_per_layer));
  return std::unique_ptr<NeuronResidency>(
      new NeuronResidency(pool, std::move(table), std::move(fragments), std::move(heat), page_bytes));
}

void NeuronResidency::Grow() {
  // Blocks beyond what all neurons need would stay empty: KV may have them without asking.
  const SlotGrid& grid = table_.grid(Tier::kDevice);
  const uint64_t neurons = uint64_t{table_.layers()} * table_.neurons_per_layer();
  while (pool_->free() > 0 && blocks_.size() * uint64_t{grid.records_per_block} < neurons) {
    blocks_.push_back(*pool_->TryAcquire(BlockOwner::kNeuron));
    fragments_.Offer(Index(blocks_.back().id()), 0, grid.block_bytes, SlotSource::kNeuronBlock);
  }
}

void NeuronResidency::MakeFree(uint32_t blocks) {
  if (pool_->free() >= blocks || blocks_.empty()) return;
  const Stopwatch watch(nanos_);
  std::vector<uint32_t> candidates;
  candidates.reserve(blocks_.size());
  for (const BlockLease& lease : blocks_) candidates.push_back(Index(lease.id()));
  const uint32_t wanted = blocks - pool_->free();
  // Free slots inside the blocks that go don't help, so only fragments count as certain.
  const uint32_t free_slots = fragments_.lendable(SlotSource::kBlockTail);
  Apply(PlanShrink(table_, Tier::kDevice, heat_, std::move(candidates), wanted, free_slots));
}

void NeuronResidency::Apply(const ShrinkPlan& plan) {
  const SlotGrid& grid = table_.grid(Tier::kDevice);
  // Forget first, so that nothing can follow an entry to bytes that are about to be overwritten.
  std::vector<std::pair<NeuronId, SlotId>> moves;
  for (const NeuronId neuron : plan.relocate) {
    moves.emplace_back(neuron, grid.slot_at(table_.Lookup(neuron).address()));
    table_.Clear(neuron);
  }
  for (const NeuronId neuron : plan.drop) table_.Clear(neuron);
  for (const uint32_t block : plan.blocks) fragments_.TakeBack(block, 0, grid.block_bytes, table_);
  for (const auto& [neuron, from] : moves) {
    const std::optional<SlotId> to = fragments_.Lend();
    if (!to) break;
    std::memcpy(Address(*to), Address(from), grid.slot_bytes);
    table_.Set(neuron, Tier::kDevice, *to);
  }
  const std::unordered_set<uint32_t> leaving(plan.blocks.begin(), plan.blocks.end());
  std::erase_if(blocks_, [&](const BlockLease& lease) { return leaving.contains(Index(lease.id())); });
}

void NeuronResidency::OfferKvTail(uint32_t block) {
  fragments_.Offer(block, page_bytes_, pool_->block_bytes(), SlotSource::kBlockTail);
}

void NeuronResidency::TakeBackKvTail(uint32_t block) {
  const uint64_t end = pool_->block_bytes();
  for (const SlotId slot : fragments_.Loans(block, page_bytes_, end)) {
    if (const auto neuron = table_.neuron_at(Tier::kDevice, slot)) table_.Clear(*neuron);
  }
  fragments_.TakeBack(block, page_bytes_, end, table_);
}

std::byte* NeuronResidency::AdmitIfFree(NeuronId id) {
  const std::optional<SlotId> slot = fragments_.Lend();
  if (!slot) return nullptr;
  table_.Set(id, Tier::kDevice, *slot);
  return Address(*slot);
}

std::byte* NeuronResidency::Admit(NeuronId id, const std::function<bool(NeuronId)>& is_protected) {
  if (std::byte* free = AdmitIfFree(id)) return free;
  if (blocks_.empty()) return nullptr;
  const SlotGrid& grid = table_.grid(Tier::kDevice);
  std::array<SlotId, kVictimWindow> candidates;
  for (SlotId& slot : candidates) {
    const uint32_t block = Index(blocks_[clock_ / grid.records_per_block % blocks_.size()].id());
    slot = grid.slot(block, clock_ % grid.records_per_block);
    ++clock_;
  }
  const std::optional<SlotId> victim = PickVictim(table_, Tier::kDevice, heat_, id, candidates, is_protected);
  if (!victim) return nullptr;
  table_.Clear(*table_.neuron_at(Tier::kDevice, *victim));
  table_.Set(id, Tier::kDevice, *victim);
  return Address(*victim);
}

uint32_t NeuronResidency::fragment_slots() const {
  return fragments_.lendable(SlotSource::kBlockTail) + fragments_.lent(SlotSource::kBlockTail);
}

uint32_t NeuronResidency::slots() const {
  return fragment_slots() + fragments_.lendable(SlotSource::kNeuronBlock) + fragments_.lent(SlotSource::kNeuronBlock);
}

void NeuronResidency::CheckInvariants() const {
  table_.CheckInvariants();
  fragments_.CheckInvariants(table_);
  for (const BlockLease& lease : blocks_) EM_CHECK(pool_->owner(lease.id()) == BlockOwner::kNeuron);
}

}  // namespace elasticmem
