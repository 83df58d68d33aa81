// Where records may lie in a pool: every block has slots at multiples of slot_bytes from its start, whoever owns it, so
// a record in a fragment stays where it is when its block turns from KV to neurons or back.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "base/strong_id.h"

namespace elasticmem {

// Slot number `block index * records_per_block + position in the block`.
using SlotId = StrongId<struct SlotIdTag, uint32_t>;

struct SlotGrid {
  static constexpr uint64_t kUnitBytes = 64;  // addresses of slots count these

  uint64_t block_bytes = 0;  // multiple of 64
  uint64_t slot_bytes = 0;   // multiple of 64
  uint32_t records_per_block = 0;
  uint32_t capacity_blocks = 0;

  uint32_t slots() const { return capacity_blocks * records_per_block; }
  uint32_t block(SlotId slot) const { return slot.value() / records_per_block; }
  SlotId slot(uint32_t block, uint32_t position) const { return SlotId(block * records_per_block + position); }
  // First byte of the slot inside its block, and inside the pool.
  uint64_t offset_in_block(SlotId slot) const { return slot.value() % records_per_block * slot_bytes; }
  uint64_t offset(SlotId slot) const { return block(slot) * block_bytes + offset_in_block(slot); }
  // The slot's address in 64-byte units from the start of the pool: fits the 30 bits of a NeuronEntry up to 64 GiB.
  uint32_t address(SlotId slot) const { return static_cast<uint32_t>(offset(slot) / kUnitBytes); }
  SlotId slot_at(uint32_t address) const {
    const uint64_t at = address * kUnitBytes;
    return slot(static_cast<uint32_t>(at / block_bytes), static_cast<uint32_t>(at % block_bytes / slot_bytes));
  }
  // Positions [first, records_per_block) of a block lie wholly at or after byte `begin` of it.
  uint32_t first_position_from(uint64_t begin) const {
    return static_cast<uint32_t>((begin + slot_bytes - 1) / slot_bytes);
  }
};

}  // namespace elasticmem
