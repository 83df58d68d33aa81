// PrefixIndex in small cases, and with the KV table against a naive model that keeps all texts. Each token of a page is
// one word that tells tenant, text up to there and layer, so a page read under a wrong text or after reuse shows.
#include "mapping/prefix_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "base/stream_hash.h"
#include "base/units.h"
#include "tests/mem/random_seed.h"

namespace elasticmem {
namespace {

using Text = std::vector<int32_t>;

constexpr uint32_t kLayers = 3;
constexpr uint32_t kPageTokens = 4;
constexpr uint32_t kBlocks = 96;

Text Numbers(int32_t first, int32_t count) {
  Text text;
  for (int32_t i = 0; i < count; ++i) text.push_back(first + i);
  return text;
}

Text operator+(Text a, const Text& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

uint64_t Word(uint64_t salt, std::span<const int32_t> text, uint32_t layer) {
  return HashOf(std::as_bytes(text)) + 1000 * salt + layer;
}

// The pool, the table and the index, and what an engine does with them.
class Cache {
 public:
  SequenceId Start(uint64_t salt) {
    const SequenceId id = kv.AddSequence();
    salts[id] = salt;
    texts[id] = {};
    return id;
  }

  // False where the pool is full.
  bool Append(SequenceId id, const Text& tokens) {
    const auto copies = kv.TryAppend(id, static_cast<uint32_t>(tokens.size()));
    if (!copies) return false;
    for (const PageCopy& copy : *copies) {
      std::memcpy(copy.to, copy.from, copy.tokens * sizeof(uint64_t));
      ++page_copies;
    }
    Text& text = texts[id];
    for (const int32_t token : tokens) {
      const auto position = static_cast<uint32_t>(text.size());
      text.push_back(token);
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        const uint64_t word = Word(salts[id], text, layer);
        std::memcpy(kv.WritablePage(id, layer, position / kPageTokens) + position % kPageTokens * sizeof(word), &word,
                    sizeof(word));
      }
    }
    return true;
  }

  uint32_t Adopt(SequenceId id, const Text& text) {
    const uint32_t tokens = index->Adopt(salts[id], text, id);
    texts[id].assign(text.begin(), text.begin() + tokens);
    return tokens;
  }

  void Insert(SequenceId id) { index->Insert(salts[id], texts[id], id); }

  void Truncate(SequenceId id, uint32_t tokens) {
    kv.Truncate(id, tokens);
    texts[id].resize(tokens);
  }

  void Remove(SequenceId id) {
    kv.RemoveSequence(id);
    salts.erase(id);
    texts.erase(id);
  }

  // A sequence of `text` that was inserted and has ended.
  void Leave(uint64_t salt, const Text& text) {
    const SequenceId id = Start(salt);
    ASSERT_TRUE(Append(id, text));
    Insert(id);
    Remove(id);
  }

  void Check() {
    pool->CheckInvariants();
    kv.CheckInvariants();
    index->CheckInvariants();
    budget.CheckInvariants();
    for (const auto& [id, text] : texts) {
      ASSERT_EQ(kv.tokens(id), text.size());
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        const auto pages = kv.PagePointers(id, layer);
        ASSERT_EQ(pages.size(), CeilDiv<size_t>(text.size(), kPageTokens));
        for (size_t position = 0; position < text.size(); ++position) {
          uint64_t word;
          std::memcpy(&word, pages[position / kPageTokens] + position % kPageTokens * sizeof(word), sizeof(word));
          ASSERT_EQ(word, Word(salts[id], std::span(text).first(position + 1), layer)) << position;
        }
      }
    }
  }

