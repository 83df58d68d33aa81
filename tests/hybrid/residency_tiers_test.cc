// Neurons between device and host: who goes up and down, when the table follows, and what happens to those that are
// wanted away before their copy is done. The link's clock is the test's.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/units.h"
#include "device/host_device.h"
#include "hybrid/residency.h"

namespace elasticmem {
namespace {

using std::chrono::nanoseconds;

constexpr uint32_t kNeurons = 200;
constexpr uint64_t kSlotBytes = 1024;
constexpr uint64_t kPageBytes = 3072;  // one slot in the tail of a block
constexpr uint32_t kBlocks = 6;
constexpr uint32_t kPerBlock = 4;
constexpr uint32_t kHostSlots = 10;

class ResidencyTiers : public ::testing::Test {
 protected:
  ResidencyTiers() { Make(Policy::kElastic); }
  void Make(Policy policy) {
    residency_.reset();
    residency_ = NeuronResidency::Create(budget_, pool_.get(), {policy, 1, kNeurons, kSlotBytes, kPageBytes, 2},
                                         HostTierOptions{&host_budget_, &device_, kHostSlots})
                     .value();
  }
  static NeuronId Id(uint32_t neuron) { return {0, neuron}; }
  static std::vector<std::byte> RecordOf(uint32_t neuron) {
    std::vector<std::byte> record(kSlotBytes);
    std::fill_n(reinterpret_cast<uint32_t*>(record.data()), kSlotBytes / 4, 1000 + neuron);
    return record;
  }
  bool Load(uint32_t neuron, Tier tier) { return residency_->Load({Id(neuron), tier}, RecordOf(neuron)); }
  // From the store, as a layer does that has missed it.
  bool Admit(uint32_t neuron) {
    std::byte* slot = residency_->Admit(Id(neuron), [](NeuronId) { return false; });
    if (slot) std::copy_n(RecordOf(neuron).data(), kSlotBytes, slot);
    return slot != nullptr;
  }
  void Touch(uint32_t neuron, int times = 1) {
    for (int i = 0; i < times; ++i) residency_->heat().Touch(0, {&neuron, 1});
  }
  // A layer uses the neuron.
  void Use(uint32_t neuron, int times = 1) {
    Touch(neuron, times);
    if (Where(neuron) == Tier::kHost) residency_->WantOnDevice(Id(neuron));
  }
  Tier Where(uint32_t neuron) const { return residency_->table().Lookup(Id(neuron)).tier(); }
  void Pass(uint64_t records) { now_ += nanoseconds(records * kSlotBytes); }  // at 1 GB/s
  // Neurons 0 .. 23 fill the device, 100 .. 109 the host; all are equally warm.
  void Fill() {
    residency_->Grow();
    for (uint32_t n = 0; n < kBlocks * kPerBlock; ++n) ASSERT_TRUE(Load(n, Tier::kDevice));
    for (uint32_t n = 0; n < kHostSlots; ++n) ASSERT_TRUE(Load(100 + n, Tier::kHost));
    for (uint32_t n = 0; n < kNeurons; ++n) Touch(n, 4);
  }
  void Check() const {
    residency_->CheckInvariants();
    pool_->CheckInvariants();
    for (uint32_t n = 0; n < kNeurons; ++n) {
      const std::byte* record = residency_->Record(Id(n));
      if (record) {
        EXPECT_TRUE(std::equal(record, record + kSlotBytes, RecordOf(n).data())) << n;
      }
    }
  }

