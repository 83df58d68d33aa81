// KvTable against a naive model that keeps the text of every sequence: what is written to pages is read back from them.
#include "mapping/kv_table.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <set>

#include "base/units.h"
#include "tests/mem/random_seed.h"

namespace elasticmem {
namespace {

constexpr uint32_t kLayers = 3;
constexpr uint32_t kPageTokens = 4;

class KvTableTest : public testing::Test {
 protected:
  Budget budget_{4_MiB};
  std::unique_ptr<BlockPool> pool_ = *BlockPool::Create(budget_, 60, 4096);
  KvTable table_{pool_.get(), &budget_, kLayers, kPageTokens};
};

TEST_F(KvTableTest, TakesPagesAsTokensCome) {
  const SequenceId id = table_.AddSequence();
  EXPECT_EQ(table_.BlocksFor(id, 1), kLayers);
  ASSERT_TRUE(table_.TryAppend(id, 1));
  EXPECT_EQ(pool_->blocks(BlockOwner::kKv), kLayers);
  EXPECT_EQ(table_.BlocksFor(id, 3), 0u);
  ASSERT_TRUE(table_.TryAppend(id, 3));
  EXPECT_EQ(table_.pages(id), 1u);
  ASSERT_TRUE(table_.TryAppend(id, 5));
  EXPECT_EQ(table_.pages(id), 3u);
  EXPECT_EQ(table_.PagePointers(id, 2).size(), 3u);
  EXPECT_EQ(table_.PagePointers(id, 2)[1], table_.WritablePage(id, 2, 1));
  table_.Truncate(id, 4);
  EXPECT_EQ(pool_->blocks(BlockOwner::kKv), kLayers);
  table_.RemoveSequence(id);
  EXPECT_EQ(pool_->leased(), 0u);
  table_.CheckInvariants();
}

TEST_F(KvTableTest, ChangesNothingWhereThePoolIsFull) {
  const SequenceId id = table_.AddSequence();
  ASSERT_TRUE(table_.TryAppend(id, 19 * kPageTokens));  // 57 of 60 blocks
  EXPECT_FALSE(table_.TryAppend(id, kPageTokens + 1));
  EXPECT_EQ(table_.tokens(id), 19 * kPageTokens);
  EXPECT_EQ(pool_->free(), 3u);
  EXPECT_TRUE(table_.TryAppend(id, kPageTokens));
  table_.CheckInvariants();
}

TEST_F(KvTableTest, ChangesNothingWhereTheBudgetHasNoRoomForTheTable) {
  const SequenceId id = table_.AddSequence();
  auto rest = budget_.TryReserve(MemoryCategory::kOther, budget_.available_bytes());
  EXPECT_FALSE(table_.TryAppend(id, 1));
  EXPECT_EQ(pool_->leased(), 0u);
  rest->Release();
  ASSERT_TRUE(table_.TryAppend(id, 1));
  rest = budget_.TryReserve(MemoryCategory::kOther, budget_.available_bytes());
  EXPECT_FALSE(table_.Fork(id));
  EXPECT_EQ(table_.sequences(), 1u);
  table_.CheckInvariants();
}

TEST_F(KvTableTest, AForkCopiesOnlyThePageItWrites) {
  const SequenceId first = table_.AddSequence();
  ASSERT_TRUE(table_.TryAppend(first, 6));
  const SequenceId second = *table_.Fork(first);
  EXPECT_EQ(pool_->leased(), 2 * kLayers);
  EXPECT_EQ(table_.BlocksFor(second, 1), kLayers);
  const auto copies = table_.TryAppend(second, 1);
  ASSERT_TRUE(copies);
  ASSERT_EQ(copies->size(), kLayers);
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ((*copies)[layer].from, table_.PagePointers(first, layer)[1]);
    EXPECT_EQ((*copies)[layer].to, table_.PagePointers(second, layer)[1]);
    EXPECT_EQ((*copies)[layer].tokens, 2u);
    EXPECT_EQ(table_.PagePointers(first, layer)[0], table_.PagePointers(second, layer)[0]);
  }
  EXPECT_TRUE(table_.TryAppend(first, 1)->empty());  // the other one's page is its own by now
  EXPECT_DEATH(table_.WritablePage(first, 0, 0), "this should always hold");
}

TEST_F(KvTableTest, AForkAtAPageBoundaryCopiesNothing) {
  const SequenceId first = table_.AddSequence();
  ASSERT_TRUE(table_.TryAppend(first, 8));
  const SequenceId second = *table_.Fork(first);
  EXPECT_TRUE(table_.TryAppend(second, 1)->empty());
  EXPECT_EQ(pool_->leased(), 3 * kLayers);
}

std::vector<BlockLease> SharePage(const KvTable& table, SequenceId id, uint32_t page) {
  std::vector<BlockLease> leases;
  for (uint32_t layer = 0; layer < kLayers; ++layer) leases.push_back(table.Share(id, layer, page));
  return leases;
}

TEST_F(KvTableTest, AnEmptySequenceAdoptsPages) {
  const SequenceId first = table_.AddSequence();
  ASSERT_TRUE(table_.TryAppend(first, 8));
  const std::vector<BlockLease> kept[] = {SharePage(table_, first, 0), SharePage(table_, first, 1)};
  table_.RemoveSequence(first);
  const std::span<const BlockLease> pages[] = {kept[0], kept[1]};
  const SequenceId second = table_.AddSequence();
  auto rest = budget_.TryReserve(MemoryCategory::kOther, budget_.available_bytes());
  EXPECT_FALSE(table_.TryAdopt(second, pages));
  EXPECT_EQ(table_.tokens(second), 0u);
  EXPECT_EQ(pool_->leases(kept[1][2].id()), 1u);
  rest->Release();
  ASSERT_TRUE(table_.TryAdopt(second, pages));
  EXPECT_EQ(table_.tokens(second), 8u);
  EXPECT_EQ(table_.block(second, 2, 1), kept[1][2].id());
  EXPECT_EQ(table_.PagePointers(second, 2)[1], pool_->Address(kept[1][2]));
  EXPECT_EQ(pool_->leased(), 2 * kLayers);
  table_.CheckInvariants();
  EXPECT_TRUE(table_.TryAppend(second, 1)->empty());
  table_.CheckInvariants();
}

TEST_F(KvTableTest, ASequenceUsesAnotherPageOfTheSameBytes) {
  const SequenceId first = table_.AddSequence();
  const SequenceId second = table_.AddSequence();
  ASSERT_TRUE(table_.TryAppend(first, 4));
  ASSERT_TRUE(table_.TryAppend(second, 6));
  table_.ReplacePage(second, 0, SharePage(table_, first, 0));
  EXPECT_EQ(table_.block(second, 1, 0), table_.block(first, 1, 0));
  EXPECT_EQ(pool_->leased(), 2 * kLayers);
  table_.CheckInvariants();
  EXPECT_DEATH(table_.ReplacePage(second, 0, SharePage(table_, first, 0)), "this should always hold");  // now shared
}

TEST_F(KvTableTest, TellsOfPagesThatASequenceLeavesToOthers) {
  std::vector<BlockId> left;
  table_.SetLeftListener([&](BlockId block) {
    EXPECT_EQ(pool_->leases(block), 1u);
    left.push_back(block);
  });
  const SequenceId id = table_.AddSequence();
  ASSERT_TRUE(table_.TryAppend(id, 14));
  const std::vector<BlockLease> kept[] = {SharePage(table_, id, 0), SharePage(table_, id, 1), SharePage(table_, id, 2)};
  table_.Truncate(id, 13);
  EXPECT_TRUE(left.empty());
  table_.Truncate(id, 10);  // the fourth page was its own
  EXPECT_TRUE(left.empty());
  ASSERT_EQ(table_.TryAppend(id, 1)->size(), kLayers);  // the third is copied
  EXPECT_EQ(left, std::vector{kept[2][0].id()});
  table_.RemoveSequence(id);
  EXPECT_EQ(left, (std::vector{kept[2][0].id(), kept[1][0].id(), kept[0][0].id()}));
}

// Each token of a page is one word; written through WritablePage, read through PagePointers.
class RandomKv {
 public:
  explicit RandomKv(uint64_t seed) : random_(seed) {}

