// Remembers the ids of short words while one text is encoded: most words of a long text have been seen a moment ago.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "runtime/text/token_id.h"

namespace elasticmem {

// A direct-mapped cache; a newer word takes the place of an older one.
class WordMemo {
 public:
  // Sized for a text of `text_bytes`: 0 to 160 KiB.
  explicit WordMemo(size_t text_bytes) : entries_(std::bit_floor(std::min(text_bytes / 64, size_t{4096}))) {}

  // Appends the ids of `word` if they are remembered.
  bool Recall(std::string_view word, std::vector<TokenId>& ids) const {
    if (!Fits(word)) return false;
    const Key key(word);
    const Entry& entry = entries_[Slot(key)];
    if (entry.bytes != word.size() || entry.key.words != key.words) return false;
    ids.insert(ids.end(), entry.ids.begin(), entry.ids.begin() + entry.count);
    return true;
  }

  // Remembers that `word` became ids[first..].
  void Remember(std::string_view word, const std::vector<TokenId>& ids, size_t first) {
    const size_t count = ids.size() - first;
    if (!Fits(word) || count > kMostIds) return;
    const Key key(word);
    Entry& entry = entries_[Slot(key)];
    entry.key = key;
    entry.bytes = static_cast<uint8_t>(word.size());
    entry.count = static_cast<uint8_t>(count);
    std::copy(ids.begin() + static_cast<ptrdiff_t>(first), ids.end(), entry.ids.begin());
  }

 private:
  static constexpr size_t kMostBytes = 16, kMostIds = 4;

  struct Key {  // a word, with zeros after it
    Key() = default;
    explicit Key(std::string_view word) { std::memcpy(words.data(), word.data(), word.size()); }
    std::array<uint64_t, 2> words{};
  };
  struct Entry {
    Key key;
    std::array<TokenId, kMostIds> ids;
    uint8_t bytes = 0;
    uint8_t count = 0;
  };

  bool Fits(std::string_view word) const { return !entries_.empty() && !word.empty() && word.size() <= kMostBytes; }
  size_t Slot(const Key& key) const {
    uint64_t hash = (key.words[0] ^ std::rotl(key.words[1] * 0xD6E8FEB86659FD93u, 32)) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
    return hash & (entries_.size() - 1);
  }

  std::vector<Entry> entries_;
};

}  // namespace elasticmem
