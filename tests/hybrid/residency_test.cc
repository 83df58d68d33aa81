// Which neurons stay and which leave: the planner's choices, and residency under random growth and shrinkage of KV.
#include "hybrid/residency.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/units.h"
#include "mapping/kv_table.h"

namespace elasticmem {
namespace {

constexpr uint32_t kLayers = 3;
constexpr uint32_t kNeurons = 100;
constexpr uint64_t kSlotBytes = 576;
constexpr uint64_t kPageBytes = 6 << 10;  // leaves a tail of three slots in a block of 8 KiB
constexpr uint32_t kBlocks = 24;

class Residency : public ::testing::Test {
 protected:
  Residency() : budget_(16_MiB) {
    pool_ = BlockPool::Create(budget_, kBlocks, 8 << 10).value();
    residency_ =
        NeuronResidency::Create(budget_, pool_.get(), {Policy::kElastic, kLayers, kNeurons, kSlotBytes, kPageBytes, 0})
            .value();
  }
  // A record's bytes tell which neuron it is.
  static void Write(std::byte* slot, NeuronId id) {
    std::fill_n(reinterpret_cast<uint32_t*>(slot), kSlotBytes / 4, id.layer * 1000 + id.neuron);
  }
  void CheckRecords() const {
    for (uint32_t l = 0; l < kLayers; ++l) {
      for (uint32_t n = 0; n < kNeurons; ++n) {
        const std::byte* record = residency_->Record({l, n});
        if (!record) continue;
        for (uint64_t i = 0; i < kSlotBytes; i += 4) {
          ASSERT_EQ(*reinterpret_cast<const uint32_t*>(record + i), l * 1000 + n) << "layer " << l << " neuron " << n;
        }
      }
    }
    residency_->CheckInvariants();
    pool_->CheckInvariants();
  }
  static bool Nobody(NeuronId) { return false; }

