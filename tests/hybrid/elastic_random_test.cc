// Budget, pool, KV table, prefix index and residency together, as the engine uses them, under random work and against a
// naive model: pages as plain objects that sequences and the index share, and what was last written into each slot.
// Some shapes have a host tier, with copies that take their time: neurons then move between tiers, and land only where
// nobody else is.
// Each token of a page and each record is stamped, and what nobody holds is poisoned, so bytes that are read under a
// wrong name or after reuse show.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>

#include "base/units.h"
#include "device/host_device.h"
#include "hybrid/residency.h"
#include "mapping/kv_table.h"
#include "mapping/prefix_index.h"
#include "tests/mem/random_seed.h"

namespace elasticmem {
namespace {

#ifdef EM_LONG
constexpr uint64_t kSeeds = 4;
constexpr int kOperations = 26000;  // a seed, shape and policy
#else
constexpr uint64_t kSeeds = 2;
constexpr int kOperations = 2000;
#endif
constexpr int kOperationsPerFullCheck = 250;
constexpr uint32_t kLeastPageEndLife = 2;  // tokens

struct Shape {
  const char* name;
  uint32_t layers;
  uint32_t page_tokens;
  uint32_t blocks;
  uint64_t block_bytes;
  uint64_t page_bytes;
  uint64_t slot_bytes;
  uint32_t neurons;  // a layer
  uint32_t host_slots = 0;
};
constexpr Shape kShapes[] = {
    {"FourSlotsInTheTail", 2, 8, 40, 4096, 3072, 256, 400},
    {"UnalignedTail", 3, 16, 45, 8192, 5888, 576, 250},
    {"NoTailAndFewNeurons", 2, 4, 48, 4096, 4096, 512, 120},  // which need 30 of the blocks
    {"HostTier", 2, 8, 40, 4096, 3072, 256, 500, 150},
    {"SmallHostTierAndUnalignedTail", 3, 16, 45, 8192, 5888, 576, 250, 20},
    {"HostTierThatHoldsTheRest", 2, 4, 30, 4096, 4096, 512, 150, 220},
};

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

void Stamp(std::byte* at, uint64_t bytes, uint64_t stamp) {
  for (uint64_t i = 0; i < bytes; i += 8, stamp += 0x9E3779B97F4A7C15ull) std::memcpy(at + i, &stamp, 8);
}

bool IsStamped(const std::byte* at, uint64_t bytes, uint64_t stamp) {
  for (uint64_t i = 0; i < bytes; i += 8, stamp += 0x9E3779B97F4A7C15ull) {
    if (std::memcmp(at + i, &stamp, 8) != 0) return false;
  }
  return true;
}

// What heat should say: of frequencies in units of one use now, else as it is.
class NaiveHeat {
 public:
  NaiveHeat(Heat::Kind kind, size_t neurons) : kind_(kind), values_(neurons), since_(neurons) {}

  void Touch(size_t at) {
    if (kind_ == Heat::Kind::kFrequency) Set(at, value(at) + 1);
    if (kind_ == Heat::Kind::kLastUse) values_[at] = clock_;
  }
  void Advance(uint32_t tokens) {
    now_ += tokens;
    clock_ += 1;
    if (kind_ != Heat::Kind::kLastUse || clock_ < 0x1p24) return;
    clock_ /= 2;
    for (double& value : values_) value /= 2;
  }
  void Set(size_t at, double value) {
    values_[at] = value;
    since_[at] = now_;
  }
  double value(size_t at) const {
    if (kind_ != Heat::Kind::kFrequency) return values_[at];
    return values_[at] * std::pow(Heat::kDecay, static_cast<double>(now_ - since_[at]));
  }
  double clock() const { return clock_; }

 private:
  Heat::Kind kind_;
  std::vector<double> values_;
  std::vector<uint64_t> since_;
  uint64_t now_ = 0;
  double clock_ = 1;
};

class RandomWork {
 public:
  using Counts = std::map<std::string, uint64_t>;  // how often what happened

  RandomWork(const Shape& shape, Policy policy, uint64_t seed)
      : shape_(shape),
        token_bytes_(shape.page_bytes / shape.page_tokens),
        max_tokens_(shape.blocks / shape.layers * shape.page_tokens / 2),
        fixed_(policy == Policy::kStatic),
        random_(seed),
        pool_(*BlockPool::Create(budget_, shape.blocks, shape.block_bytes)),
        kv_(pool_.get(), &budget_, shape.layers, shape.page_tokens),
        device_(0.25, [this] { return Now(); }),
        residency_(*NeuronResidency::Create(
            budget_, pool_.get(),
            {policy, shape.layers, shape.neurons, shape.slot_bytes, shape.page_bytes,
             fixed_ ? shape.blocks * 5 / 8 : 0},
            shape.host_slots > 0 ? std::optional<HostTierOptions>({&host_budget_, &device_, shape.host_slots})
                                 : std::nullopt)),
        prefix_(*PrefixIndex::Create(&budget_, pool_.get(), &kv_,
                                     [this](BlockId block) {
                                       TakeBack(Index(block), 0, shape_.block_bytes);
                                       freed_.push_back(block);
                                     })),
        heat_(residency_->heat().kind(), size_t{shape.layers} * shape.neurons),
        where_(size_t{shape.layers} * shape.neurons) {
    residency_->Grow();
    // Last uses are rescaled once in 2^24 steps: begin shortly before.
    if (policy == Policy::kLru) {
      for (uint64_t steps = (1 << 24) - 100 - Below(100); steps > 0; --steps) Advance(1);
    }
    if (fixed_ || Below(2) == 0) Place();
  }

