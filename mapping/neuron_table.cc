#include "mapping/neuron_table.h"

#include <utility>

namespace elasticmem {

StatusOr<NeuronTable> NeuronTable::Create(Budget& budget, uint32_t layers, uint32_t neurons_per_layer) {
  const uint64_t neurons = uint64_t{layers} * neurons_per_layer;
  if (neurons >= kNone)
    return Unsupported("{} layers of {} neurons are more than a table holds", layers, neurons_per_layer);
  EM_ASSIGN_OR_RETURN(Reservation tables, budget.Reserve(MemoryCategory::kTables, neurons * sizeof(NeuronEntry)));
  return NeuronTable(std::move(tables), layers, neurons_per_layer);
}

NeuronTable::NeuronTable(Reservation tables, uint32_t layers, uint32_t neurons_per_layer)
    : tables_(std::move(tables)),
      layers_(layers),
      neurons_per_layer_(neurons_per_layer),
      entries_(size_t{layers} * neurons_per_layer) {}

Status NeuronTable::AttachPool(Budget& budget, Tier tier, const SlotGrid& grid) {
  EM_CHECK(tier != Tier::kStore && pools_[static_cast<size_t>(tier)].neurons.empty());
  EM_CHECK(grid.slot_bytes > 0 && grid.slot_bytes % SlotGrid::kUnitBytes == 0);
  EM_CHECK(grid.block_bytes % SlotGrid::kUnitBytes == 0 &&
           grid.records_per_block * grid.slot_bytes <= grid.block_bytes);
  const uint64_t slots = uint64_t{grid.capacity_blocks} * grid.records_per_block;
  constexpr uint64_t kReachBytes = SlotGrid::kUnitBytes << NeuronEntry::kAddressBits;
  if (grid.capacity_blocks * grid.block_bytes > kReachBytes || slots >= kNone) {
    return Unsupported("a neuron pool of {} blocks of {} bytes is larger than the {} bytes that table entries reach",
                       grid.capacity_blocks, grid.block_bytes, kReachBytes);
  }
  EM_ASSIGN_OR_RETURN(Reservation tables,
                      budget.Reserve(MemoryCategory::kTables, (slots + grid.capacity_blocks) * sizeof(uint32_t)));
  Pool& pool = pools_[static_cast<size_t>(tier)];
  pool.grid = grid;
  pool.tables = std::move(tables);
  pool.neurons.assign(slots, kNone);
  pool.used.assign(grid.capacity_blocks, 0);
  return absl::OkStatus();
}

void NeuronTable::Set(NeuronId id, Tier tier, SlotId slot) {
  EM_CHECK(tier != Tier::kStore);
  Clear(id);
  Pool& pool = pools_[static_cast<size_t>(tier)];
  EM_CHECK(slot.value() < pool.neurons.size() && pool.neurons[slot.value()] == kNone);
  pool.neurons[slot.value()] = Flat(id);
  ++pool.used[pool.grid.block(slot)];
  ++pool.resident;
  entries_[Flat(id)] = NeuronEntry(tier, pool.grid.address(slot));
}

void NeuronTable::Clear(NeuronId id) {
  NeuronEntry& entry = entries_[Flat(id)];
  if (entry.tier() == Tier::kStore) return;
  Pool& pool = pools_[static_cast<size_t>(entry.tier())];
  const SlotId slot = pool.grid.slot_at(entry.address());
  EM_CHECK(pool.neurons[slot.value()] == Flat(id));
  pool.neurons[slot.value()] = kNone;
  --pool.used[pool.grid.block(slot)];
  --pool.resident;
  entry = NeuronEntry();
}

std::optional<NeuronId> NeuronTable::neuron_at(Tier tier, SlotId slot) const {
  const Pool& pool = pools_[static_cast<size_t>(tier)];
  EM_CHECK(slot.value() < pool.neurons.size());
  const uint32_t flat = pool.neurons[slot.value()];
  if (flat == kNone) return std::nullopt;
  return Unflat(flat);
}

std::vector<NeuronId> NeuronTable::NeuronsIn(Tier tier, uint32_t block) const {
  const Pool& pool = pools_[static_cast<size_t>(tier)];
  EM_CHECK(block < pool.used.size());
  std::vector<NeuronId> neurons;
  neurons.reserve(pool.used[block]);
  for (uint32_t position = 0; position < pool.grid.records_per_block; ++position) {
    if (const auto id = neuron_at(tier, pool.grid.slot(block, position))) neurons.push_back(*id);
  }
  return neurons;
}

void NeuronTable::CheckInvariants() const {
  std::array<uint32_t, 3> entries{};
  for (const NeuronEntry entry : entries_) {
    EM_CHECK(static_cast<size_t>(entry.tier()) < entries.size());
    ++entries[static_cast<size_t>(entry.tier())];
  }
  for (const Tier tier : {Tier::kHost, Tier::kDevice}) {
    const Pool& pool = pools_[static_cast<size_t>(tier)];
    // Each filled slot's neuron points back to it; as many entries name the tier as slots are filled, so none is
    // without.
    uint32_t resident = 0;
    std::vector<uint32_t> used(pool.used.size());
    for (uint32_t slot = 0; slot < pool.neurons.size(); ++slot) {
      if (pool.neurons[slot] == kNone) continue;
      EM_CHECK(pool.neurons[slot] < entries_.size());
      EM_CHECK(entries_[pool.neurons[slot]] == NeuronEntry(tier, pool.grid.address(SlotId(slot))));
      ++used[pool.grid.block(SlotId(slot))];
      ++resident;
    }
    EM_CHECK(resident == pool.resident && resident == entries[static_cast<size_t>(tier)] && used == pool.used);
  }
}

}  // namespace elasticmem