  Budget budget{4_MiB};
  std::unique_ptr<BlockPool> pool = *BlockPool::Create(budget, kBlocks, 4096);
  KvTable kv{pool.get(), &budget, kLayers, kPageTokens};
  std::vector<BlockId> freed;  // what before_free heard of
  std::unique_ptr<PrefixIndex> index = *PrefixIndex::Create(&budget, pool.get(), &kv, [this](BlockId id) {
    EXPECT_EQ(pool->leases(id), 1u);
    std::memset(pool->Address(id), 0xEE, 4096);
    freed.push_back(id);
  });
  std::map<SequenceId, uint64_t> salts;
  std::map<SequenceId, Text> texts;
  int page_copies = 0;
};

class PrefixIndexTest : public testing::Test, public Cache {
 protected:
  ~PrefixIndexTest() override { Check(); }
};

TEST_F(PrefixIndexTest, ASequenceBeginsWithTheLongestChainOfFullPages) {
  Leave(7, Numbers(0, 14));  // three full pages, and two tokens that are forgotten
  EXPECT_EQ(index->pages(), 3u);
  EXPECT_EQ(pool->blocks(BlockOwner::kCached), 3 * kLayers);
  EXPECT_EQ(pool->leased(), 3 * kLayers);
  EXPECT_EQ(index->Lookup(7, Numbers(0, 14)), 12u);
  EXPECT_EQ(index->Lookup(7, Numbers(0, 11)), 8u);
  EXPECT_EQ(index->Lookup(7, Numbers(0, 3)), 0u);
  EXPECT_EQ(index->Lookup(7, Numbers(0, 6) + Numbers(0, 6)), 4u);
  EXPECT_EQ(index->Lookup(7, Numbers(4, 8)), 0u);  // equal tokens, but not after the same text

  const SequenceId id = Start(7);
  EXPECT_EQ(Adopt(id, Numbers(0, 8) + Numbers(50, 8)), 8u);
  EXPECT_EQ(pool->blocks(BlockOwner::kKv), 2 * kLayers);
  EXPECT_EQ(pool->blocks(BlockOwner::kCached), kLayers);
  EXPECT_EQ(index->evictable_blocks(), kLayers);
  Check();
  ASSERT_TRUE(Append(id, Numbers(50, 5)));
  EXPECT_EQ(page_copies, 0);
  Insert(id);  // a second branch
  EXPECT_EQ(index->pages(), 4u);
  Check();
  EXPECT_EQ(index->Lookup(7, Numbers(0, 12)), 12u);
  EXPECT_EQ(index->Lookup(7, Numbers(0, 8) + Numbers(50, 4)), 12u);
  Remove(id);
  EXPECT_EQ(index->evictable_blocks(), 4 * kLayers);
}

TEST_F(PrefixIndexTest, TenantsNeverSeeEachOthersPages) {
  Leave(0, Numbers(0, 8));
  EXPECT_EQ(index->Lookup(1, Numbers(0, 8)), 0u);
  Leave(1, Numbers(0, 8));
  EXPECT_EQ(index->pages(), 4u);
  const SequenceId a = Start(0);
  const SequenceId b = Start(1);
  EXPECT_EQ(Adopt(a, Numbers(0, 8)), 8u);
  EXPECT_EQ(Adopt(b, Numbers(0, 8)), 8u);
  EXPECT_NE(kv.block(a, 0, 0), kv.block(b, 0, 0));
  // Not even where a caller gives one sequence to two tenants: the pages stay the first one's.
  const SequenceId c = Start(0);
  EXPECT_EQ(Adopt(c, Numbers(0, 8)), 8u);
  index->Insert(2, texts[c], c);
  EXPECT_EQ(index->Lookup(2, Numbers(0, 8)), 0u);
}

TEST_F(PrefixIndexTest, EvictsTheLeastRecentlyUsedChainFromItsEnd) {
  Leave(0, Numbers(0, 8));
  index->Advance(5);
  Leave(0, Numbers(0, 4) + Numbers(20, 8));  // shares the first page, which is now used later
  index->Advance(5);
  freed.clear();
  ASSERT_TRUE(index->Coldest());
  EXPECT_EQ(index->Coldest()->last_use, 0u);
  EXPECT_EQ(index->Coldest()->first_token, 4u);
  EXPECT_EQ(index->Coldest()->tokens, kPageTokens);
  EXPECT_EQ(index->Coldest()->blocks, kLayers);
  EXPECT_EQ(index->Evict(1), kLayers);
  EXPECT_EQ(index->Lookup(0, Numbers(0, 8)), 4u);
  EXPECT_EQ(index->Coldest()->last_use, 5u);
  EXPECT_EQ(index->Coldest()->first_token, 8u);
  EXPECT_EQ(index->Evict(kLayers), kLayers);
  EXPECT_EQ(index->Lookup(0, Numbers(0, 4) + Numbers(20, 8)), 8u);
  Check();
  EXPECT_EQ(index->Evict(1000), 2 * kLayers);
  EXPECT_EQ(freed.size(), 4 * kLayers);
  EXPECT_EQ(std::set(freed.begin(), freed.end()).size(), freed.size());
  EXPECT_FALSE(index->Coldest());
  EXPECT_EQ(index->pages(), 0u);
  EXPECT_EQ(pool->leased(), 0u);
}

TEST_F(PrefixIndexTest, AnAdoptedChainIsUsedLater) {
  Leave(0, Numbers(0, 4));
  index->Advance(1);
  Leave(0, Numbers(50, 4));
  index->Advance(1);
  const SequenceId id = Start(0);
  EXPECT_EQ(Adopt(id, Numbers(0, 4)), 4u);
  Remove(id);
  EXPECT_EQ(index->Evict(1), kLayers);
  EXPECT_EQ(index->Lookup(0, Numbers(0, 4)), 4u);
  EXPECT_EQ(index->Lookup(0, Numbers(50, 4)), 0u);
}

TEST_F(PrefixIndexTest, NeverEvictsPagesOfARunningSequence) {
  Leave(0, Numbers(0, 12));
  const SequenceId id = Start(0);
  EXPECT_EQ(Adopt(id, Numbers(0, 8)), 8u);
  const SequenceId fork = *kv.Fork(id);
  salts[fork] = 0;
  texts[fork] = texts[id];
  EXPECT_EQ(index->Evict(1000), kLayers);
  EXPECT_EQ(index->Evict(1000), 0u);
  Remove(id);
  EXPECT_EQ(index->Evict(1000), 0u);
  Truncate(fork, 4);
  EXPECT_EQ(index->Evict(1000), kLayers);
  Check();
  Remove(fork);
  EXPECT_EQ(index->Evict(1000), kLayers);
  EXPECT_EQ(pool->leased(), 0u);
}

TEST_F(PrefixIndexTest, EqualPagesOfTwoSequencesBecomeOne) {
  const SequenceId a = Start(0);
  const SequenceId b = Start(0);
  ASSERT_TRUE(Append(a, Numbers(0, 9)));
  ASSERT_TRUE(Append(b, Numbers(0, 8) + Numbers(30, 6)));
  const BlockId own = kv.block(b, 1, 1);
  Insert(a);
  Insert(b);
  EXPECT_EQ(freed.size(), 2 * kLayers);
  EXPECT_TRUE(std::ranges::count(freed, own) == 1);
  EXPECT_EQ(kv.block(b, 1, 1), kv.block(a, 1, 1));
  EXPECT_EQ(index->pages(), 3u);
  EXPECT_EQ(pool->leased(), (2 + 1 + 2) * kLayers);
  Insert(b);  // again: nothing new
  EXPECT_EQ(index->pages(), 3u);
  EXPECT_EQ(freed.size(), 2 * kLayers);
}

TEST_F(PrefixIndexTest, APageThatAForkHoldsTooStaysAndWhatFollowsEnters) {
  Leave(0, Numbers(0, 4));
  const SequenceId id = Start(0);
  ASSERT_TRUE(Append(id, Numbers(0, 8)));
  const SequenceId fork = *kv.Fork(id);
  salts[fork] = 0;
  texts[fork] = texts[id];
  Insert(id);
  EXPECT_TRUE(freed.empty());
  EXPECT_EQ(index->pages(), 2u);
  EXPECT_EQ(pool->blocks(BlockOwner::kCached), kLayers);  // the first page, but what is held follows it
  EXPECT_EQ(index->evictable_blocks(), 0u);
  EXPECT_EQ(index->Evict(1), 0u);
  Check();
  Remove(id);
  Insert(fork);  // alone now
  EXPECT_EQ(freed.size(), kLayers);
  EXPECT_EQ(pool->leased(), 2 * kLayers);
}

TEST_F(PrefixIndexTest, CopiesASharedPageBeforeItIsWrittenInTheMiddle) {
  Leave(0, Numbers(0, 8));
  const SequenceId id = Start(0);
  EXPECT_EQ(Adopt(id, Numbers(0, 8)), 8u);
  Truncate(id, 7);  // the last token is computed again for its logits
  EXPECT_EQ(kv.BlocksFor(id, 1), kLayers);
  ASSERT_TRUE(Append(id, Numbers(40, 1)));
  EXPECT_EQ(page_copies, static_cast<int>(kLayers));
  EXPECT_EQ(pool->blocks(BlockOwner::kCached), kLayers);  // the page that was left
  Check();
  Insert(id);
  EXPECT_EQ(index->pages(), 3u);
  const SequenceId other = Start(0);
  EXPECT_EQ(Adopt(other, Numbers(0, 8)), 8u);
}

TEST_F(PrefixIndexTest, KeepsLessWhereTheBudgetHasNoRoom) {
  const SequenceId id = Start(0);
  ASSERT_TRUE(Append(id, Numbers(0, 12)));
  auto rest = budget.TryReserve(MemoryCategory::kOther, budget.available_bytes());
  Insert(id);
  EXPECT_EQ(index->pages(), 0u);
  EXPECT_EQ(pool->leases(kv.block(id, 0, 0)), 1u);
  rest->Release();
  Insert(id);
  EXPECT_EQ(index->pages(), 3u);
  Remove(id);

  const SequenceId other = Start(0);
  rest = budget.TryReserve(MemoryCategory::kOther, budget.available_bytes());
  EXPECT_EQ(Adopt(other, Numbers(0, 12)), 0u);
  EXPECT_EQ(kv.tokens(other), 0u);
  EXPECT_EQ(pool->blocks(BlockOwner::kCached), 3 * kLayers);
  Check();
  rest->Release();
  EXPECT_EQ(Adopt(other, Numbers(0, 12)), 12u);
}

TEST(PrefixIndex, AccountsItsTablesAndLetsGoOfAllPagesWhenItEnds) {
  Cache cache;
  for (int32_t text = 0; text < static_cast<int32_t>(kBlocks / kLayers); ++text) {
    cache.Leave(0, Numbers(100 * text, kPageTokens));
  }
  EXPECT_EQ(cache.index->evictable_blocks(), kBlocks);  // all of the pool
  cache.Check();
  const uint64_t full = cache.budget.current_bytes();
  const SequenceId id = cache.Start(0);
  EXPECT_EQ(cache.Adopt(id, Numbers(100, 4)), 4u);
  cache.index.reset();
  EXPECT_EQ(cache.pool->leased(), kLayers);
  cache.kv.CheckInvariants();
  cache.Remove(id);
  EXPECT_EQ(cache.pool->leased(), 0u);
  EXPECT_EQ(full - cache.budget.current_bytes(), PrefixIndex::MaxTableBytes(kBlocks, kLayers, kPageTokens));
}

// All texts that the index should have, searched by walking them.
class RandomPrefixes {
 public:
  explicit RandomPrefixes(uint64_t seed) : random_(seed) {}