  void Run(int operations) {
    for (int i = 0; i < operations && !testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE(testing::Message() << "operation " << i);
      Operate(Below(40));
      CheckCounts();
      if (i % kOperationsPerFullCheck == 0) CheckAll();
    }
    CheckAll();
  }

  // All leaves; what remains is what was there in the beginning.
  void Finish() {
    while (!sequences_.empty()) End(Any());
    CheckAll();
    prefix_.reset();
    pages_.clear();
    freed_.clear();
    EXPECT_EQ(pool_->leased(), pool_->blocks(BlockOwner::kNeuron));
    residency_.reset();
    EXPECT_EQ(pool_->free(), pool_->capacity());
    pool_->CheckInvariants();
    budget_.CheckInvariants();
    EXPECT_EQ(host_budget_.current_bytes(), 0u);
  }

  const Counts& counts() const { return counts_; }

 private:
  struct Page {
    uint64_t before = 0;           // stamp of the token before it
    std::vector<BlockId> blocks;   // by layer
    std::vector<uint64_t> stamps;  // by token: of the text up to there
    bool indexed = false;
  };
  using Text = std::vector<int32_t>;
  struct Sequence {
    uint64_t salt = 0;
    Text text;    // in KV
    Text unread;  // follows
    std::vector<std::shared_ptr<Page>> pages;
  };
  struct Slice {
    SequenceId id;
    Text ids;
  };

  uint64_t Below(uint64_t bound) { return random_() % bound; }
  // The link's clock: it goes on whenever somebody looks, so no wait is for ever. A record takes one to two thousand
  // nanoseconds.
  std::chrono::steady_clock::time_point Now() { return now_ += std::chrono::nanoseconds(Below(4000)); }
  SequenceId Any() { return std::next(sequences_.begin(), static_cast<long>(Below(sequences_.size())))->first; }
  NeuronId Neuron(size_t flat) const {
    return {static_cast<uint32_t>(flat / shape_.neurons), static_cast<uint32_t>(flat % shape_.neurons)};
  }
  size_t Flat(NeuronId id) const { return size_t{id.layer} * shape_.neurons + id.neuron; }
  static uint64_t StampOf(NeuronId id) { return Mix(id.layer * 1000003ull + id.neuron + 1); }
  // Most texts begin alike.
  Text RandomText(uint64_t tokens) {
    Text text(tokens);
    for (int32_t& token : text) token = Below(24) == 0 ? static_cast<int32_t>(1 + Below(2)) : 0;
    return text;
  }

  void Operate(uint64_t choice) {
    const bool some = !sequences_.empty();
    if (choice < 4) {
      if (sequences_.size() < 8) Begin(Below(2), RandomText(1 + Below(max_tokens_ / 2)));
    } else if (choice < 18) {
      if (some) Step();
    } else if (choice < 21) {
      if (some && sequences_.size() < 8) Fork(Any());
    } else if (choice < 23) {
      if (some) Cut(Any());
    } else if (choice == 23) {
      if (some) IndexText(Any());
    } else if (choice < 26) {
      if (some) Finish(Any());
    } else if (choice == 26) {
      if (some) ++counts_["cancelled"], End(Any());
    } else if (choice == 27) {
      if (some) Preempt(Any());
    } else if (choice < 30) {
      Resume();
    } else if (choice == 30) {
      Evict(static_cast<uint32_t>(Below(2 * shape_.layers)));
    } else if (choice == 31) {
      MakeFree(pool_->free() + static_cast<uint32_t>(Below(6)));
      if (Below(2) == 0) residency_->Grow();
    } else if (choice == 32) {
      const uint32_t free = pool_->free();
      residency_->SetReserve(static_cast<uint32_t>(Below(8)));
      residency_->Grow();
      if (!fixed_) {
        EXPECT_TRUE(pool_->free() <= residency_->reserve_blocks() || NeuronBlocksSuffice());
        EXPECT_GE(pool_->free(), std::min(free, residency_->reserve_blocks()));
      }
    } else if (choice < 36) {
      Promote();
    } else if (choice < 39) {
      UseNeurons();
      Advance(static_cast<uint32_t>(1 + Below(Below(20) == 0 ? 50000 : 100)));
    } else if (Below(8) == 0) {
      Place();
    }
  }

  bool NeuronBlocksSuffice() const {
    return pool_->blocks(BlockOwner::kNeuron) * (shape_.block_bytes / shape_.slot_bytes) >= where_.size();
  }

  // Sequences.

  void Begin(uint64_t salt, Text text) {
    const SequenceId id = kv_.AddSequence();
    Sequence& sequence = sequences_[id];
    ++counts_["admitted"];
    sequence.salt = salt;
    uint64_t stamp = Mix(salt);
    std::vector<std::shared_ptr<Page>> chain;
    for (size_t i = 0; i + 1 < text.size(); ++i) {
      stamp = Mix(stamp + static_cast<uint64_t>(text[i]) + 1);
      if ((i + 1) % shape_.page_tokens != 0) continue;
      const auto page = pages_.find(stamp);
      if (page == pages_.end()) break;
      chain.push_back(page->second);
    }
    const uint32_t adopted = prefix_->Adopt(salt, std::span(text).first(text.size() - 1), id);
    EXPECT_EQ(adopted, chain.size() * shape_.page_tokens);
    sequence.pages = std::move(chain);
    sequence.text.assign(text.begin(), text.begin() + adopted);
    sequence.unread.assign(text.begin() + adopted, text.end());
    counts_["adopted"] += adopted > 0;
  }

