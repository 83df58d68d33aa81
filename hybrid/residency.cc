#include "hybrid/residency.h"

#include <algorithm>
#include <cstring>

#include "base/stopwatch.h"

namespace elasticmem {
namespace {

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

}  // namespace

uint64_t NeuronResidency::HostFixedBytes(uint32_t neurons_per_layer, uint32_t records_per_block) {
  const uint64_t listed = neurons_per_layer + RecordCopies::kMost + uint64_t{kMostLeaving} * records_per_block;
  return listed * sizeof(NeuronId) + RecordCopies::kMost * sizeof(RecordCopies::Copy);
}

StatusOr<std::unique_ptr<NeuronResidency>> NeuronResidency::Create(Budget& budget, BlockPool* pool,
                                                                   const ResidencyOptions& options,
                                                                   const std::optional<HostTierOptions>& host) {
  const uint64_t neurons = uint64_t{options.layers} * options.neurons_per_layer;
  Budget& others = host ? *host->budget : budget;
  SlotGrid grid;
  grid.block_bytes = pool->block_bytes();
  grid.slot_bytes = options.slot_bytes;
  grid.records_per_block = static_cast<uint32_t>(pool->block_bytes() / options.slot_bytes);
  grid.capacity_blocks = pool->capacity();
  EM_ASSIGN_OR_RETURN(NeuronTable table, NeuronTable::Create(others, options.layers, options.neurons_per_layer));
  EM_RETURN_IF_ERROR(table.AttachPool(budget, Tier::kDevice, grid));
  EM_ASSIGN_OR_RETURN(FragmentMap fragments, FragmentMap::Create(budget, Tier::kDevice, grid));
  EM_ASSIGN_OR_RETURN(Heat heat, Heat::Create(others, options.layers, options.neurons_per_layer,
                                              HeatKind(options.policy), options.count_activations));
  EM_ASSIGN_OR_RETURN(Reservation device_tables,
                      budget.Reserve(MemoryCategory::kTables, pool->capacity() * sizeof(BlockLease) +
                                                                  ColdestBlocks::MemoryBytes(pool->capacity())));
  EM_ASSIGN_OR_RETURN(
      Reservation other_tables,
      others.Reserve(MemoryCategory::kTables,
                     Missed::MemoryBytes(neurons) +
                         (host ? HostFixedBytes(options.neurons_per_layer, grid.records_per_block) : 0)));
  std::optional<HostTier> tier;
  if (host) {
    SlotGrid slots;
    slots.slot_bytes = options.slot_bytes;
    slots.block_bytes = host->slots * options.slot_bytes;
    slots.records_per_block = host->slots;
    slots.capacity_blocks = 1;
    EM_ASSIGN_OR_RETURN(AlignedBuffer memory,
                        AlignedBuffer::Allocate(others, MemoryCategory::kNeurons, slots.block_bytes));
    EM_RETURN_IF_ERROR(table.AttachPool(others, Tier::kHost, slots));
    EM_ASSIGN_OR_RETURN(FragmentMap map, FragmentMap::Create(others, Tier::kHost, slots));
    map.Offer(0, 0, slots.block_bytes, SlotSource::kNeuronBlock);
    tier.emplace(HostTier{std::move(memory), std::move(map), RecordCopies(host->device->NewStream())});
  }
  return std::unique_ptr<NeuronResidency>(new NeuronResidency(
      pool, options,
      {std::move(table), std::move(fragments), std::move(heat), std::move(device_tables), std::move(other_tables)},
      std::move(tier)));
}

NeuronResidency::NeuronResidency(BlockPool* pool, const ResidencyOptions& options, Tables tables,
                                 std::optional<HostTier> host)
    : pool_(pool),
      options_(options),
      device_tables_(std::move(tables.device)),
      other_tables_(std::move(tables.others)),
      table_(std::move(tables.table)),
      fragments_(std::move(tables.fragments)),
      heat_(std::move(tables.heat)),
      leases_(pool->capacity()),
      coldest_(pool->capacity()),
      missed_(options.layers, options.neurons_per_layer),
      host_(std::move(host)) {
  if (fixed()) reserve_ = options.static_kv_blocks;
  if (host_) climbers_.reserve(options.neurons_per_layer);
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
  std::vector<uint32_t> arrivals = HideArrivals();
  if (!arrivals.empty() && coldest_.size() < blocks) {
    Show(arrivals);
    arrivals.clear();
    WaitForCopies();
  }
  const ShrinkPlan plan = PlanShrink(table_, Tier::kDevice, heat_, coldest_, blocks, leaving_);
  Show(arrivals);
  // Forget first, so that nothing can follow an entry to bytes that are about to be overwritten.
  std::vector<SlotId> from;
  for (const NeuronId neuron : plan.homeless) {
    from.push_back(grid.slot_at(table_.Lookup(neuron).address()));
    Clear(neuron);
  }
  for (const uint32_t block : plan.blocks) fragments_.TakeBack(block, 0, grid.block_bytes, table_);
  std::erase_if(leaving_, [&](uint32_t block) { return !coldest_.contains(block); });
  size_t moved = 0;
  for (bool room = true; room && moved < plan.homeless.size(); moved += room) {
    std::byte* to = Admit(Tier::kDevice, plan.homeless[moved], [&](NeuronId id) { return IsLeaving(id); });
    if (to) std::memcpy(to, Address(Tier::kDevice, from[moved]), grid.slot_bytes);
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
  const std::vector<SlotId> loans = fragments_.Loans(block, begin, end);
  for (const SlotId slot : loans) {
    if (const auto neuron = table_.neuron_at(Tier::kDevice, slot)) Drop(*neuron);
  }
  if (host_ && !loans.empty()) {
    host_->copies.TakeSlots(Tier::kDevice,
                            [&](SlotId slot) { return std::find(loans.begin(), loans.end(), slot) != loans.end(); });
  }
  fragments_.TakeBack(block, begin, end, table_);
}

// It is no longer where the table says; a copy from there is of no use.
void NeuronResidency::Clear(NeuronId id) {
  if (host_) host_->copies.Cancel(id);
  table_.Clear(id);
}

void NeuronResidency::Drop(NeuronId id) {
  Clear(id);
  missed_.Add(id, heat_);
  ++statistics_.dropped;
}

std::optional<SlotId> NeuronResidency::Lend(Tier tier, SlotSource last) {
  const std::optional<SlotId> slot = SlotsOf(tier).Lend(last);
  if (!slot || !host_ || !host_->copies.IsWritten(tier, *slot)) return slot;
  // It was taken back and offered again while a copy was on its way there.
  SlotsOf(tier).Return(*slot, table_);
  return std::nullopt;
}

std::byte* NeuronResidency::AdmitIfFree(NeuronId id) { return AdmitIfFree(landing(), id); }

std::byte* NeuronResidency::AdmitIfFree(Tier tier, NeuronId id) {
  const std::optional<SlotId> slot = Lend(tier);
  if (!slot) return nullptr;
  table_.Set(id, tier, *slot);
  ++statistics_.promoted;
  return Address(tier, *slot);
}

std::byte* NeuronResidency::Admit(NeuronId id, const std::function<bool(NeuronId)>& is_protected) {
  return fixed() ? nullptr : Admit(landing(), id, is_protected);
}

std::byte* NeuronResidency::Admit(Tier tier, NeuronId id, const std::function<bool(NeuronId)>& is_protected) {
  if (std::byte* free = AdmitIfFree(tier, id)) return free;
  VictimSearch& victims = tier == Tier::kDevice ? victims_ : host_->victims;
  const std::optional<Resident> victim =
      victims.Find(table_, heat_, id, [&](NeuronId other) { return IsMoving(other) || is_protected(other); });
  if (!victim) {
    missed_.Add(id, heat_);
    return nullptr;
  }
  Drop(victim->neuron);
  table_.Set(id, tier, victim->slot);
  ++statistics_.promoted;
  return Address(tier, victim->slot);
}

bool NeuronResidency::Load(const Placement& placement, std::span<const std::byte> record) {
  const std::optional<SlotId> slot = Lend(placement.tier);
  if (!slot) return false;
  std::byte* const to = Address(placement.tier, *slot);
  if (host_ && placement.tier == Tier::kDevice) {
    host_->copies.CopyNow(to, record);
  } else {
    std::memcpy(to, record.data(), record.size());
  }
  table_.Set(placement.neuron, placement.tier, *slot);
  ++statistics_.promoted;
  return true;
}

std::optional<NeuronId> NeuronResidency::NextPromotion() {
  if (free_slots() == 0 || fixed()) return std::nullopt;
  return missed_.TakeHottest(table_, heat_);
}

std::vector<Placement> NeuronResidency::Place(std::span<const float> values) {
  if (host_) {
    Vacate(0);
    WaitForCopies();
  }
  heat_.Assign(values);
  missed_.ForgetFloor();
  victims_.Forget();
  if (host_) host_->victims.Forget();
  const size_t neurons = values.size();
  const uint32_t per_layer = table_.neurons_per_layer();
  std::vector<uint32_t> order(neurons);
  for (uint32_t i = 0; i < neurons; ++i) order[i] = i;
  const auto device_end = order.begin() + std::min<long>(slots(), static_cast<long>(neurons));
  const auto host_end = device_end + std::min<long>(host_slots(), order.end() - device_end);
  const auto is_worth_more = [&](uint32_t a, uint32_t b) {
    return values[a] != values[b] ? values[a] > values[b] : a < b;
  };
  std::nth_element(order.begin(), device_end, order.end(), is_worth_more);
  std::nth_element(device_end, host_end, order.end(), is_worth_more);
  std::vector<Tier> belongs(neurons, Tier::kStore);
  for (auto it = order.begin(); it != host_end; ++it) belongs[*it] = it < device_end ? Tier::kDevice : Tier::kHost;
  std::vector<Placement> missing;
  for (uint32_t i = 0; i < neurons; ++i) {
    const NeuronId id{i / per_layer, i % per_layer};
    const NeuronEntry entry = table_.Lookup(id);
    if (entry.tier() == belongs[i]) continue;
    if (entry.tier() != Tier::kStore) {
      Clear(id);
      SlotsOf(entry.tier()).Return(table_.grid(entry.tier()).slot_at(entry.address()), table_);
      ++statistics_.dropped;
    }
    if (belongs[i] != Tier::kStore) missing.push_back({id, belongs[i]});
  }
  // Worths may have fallen: bounds start anew.
  for (uint32_t block = 0; block < leases_.size(); ++block) {
    if (!coldest_.contains(block)) continue;
    coldest_.Remove(block);
    coldest_.Add(block, 0);
  }
  return missing;
}

void NeuronResidency::Advance(uint32_t tokens) {
  const float scale = heat_.Advance(tokens);
  if (scale == 1) return;
  coldest_.Scale(scale);
  missed_.Scale(scale);
  victims_.Scale(scale);
  if (host_) host_->victims.Scale(scale);
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
  const uint32_t arriving = host_ ? host_->copies.lent(Tier::kDevice) : 0;
  EM_CHECK(fragment_slots_used() + fragments_.lent(SlotSource::kNeuronBlock) == resident(Tier::kDevice) + arriving);
  if (!host_) return;
  host_->slots.CheckInvariants(table_);
  EM_CHECK(host_->slots.lent(SlotSource::kNeuronBlock) == resident(Tier::kHost) + host_->copies.lent(Tier::kHost));
  for (const RecordCopies::Copy& copy : host_->copies.all()) {
    EM_CHECK(!table_.neuron_at(copy.to, copy.slot) && (copy.slot_taken || SlotsOf(copy.to).lent(copy.slot)));
    const Tier from = copy.to == Tier::kDevice ? Tier::kHost : Tier::kDevice;
    EM_CHECK(copy.cancelled || table_.Lookup(copy.neuron).tier() == from);
  }
  const SlotGrid& grid = table_.grid(Tier::kDevice);
  for (const uint32_t block : leaving_) {
    EM_CHECK(coldest_.contains(block));
    for (const RecordCopies::Copy& copy : host_->copies.all()) {
      EM_CHECK(copy.to != Tier::kDevice || grid.block(copy.slot) != block);
    }
  }
}

}  // namespace elasticmem
