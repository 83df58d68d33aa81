#include "hybrid/residency.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/stopwatch.h"

namespace elasticmem {
namespace {

// Neurons looked at for one newcomer, in turn; of 8 the coldest is among the coldest eighth on average.
constexpr uint32_t kVictimWindow = 8;
// Blocks without a neuron that the search steps over at most.
constexpr uint32_t kMostSkips = 64;
// Of the newcomers that are half as hot as what is usually found, one in so many looks for a colder one.
constexpr uint32_t kHopelessLooks = 16;

Heat::Kind HeatKind(Policy policy) {
  switch (policy) {
    case Policy::kElastic:
      return Heat::Kind::kFrequency;
    case Policy::kLru:
      return Heat::Kind::kLastUse;
    case Policy::kStatic:
    case Policy::kOracle:
      return Heat::Kind::kGiven;
  }
  return Heat::Kind::kFrequency;
}

uint64_t OwnTableBytes(uint64_t blocks, uint64_t neurons) {
  return blocks * sizeof(BlockLease) + ColdestBlocks::MemoryBytes(static_cast<uint32_t>(blocks)) +
         Missed::MemoryBytes(neurons);
}

}  // namespace

StatusOr<std::unique_ptr<NeuronResidency>> NeuronResidency::Create(Budget& budget, BlockPool* pool,
                                                                   const ResidencyOptions& options) {
  SlotGrid grid;
  grid.block_bytes = pool->block_bytes();
  grid.slot_bytes = options.slot_bytes;
  grid.records_per_block = static_cast<uint32_t>(pool->block_bytes() / options.slot_bytes);
  grid.capacity_blocks = pool->capacity();
  EM_ASSIGN_OR_RETURN(NeuronTable table, NeuronTable::Create(budget, options.layers, options.neurons_per_layer));
  EM_RETURN_IF_ERROR(table.AttachPool(budget, Tier::kDevice, grid));
  EM_ASSIGN_OR_RETURN(FragmentMap fragments, FragmentMap::Create(budget, Tier::kDevice, grid));
  EM_ASSIGN_OR_RETURN(Heat heat, Heat::Create(budget, options.layers, options.neurons_per_layer,
                                              HeatKind(options.policy), options.count_activations));
  EM_ASSIGN_OR_RETURN(
      Reservation tables,
      budget.Reserve(MemoryCategory::kTables,
                     OwnTableBytes(pool->capacity(), uint64_t{options.layers} * options.neurons_per_layer)));
  return std::unique_ptr<NeuronResidency>(
      new NeuronResidency(pool, options, std::move(table), std::move(fragments), std::move(heat), std::move(tables)));
}

NeuronResidency::NeuronResidency(BlockPool* pool, const ResidencyOptions& options, NeuronTable table,
                                 FragmentMap fragments, Heat heat, Reservation tables)
    : pool_(pool),
      options_(options),
      tables_(std::move(tables)),
      table_(std::move(table)),
      fragments_(std::move(fragments)),
      heat_(std::move(heat)),
      leases_(pool->capacity()),
      coldest_(pool->capacity()),
      missed_(options.layers, options.neurons_per_layer) {
  if (fixed()) reserve_ = options.static_kv_blocks;
}

void NeuronResidency::AddBlock(BlockLease lease) {
  const uint32_t block = Index(lease.id());
  leases_[block] = std::move(lease);
  coldest_.Add(block, 0);
  fragments_.Offer(block, 0, pool_->block_bytes(), SlotSource::kNeuronBlock);
}

void NeuronResidency::Grow() {
  // Blocks beyond what all neurons need would stay empty: KV may have them without asking. What is KV's by a fixed
  // share stays so while KV uses it.
  const uint64_t records = table_.grid(Tier::kDevice).records_per_block;
  const uint64_t neurons = uint64_t{table_.layers()} * table_.neurons_per_layer();
  const uint32_t kv = pool_->leased() - coldest_.size();
  const uint32_t keep = fixed() ? (reserve_ > kv ? reserve_ - kv : 0) : reserve_;
  while (pool_->free() > keep && coldest_.size() * records < neurons) AddBlock(*pool_->TryAcquire(BlockOwner::kNeuron));
}

void NeuronResidency::MakeFree(uint32_t blocks) {
  if (pool_->free() < blocks && !fixed()) Shrink(blocks - pool_->free());
}

void NeuronResidency::SetReserve(uint32_t blocks) {
  if (!fixed()) reserve_ = blocks;
}

std::optional<float> NeuronResidency::ColdestBlockActivity() {
  if (fixed()) return std::nullopt;
  const std::optional<float> heat = ColdestWorth(table_, Tier::kDevice, heat_, coldest_);
  return heat ? heat_.Probability(*heat) : std::nullopt;
}

// Neurons give up `blocks` blocks. Those that are hotter than others that stay take their places.
void NeuronResidency::Shrink(uint32_t blocks) {
  const Stopwatch watch(statistics_.nanos);
  const SlotGrid& grid = table_.grid(Tier::kDevice);
  const ShrinkPlan plan = PlanShrink(table_, Tier::kDevice, heat_, coldest_, blocks);
  // Forget first, so that nothing can follow an entry to bytes that are about to be overwritten.
  std::vector<SlotId> from;
  for (const NeuronId neuron : plan.homeless) {
    from.push_back(grid.slot_at(table_.Lookup(neuron).address()));
    table_.Clear(neuron);
  }
  for (const uint32_t block : plan.blocks) fragments_.TakeBack(block, 0, grid.block_bytes, table_);
  size_t moved = 0;
  for (bool room = true; room && moved < plan.homeless.size(); moved += room) {
    std::byte* to = Admit(plan.homeless[moved], [](NeuronId) { return false; });
    if (to) std::memcpy(to, Address(from[moved]), grid.slot_bytes);
    room = to != nullptr;
  }
  for (size_t i = moved + 1; i < plan.homeless.size(); ++i) missed_.Add(plan.homeless[i], heat_);
  for (const uint32_t block : plan.blocks) leases_[block].Release();
  statistics_.evicted_blocks += plan.blocks.size();
  statistics_.relocated += moved;
  statistics_.promoted -= moved;  // they were here before
  statistics_.dropped += plan.homeless.size() - moved;
}

void NeuronResidency::OfferKvTail(uint32_t block) {
  fragments_.Offer(block, options_.page_bytes, pool_->block_bytes(), SlotSource::kBlockTail);
}

void NeuronResidency::OfferPageEnd(uint32_t block, uint64_t begin) {
  if (begin < options_.page_bytes) fragments_.Offer(block, begin, options_.page_bytes, SlotSource::kPageEnd);
}

void NeuronResidency::TakeBack(uint32_t block, uint64_t begin, uint64_t end) {
  for (const SlotId slot : fragments_.Loans(block, begin, end)) {
    const auto neuron = table_.neuron_at(Tier::kDevice, slot);
    if (!neuron) continue;
    table_.Clear(*neuron);
    missed_.Add(*neuron, heat_);
    ++statistics_.dropped;
  }
  fragments_.TakeBack(block, begin, end, table_);
}

std::byte* NeuronResidency::AdmitIfFree(NeuronId id) {
  const std::optional<SlotId> slot = fragments_.Lend();
  if (!slot) return nullptr;
  table_.Set(id, Tier::kDevice, *slot);
  ++statistics_.promoted;
  return Address(*slot);
}

// Looks at the next few neurons in memory, whatever their blocks are used for.
std::optional<Resident> NeuronResidency::FindVictim(NeuronId id, const std::function<bool(NeuronId)>& is_protected) {
  const SlotGrid& grid = table_.grid(Tier::kDevice);
  std::array<Resident, kVictimWindow> candidates;
  uint32_t count = 0;
  for (uint32_t skips = 0; count < kVictimWindow && skips < kMostSkips;) {
    if (clock_position_ == 0 && table_.resident_in(Tier::kDevice, clock_block_) == 0) {
      ++skips;
      clock_block_ = (clock_block_ + 1) % grid.capacity_blocks;
      continue;
    }
    const SlotId slot = grid.slot(clock_block_, clock_position_);
    if (const auto neuron = table_.neuron_at(Tier::kDevice, slot)) candidates[count++] = {slot, *neuron};
    if (++clock_position_ == grid.records_per_block) {
      clock_position_ = 0;
      clock_block_ = (clock_block_ + 1) % grid.capacity_blocks;
      ++skips;
    }
  }
  const auto seen = std::span<const Resident>(candidates).first(count);
  const std::optional<Resident> victim = PickVictim(heat_, id, seen, is_protected);
  if (!victim && count == kVictimWindow) {
    float coldest = heat_.value(seen[0].neuron);
    for (const Resident& resident : seen) coldest = std::min(coldest, heat_.value(resident.neuron));
    usual_coldest_ += (coldest - usual_coldest_) / 8;
  }
  return victim;
}

std::byte* NeuronResidency::Admit(NeuronId id, const std::function<bool(NeuronId)>& is_protected) {
  if (fixed()) return nullptr;
  if (std::byte* free = AdmitIfFree(id)) return free;
  // Most that ask are far colder than what they would find: only now and then one of those is let look.
  const bool hopeless = heat_.value(id) < usual_coldest_ / 2 && ++refused_unseen_ % kHopelessLooks != 0;
  const std::optional<Resident> victim = hopeless ? std::nullopt : FindVictim(id, is_protected);
  if (!victim) {
    missed_.Add(id, heat_);
    return nullptr;
  }
  table_.Clear(victim->neuron);
  missed_.Add(victim->neuron, heat_);
  table_.Set(id, Tier::kDevice, victim->slot);
  ++statistics_.promoted;
  ++statistics_.dropped;
  return Address(victim->slot);
}

std::optional<NeuronId> NeuronResidency::NextPromotion() {
  if (free_slots() == 0 || fixed()) return std::nullopt;
  return missed_.TakeHottest(table_, heat_);
}

std::vector<NeuronId> NeuronResidency::Place(std::span<const float> values) {
  heat_.Assign(values);
  missed_.ForgetFloor();
  usual_coldest_ = 0;
  const size_t neurons = values.size();
  const uint32_t per_layer = table_.neurons_per_layer();
  std::vector<uint32_t> order(neurons);
  for (uint32_t i = 0; i < neurons; ++i) order[i] = i;
  const size_t room = std::min<size_t>(slots(), neurons);
  std::nth_element(order.begin(), order.begin() + static_cast<long>(room), order.end(),
                   [&](uint32_t a, uint32_t b) { return values[a] != values[b] ? values[a] > values[b] : a < b; });
  const auto id = [&](uint32_t flat) { return NeuronId{flat / per_layer, flat % per_layer}; };
  for (size_t i = room; i < neurons; ++i) {
    const NeuronEntry entry = table_.Lookup(id(order[i]));
    if (entry.tier() != Tier::kDevice) continue;
    const SlotId slot = table_.grid(Tier::kDevice).slot_at(entry.address());
    table_.Clear(id(order[i]));
    fragments_.Return(slot, table_);
    ++statistics_.dropped;
  }
  // Worths may have fallen: bounds start anew.
  for (uint32_t block = 0; block < leases_.size(); ++block) {
    if (!coldest_.contains(block)) continue;
    coldest_.Remove(block);
    coldest_.Add(block, 0);
  }
  std::vector<NeuronId> missing;
  for (size_t i = 0; i < room; ++i) {
    if (table_.Lookup(id(order[i])).tier() == Tier::kStore) missing.push_back(id(order[i]));
  }
  std::sort(missing.begin(), missing.end());
  return missing;
}

void NeuronResidency::Advance(uint32_t tokens) {
  const float scale = heat_.Advance(tokens);
  if (scale == 1) return;
  coldest_.Scale(scale);
  missed_.Scale(scale);
  usual_coldest_ *= scale;
}

uint32_t NeuronResidency::fragment_slots() const {
  return fragment_slots_used() + fragments_.lendable(SlotSource::kBlockTail) +
         fragments_.lendable(SlotSource::kPageEnd);
}

uint32_t NeuronResidency::slots() const {
  return fragment_slots() + fragments_.lendable(SlotSource::kNeuronBlock) + fragments_.lent(SlotSource::kNeuronBlock);
}

void NeuronResidency::CheckInvariants() const {
  EM_CHECK(resident() == statistics_.promoted - statistics_.dropped);
  table_.CheckInvariants();
  fragments_.CheckInvariants(table_);
  coldest_.CheckInvariants();
  for (uint32_t block = 0; block < leases_.size(); ++block) {
    EM_CHECK(leases_[block].valid() == coldest_.contains(block));
    if (leases_[block].valid()) EM_CHECK(pool_->owner(leases_[block].id()) == BlockOwner::kNeuron);
  }
}

}  // namespace elasticmem