  void Fork(SequenceId id) {
    std::optional<Reservation> rest;
    if (Below(8) == 0) rest = budget_.TryReserve(MemoryCategory::kOther, budget_.available_bytes());
    const auto fork = kv_.Fork(id);
    EXPECT_TRUE(fork || (rest && !sequences_[id].pages.empty()));
    if (!fork) return;
    sequences_[*fork] = Sequence(sequences_[id]);
    ++counts_["shared"];
  }

  void Cut(SequenceId id) {
    ++counts_["truncated"];
    sequences_[id].unread.clear();
    Truncate(id, static_cast<uint32_t>(Below(sequences_[id].text.size() + 1)));
  }

  void Finish(SequenceId id) {
    ++counts_["finished"];
    IndexText(id);
    End(id);
  }

  void Preempt(SequenceId id) {
    ++counts_["preempted"];
    const Sequence& sequence = sequences_[id];
    Text text = sequence.text;
    text.insert(text.end(), sequence.unread.begin(), sequence.unread.end());
    if (!text.empty()) waiting_.push_back({sequence.salt, std::move(text)});
    if (Below(2) == 0) IndexText(id);
    End(id);
  }

  void Resume() {
    if (waiting_.empty() || sequences_.size() >= 8) return;
    ++counts_["resumed"];
    Begin(waiting_.front().first, std::move(waiting_.front().second));
    waiting_.pop_front();
  }

  void TakeBackTails(SequenceId id, uint32_t first_page) {
    const Sequence& sequence = sequences_[id];
    for (uint32_t page = first_page; page < sequence.pages.size(); ++page) {
      for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
        const BlockId block = kv_.block(id, layer, page);
        EXPECT_EQ(pool_->leases(block), sequence.pages[page].use_count());
        if (pool_->leases(block) == 1) TakeBack(Index(block), 0, shape_.block_bytes);
      }
    }
  }

  void End(SequenceId id) {
    TakeBackTails(id, 0);
    kv_.RemoveSequence(id);
    sequences_.erase(id);
    residency_->Grow();
  }

  void Truncate(SequenceId id, uint32_t tokens) {
    Sequence& sequence = sequences_[id];
    const uint32_t pages = CeilDiv(tokens, shape_.page_tokens);
    TakeBackTails(id, pages);
    kv_.Truncate(id, tokens);
    sequence.pages.resize(pages);
    sequence.text.resize(tokens);
    ForgetUnseen(sequence);
    residency_->Grow();
  }

  // What lies in the last page beyond the sequence's text is nobody's, if it alone holds that page.
  void ForgetUnseen(Sequence& sequence) {
    const size_t rest = sequence.text.size() % shape_.page_tokens;
    if (rest != 0 && sequence.pages.back().use_count() == 1) sequence.pages.back()->stamps.resize(rest);
  }

  void IndexText(SequenceId id) {
    Sequence& sequence = sequences_[id];
    freed_.clear();
    prefix_->Insert(sequence.salt, sequence.text, id);
    std::vector<BlockId> freed;
    for (size_t page = 0; (page + 1) * shape_.page_tokens <= sequence.text.size(); ++page) {
      std::shared_ptr<Page>& own = sequence.pages[page];
      const auto [indexed, added] = pages_.try_emplace(own->stamps.back(), own);
      EXPECT_TRUE(!added || !own->indexed);
      own->indexed |= added;
      if (indexed->second == own || own.use_count() > 1) continue;
      freed.insert(freed.end(), own->blocks.begin(), own->blocks.end());
      own = indexed->second;
      ++counts_["deduplicated"];
    }
    EXPECT_EQ(freed_, freed);
  }

  // Steps.

  void Step() {
    std::vector<Slice> slices;
    const uint64_t count = 1 + Below(4);
    for (auto& [id, sequence] : sequences_) {
      if (slices.size() == count) break;
      if (Below(2) == 0) continue;
      if (sequence.unread.empty()) sequence.unread = RandomText(1 + (Below(8) == 0 ? Below(shape_.page_tokens) : 0));
      const size_t tokens = std::min({sequence.unread.size(), max_tokens_ - sequence.text.size(), 1 + Below(24)});
      if (tokens > 0)
        slices.push_back({id, {sequence.unread.begin(), sequence.unread.begin() + static_cast<long>(tokens)}});
    }
    if (Below(16) != 0) PreemptForRoom(slices);
    if (slices.empty() || !MakeRoom(slices)) return;
    const bool fails = Below(40) == 0;
    for (const Slice& slice : slices) Write(slice);
    UseNeurons();
    uint32_t tokens = 0;
    for (const Slice& slice : slices) {
      Sequence& sequence = sequences_[slice.id];
      const auto n = static_cast<uint32_t>(slice.ids.size());
      tokens += n;
      if (fails) {
        Truncate(slice.id, static_cast<uint32_t>(sequence.text.size()) - n);
      } else {
        sequence.unread.erase(sequence.unread.begin(), sequence.unread.begin() + n);
      }
    }
    counts_[fails ? "rolled back" : "grown"] += slices.size();
    Advance(tokens);
    if (!fails) PrepareNext(slices);
    CheckSequence(slices[0].id);
  }

