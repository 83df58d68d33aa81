// Finds the neuron blocks that are worth least without looking at all of them.
//
// A block's worth is the sum of its neurons' heat, which only rises while the block holds them. So the worth it had
// when last looked at bounds it from below, and a heap of those bounds yields the least worth exactly, by looking again
// at the few blocks on top. The cost follows what has changed, not how many blocks there are.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.h"

namespace elasticmem {

class ColdestBlocks {
 public:
  // For blocks 0 .. capacity - 1; none is in yet.
  explicit ColdestBlocks(uint32_t capacity) : position_(capacity, kAbsent) { heap_.reserve(capacity); }
  static uint64_t MemoryBytes(uint32_t capacity) { return uint64_t{capacity} * (sizeof(Entry) + sizeof(uint32_t)); }

  bool contains(uint32_t block) const { return position_[block] != kAbsent; }
  uint32_t size() const { return static_cast<uint32_t>(heap_.size()); }

  void Add(uint32_t block, float bound) {
    EM_DCHECK(!contains(block));
    heap_.push_back({bound, block});
    position_[block] = size() - 1;
    Rise(size() - 1);
  }
  void Remove(uint32_t block) {
    EM_DCHECK(contains(block));
    const uint32_t at = position_[block];
    position_[block] = kAbsent;
    const Entry last = heap_.back();
    heap_.pop_back();
    if (at == heap_.size()) return;
    Put(at, last);
    Sink(at);
    Rise(at);
  }
  // All worths were multiplied by `factor`.
  void Scale(float factor) {
    for (Entry& entry : heap_) entry.bound *= factor;
  }
  // The block with the least worth(block); nothing where there are none. After looking at `most` blocks it settles for
  // the least of those.
  template <class Worth>
  std::optional<uint32_t> Coldest(Worth&& worth, uint32_t most) {
    std::optional<Entry> least;
    for (uint32_t looked = 0; looked < most && !heap_.empty(); ++looked) {
      Entry top = heap_[0];
      if (least && least->bound <= top.bound) break;
      top.bound = std::max(top.bound, static_cast<float>(worth(top.block)));
      if (!least || top.bound < least->bound) least = top;
      Put(0, top);
      Sink(0);
    }
    return least ? std::optional(least->block) : std::nullopt;
  }
  void CheckInvariants() const {
    uint32_t present = 0;
    for (uint32_t block = 0; block < position_.size(); ++block) {
      if (!contains(block)) continue;
      ++present;
      EM_CHECK(heap_[position_[block]].block == block);
    }
    EM_CHECK(present == size());
    for (uint32_t i = 1; i < size(); ++i) EM_CHECK(heap_[(i - 1) / 2].bound <= heap_[i].bound);
  }

 private:
  static constexpr uint32_t kAbsent = ~0u;
  struct Entry {
    float bound;
    uint32_t block;
  };

  void Put(uint32_t at, Entry entry) {
    heap_[at] = entry;
    position_[entry.block] = at;
  }
  void Rise(uint32_t at) {
    const Entry entry = heap_[at];
    for (; at > 0 && entry.bound < heap_[(at - 1) / 2].bound; at = (at - 1) / 2) Put(at, heap_[(at - 1) / 2]);
    Put(at, entry);
  }
  void Sink(uint32_t at) {
    const Entry entry = heap_[at];
    for (uint32_t child; (child = 2 * at + 1) < size(); at = child) {
      if (child + 1 < size() && heap_[child + 1].bound < heap_[child].bound) ++child;
      if (entry.bound <= heap_[child].bound) break;
      Put(at, heap_[child]);
    }
    Put(at, entry);
  }

  std::vector<Entry> heap_;         // least bound first
  std::vector<uint32_t> position_;  // by block: in heap_, or kAbsent
};

}  // namespace elasticmem
