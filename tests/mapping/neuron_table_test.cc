#include "mapping/neuron_table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/units.h"
#include "tests/mem/random_seed.h"

namespace elasticmem {
namespace {

constexpr SlotGrid kGrid = {.block_bytes = 8192, .slot_bytes = 1088, .records_per_block = 7, .capacity_blocks = 20};

TEST(SlotGrid, SlotsAddressesAndOffsetsAreOneToOne) {
  for (uint32_t s = 0; s < kGrid.slots(); ++s) {
    const SlotId slot(s);
    EXPECT_EQ(kGrid.slot_at(kGrid.address(slot)), slot);
    EXPECT_EQ(kGrid.offset(slot), kGrid.address(slot) * 64u);
    EXPECT_EQ(kGrid.offset(slot), kGrid.block(slot) * 8192u + kGrid.offset_in_block(slot));
    EXPECT_LE(kGrid.offset_in_block(slot) + kGrid.slot_bytes, kGrid.block_bytes);
  }
  EXPECT_EQ(kGrid.first_position_from(0), 0u);
  EXPECT_EQ(kGrid.first_position_from(1), 1u);
  EXPECT_EQ(kGrid.first_position_from(1088), 1u);
}

TEST(NeuronTable, AllNeuronsBeginInTheStore) {
  Budget budget(1_MiB);
  const auto table = NeuronTable::Create(budget, 3, 100);
  ASSERT_TRUE(table.ok());
  EXPECT_EQ(budget.bytes(MemoryCategory::kTables), 3 * 100 * 4u);
  for (uint32_t layer = 0; layer < 3; ++layer) {
    ASSERT_EQ(table->Layer(layer).size(), 100u);
    for (const NeuronEntry entry : table->Layer(layer)) EXPECT_EQ(entry.bits(), 0u);
  }
}

TEST(NeuronTable, RefusesAPoolThatEntriesCannotReach) {
  Budget budget(1_GiB);
  auto table = NeuronTable::Create(budget, 1, 1);
  const SlotGrid far = {.block_bytes = 4_MiB, .slot_bytes = 4_MiB, .records_per_block = 1, .capacity_blocks = 16385};
  EXPECT_EQ(table->AttachPool(budget, Tier::kHost, far).code(), StatusCode::kUnimplemented);
  SlotGrid reach = far;
  reach.capacity_blocks = 16384;
  ASSERT_TRUE(table->AttachPool(budget, Tier::kHost, reach).ok());
  table->Set({0, 0}, Tier::kHost, SlotId(16383));
  EXPECT_EQ(table->Lookup({0, 0}).tier(), Tier::kHost);
  EXPECT_EQ(table->Lookup({0, 0}).address() * 64_KiB / 1_KiB, 16383 * 4_MiB);
  table->CheckInvariants();
  EXPECT_FALSE(NeuronTable::Create(budget, 1 << 16, 1 << 16).ok());
}

TEST(NeuronTable, RandomMovesAgreeWithANaiveModel) {
  std::mt19937_64 random(TestSeed(7));
  constexpr uint32_t kLayers = 4;
  constexpr uint32_t kNeurons = 60;
  Budget budget(1_MiB);
  auto table = NeuronTable::Create(budget, kLayers, kNeurons);
  ASSERT_TRUE(table.ok());
  SlotGrid device = kGrid;
  device.capacity_blocks = 5;
  ASSERT_TRUE(table->AttachPool(budget, Tier::kHost, kGrid).ok());
  ASSERT_TRUE(table->AttachPool(budget, Tier::kDevice, device).ok());
  std::map<NeuronId, std::pair<Tier, SlotId>> where;
  std::map<std::pair<Tier, SlotId>, NeuronId> who;
  for (int operation = 0; operation < 60000; ++operation) {
    const NeuronId id = {static_cast<uint32_t>(random() % kLayers), static_cast<uint32_t>(random() % kNeurons)};
    if (random() % 3 == 0) {
      table->Clear(id);
      if (const auto it = where.find(id); it != where.end()) {
        who.erase(it->second);
        where.erase(it);
      }
    } else {
      const Tier tier = random() % 2 == 0 ? Tier::kHost : Tier::kDevice;
      const SlotId slot(static_cast<uint32_t>(random() % table->grid(tier).slots()));
      if (who.contains({tier, slot})) continue;
      table->Set(id, tier, slot);
      if (const auto it = where.find(id); it != where.end()) who.erase(it->second);
      where[id] = {tier, slot};
      who[{tier, slot}] = id;
    }
    ASSERT_EQ(table->resident(Tier::kHost) + table->resident(Tier::kDevice), where.size());
    const auto it = where.find(id);
    const NeuronEntry expected =
        it == where.end() ? NeuronEntry()
                          : NeuronEntry(it->second.first, table->grid(it->second.first).address(it->second.second));
    ASSERT_EQ(table->Lookup(id), expected);
    ASSERT_EQ(table->Layer(id.layer)[id.neuron], expected);
    if (operation % 64 != 0) continue;
    table->CheckInvariants();
    for (const Tier tier : {Tier::kHost, Tier::kDevice}) {
      const SlotGrid& grid = table->grid(tier);
      for (uint32_t block = 0; block < grid.capacity_blocks; ++block) {
        std::vector<NeuronId> expected_in;
        for (uint32_t position = 0; position < grid.records_per_block; ++position) {
          const auto found = who.find({tier, grid.slot(block, position)});
          if (found != who.end()) expected_in.push_back(found->second);
        }
        ASSERT_EQ(table->NeuronsIn(tier, block), expected_in);
        ASSERT_EQ(table->resident_in(tier, block), expected_in.size());
      }
    }
  }
}

TEST(NeuronTableDeathTest, AFullSlotTakesNoSecondNeuron) {
  Budget budget(1_MiB);
  auto table = NeuronTable::Create(budget, 1, 10);
  ASSERT_TRUE(table->AttachPool(budget, Tier::kHost, kGrid).ok());
  table->Set({0, 1}, Tier::kHost, SlotId(3));
  EXPECT_DEATH(table->Set({0, 2}, Tier::kHost, SlotId(3)), "this should always hold");
}

}  // namespace
}  // namespace elasticmem