  uint32_t BlocksFor(const std::vector<Slice>& slices) const {
    uint32_t blocks = 0;
    for (const Slice& slice : slices) blocks += kv_.BlocksFor(slice.id, static_cast<uint32_t>(slice.ids.size()));
    return blocks;
  }
  uint32_t ObtainableBlocks() const { return residency_->obtainable_blocks() + prefix_->evictable_blocks(); }

  void PreemptForRoom(std::vector<Slice>& slices) {
    while (!slices.empty() && BlocksFor(slices) > ObtainableBlocks()) {
      const SequenceId victim = Any();
      std::erase_if(slices, [&](const Slice& slice) { return slice.id == victim; });
      Preempt(victim);
    }
  }

  bool MakeRoom(const std::vector<Slice>& slices) {
    const uint32_t blocks = BlocksFor(slices), obtainable = ObtainableBlocks();
    FreeBlocks(blocks);
    for (size_t i = 0; i < slices.size(); ++i) {
      if (TryAppend(slices[i])) continue;
      EXPECT_GT(blocks, obtainable);
      ++counts_["refused"];
      for (size_t j = 0; j < i; ++j) {
        Truncate(slices[j].id, static_cast<uint32_t>(sequences_[slices[j].id].text.size() - slices[j].ids.size()));
      }
      residency_->Grow();
      return false;
    }
    return true;
  }

  bool TryAppend(const Slice& slice) {
    Sequence& sequence = sequences_[slice.id];
    const uint32_t page_tokens = shape_.page_tokens, tokens = static_cast<uint32_t>(slice.ids.size());
    const auto before = static_cast<uint32_t>(sequence.text.size()), rest = before % page_tokens;
    const auto pages_before = static_cast<uint32_t>(sequence.pages.size());
    const uint32_t pages = CeilDiv(before + tokens, page_tokens);
    const bool copy = rest != 0 && sequence.pages.back().use_count() > 1;
    const uint32_t blocks = shape_.layers * (pages - pages_before + copy), free = pool_->free();
    EXPECT_EQ(kv_.BlocksFor(slice.id, tokens), blocks);
    const auto copies = kv_.TryAppend(slice.id, tokens);
    EXPECT_EQ(copies.has_value(), blocks <= free);
    EXPECT_EQ(pool_->free(), copies ? free - blocks : free);
    if (!copies) return false;
    EXPECT_EQ(copies->size(), copy ? shape_.layers : 0);
    for (const PageCopy& c : *copies) std::memcpy(c.to, c.from, c.tokens * token_bytes_);
    ForgetUnseen(sequence);
    uint64_t stamp = before == 0 ? Mix(sequence.salt)
                                 : sequence.pages[(before - 1) / page_tokens]->stamps[(before - 1) % page_tokens];
    for (uint32_t page = pages_before - copy; page < pages; ++page) {
      const auto fresh = std::make_shared<Page>();
      for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
        const BlockId block = kv_.block(slice.id, layer, page);
        EXPECT_TRUE(holders_[Index(block)].expired()) << "owned twice";
        holders_[Index(block)] = fresh;
        fresh->blocks.push_back(block);
        const auto slot = slots_.lower_bound(pool_->Address(block));
        EXPECT_TRUE(slot == slots_.end() || slot->first >= pool_->Address(block) + shape_.block_bytes);
      }
      if (page < pages_before) {
        const Page& left = *sequence.pages[page];
        fresh->stamps.assign(left.stamps.begin(), left.stamps.begin() + rest);
        fresh->before = left.before;
        sequence.pages.pop_back();
      }
      sequence.pages.push_back(fresh);
    }
    counts_["copied on write"] += copy;
    for (const int32_t token : slice.ids) {
      Page& page = *sequence.pages[sequence.text.size() / page_tokens];
      if (page.stamps.empty()) page.before = stamp;
      stamp = Mix(stamp + static_cast<uint64_t>(token) + 1);
      page.stamps.push_back(stamp);
      sequence.text.push_back(token);
    }
    LendLeftovers(slice.id, before, pages_before, copy);
    return true;
  }

