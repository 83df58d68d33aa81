#include "runtime/text/bpe_encoder.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/gguf/quoted.h"
#include "runtime/text/utf8.h"

namespace elasticmem {
namespace {

uint64_t PairKey(TokenId left, TokenId right) {
  return uint64_t{static_cast<uint32_t>(left)} << Vocabulary::kIdBits | static_cast<uint32_t>(right);
}

size_t HomeSlot(uint64_t key, size_t slots) {
  uint64_t hash = key * 0x9E3779B97F4A7C15u;
  hash ^= hash >> 32;
  hash *= 0xD6E8FEB86659FD93u;
  return static_cast<size_t>(((hash >> 32) * slots) >> 32);
}

}  // namespace

StatusOr<MergeTable> MergeTable::Build(const Vocabulary& vocabulary, const std::vector<std::string>& merges) {
  constexpr uint64_t kMostMerges = (uint64_t{1} << kRankBits) - 1;
  if (merges.size() > kMostMerges) {
    return Unsupported("tokenizer.ggml.merges has {} entries; at most {} are supported", merges.size(), kMostMerges);
  }
  MergeTable table;
  table.slots_.assign(merges.size() * 5 / 3 + 1, kEmptySlot);
  table.merged_.reserve(merges.size());
  std::string joined;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view merge = merges[rank];
    const size_t space = merge.find(' ', 1);  // not at 0: a piece may be a space itself
    if (space == std::string_view::npos) {
      return InvalidInput("tokenizer.ggml.merges[{}] is {}: not two pieces with a space between", rank, Quoted(merge));
    }
    const std::string_view left = merge.substr(0, space), right = merge.substr(space + 1);
    joined.assign(left).append(right);
    const TokenId left_id = vocabulary.Find(left), right_id = vocabulary.Find(right), id = vocabulary.Find(joined);
    if (left_id == kNoToken || right_id == kNoToken || id == kNoToken) {
      const std::string_view missing = left_id == kNoToken ? left : right_id == kNoToken ? right : joined;
      return InvalidInput("tokenizer.ggml.merges[{}] is {}, but {} is not in the vocabulary", rank, Quoted(merge),
                          Quoted(missing));
    }
    table.merged_.push_back(id);
    if (table.Find(left_id, right_id).order != Merge::kNone) continue;
    const uint64_t key = PairKey(left_id, right_id);
    size_t slot = HomeSlot(key, table.slots_.size());
    while (table.slots_[slot] != kEmptySlot) slot = slot + 1 == table.slots_.size() ? 0 : slot + 1;
    table.slots_[slot] = key << kRankBits | rank;
  }
  return table;
}

Merge MergeTable::Find(TokenId left, TokenId right) const {
  if (left == kNoToken || right == kNoToken || slots_.empty()) return {};
  const uint64_t key = PairKey(left, right);
  for (size_t slot = HomeSlot(key, slots_.size());;) {
    const uint64_t entry = slots_[slot];
    if (entry == kEmptySlot) return {};
    if (entry >> kRankBits == key) {
      const auto rank = static_cast<uint32_t>(entry & ((uint64_t{1} << kRankBits) - 1));
      return {rank, merged_[rank]};
    }
    if (++slot == slots_.size()) slot = 0;
  }
}

StatusOr<BpeEncoder> BpeEncoder::Build(const Vocabulary& vocabulary, const std::vector<std::string>& merges,
                                       const Options& options) {
  BpeEncoder encoder;
  EM_ASSIGN_OR_RETURN(encoder.merges_, MergeTable::Build(vocabulary, merges));
  encoder.options_ = options;
  for (int byte = 0; byte < 256; ++byte) {
    std::string piece;
    if (options.byte_level) {
      AppendUtf8(kByteSymbols[byte], piece);
    } else {
      piece = fmt::format("<0x{:02X}>", byte);
    }
    encoder.byte_tokens_[byte] = vocabulary.Find(piece);
  }
  return encoder;
}

TokenId BpeEncoder::FindWholeWord(const Vocabulary& vocabulary, std::string_view word) const {
  if (word.size() > vocabulary.longest_piece()) return kNoToken;
  if (!options_.byte_level) return vocabulary.Find(word);
  std::string piece;
  for (const char c : word) AppendUtf8(kByteSymbols[static_cast<uint8_t>(c)], piece);
  return vocabulary.Find(piece);
}

void BpeEncoder::AppendBytes(std::string_view bytes, std::vector<TokenId>& ids) const {
  for (const char c : bytes) {
    const TokenId id = byte_tokens_[static_cast<uint8_t>(c)];
    if (id != kNoToken) {
      ids.push_back(id);
    } else if (options_.unknown != kNoToken) {
      ids.push_back(options_.unknown);
    }
  }
}

void BpeEncoder::Encode(const Vocabulary& vocabulary, std::string_view word, SymbolMerger& merger, WordMemo& memo,
                        std::vector<TokenId>& ids) const {
  if (memo.Recall(word, ids)) return;
  const size_t first = ids.size();
  EncodeWord(vocabulary, word, merger, ids);
  memo.Remember(word, ids, first);
}

void BpeEncoder::EncodeWord(const Vocabulary& vocabulary, std::string_view word, SymbolMerger& merger,
                            std::vector<TokenId>& ids) const {
  const bool newlines = options_.whole_newlines && word.find_first_not_of('\n') == std::string_view::npos;
  if (options_.whole_words_first || newlines) {
    const TokenId id = FindWholeWord(vocabulary, word);
    if (id != kNoToken) {
      ids.push_back(id);
      return;
    }
  }
  merger.symbols.clear();
  for (size_t at = 0; at < word.size();) {
    const uint32_t bytes = options_.byte_level ? 1 : std::max<uint32_t>(1, DecodeUtf8(word, at).bytes);
    const TokenId id =
        options_.byte_level ? byte_tokens_[static_cast<uint8_t>(word[at])] : vocabulary.Find(word.substr(at, bytes));
    merger.symbols.push_back({id, static_cast<uint32_t>(at), bytes});
    at += bytes;
  }
  merger.Run([this](const MergeSymbol& left, const MergeSymbol& right) { return merges_.Find(left.id, right.id); });
  for (const MergeSymbol& symbol : merger.symbols) {
    if (symbol.id != kNoToken) {
      ids.push_back(symbol.id);
    } else {
      AppendBytes(word.substr(symbol.begin, symbol.bytes), ids);
    }
  }
}

}  // namespace elasticmem
