// The heart of both kinds of BPE: of all neighbours that may be merged, merge the best pair (the leftmost among equals)
// until none is left. Short sequences are scanned; long ones use a heap, so that the time is O(n log n) at any length.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "runtime/text/token_id.h"

namespace elasticmem {

struct MergeSymbol {
  TokenId id = kNoToken;  // kNoToken: not in the vocabulary
  uint32_t begin = 0;     // bytes [begin, begin + bytes) of the text
  uint32_t bytes = 0;
};

struct Merge {
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  uint32_t order = kNone;  // smaller is better; kNone: the pair can't be merged
  TokenId id = kNoToken;   // what the pair becomes
};

// Scratch memory and the algorithm; `symbols` is its input and its output.
class SymbolMerger {
 public:
  std::vector<MergeSymbol> symbols;

  // `rule(left, right)` gives the Merge of two neighbours.
  template <class Rule>
  void Run(const Rule& rule) {
    if (symbols.size() < 2) return;
    if (symbols.size() <= kScanLimit) {
      Scan(rule);
    } else {
      UseHeap(rule);
    }
  }

 private:
  static constexpr size_t kScanLimit = 32;
  static constexpr uint32_t kEnd = std::numeric_limits<uint32_t>::max();

  struct Candidate {
    uint64_t order;  // the merge's order, then the left symbol's index
    uint32_t bytes;  // of both symbols together: other than that now, and the candidate is stale
    TokenId id;
    bool operator>(const Candidate& other) const { return order > other.order; }
  };
  struct Links {
    uint32_t previous, next;
  };

  template <class Rule>
  void Scan(const Rule& rule) {
    Merge merges[kScanLimit];
    size_t pairs = symbols.size() - 1;
    for (size_t i = 0; i < pairs; ++i) merges[i] = rule(symbols[i], symbols[i + 1]);
    while (pairs > 0) {
      size_t best = 0;
      for (size_t i = 1; i < pairs; ++i) best = merges[i].order < merges[best].order ? i : best;
      if (merges[best].order == Merge::kNone) break;
      symbols[best].id = merges[best].id;
      symbols[best].bytes += symbols[best + 1].bytes;
      std::copy(symbols.begin() + best + 2, symbols.begin() + pairs + 1, symbols.begin() + best + 1);
      std::copy(merges + best + 1, merges + pairs, merges + best);
      --pairs;
      if (best > 0) merges[best - 1] = rule(symbols[best - 1], symbols[best]);
      if (best < pairs) merges[best] = rule(symbols[best], symbols[best + 1]);
    }
    symbols.resize(pairs + 1);
  }

  template <class Rule>
  void UseHeap(const Rule& rule) {
    const auto count = static_cast<uint32_t>(symbols.size());
    links_.resize(count);
    heap_.clear();
    const auto candidate = [&](uint32_t left, uint32_t right) {
      const Merge merge = rule(symbols[left], symbols[right]);
      if (merge.order == Merge::kNone) return false;
      heap_.push_back({uint64_t{merge.order} << 32 | left, symbols[left].bytes + symbols[right].bytes, merge.id});
      return true;
    };
    for (uint32_t i = 0; i < count; ++i) links_[i] = {i == 0 ? kEnd : i - 1, i + 1 == count ? kEnd : i + 1};
    for (uint32_t i = 0; i + 1 < count; ++i) candidate(i, i + 1);
    std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
      const Candidate best = heap_.back();
      heap_.pop_back();
      const auto left = static_cast<uint32_t>(best.order);
      const uint32_t right = links_[left].next;
      // A merged-away symbol has no bytes; one that has grown makes another sum.
      if (symbols[left].bytes == 0 || right == kEnd || symbols[left].bytes + symbols[right].bytes != best.bytes)
        continue;
      symbols[left].id = best.id;
      symbols[left].bytes = best.bytes;
      symbols[right].bytes = 0;
      const uint32_t next = links_[left].next = links_[right].next;
      if (next != kEnd) links_[next].previous = left;
      const uint32_t previous = links_[left].previous;
      if (previous != kEnd && candidate(previous, left)) std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
      if (next != kEnd && candidate(left, next)) std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    }
    std::erase_if(symbols, [](const MergeSymbol& symbol) { return symbol.bytes == 0; });
  }

  std::vector<Links> links_;
  std::vector<Candidate> heap_;
};

}  // namespace elasticmem