  void Run(int operations) {
    for (int operation = 0; operation < operations; ++operation) {
      cache_.index->Advance(1);
      Step();
      NoteHeld();
      if (operation % 8 == 0) Check();
      if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_GT(adopted_, 100);
    EXPECT_GT(refused_, 10);
    EXPECT_GT(evicted_, 1000);
    EXPECT_GT(replaced_, 50);
    EXPECT_GT(cache_.page_copies, 50);
  }

 private:
  struct Page {
    std::vector<BlockId> blocks;
    uint64_t last_held = 0;  // it or what follows it
    bool held = false;
  };
  using Key = std::pair<uint64_t, Text>;  // tenant, text to the end of the page

  uint64_t Below(uint64_t bound) { return random_() % bound; }
  SequenceId Any() { return std::next(cache_.texts.begin(), static_cast<long>(Below(cache_.texts.size())))->first; }

  Text RandomText(uint64_t tokens) {
    Text text;
    for (uint64_t i = 0; i < tokens; ++i) text.push_back(static_cast<int32_t>(Below(8) == 0));
    return text;
  }

  void Step() {
    const uint64_t choice = Below(20);
    if (choice < 4) {
      if (cache_.texts.size() < 6) Begin();
    } else if (cache_.texts.empty()) {
      return;
    } else if (choice < 9) {
      Append(Any(), RandomText(Below(Below(6) == 0 ? 20 : 4)));
    } else if (choice < 13) {
      Insert(Any());
    } else if (choice < 15) {
      const SequenceId id = Any();
      cache_.Truncate(id, static_cast<uint32_t>(Below(cache_.texts[id].size() + 1)));
    } else if (choice == 15) {
      if (cache_.texts.size() < 6) Fork(Any());
    } else if (choice < 19) {
      const SequenceId id = Any();
      if (Below(2) == 0) Insert(id);
      cache_.Remove(id);
    } else {
      Evict(static_cast<uint32_t>(Below(3 * kLayers)));
    }
  }

  void Begin() {
    const SequenceId id = cache_.Start(Below(3));
    const Text text = RandomText(Below(40));
    uint32_t expected = 0;
    while (pages_.contains(Prefix(id, text, expected + kPageTokens))) expected += kPageTokens;
    ASSERT_EQ(cache_.index->Lookup(cache_.salts[id], text), expected);
    if (Below(8) == 0) {  // no room for its table
      const auto rest = cache_.budget.TryReserve(MemoryCategory::kOther, cache_.budget.available_bytes());
      ASSERT_EQ(cache_.Adopt(id, text), 0u);
      for (uint32_t end = kPageTokens; end <= expected; end += kPageTokens) Touch(Prefix(id, text, end));
      refused_ += expected > 0;
    } else {
      const uint32_t free = cache_.pool->free();
      ASSERT_EQ(cache_.Adopt(id, text), expected);
      ASSERT_EQ(cache_.pool->free(), free);
      adopted_ += expected > 0;
      NoteHeld();
    }
    const auto begun = static_cast<long>(cache_.texts[id].size());
    Append(id, Text(text.begin() + begun, text.end()));
  }

  void Append(SequenceId id, const Text& tokens) {
    const uint32_t wanted = cache_.kv.BlocksFor(id, static_cast<uint32_t>(tokens.size()));
    if (wanted > cache_.pool->free()) Evict(wanted - cache_.pool->free());
    ASSERT_EQ(cache_.Append(id, tokens), tokens.empty() || wanted <= cache_.pool->free());
  }

  void Fork(SequenceId id) {
    const SequenceId fork = *cache_.kv.Fork(id);
    cache_.salts[fork] = cache_.salts[id];
    cache_.texts[fork] = Text(cache_.texts[id]);
  }

  void Insert(SequenceId id) {
    const Text text = cache_.texts[id];
    std::vector<BlockId> freed;
    std::vector<std::pair<Key, std::vector<BlockId>>> fresh;
    for (uint32_t end = kPageTokens; end <= text.size(); end += kPageTokens) {
      std::vector<BlockId> blocks;
      for (uint32_t l = 0; l < kLayers; ++l) blocks.push_back(cache_.kv.block(id, l, end / kPageTokens - 1));
      const auto page = pages_.find(Prefix(id, text, end));
      if (page == pages_.end()) {
        fresh.emplace_back(Prefix(id, text, end), blocks);
      } else if (page->second.blocks != blocks && cache_.pool->leases(blocks[0]) == 1) {
        freed.insert(freed.end(), blocks.begin(), blocks.end());
        ++replaced_;
      }
    }
    const uint32_t pages = cache_.index->pages();
    cache_.freed.clear();
    {
      std::optional<Reservation> rest;
      if (Below(16) == 0) rest = cache_.budget.TryReserve(MemoryCategory::kOther, cache_.budget.available_bytes());
      cache_.Insert(id);
      if (rest) fresh.resize(std::min<size_t>(fresh.size(), cache_.index->pages() - pages));
    }
    ASSERT_EQ(cache_.index->pages() - pages, fresh.size());
    ASSERT_EQ(cache_.freed, freed);
    for (const auto& [key, blocks] : fresh) pages_[key] = {blocks};
    NoteHeld();
  }

  void Evict(uint32_t blocks) {
    std::vector<BlockId> expected;
    while (expected.size() < blocks) {
      auto coldest = pages_.end();
      for (auto page = pages_.begin(); page != pages_.end(); ++page) {
        const bool older = coldest == pages_.end() || page->second.last_held < coldest->second.last_held;
        if (!page->second.held && older && IsLeaf(page->first)) coldest = page;
      }
      if (coldest == pages_.end()) break;
      expected.insert(expected.end(), coldest->second.blocks.begin(), coldest->second.blocks.end());
      pages_.erase(coldest);
    }
    cache_.freed.clear();
    const uint32_t free = cache_.pool->free();
    ASSERT_EQ(cache_.index->Evict(blocks), expected.size());
    ASSERT_EQ(cache_.pool->free(), free + expected.size());
    ASSERT_EQ(cache_.freed, expected);
    evicted_ += static_cast<int>(expected.size());
  }

  Key Prefix(SequenceId id, const Text& text, uint32_t tokens) {
    if (tokens > text.size()) return {};  // of which there is none
    return {cache_.salts[id], Text(text.begin(), text.begin() + tokens)};
  }

  // Texts that begin with it come right after it.
  bool IsLeaf(const Key& key) {
    const auto next = pages_.upper_bound(key);
    return next == pages_.end() || next->first.first != key.first || next->first.second.size() < key.second.size() ||
           !std::equal(key.second.begin(), key.second.end(), next->first.second.begin());
  }

  void Touch(Key key) { pages_.at(key).last_held = cache_.index->now(); }

  // Pages whose blocks a sequence has, and all that come before them.
  void NoteHeld() {
    std::set<BlockId> of_sequences;
    for (const auto& [id, text] : cache_.texts) {
      for (uint32_t page = 0; page < cache_.kv.pages(id); ++page) of_sequences.insert(cache_.kv.block(id, 0, page));
    }
    for (auto& [key, page] : pages_) {
      if (page.held) page.last_held = cache_.index->now();  // until now
      page.held = false;
    }
    for (auto& [key, page] : pages_) {
      if (!of_sequences.contains(page.blocks[0])) continue;
      Key before = key;
      for (; !before.second.empty(); before.second.resize(before.second.size() - kPageTokens)) {
        pages_.at(before).held = true;
        Touch(before);
      }
    }
  }

  void Check() {
    cache_.Check();
    ASSERT_EQ(cache_.index->pages(), pages_.size());
    std::set<BlockId> used;
    uint32_t evictable = 0;
    for (const auto& [key, page] : pages_) {
      used.insert(page.blocks.begin(), page.blocks.end());
      evictable += page.held ? 0 : kLayers;
    }
    ASSERT_EQ(used.size(), pages_.size() * kLayers);
    ASSERT_EQ(cache_.index->evictable_blocks(), evictable);
    for (const auto& [id, text] : cache_.texts) {
      for (uint32_t l = 0; l < kLayers; ++l) {
        for (uint32_t page = 0; page < cache_.kv.pages(id); ++page) used.insert(cache_.kv.block(id, l, page));
      }
    }
    ASSERT_EQ(used.size(), cache_.pool->leased());  // nothing leaks
    uint64_t oldest = ~uint64_t{0};
    for (const auto& [key, page] : pages_) {
      if (!page.held) oldest = std::min(oldest, page.last_held);
    }
    const auto coldest = cache_.index->Coldest();
    ASSERT_EQ(coldest ? coldest->last_use : ~uint64_t{0}, oldest);
  }

  std::mt19937_64 random_;
  Cache cache_;
  std::map<Key, Page> pages_;
  int adopted_ = 0;
  int refused_ = 0;
  int evicted_ = 0;
  int replaced_ = 0;
};

TEST(PrefixIndexRandom, FindsWhatItShouldAndFreesTheColdestFirst) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    RandomPrefixes(TestSeed(20 + seed)).Run(8000);
    if (HasFatalFailure()) FAIL() << "seed " << seed;
  }
}

}  // namespace
}  // namespace elasticmem