  void Run(int operations) {
    for (int operation = 0; operation < operations; ++operation) {
      Step();
      if (testing::Test::HasFatalFailure()) return;
      if (operation % 8 == 0) Check();
    }
    EXPECT_GT(copies_, 10);
    EXPECT_GT(refusals_, 10);
  }

 private:
  SequenceId Any() {
    auto it = text_.begin();
    std::advance(it, random_() % text_.size());
    return it->first;
  }

  void Step() {
    switch (random_() % 10) {
      case 0:
        if (text_.size() < 8) text_[table_.AddSequence()] = {};
        break;
      case 1:
        if (!text_.empty() && text_.size() < 8) {
          const SequenceId from = Any();
          const auto fork = table_.Fork(from);
          ASSERT_TRUE(fork);
          text_[*fork] = std::vector(text_[from]);
        }
        break;
      case 2:
        if (!text_.empty() && random_() % 3 == 0) {
          const SequenceId id = Any();
          table_.RemoveSequence(id);
          text_.erase(id);
        }
        break;
      case 3:
        if (!text_.empty()) {
          const SequenceId id = Any();
          const auto tokens = static_cast<uint32_t>(random_() % (text_[id].size() + 1));
          table_.Truncate(id, tokens);
          text_[id].resize(tokens);
        }
        break;
      default:
        if (!text_.empty()) Append(Any(), static_cast<uint32_t>(random_() % (random_() % 8 == 0 ? 40 : 4)));
    }
  }