  std::chrono::steady_clock::time_point now_;
  nanoseconds tick_{1};  // of the clock when it is read; for what waits
  HostDevice device_{1, [this] { return now_ += tick_; }};
  Budget budget_{1_MiB}, host_budget_{1_MiB};
  std::unique_ptr<BlockPool> pool_ = BlockPool::Create(budget_, kBlocks, 4096).value();
  std::unique_ptr<NeuronResidency> residency_;
};

TEST_F(ResidencyTiers, TablesAndSlotsAreInTheirOwnBudgets) {
  EXPECT_EQ(host_budget_.bytes(MemoryCategory::kNeurons), RoundUp<uint64_t>(kHostSlots * kSlotBytes, 4096));
  EXPECT_EQ(budget_.bytes(MemoryCategory::kNeurons), 0u);
  EXPECT_GT(host_budget_.bytes(MemoryCategory::kTables), 8u * kNeurons);  // where each is, and its heat
}

TEST_F(ResidencyTiers, RecordsFromTheStoreLandOnTheHostBesideHotterOnes) {
  residency_->Grow();
  for (uint32_t n = 0; n < kHostSlots; ++n) {
    EXPECT_TRUE(Admit(n));
    EXPECT_EQ(Where(n), Tier::kHost);
  }
  EXPECT_EQ(residency_->free_slots(), 0u);
  for (uint32_t n = 0; n < kHostSlots; ++n) Touch(n, 3);
  EXPECT_FALSE(Admit(50));
  Touch(50, 3);
  EXPECT_FALSE(Admit(50));  // no hotter than they are
  Touch(50, 3);
  EXPECT_TRUE(Admit(50));
  EXPECT_EQ(Where(50), Tier::kHost);
  EXPECT_EQ(residency_->resident(Tier::kHost), kHostSlots);
  EXPECT_EQ(residency_->resident(Tier::kDevice), 0u);
  Check();
}

TEST_F(ResidencyTiers, UsedNeuronsGoUpIntoFreeSlotsWhenTheirCopiesAreDone) {
  residency_->Grow();
  for (const uint32_t n : {1u, 2u, 3u}) ASSERT_TRUE(Admit(n));
  Use(1);
  Use(2, 2);
  residency_->MoveBetweenTiers();
  EXPECT_EQ(residency_->copies_under_way(), 2u);
  EXPECT_EQ(Where(2), Tier::kHost);
  Check();
  Pass(1);  // the hotter one is through
  residency_->MoveBetweenTiers();
  EXPECT_EQ(Where(2), Tier::kDevice);
  EXPECT_EQ(Where(1), Tier::kHost);
  Check();
  Pass(1);
  residency_->MoveBetweenTiers();
  EXPECT_EQ(Where(1), Tier::kDevice);
  EXPECT_EQ(Where(3), Tier::kHost);  // nobody uses it
  EXPECT_EQ(residency_->free_slots(), kHostSlots - 1);
  EXPECT_EQ(residency_->statistics().moved_up, 2u);
  Check();
}

TEST_F(ResidencyTiers, HotOneSendsAColderOneDownAndTakesItsPlace) {
  Fill();
  Use(100, 6);
  residency_->MoveBetweenTiers();
  EXPECT_EQ(Where(100), Tier::kHost);
  // All are equally warm, so for the one that leaves the host has no place: it is dropped, and the slot is free at
  // once.
  EXPECT_EQ(residency_->statistics().dropped, 1u);
  EXPECT_EQ(residency_->copies_under_way(), 1u);
  Pass(1);
  residency_->MoveBetweenTiers();
  EXPECT_EQ(Where(100), Tier::kDevice);
  // Now the host has a free slot: the next exchange loses nothing.
  Use(101, 6);
  residency_->MoveBetweenTiers();
  EXPECT_EQ(residency_->copies_under_way(), 1u);
  EXPECT_EQ(Where(101), Tier::kHost);
  Pass(1);
  residency_->MoveBetweenTiers();
  EXPECT_EQ(residency_->statistics().moved_down, 1u);
  EXPECT_EQ(Where(101), Tier::kHost);
  Pass(1);
  residency_->MoveBetweenTiers();
  EXPECT_EQ(Where(101), Tier::kDevice);
  EXPECT_EQ(residency_->statistics().dropped, 1u);
  EXPECT_EQ(residency_->resident(), kBlocks * kPerBlock + kHostSlots - 1);
  Check();
}

TEST_F(ResidencyTiers, LikeHeatExchangesNothing) {
  Fill();
  for (uint32_t n = 0; n < kHostSlots; ++n) Use(100 + n);  // 5 against 4: within the hysteresis
  residency_->MoveBetweenTiers();
  EXPECT_EQ(residency_->copies_under_way(), 0u);
}

TEST_F(ResidencyTiers, CopiesUnderWayAreBounded) {
  residency_->Grow();
  for (uint32_t round = 0; round < 3; ++round) {
    for (uint32_t n = 0; n < kHostSlots; ++n) Admit(10 * round + n);
    for (uint32_t n = 0; n < kNeurons; ++n) Use(n);
    residency_->MoveBetweenTiers();
    EXPECT_LE(residency_->copies_under_way(), RecordCopies::kMost);
  }
  EXPECT_GT(residency_->copies_under_way(), 0u);
}

TEST_F(ResidencyTiers, NeuronsOfBlocksThatKvWillWantGoDownFirst) {
  residency_->Grow();
  for (uint32_t n = 0; n < kBlocks * kPerBlock; ++n) ASSERT_TRUE(Load(n, Tier::kDevice));
  for (uint32_t n = 4; n < kNeurons; ++n) Touch(n, 9);
  Touch(0), Touch(1, 2);
  residency_->Vacate(1);
  ASSERT_EQ(residency_->leaving_blocks().size(), 1u);
  residency_->MoveBetweenTiers();
  EXPECT_EQ(residency_->copies_under_way(), kPerBlock);
  EXPECT_EQ(Where(0), Tier::kDevice);  // in use as before until the copy is done
  Pass(kPerBlock);
  residency_->MoveBetweenTiers();
  EXPECT_EQ(residency_->statistics().moved_down, kPerBlock);
  EXPECT_EQ(pool_->free(), 0u);
  residency_->MakeFree(1);
  EXPECT_EQ(pool_->free(), 1u);
  EXPECT_TRUE(residency_->leaving_blocks().empty());
  EXPECT_EQ(residency_->statistics().dropped, 0u);
  EXPECT_EQ(residency_->resident(), kBlocks * kPerBlock);
  Check();
}

TEST_F(ResidencyTiers, VacatedSlotsAreFilledAgainOnlyWhenKvDoesNotCome) {
  residency_->Grow();
  for (uint32_t n = 0; n < kBlocks * kPerBlock; ++n) ASSERT_TRUE(Load(n, Tier::kDevice));
  residency_->Vacate(1);
  residency_->MoveBetweenTiers();
  Pass(kPerBlock);
  residency_->MoveBetweenTiers();
  ASSERT_EQ(residency_->resident(Tier::kHost), kPerBlock);
  const uint32_t slots = residency_->slots();
  EXPECT_EQ(slots, (kBlocks - 1) * kPerBlock);
  for (uint32_t n = 0; n < kNeurons; ++n) {
    if (Where(n) == Tier::kHost) Use(n);
  }
  residency_->MoveBetweenTiers();  // they would exchange places with others, not go back to where they were
  EXPECT_EQ(residency_->slots(), slots);
  for (int i = 0; i < 4; ++i) Pass(kPerBlock), residency_->MoveBetweenTiers();
  residency_->Vacate(0);
  EXPECT_TRUE(residency_->leaving_blocks().empty());
  EXPECT_EQ(residency_->slots(), slots + kPerBlock);
  for (uint32_t n = 0; n < kNeurons; ++n) {
    if (Where(n) == Tier::kHost) Use(n);
  }
  for (int i = 0; i < 4; ++i) residency_->MoveBetweenTiers(), Pass(2 * kPerBlock);
  residency_->MoveBetweenTiers();
  EXPECT_EQ(residency_->resident(Tier::kDevice), kBlocks * kPerBlock);
  Check();
}

TEST_F(ResidencyTiers, OneWhoseBlockIsWantedBeforeItsCopyIsDoneIsDropped) {
  residency_->Grow();
  for (uint32_t n = 0; n < kBlocks * kPerBlock; ++n) ASSERT_TRUE(Load(n, Tier::kDevice));
  residency_->Vacate(1);
  residency_->MoveBetweenTiers();
  ASSERT_EQ(residency_->copies_under_way(), kPerBlock);
  Pass(1);
  residency_->MoveBetweenTiers();  // one is through
  residency_->MakeFree(1);
  EXPECT_EQ(pool_->free(), 1u);
  EXPECT_EQ(residency_->statistics().copy_waits, 0u);
  EXPECT_EQ(residency_->statistics().dropped, kPerBlock - 1);
  const auto kv = pool_->TryAcquire(BlockOwner::kKv);
  std::fill_n(pool_->Address(*kv), 4096, std::byte{0xEE});
  EXPECT_EQ(residency_->free_slots(), kHostSlots - kPerBlock);  // still being written
  Pass(kPerBlock);
  residency_->MoveBetweenTiers();
  EXPECT_EQ(residency_->statistics().copies_in_vain, kPerBlock - 1);
  EXPECT_EQ(residency_->free_slots(), kHostSlots - 1);
  EXPECT_EQ(residency_->resident(Tier::kHost), 1u);
  Check();
}

TEST_F(ResidencyTiers, BlocksThatSomethingIsOnItsWayToAreGivenUpLast) {
  residency_->Grow();
  ASSERT_TRUE(Admit(1));
  Use(1);
  residency_->MoveBetweenTiers();
  ASSERT_EQ(residency_->copies_under_way(), 1u);
  residency_->MakeFree(kBlocks - 1);
  EXPECT_EQ(pool_->free(), kBlocks - 1);
  EXPECT_EQ(residency_->statistics().copy_waits, 0u);
  EXPECT_EQ(residency_->copies_under_way(), 1u);
  Check();
  tick_ = nanoseconds(100);
  residency_->MakeFree(kBlocks);
  EXPECT_EQ(pool_->free(), kBlocks);
  EXPECT_EQ(residency_->statistics().copy_waits, 1u);
  EXPECT_EQ(Where(1), Tier::kStore);
  Check();
}

TEST_F(ResidencyTiers, TailThatIsTakenBackIsNotLentAgainBeforeTheCopyIntoItIsDone) {
  auto kv = pool_->TryAcquire(kBlocks, BlockOwner::kKv);
  const uint32_t block = Index((*kv)[0].id());
  residency_->OfferKvTail(block);
  ASSERT_TRUE(Admit(1));
  Use(1);
  residency_->MoveBetweenTiers();
  ASSERT_EQ(residency_->copies_under_way(), 1u);
  residency_->TakeBackKv(block);   // its sequence ends
  residency_->OfferKvTail(block);  // and another begins
  EXPECT_EQ(Where(1), Tier::kHost);
  Use(1);
  residency_->MoveBetweenTiers();
  EXPECT_EQ(residency_->copies_under_way(), 1u);
  Check();
  Pass(1);
  residency_->MoveBetweenTiers();
  EXPECT_EQ(residency_->statistics().copies_in_vain, 1u);
  Use(1);
  residency_->MoveBetweenTiers();
  Pass(1);
  residency_->MoveBetweenTiers();
  EXPECT_EQ(Where(1), Tier::kDevice);
  Check();
  residency_->TakeBackKv(block);
  EXPECT_EQ(Where(1), Tier::kStore);
}

TEST_F(ResidencyTiers, StaticNeuronsStayWhereTheyWerePlaced) {
  Make(Policy::kStatic);
  residency_->Grow();  // two blocks are KV's
  std::vector<float> worth(kNeurons);
  for (uint32_t n = 0; n < kNeurons; ++n) worth[n] = static_cast<float>(n);
  tick_ = nanoseconds(100);
  const uint32_t on_device = (kBlocks - 2) * kPerBlock;
  const std::vector<Placement> missing = residency_->Place(worth);
  ASSERT_EQ(missing.size(), on_device + kHostSlots);
  for (const Placement& placement : missing) {
    EXPECT_EQ(placement.tier, placement.neuron.neuron >= kNeurons - on_device ? Tier::kDevice : Tier::kHost);
    EXPECT_TRUE(Load(placement.neuron.neuron, placement.tier));
  }
  EXPECT_TRUE(residency_->Place(worth).empty());
  for (uint32_t n = 0; n < kNeurons; ++n) Use(n, 10);
  residency_->Vacate(2);
  residency_->MoveBetweenTiers();
  EXPECT_EQ(residency_->copies_under_way(), 0u);
  EXPECT_FALSE(Admit(0));
  Check();
}

}  // namespace
}  // namespace elasticmem