  void LendLeftovers(SequenceId id, uint32_t before, uint32_t pages_before, bool copied) {
    const uint32_t page_tokens = shape_.page_tokens, after = kv_.tokens(id), pages = kv_.pages(id);
    const uint32_t rest = before % page_tokens, first_new = pages_before - copied;
    for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
      if (rest != 0 && !copied) {
        const uint32_t end = std::min(page_tokens, rest + after - before);
        TakeBack(Index(kv_.block(id, layer, pages_before - 1)), rest * token_bytes_, end * token_bytes_);
      }
      for (uint32_t page = first_new; page < pages; ++page) residency_->OfferKvTail(Index(kv_.block(id, layer, page)));
      const uint32_t lent_from = after - (pages - 1) * page_tokens + kLeastPageEndLife;
      if (first_new < pages && lent_from < page_tokens) {
        residency_->OfferPageEnd(Index(kv_.block(id, layer, pages - 1)), lent_from * token_bytes_);
      }
    }
  }

  void Write(const Slice& slice) {
    const Sequence& sequence = sequences_[slice.id];
    for (size_t at = sequence.text.size() - slice.ids.size(); at < sequence.text.size(); ++at) {
      const auto page = static_cast<uint32_t>(at / shape_.page_tokens);
      const uint64_t in_page = at % shape_.page_tokens;
      for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
        Stamp(kv_.WritablePage(slice.id, layer, page) + in_page * token_bytes_, token_bytes_,
              sequence.pages[page]->stamps[in_page] + layer);
      }
    }
  }

  void PrepareNext(const std::vector<Slice>& slices) {
    uint32_t now = 0, soon = 0;
    for (const Slice& slice : slices) {
      const uint32_t room = max_tokens_ - kv_.tokens(slice.id);
      const uint32_t next = std::min<uint32_t>(room, static_cast<uint32_t>(1 + Below(4)));
      now += kv_.BlocksFor(slice.id, next);
      soon += kv_.BlocksFor(slice.id, next > 0 ? std::min(next + 3, room) : 0);
    }
    FreeBlocks(std::min(soon, std::max(now, pool_->free() + 8)));
    residency_->SetReserve(soon);
    residency_->Grow();
    residency_->Vacate(Below(4) == 0 ? 0 : soon + static_cast<uint32_t>(Below(6)));
  }

  bool CachedPageIsWorthLess() {
    const auto page = prefix_->Coldest();
    if (!page) return false;
    const auto activity = residency_->ColdestBlockActivity();
    if (!activity) return fixed_ || Below(2) == 0;
    const double age = static_cast<double>(prefix_->now() - page->last_use);
    return page->tokens * 0.5 / (age + 200) <= *activity;
  }

  void FreeBlocks(uint32_t blocks) {
    while (pool_->free() < blocks) {
      const uint32_t before = pool_->free();
      if (CachedPageIsWorthLess()) {
        Evict(1);
      } else {
        MakeFree(std::min(blocks, before + shape_.layers));
      }
      if (pool_->free() > before) continue;
      Evict(blocks - before);
      return;
    }
  }

  void Evict(uint32_t blocks) {
    const uint32_t free = pool_->free(), expected = std::min(prefix_->evictable_blocks(), blocks);
    freed_.clear();
    EXPECT_GE(prefix_->Evict(blocks), expected);
    EXPECT_EQ(pool_->free(), free + freed_.size());
    for (size_t i = 0; i < freed_.size(); i += shape_.layers) {
      const std::shared_ptr<Page> page = holders_[Index(freed_[i])].lock();
      ASSERT_TRUE(page && page->indexed) << "freed what is not there";
      EXPECT_EQ(page->blocks, std::vector(freed_.begin() + static_cast<long>(i),
                                          freed_.begin() + static_cast<long>(i + shape_.layers)));
      EXPECT_EQ(pages_.erase(page->stamps.back()), 1u);
      EXPECT_EQ(page.use_count(), 1) << "evicted under a sequence";
      for (const auto& [stamp, other] : pages_) EXPECT_NE(other->before, page->stamps.back()) << "not a chain's end";
      ++counts_["evicted pages"];
    }
  }

  // Neurons.

  void Advance(uint32_t tokens) {
    residency_->Advance(tokens);
    prefix_->Advance(tokens);
    heat_.Advance(tokens);
  }

  bool tiers() const { return shape_.host_slots > 0; }
  bool OnDevice(const std::byte* at) const {
    return at >= pool_->base() && at < pool_->base() + shape_.blocks * shape_.block_bytes;
  }

  float HeatOf(NeuronId id) const { return residency_->heat().value(id); }

  void Forget(std::map<const std::byte*, NeuronId>::iterator slot) {
    EXPECT_EQ(residency_->Record(slot->second), nullptr) << "still found";
    where_[Flat(slot->second)] = nullptr;
    slots_.erase(slot);
  }

  // Of a block that is KV's, to be written or freed.
  void TakeBack(uint32_t block, uint64_t begin, uint64_t end) {
    residency_->TakeBack(block, begin, end);
    std::byte* const base = pool_->base() + block * shape_.block_bytes;
    for (auto slot = slots_.upper_bound(base + begin - shape_.slot_bytes);
         slot != slots_.end() && slot->first < base + end; ++counts_["taken back"]) {
      Forget(slot++);
    }
    std::memset(base + begin, 0xEE, end - begin);
  }

  // The blocks that leave are the coldest; then neurons are where the table says, and nowhere new but by a move.
  void MakeFree(uint32_t blocks) {
    const ResidencyStatistics old = residency_->statistics();
    std::map<uint32_t, double> worths;
    for (uint32_t b = 0; b < shape_.blocks; ++b) {
      if (pool_->owner_at(b) == BlockOwner::kNeuron) worths[b] = 0;
    }
    for (const auto& [slot, id] : slots_) {
      if (!OnDevice(slot)) continue;
      const auto block = worths.find(BlockOf(slot));
      if (block != worths.end()) block->second += HeatOf(id);
    }
    const bool as_usual = residency_->copies_under_way() == 0 && residency_->leaving_blocks().empty();
    const uint32_t free = pool_->free(), wanted = blocks > free && !fixed_ ? blocks - free : 0;
    residency_->MakeFree(blocks);
    const auto left = static_cast<uint32_t>(residency_->statistics().evicted_blocks - old.evicted_blocks);
    EXPECT_EQ(left, std::min<size_t>(wanted, worths.size()));
    EXPECT_EQ(pool_->free(), free + left);
    if (left == 0 && residency_->statistics().copy_waits == old.copy_waits) return;
    double hottest_gone = 0, coldest_kept = std::numeric_limits<double>::infinity();
    for (const auto& [block, worth] : worths) {
      if (pool_->owner_at(block) == BlockOwner::kNeuron) {
        coldest_kept = std::min(coldest_kept, worth);
      } else {
        hottest_gone = std::max(hottest_gone, worth);
      }
    }
    // Of more than 32 blocks some are not looked at; those that something is on its way to are passed over, those that
    // are being vacated go first.
    if (worths.size() <= 32 && as_usual) {
      EXPECT_LE(hottest_gone, coldest_kept * (1 + 1e-5));
    }
    counts_["evicted blocks"] += left;
    counts_["relocated"] += residency_->statistics().relocated - old.relocated;
    LookAround(old);
  }

  // Neurons may have moved or left, as the statistics say, but none has come and none is another.
  void LookAround(const ResidencyStatistics& old) {
    const ResidencyStatistics& now = residency_->statistics();
    uint64_t moved = 0, dropped = 0;
    std::map<const std::byte*, NeuronId> slots;
    for (size_t i = 0; i < where_.size(); ++i) {
      const std::byte* record = residency_->Record(Neuron(i));
      if (record) {
        EXPECT_TRUE(slots.emplace(record, Neuron(i)).second) << "two neurons in one slot";
      }
      if (record && record != where_[i]) {
        ++moved;
        EXPECT_TRUE(where_[i] && IsStamped(record, shape_.slot_bytes, StampOf(Neuron(i)))) << "moved wrongly";
      }
      dropped += where_[i] && !record;
      where_[i] = record;
    }
    slots_ = std::move(slots);
    const uint64_t between = now.moved_up - old.moved_up + now.moved_down - old.moved_down;
    const uint64_t moves = now.relocated - old.relocated + between;
    EXPECT_EQ(dropped, now.dropped - old.dropped);
    // One that came down may be dropped in the same breath; one that was waited for may move on with its block.
    EXPECT_LE(moved, moves);
    if (now.copy_waits == old.copy_waits) {
      EXPECT_LE(moves - moved, between == 0 ? 0 : dropped);
    }
    counts_["moved up"] += now.moved_up - old.moved_up;
    counts_["moved down"] += now.moved_down - old.moved_down;
    counts_["copied in vain"] += now.copies_in_vain - old.copies_in_vain;
    counts_["waited for copies"] += now.copy_waits - old.copy_waits;
  }

  void MoveBetweenTiers() {
    const ResidencyStatistics old = residency_->statistics();
    residency_->MoveBetweenTiers();
    EXPECT_LE(residency_->copies_under_way(), RecordCopies::kMost);
    EXPECT_EQ(residency_->statistics().copy_waits, old.copy_waits);
    LookAround(old);
  }

  bool Admit(NeuronId id, bool only_if_free, const std::set<NeuronId>& in_use) {
    const uint32_t free = residency_->free_slots();
    EXPECT_EQ(where_[Flat(id)], nullptr);
    std::byte* const slot = only_if_free ? residency_->AdmitIfFree(id)
                                         : residency_->Admit(id, [&](NeuronId n) { return in_use.contains(n); });
    if (free > 0) {
      EXPECT_EQ(slot != nullptr, only_if_free || !fixed_);
    }
    if (!slot) return false;
    const auto held = slots_.find(slot);
    if (free == 0) {
      EXPECT_FALSE(only_if_free);
      if (held == slots_.end()) {
        ADD_FAILURE() << "a slot that was not free and held nothing";
        return false;
      }
      EXPECT_FALSE(in_use.contains(held->second));
      EXPECT_LT(HeatOf(held->second), HeatOf(id));
      Forget(held);
      ++counts_["displaced"];
    } else {
      EXPECT_EQ(held, slots_.end()) << "a free slot that held a neuron";
    }
    EXPECT_EQ(residency_->Record(id), slot);
    Stamp(slot, shape_.slot_bytes, StampOf(id));
    slots_[slot] = id;
    where_[Flat(id)] = slot;
    ++counts_["promoted"];
    return true;
  }

  // A token or a few use some neurons of each layer; missing ones are read, and come where they are worth it.
  void UseNeurons() {
    if (Below(64) == 0) hot_spot_ = Below(shape_.neurons);
    for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
      std::set<NeuronId> in_use;
      for (uint64_t i = 0; i < 1 + shape_.neurons / 16; ++i) {
        const double u = static_cast<double>(Below(1 << 20)) * 0x1p-20;
        const auto rank = static_cast<uint64_t>(u * u * u * shape_.neurons);
        in_use.insert({layer, static_cast<uint32_t>((hot_spot_ + rank) % shape_.neurons)});
      }
      std::vector<uint32_t> active;
      for (const NeuronId id : in_use) {
        active.push_back(id.neuron);
        heat_.Touch(Flat(id));
      }
      residency_->heat().Touch(layer, active);
      for (const NeuronId id : in_use) {
        const std::byte* const record = residency_->Record(id);
        EXPECT_EQ(record, where_[Flat(id)]);
        if (record) {
          EXPECT_TRUE(IsStamped(record, 8, StampOf(id)));
          if (tiers() && !OnDevice(record)) residency_->WantOnDevice(id);
        }
      }
      for (const NeuronId id : in_use) {
        if (!where_[Flat(id)]) Admit(id, false, in_use);
      }
      MoveBetweenTiers();
    }
  }

  // Reads ahead of need: some arrive later, when the slots may be gone, or the neuron has come another way.
  void Promote() {
    for (; !reading_.empty() && Below(4) != 0; reading_.pop_front()) {
      if (!where_[Flat(reading_.front())]) Admit(reading_.front(), true, {});
    }
    while (reading_.size() < std::min<size_t>(8, residency_->free_slots())) {
      const auto id = residency_->NextPromotion();
      if (!id) break;
      EXPECT_FALSE(where_[Flat(*id)]);
      reading_.push_back(*id);
    }
  }

  void Place() {
    ++counts_["placed"];
    residency_->Vacate(0);
    while (residency_->copies_under_way() > 0) MoveBetweenTiers();
    const size_t all = where_.size(), on_device = std::min<size_t>(residency_->slots(), all);
    const size_t room = std::min<size_t>(on_device + shape_.host_slots, all);
    const double unit = residency_->policy() == Policy::kElastic ? Increment() : heat_.clock();
    std::vector<float> values(all);
    std::vector<size_t> order(all);
    for (size_t i = 0; i < all; ++i) {
      values[i] = static_cast<float>(static_cast<double>(Below(256)) / 256 * unit);
      heat_.Set(i, residency_->policy() == Policy::kElastic ? values[i] / unit : values[i]);
      order[i] = i;
    }
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] > values[b]; });
    std::vector<Placement> expected;
    std::vector<size_t> misplaced;
    for (size_t i = 0; i < all; ++i) {
      const std::byte* const at = where_[order[i]];
      const Tier belongs = i < on_device ? Tier::kDevice : i < room ? Tier::kHost : Tier::kStore;
      const Tier is = !at ? Tier::kStore : OnDevice(at) ? Tier::kDevice : Tier::kHost;
      if (is == belongs) continue;
      if (at) misplaced.push_back(order[i]);
      if (belongs != Tier::kStore) expected.push_back({Neuron(order[i]), belongs});
    }
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(residency_->Place(values), expected);
    for (const size_t i : misplaced) Forget(slots_.find(where_[i]));
    const size_t read = Below(4) == 0 ? Below(expected.size() + 1) : expected.size();  // it may fail half-way
    std::vector<std::byte> record(shape_.slot_bytes);
    for (size_t i = 0; i < read; ++i) {
      const NeuronId id = expected[i].neuron;
      Stamp(record.data(), record.size(), StampOf(id));
      EXPECT_TRUE(residency_->Load(expected[i], record));
      const std::byte* const at = residency_->Record(id);
      ASSERT_TRUE(at);
      EXPECT_EQ(OnDevice(at), expected[i].tier == Tier::kDevice);
      EXPECT_TRUE(slots_.emplace(at, id).second) << "a free slot that held a neuron";
      where_[Flat(id)] = at;
      ++counts_["promoted"];
    }
  }

  // What one use adds to a frequency now.
  double Increment() { return (1 - Heat::kDecay) / *residency_->heat().Probability(1); }

  uint32_t BlockOf(const std::byte* at) const {
    return static_cast<uint32_t>(static_cast<uint64_t>(at - pool_->base()) / shape_.block_bytes);
  }

  // Checks.

  void CheckCounts() {
    std::set<const Page*> held;
    for (const auto& [id, sequence] : sequences_) {
      for (const auto& page : sequence.pages) held.insert(page.get());
    }
    size_t idle = 0;
    for (const auto& [stamp, page] : pages_) idle += !held.contains(page.get());
    EXPECT_EQ(pool_->blocks(BlockOwner::kKv), held.size() * shape_.layers);
    EXPECT_EQ(pool_->blocks(BlockOwner::kCached), idle * shape_.layers);
    EXPECT_EQ(pool_->free() + pool_->leased(), shape_.blocks);
    EXPECT_EQ(pool_->leased(), pool_->blocks(BlockOwner::kNeuron) + (held.size() + idle) * shape_.layers);
    EXPECT_EQ(prefix_->pages(), pages_.size());
    EXPECT_EQ(kv_.sequences(), sequences_.size());
    EXPECT_EQ(residency_->resident(), slots_.size());
    if (!tiers()) {
      EXPECT_EQ(residency_->slots() - residency_->free_slots(), slots_.size()) << "slots lost";
    }
    EXPECT_LE(budget_.peak_bytes(), budget_.total_bytes());
    EXPECT_LE(host_budget_.peak_bytes(), host_budget_.total_bytes());
    for (uint32_t b = 0; b < shape_.blocks; ++b) {
      if (pool_->owner_at(b) != BlockOwner::kFree) continue;
      EXPECT_TRUE(holders_[b].expired()) << "freed while held";
      std::memset(pool_->base() + b * shape_.block_bytes, 0xEE, shape_.block_bytes);
    }
  }

  void CheckPage(const Page& page, size_t tokens) {
    for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
      for (size_t token = 0; token < tokens; ++token) {
        if (!IsStamped(pool_->Address(page.blocks[layer]) + token * token_bytes_, token_bytes_,
                       page.stamps[token] + layer)) {
          ADD_FAILURE() << "layer " << layer << " token " << token << " of a page in block "
                        << Index(page.blocks[layer]);
        }
      }
    }
  }

  void CheckSequence(SequenceId id) {
    const Sequence& sequence = sequences_[id];
    ASSERT_EQ(kv_.tokens(id), sequence.text.size());
    ASSERT_EQ(kv_.pages(id), sequence.pages.size());
    for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
      const auto pointers = kv_.PagePointers(id, layer);
      for (size_t page = 0; page < pointers.size(); ++page) {
        EXPECT_EQ(pointers[page], pool_->Address(sequence.pages[page]->blocks[layer]));
      }
    }
    uint64_t stamp = Mix(sequence.salt);
    for (size_t i = 0; i < sequence.text.size(); ++i) {
      const Page& page = *sequence.pages[i / shape_.page_tokens];
      if (i % shape_.page_tokens == 0) {
        EXPECT_EQ(page.before, stamp);
        CheckPage(page, std::min<size_t>(shape_.page_tokens, sequence.text.size() - i));
      }
      stamp = Mix(stamp + static_cast<uint64_t>(sequence.text[i]) + 1);
      EXPECT_EQ(page.stamps[i % shape_.page_tokens], stamp);
    }
  }

  void CheckAll() {
    budget_.CheckInvariants();
    host_budget_.CheckInvariants();
    pool_->CheckInvariants();
    kv_.CheckInvariants();
    prefix_->CheckInvariants();
    residency_->CheckInvariants();
    for (const auto& [id, sequence] : sequences_) CheckSequence(id);
    for (const auto& [stamp, page] : pages_) CheckPage(*page, shape_.page_tokens);
    for (size_t i = 0; i < where_.size(); ++i) {
      ASSERT_EQ(residency_->Record(Neuron(i)), where_[i]);
      if (where_[i]) {
        ASSERT_TRUE(IsStamped(where_[i], shape_.slot_bytes, StampOf(Neuron(i)))) << "neuron " << i;
      }
    }
    CheckHeat();
  }

  void CheckHeat() {
    const bool frequency = residency_->heat().kind() == Heat::Kind::kFrequency;
    const double unit = frequency ? Increment() : 1;
    std::map<uint32_t, double> worths;
    for (uint32_t b = 0; b < shape_.blocks; ++b) {
      if (pool_->owner_at(b) == BlockOwner::kNeuron) worths[b] = 0;
    }
    for (size_t i = 0; i < where_.size(); ++i) {
      // Rounded thousands of times, 2^-24 each.
      ASSERT_NEAR(HeatOf(Neuron(i)) / unit, heat_.value(i), frequency ? heat_.value(i) * 1e-3 + 1e-9 : 0) << i;
      if (where_[i] && OnDevice(where_[i]) && worths.contains(BlockOf(where_[i])))
        worths[BlockOf(where_[i])] += heat_.value(i);
    }
    const auto activity = residency_->ColdestBlockActivity();
    ASSERT_EQ(activity.has_value(), frequency && !worths.empty());
    if (!activity || worths.size() > 32) return;
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [block, worth] : worths) least = std::min(least, worth);
    EXPECT_NEAR(*activity, least * (1 - Heat::kDecay), 1e-3 * least + 1e-9);
  }

  const Shape shape_;
  const uint64_t token_bytes_;
  const uint32_t max_tokens_;  // of a sequence: half of the pool
  const bool fixed_;
  std::mt19937_64 random_;
  Budget budget_{4_MiB}, host_budget_{1_MiB};
  std::unique_ptr<BlockPool> pool_;
  KvTable kv_;
  std::chrono::steady_clock::time_point now_;
  HostDevice device_;
  std::unique_ptr<NeuronResidency> residency_;
  std::unique_ptr<PrefixIndex> prefix_;

  std::map<SequenceId, Sequence> sequences_;
  std::deque<std::pair<uint64_t, Text>> waiting_;    // preempted: salt and text
  std::map<uint64_t, std::shared_ptr<Page>> pages_;  // in the index, by the stamp of their last token
  std::map<uint32_t, std::weak_ptr<Page>> holders_;  // by block
  std::vector<BlockId> freed_;                       // of what before_free told
  NaiveHeat heat_;
  std::vector<const std::byte*> where_;         // by neuron; null where not in memory
  std::map<const std::byte*, NeuronId> slots_;  // the same by address
  std::deque<NeuronId> reading_;
  uint64_t hot_spot_ = 0;
  Counts counts_{};
};