  void Append(SequenceId id, uint32_t tokens) {
    std::vector<uint64_t>& text = text_[id];
    const uint32_t needed = table_.BlocksFor(id, tokens);
    const uint32_t free_before = pool_->free();
    const auto copies = table_.TryAppend(id, tokens);
    ASSERT_EQ(copies.has_value(), needed <= free_before);
    if (!copies) {
      ++refusals_;
      ASSERT_EQ(pool_->free(), free_before);
      return;
    }
    for (const PageCopy& copy : *copies) {
      std::memcpy(copy.to, copy.from, copy.tokens * sizeof(uint64_t));
      ++copies_;
    }
    ASSERT_EQ(free_before - pool_->free(), needed);
    for (uint32_t i = 0; i < tokens; ++i) {
      const auto position = static_cast<uint32_t>(text.size());
      text.push_back(random_());
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        std::byte* const page = table_.WritablePage(id, layer, position / kPageTokens);
        const uint64_t word = text.back() + layer;
        std::memcpy(page + position % kPageTokens * sizeof(word), &word, sizeof(word));
      }
    }
  }

  void Check() {
    table_.CheckInvariants();
    pool_->CheckInvariants();
    std::set<const std::byte*> used;
    for (const auto& [id, text] : text_) {
      ASSERT_EQ(table_.tokens(id), text.size());
      ASSERT_EQ(table_.pages(id), CeilDiv<size_t>(text.size(), kPageTokens));
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        const auto pages = table_.PagePointers(id, layer);
        used.insert(pages.begin(), pages.end());
        for (size_t position = 0; position < text.size(); ++position) {
          uint64_t word;
          std::memcpy(&word, pages[position / kPageTokens] + position % kPageTokens * sizeof(word), sizeof(word));
          ASSERT_EQ(word, text[position] + layer) << position;
        }
      }
    }
    ASSERT_EQ(used.size(), pool_->leased());  // nothing leaks
    ASSERT_EQ(table_.sequences(), text_.size());
  }

  std::mt19937_64 random_;
  Budget budget_{4_MiB};
  std::unique_ptr<BlockPool> pool_ = *BlockPool::Create(budget_, 60, 4096);
  KvTable table_{pool_.get(), &budget_, kLayers, kPageTokens};
  std::map<SequenceId, std::vector<uint64_t>> text_;
  int copies_ = 0;
  int refusals_ = 0;
};

TEST(KvTableRandom, SequencesReadWhatTheyWrote) { RandomKv(TestSeed(9)).Run(30000); }

}  // namespace
}  // namespace elasticmem
