#include "mapping/fragment_map.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/units.h"
#include "tests/mem/random_seed.h"

namespace elasticmem {
namespace {

constexpr SlotGrid kGrid = {.block_bytes = 8192, .slot_bytes = 1024, .records_per_block = 8, .capacity_blocks = 12};

class FragmentMapTest : public testing::Test {
 protected:
  FragmentMapTest()
      : table_(*NeuronTable::Create(budget_, 2, 100)), map_(*FragmentMap::Create(budget_, Tier::kDevice, kGrid)) {
    EXPECT_TRUE(table_.AttachPool(budget_, Tier::kDevice, kGrid).ok());
  }

  Budget budget_{1_MiB};
  NeuronTable table_;
  FragmentMap map_;
};

TEST_F(FragmentMapTest, OffersOnlySlotsThatLieWhollyInTheRange) {
  EXPECT_EQ(map_.Offer(0, 1025, 8191, SlotSource::kPageEnd), 5u);  // slots 2 to 6
  EXPECT_EQ(map_.lendable(SlotSource::kPageEnd), 5u);
  EXPECT_EQ(map_.Offer(0, 0, 8192, SlotSource::kPageEnd), 3u);
  EXPECT_EQ(map_.Offer(1, 0, 1023, SlotSource::kPageEnd), 0u);
}

TEST_F(FragmentMapTest, LendsWhatLastsLongestFirst) {
  map_.Offer(0, 7168, 8192, SlotSource::kReserve);
  map_.Offer(1, 7168, 8192, SlotSource::kPageEnd);
  map_.Offer(2, 7168, 8192, SlotSource::kNeuronBlock);
  map_.Offer(3, 7168, 8192, SlotSource::kBlockTail);
  EXPECT_EQ(kGrid.block(*map_.Lend()), 2u);
  EXPECT_EQ(kGrid.block(*map_.Lend()), 3u);
  EXPECT_FALSE(map_.Lend(SlotSource::kBlockTail));
  EXPECT_EQ(kGrid.block(*map_.Lend()), 1u);
  EXPECT_EQ(kGrid.block(*map_.Lend()), 0u);
  EXPECT_FALSE(map_.Lend());
}

TEST_F(FragmentMapTest, ALoanKeepsItsSlotWhenTheBlockChangesItsOwner) {
  map_.Offer(4, 0, 8192, SlotSource::kNeuronBlock);
  const SlotId slot = *map_.Lend();
  map_.Offer(4, 0, 8192, SlotSource::kReserve);
  EXPECT_TRUE(map_.lent(slot));
  EXPECT_EQ(map_.lent(SlotSource::kReserve), 1u);
  EXPECT_EQ(map_.lendable(SlotSource::kReserve), 7u);
  EXPECT_EQ(map_.lendable(SlotSource::kNeuronBlock), 0u);
  map_.CheckInvariants(table_);
}

TEST_F(FragmentMapTest, TakesBackASlotThatIsOnlyTouched) {
  map_.Offer(0, 0, 8192, SlotSource::kPageEnd);
  map_.TakeBack(0, 0, 1, table_);
  EXPECT_EQ(map_.lendable(SlotSource::kPageEnd), 7u);
  map_.TakeBack(0, 1, 1025, table_);
  EXPECT_EQ(map_.lendable(SlotSource::kPageEnd), 6u);
  map_.TakeBack(0, 3000, 3000, table_);
  EXPECT_EQ(map_.lendable(SlotSource::kPageEnd), 6u);
}

TEST_F(FragmentMapTest, TakingBackWhatTheTableStillNamesIsCaught) {
  map_.Offer(0, 0, 8192, SlotSource::kPageEnd);
  const SlotId slot = *map_.Lend();
  table_.Set({1, 7}, Tier::kDevice, slot);
  EXPECT_DEATH(map_.TakeBack(0, 0, 8192, table_), "this should always hold");
  EXPECT_DEATH(map_.Return(slot, table_), "this should always hold");
  table_.Clear({1, 7});
  map_.TakeBack(0, 0, 8192, table_);
  EXPECT_EQ(map_.lent(SlotSource::kPageEnd), 0u);
  EXPECT_EQ(map_.lendable(SlotSource::kPageEnd), 0u);
}

TEST_F(FragmentMapTest, RandomLoansAgreeWithANaiveModel) {
  std::mt19937_64 random(TestSeed(8));
  struct Slot {
    SlotSource source;
    bool lent;
  };
  std::map<SlotId, Slot> model;  // offered slots
  std::vector<NeuronId> at_home;
  for (uint32_t n = 0; n < 100; ++n) at_home.push_back({n % 2, n / 2});
  std::map<SlotId, NeuronId> residents;
  const auto touches = [](SlotId slot, uint64_t begin, uint64_t end) {
    const uint64_t at = kGrid.offset_in_block(slot);
    return begin < end && at < end && at + kGrid.slot_bytes > begin;
  };
  for (int operation = 0; operation < 60000; ++operation) {
    const auto block = static_cast<uint32_t>(random() % kGrid.capacity_blocks);
    uint64_t begin = random() % (kGrid.block_bytes + 1);
    uint64_t end = random() % (kGrid.block_bytes + 1);
    if (begin > end) std::swap(begin, end);
    switch (random() % 6) {
      case 0: {
        const auto source = static_cast<SlotSource>(random() % kSlotSources);
        uint32_t added = 0;
        for (uint32_t p = 0; p < kGrid.records_per_block; ++p) {
          const SlotId slot = kGrid.slot(block, p);
          if (p * kGrid.slot_bytes < begin || (p + 1) * kGrid.slot_bytes > end) continue;
          const auto [it, fresh] = model.try_emplace(slot, Slot{source, false});
          it->second.source = source;
          added += fresh;
        }
        ASSERT_EQ(map_.Offer(block, begin, end, source), added);
        break;
      }
      case 1:
      case 2: {
        const auto last = static_cast<SlotSource>(random() % kSlotSources);
        std::optional<SlotSource> best;
        for (const auto& [slot, state] : model) {
          if (!state.lent && state.source <= last && (!best || state.source < *best)) best = state.source;
        }
        const auto slot = map_.Lend(last);
        ASSERT_EQ(slot.has_value(), best.has_value());
        if (!slot) break;
        ASSERT_FALSE(model.at(*slot).lent);
        ASSERT_EQ(model.at(*slot).source, *best);
        model.at(*slot).lent = true;
        if (at_home.empty() || random() % 4 == 0) break;  // lent, but the record has not arrived
        residents[*slot] = at_home.back();
        table_.Set(at_home.back(), Tier::kDevice, *slot);
        at_home.pop_back();
        break;
      }
      case 3: {
        const SlotId slot(static_cast<uint32_t>(random() % kGrid.slots()));
        const auto it = model.find(slot);
        if (it == model.end() || !it->second.lent) break;
        if (const auto resident = residents.find(slot); resident != residents.end()) {
          table_.Clear(resident->second);
          at_home.push_back(resident->second);
          residents.erase(resident);
        }
        map_.Return(slot, table_);
        it->second.lent = false;
        break;
      }
      default: {
        std::vector<SlotId> expected;
        for (const auto& [slot, state] : model) {
          if (kGrid.block(slot) == block && state.lent && touches(slot, begin, end)) expected.push_back(slot);
        }
        ASSERT_EQ(map_.Loans(block, begin, end), expected);
        for (const SlotId slot : expected) {
          if (const auto resident = residents.find(slot); resident != residents.end()) {
            table_.Clear(resident->second);
            at_home.push_back(resident->second);
            residents.erase(resident);
          }
        }
        map_.TakeBack(block, begin, end, table_);
        std::erase_if(model, [&](const auto& entry) {
          return kGrid.block(entry.first) == block && touches(entry.first, begin, end);
        });
        break;
      }
    }
    if (operation % 16 != 0) continue;
    map_.CheckInvariants(table_);
    table_.CheckInvariants();
    std::map<SlotSource, std::pair<uint32_t, uint32_t>> counts;
    for (const auto& [slot, state] : model) {
      ++(state.lent ? counts[state.source].second : counts[state.source].first);
      ASSERT_EQ(map_.lent(slot), state.lent);
    }
    for (size_t s = 0; s < kSlotSources; ++s) {
      const auto source = static_cast<SlotSource>(s);
      ASSERT_EQ(map_.lendable(source), counts[source].first);
      ASSERT_EQ(map_.lent(source), counts[source].second);
    }
  }
}

}  // namespace
}  // namespace elasticmem