class ElasticRandom : public testing::TestWithParam<std::tuple<Policy, Shape>> {};

TEST_P(ElasticRandom, LosesNoBlockOwnsNoneTwiceAndReadsNothingAfterReuse) {
  const auto& [policy, shape] = GetParam();
  RandomWork::Counts total;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomWork work(shape, policy, TestSeed(100 + seed));
    work.Run(kOperations);
    if (HasFailure()) return;
    work.Finish();
    for (const auto& [what, count] : work.counts()) total[what] += count;
  }
  for (const auto& [what, count] : total) RecordProperty(what, std::to_string(count));
  for (const char* what : {"admitted", "adopted", "grown", "rolled back", "shared", "copied on write", "truncated",
                           "cancelled", "finished", "preempted", "resumed", "evicted pages", "promoted", "placed"}) {
    EXPECT_GT(total[what], 0u) << what;
  }
  for (const char* what : {"evicted blocks", "relocated", "displaced"}) {
    EXPECT_EQ(total[what] > 0, policy != Policy::kStatic) << what;
  }
  for (const char* what : {"moved up", "moved down", "copied in vain"}) {
    EXPECT_EQ(total[what] > 0, policy != Policy::kStatic && shape.host_slots > 0) << what;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Policies, ElasticRandom,
    testing::Combine(testing::Values(Policy::kElastic, Policy::kLru, Policy::kOracle, Policy::kStatic),
                     testing::ValuesIn(kShapes)),
    [](const auto& info) { return std::string(Name(std::get<0>(info.param))) + std::get<1>(info.param).name; });

}  // namespace
}  // namespace elasticmem
