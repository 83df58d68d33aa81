#include "mapping/fragment_map.h"

#include <algorithm>

#include "base/units.h"

namespace elasticmem {

std::string_view Name(SlotSource source) {
  static constexpr std::array<std::string_view, kSlotSources> kNames = {"neuron block", "block tail", "page end",
                                                                        "reserve"};
  return kNames[static_cast<size_t>(source)];
}

StatusOr<FragmentMap> FragmentMap::Create(Budget& budget, Tier tier, const SlotGrid& grid) {
  const uint64_t slots = uint64_t{grid.capacity_blocks} * grid.records_per_block;
  if (slots >= kNone) return Unsupported("{} slots are more than a fragment map holds", slots);
  EM_ASSIGN_OR_RETURN(Reservation tables,
                      budget.Reserve(MemoryCategory::kTables, slots * (sizeof(uint8_t) + sizeof(Links))));
  return FragmentMap(std::move(tables), tier, grid);
}

FragmentMap::FragmentMap(Reservation tables, Tier tier, const SlotGrid& grid)
    : tables_(std::move(tables)), tier_(tier), grid_(grid), state_(grid.slots(), kWithheld), links_(grid.slots()) {
  first_free_.fill(kNone);
}

void FragmentMap::AddFree(uint32_t slot, size_t source) {
  const uint32_t next = first_free_[source];
  links_[slot] = {kNone, next};
  if (next != kNone) links_[next].previous = slot;
  first_free_[source] = slot;
  ++lendable_[source];
}

void FragmentMap::RemoveFree(uint32_t slot, size_t source) {
  const Links links = links_[slot];
  (links.previous == kNone ? first_free_[source] : links_[links.previous].next) = links.next;
  if (links.next != kNone) links_[links.next].previous = links.previous;
  --lendable_[source];
}

std::pair<uint32_t, uint32_t> FragmentMap::PositionsTouching(uint64_t begin, uint64_t end) const {
  EM_CHECK(begin <= end && end <= grid_.block_bytes);
  const uint64_t last = std::min<uint64_t>(CeilDiv(end, grid_.slot_bytes), grid_.records_per_block);
  const uint64_t first = std::min(begin / grid_.slot_bytes, last);
  if (begin == end) return {0, 0};
  return {static_cast<uint32_t>(first), static_cast<uint32_t>(last)};
}

uint32_t FragmentMap::Offer(uint32_t block, uint64_t begin, uint64_t end, SlotSource source) {
  EM_CHECK(block < grid_.capacity_blocks && begin <= end && end <= grid_.block_bytes);
  const auto to = static_cast<uint8_t>(source);
  const uint64_t last = std::min<uint64_t>(end / grid_.slot_bytes, grid_.records_per_block);
  uint32_t added = 0;
  for (uint32_t position = grid_.first_position_from(begin); position < last; ++position) {
    const uint32_t slot = grid_.slot(block, position).value();
    uint8_t& state = state_[slot];
    if (state >= kLent) {
      --lent_[state - kLent];
      ++lent_[to];
      state = kLent + to;
      continue;
    }
    if (state == kWithheld) {
      ++added;
    } else {
      RemoveFree(slot, state - kLendable);
    }
    AddFree(slot, to);
    state = kLendable + to;
  }
  return added;
}

std::optional<SlotId> FragmentMap::Lend(SlotSource last) {
  for (size_t source = 0; source <= static_cast<size_t>(last); ++source) {
    const uint32_t slot = first_free_[source];
    if (slot == kNone) continue;
    RemoveFree(slot, source);
    state_[slot] = static_cast<uint8_t>(kLent + source);
    ++lent_[source];
    return SlotId(slot);
  }
  return std::nullopt;
}

void FragmentMap::Return(SlotId slot, const NeuronTable& table) {
  uint8_t& state = state_[slot.value()];
  EM_CHECK(state >= kLent && !table.neuron_at(tier_, slot));
  const auto source = static_cast<uint8_t>(state - kLent);
  --lent_[source];
  AddFree(slot.value(), source);
  state = kLendable + source;
}

std::vector<SlotId> FragmentMap::Loans(uint32_t block, uint64_t begin, uint64_t end) const {
  EM_CHECK(block < grid_.capacity_blocks);
  const auto [first, last] = PositionsTouching(begin, end);
  std::vector<SlotId> loans;
  for (uint32_t position = first; position < last; ++position) {
    const SlotId slot = grid_.slot(block, position);
    if (lent(slot)) loans.push_back(slot);
  }
  return loans;
}

void FragmentMap::TakeBack(uint32_t block, uint64_t begin, uint64_t end, const NeuronTable& table) {
  EM_CHECK(block < grid_.capacity_blocks);
  const auto [first, last] = PositionsTouching(begin, end);
  for (uint32_t position = first; position < last; ++position) {
    const SlotId slot = grid_.slot(block, position);
    uint8_t& state = state_[slot.value()];
    if (state >= kLent) {
      EM_CHECK(!table.neuron_at(tier_, slot));
      --lent_[state - kLent];
    } else if (state != kWithheld) {
      RemoveFree(slot.value(), state - kLendable);
    }
    state = kWithheld;
  }
}

void FragmentMap::CheckInvariants(const NeuronTable& table) const {
  std::array<uint32_t, kSlotSources> lendable{};
  std::array<uint32_t, kSlotSources> lent{};
  for (uint32_t slot = 0; slot < state_.size(); ++slot) {
    const uint8_t state = state_[slot];
    EM_CHECK(state < kLent + kSlotSources);
    if (state >= kLent) {
      ++lent[state - kLent];
    } else {
      EM_CHECK(!table.neuron_at(tier_, SlotId(slot)));
      if (state != kWithheld) ++lendable[state - kLendable];
    }
  }
  EM_CHECK(lendable == lendable_ && lent == lent_);
  for (size_t source = 0; source < kSlotSources; ++source) {
    uint32_t listed = 0;
    uint32_t previous = kNone;
    for (uint32_t slot = first_free_[source]; slot != kNone; slot = links_[slot].next) {
      EM_CHECK(state_[slot] == kLendable + source && links_[slot].previous == previous);
      EM_CHECK(++listed <= lendable[source]);
      previous = slot;
    }
    EM_CHECK(listed == lendable[source]);
  }
}

}  // namespace elasticmem