  Budget budget_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<NeuronResidency> residency_;
};

TEST_F(Residency, FillsFreeBlocksAndGivesTheColdestBack) {
  const auto kv = pool_->TryAcquire(4, BlockOwner::kKv);
  residency_->Grow();
  EXPECT_EQ(pool_->free(), 0u);
  const uint32_t slots = residency_->slots();
  EXPECT_EQ(slots, (kBlocks - 4) * ((8 << 10) / kSlotBytes));
  uint32_t filled = 0;
  for (uint32_t n = 0; n < kNeurons; ++n) {
    if (std::byte* slot = residency_->AdmitIfFree({1, n})) {
      Write(slot, {1, n});
      ++filled;
    }
  }
  EXPECT_EQ(filled, kNeurons);
  // The first half is hot; blocks fill in order, so the cold ones lie in other blocks.
  for (uint32_t n = 0; n < kNeurons / 2; ++n) residency_->heat().Touch(1, {&n, 1});
  residency_->MakeFree(12);
  EXPECT_EQ(pool_->free(), 12u);
  for (uint32_t n = 0; n < kNeurons / 2; ++n) EXPECT_NE(residency_->Record({1, n}), nullptr) << n;
  CheckRecords();
}

TEST_F(Residency, NewcomerTakesTheSlotOfAClearlyColderNeuron) {
  residency_->Grow();
  std::vector<NeuronId> all;
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (uint32_t n = 0; n < kNeurons; ++n) {
      if (std::byte* slot = residency_->AdmitIfFree({l, n})) {
        Write(slot, {l, n});
        all.push_back({l, n});
      }
    }
  }
  ASSERT_EQ(all.size(), kLayers * kNeurons);  // 24 blocks of 14 slots hold all 300
  residency_->MakeFree(22);                   // two blocks of neurons are left
  const uint32_t resident = residency_->resident();
  ASSERT_LT(resident, all.size());
  const auto absent = std::find_if(all.begin(), all.end(), [&](NeuronId id) { return !residency_->Record(id); });
  ASSERT_NE(absent, all.end());
  residency_->heat().Touch(absent->layer, {&absent->neuron, 1});
  std::byte* slot = residency_->Admit(*absent, Nobody);
  ASSERT_NE(slot, nullptr);
  Write(slot, *absent);
  EXPECT_NE(residency_->Record(*absent), nullptr);
}

TEST_F(Residency, ProtectedNeuronsKeepTheirPlace) {
  const auto kv = pool_->TryAcquire(kBlocks - 1, BlockOwner::kKv);
  residency_->Grow();
  uint32_t n = 0;
  while (std::byte* slot = residency_->AdmitIfFree({0, n})) Write(slot, {0, n}), ++n;
  const uint32_t hot = kNeurons - 1;
  residency_->heat().Touch(2, {&hot, 1});
  EXPECT_EQ(residency_->Admit({2, hot}, [](NeuronId id) { return id.layer == 0; }), nullptr);
  EXPECT_NE(residency_->Admit({2, hot}, Nobody), nullptr);
}

TEST_F(Residency, SurvivesRandomGrowthOfKvAndNeurons) {
  std::mt19937 random(3);
  std::vector<BlockLease> kv;
  residency_->Grow();
  for (int step = 0; step < 20000; ++step) {
    const NeuronId id{static_cast<uint32_t>(random() % kLayers), static_cast<uint32_t>(random() % kNeurons)};
    switch (random() % 8) {
      case 0: {  // KV grows by a page
        residency_->MakeFree(1);
        if (auto lease = pool_->TryAcquire(BlockOwner::kKv)) {
          std::fill_n(pool_->Address(*lease), kPageBytes, std::byte{0xEE});
          residency_->OfferKvTail(Index(lease->id()));
          kv.push_back(std::move(*lease));
        }
        break;
      }
      case 1:
        if (!kv.empty()) {
          const size_t i = random() % kv.size();
          std::swap(kv[i], kv.back());
          residency_->TakeBackKv(Index(kv.back().id()));
          kv.pop_back();
        }
        break;
      case 2:
        residency_->Grow();
        break;
      case 3:
        residency_->Advance(1);
        break;
      default:
        residency_->heat().Touch(id.layer, {&id.neuron, 1});
        if (!residency_->Record(id)) {
          if (std::byte* slot = residency_->Admit(id, Nobody)) Write(slot, id);
        }
    }
    if (step % 500 == 0) CheckRecords();
    for (const BlockLease& lease : kv) {
      ASSERT_EQ(*pool_->Address(lease), std::byte{0xEE});
      ASSERT_EQ(pool_->Address(lease)[kPageBytes - 1], std::byte{0xEE});
    }
  }
  CheckRecords();
  EXPECT_GT(residency_->resident(), 0u);
}

TEST(BlocksToHaveReady, SpreadsWhatIsNeededOverTheStepsBefore) {
  // A page of 24 layers, 8 steps ahead.
  uint32_t free = 0;
  for (uint32_t left = 8; left > 0; --left) {
    std::vector<uint32_t> needed(8);
    for (uint32_t s = left - 1; s < 8; ++s) needed[s] = 24;
    const uint32_t ready = BlocksToHaveReady(needed, free);
    EXPECT_EQ(ready - free, 3u) << left << " steps left";
    free = ready;
  }
  EXPECT_EQ(free, 24u);
}

TEST(BlocksToHaveReady, NeverLeavesTheNextStepShort) {
  EXPECT_EQ(BlocksToHaveReady(std::vector<uint32_t>{24, 24, 48}, 0), 24u);
  EXPECT_EQ(BlocksToHaveReady(std::vector<uint32_t>{1, 1, 48}, 0), 16u);
  EXPECT_EQ(BlocksToHaveReady(std::vector<uint32_t>{0, 10}, 7), 9u);
  EXPECT_EQ(BlocksToHaveReady(std::vector<uint32_t>{3, 9}, 9), 9u);
  EXPECT_EQ(BlocksToHaveReady({}, 5), 5u);
}

TEST(Heat, ForgetsOldUseAndNeverOverflows) {
  Budget budget(1_MiB);
  Heat heat = Heat::Create(budget, 1, 2, Heat::Kind::kFrequency).value();
  const uint32_t first = 0, second = 1;
  for (int i = 0; i < 10; ++i) heat.Touch(0, {&first, 1});
  heat.Advance(1000);  // 0.995^1000 = 0.0067: ten uses then are worth less than one now
  heat.Touch(0, {&second, 1});
  EXPECT_GT(heat.value({0, 1}), heat.value({0, 0}));
  for (int i = 0; i < 100; ++i) {
    heat.Advance(1000);
    heat.Touch(0, {&second, 1});
  }
  EXPECT_TRUE(std::isfinite(heat.value({0, 1})));
}

}  // namespace
}  // namespace elasticmem
