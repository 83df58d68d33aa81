#include "mem/block_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <random>
#include <set>

#include "base/units.h"
#include "tests/mem/random_seed.h"

namespace elasticmem {
namespace {

std::unique_ptr<BlockPool> MakePool(Budget& budget, uint32_t capacity) {
  auto pool = BlockPool::Create(budget, capacity, 4096);
  EXPECT_TRUE(pool.ok()) << pool.status();
  return *std::move(pool);
}

TEST(BlockPool, AccountsItsBlocksAndItsTables) {
  Budget budget(1_MiB);
  {
    const auto pool = MakePool(budget, 100);
    EXPECT_EQ(budget.bytes(MemoryCategory::kPool), 100 * 4096u);
    EXPECT_GT(budget.bytes(MemoryCategory::kTables), 0u);
  }
  EXPECT_EQ(budget.current_bytes(), 0u);
  EXPECT_EQ(BlockPool::Create(budget, 1000, 4096).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(BlockPool::Create(budget, ~0u, uint64_t{1} << 40).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(budget.current_bytes(), 0u);
}

TEST(BlockPool, TakesAllOrNothing) {
  Budget budget(1_MiB);
  const auto pool = MakePool(budget, 10);
  auto six = pool->TryAcquire(6, BlockOwner::kKv);
  ASSERT_TRUE(six);
  EXPECT_FALSE(pool->TryAcquire(5, BlockOwner::kNeuron));
  EXPECT_EQ(pool->free(), 4u);
  EXPECT_EQ(pool->blocks(BlockOwner::kNeuron), 0u);
  EXPECT_TRUE(pool->TryAcquire(4, BlockOwner::kNeuron));  // and gives them back at once
  EXPECT_EQ(pool->free(), 4u);
  EXPECT_TRUE(pool->TryAcquire(0, BlockOwner::kNeuron)->empty());
}

TEST(BlockPool, ASharedBlockIsFreeWhenItsLastLeaseGoes) {
  Budget budget(1_MiB);
  const auto pool = MakePool(budget, 1);
  auto first = pool->TryAcquire(BlockOwner::kKv);
  ASSERT_TRUE(first);
  BlockLease second = first->Share();
  EXPECT_EQ(pool->leases(second.id()), 2u);
  first->Release();
  EXPECT_EQ(pool->free(), 0u);
  EXPECT_FALSE(pool->TryAcquire(BlockOwner::kKv));
  second.Release();
  EXPECT_EQ(pool->free(), 1u);
}

TEST(BlockPool, ABlockChangesItsOwnerWhereItLies) {
  Budget budget(1_MiB);
  const auto pool = MakePool(budget, 2);
  auto lease = pool->TryAcquire(BlockOwner::kNeuron);
  const std::byte* const address = pool->Address(*lease);
  pool->ChangeOwner(*lease, BlockOwner::kKv);
  EXPECT_EQ(pool->owner(lease->id()), BlockOwner::kKv);
  EXPECT_EQ(pool->Address(*lease), address);
  EXPECT_EQ(pool->blocks(BlockOwner::kKv), 1u);
  EXPECT_EQ(pool->blocks(BlockOwner::kNeuron), 0u);
}

TEST(BlockPool, AnIdIsNeverTheSameAgain) {
  Budget budget(1_MiB);
  const auto pool = MakePool(budget, 1);
  const BlockId before = pool->TryAcquire(BlockOwner::kKv)->id();
  const auto lease = pool->TryAcquire(BlockOwner::kKv);
  EXPECT_EQ(Index(before), Index(lease->id()));
  EXPECT_NE(before, lease->id());
#ifdef EM_DEBUG_CHECKS
  EXPECT_DEATH(pool->Address(before), "this should always hold");
#endif
}

TEST(BlockPool, RandomLeasesAgreeWithANaiveModel) {
  std::mt19937_64 random(TestSeed(5));
  constexpr uint32_t kCapacity = 64;
  Budget budget(1_MiB);
  const auto pool = MakePool(budget, kCapacity);
  std::vector<BlockLease> held;
  std::map<uint32_t, std::pair<uint32_t, BlockOwner>> model;  // index -> leases, owner
  const auto random_owner = [&] { return static_cast<BlockOwner>(1 + random() % (kBlockOwners - 1)); };
  for (int operation = 0; operation < 100000; ++operation) {
    switch (random() % 5) {
      case 0: {
        const auto count = static_cast<uint32_t>(random() % 12);
        const BlockOwner owner = random_owner();
        auto leases = pool->TryAcquire(count, owner);
        ASSERT_EQ(leases.has_value(), model.size() + count <= kCapacity);
        if (!leases) break;
        for (BlockLease& lease : *leases) {
          ASSERT_TRUE(model.emplace(Index(lease.id()), std::pair(1u, owner)).second) << "leased twice";
          held.push_back(std::move(lease));
        }
        break;
      }
      case 1: {
        const BlockOwner owner = random_owner();
        auto lease = pool->TryAcquire(owner);
        ASSERT_EQ(lease.has_value(), model.size() < kCapacity);
        if (!lease) break;
        ASSERT_TRUE(model.emplace(Index(lease->id()), std::pair(1u, owner)).second) << "leased twice";
        held.push_back(*std::move(lease));
        break;
      }
      case 2:
        if (held.empty() || held.size() > 200) break;
        held.push_back(held[random() % held.size()].Share());
        ++model[Index(held.back().id())].first;
        break;
      case 3: {
        if (held.empty()) break;
        const BlockLease& lease = held[random() % held.size()];
        auto& [leases, owner] = model[Index(lease.id())];
        if (leases != 1) break;
        owner = random_owner();
        pool->ChangeOwner(lease, owner);
        break;
      }
      case 4:
        for (size_t n = random() % 8; n > 0 && !held.empty(); --n) {
          std::swap(held[random() % held.size()], held.back());
          const uint32_t index = Index(held.back().id());
          if (--model[index].first == 0) model.erase(index);
          held.pop_back();
        }
        break;
    }
    ASSERT_EQ(pool->leased(), model.size());
    ASSERT_EQ(pool->free() + pool->leased(), pool->capacity());
    if (operation % 16 != 0) continue;
    pool->CheckInvariants();
    for (uint32_t index = 0; index < kCapacity; ++index) {
      const auto it = model.find(index);
      ASSERT_EQ(pool->owner_at(index), it == model.end() ? BlockOwner::kFree : it->second.second);
      ASSERT_EQ(pool->leases_at(index), it == model.end() ? 0 : it->second.first);
    }
  }
}

TEST(BlockPool, AcquireAndReleaseTakeNanoseconds) {
  Budget budget(64_MiB);
  const auto pool = MakePool(budget, 8192);
  double best = 1e9;
  for (int round = 0; round < 20; ++round) {
    constexpr int kPairs = 20000;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kPairs; ++i) {
      auto lease = pool->TryAcquire(BlockOwner::kKv);
      ASSERT_TRUE(lease.has_value());
    }
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
    best = std::min(best, time.count() / kPairs);
  }
  RecordProperty("nanoseconds", std::to_string(best));
  std::printf("acquire and release: %.1f ns\n", best);
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(best, 100);  // 20 ns is the aim; the rest is room for slow and busy machines
#endif
}

}  // namespace
}  // namespace elasticmem
