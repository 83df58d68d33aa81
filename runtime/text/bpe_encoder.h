// BPE by merge ranks over one pre-tokenized word: of its bytes (GPT-2 and descendants), or of its characters with byte
// tokens for what is no piece (Gemma 4).
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "runtime/text/symbol_merger.h"
#include "runtime/text/vocabulary.h"
#include "runtime/text/word_memo.h"

namespace elasticmem {

// (left piece, right piece) -> (rank, merged piece), at about 18 bytes a merge.
class MergeTable {
 public:
  // `merges`: tokenizer.ggml.merges, "left right", best first. All three pieces must be in the vocabulary.
  static StatusOr<MergeTable> Build(const Vocabulary& vocabulary, const std::vector<std::string>& merges);

  Merge Find(TokenId left, TokenId right) const;
  size_t size() const { return merged_.size(); }
  size_t MemoryBytes() const { return slots_.capacity() * sizeof(uint64_t) + merged_.capacity() * sizeof(TokenId); }

 private:
  static constexpr int kRankBits = 64 - 2 * Vocabulary::kIdBits;
  static constexpr uint64_t kEmptySlot = ~uint64_t{0};

  std::vector<uint64_t> slots_;  // left id, right id, rank; linear probing
  std::vector<TokenId> merged_;  // [merges] by rank
};

class BpeEncoder {
 public:
  struct Options {
    bool byte_level = true;          // pieces are in GPT-2's byte alphabet; else they are plain UTF-8
    bool whole_words_first = false;  // a word that is itself a piece is that piece, whatever the merges say
    bool whole_newlines = false;     // the same for words of line feeds only
    TokenId unknown = kNoToken;      // for bytes that have no token (kNoToken: they are dropped)
  };
  static StatusOr<BpeEncoder> Build(const Vocabulary& vocabulary, const std::vector<std::string>& merges,
                                    const Options& options);

  // Appends the ids of `word`.
  void Encode(const Vocabulary& vocabulary, std::string_view word, SymbolMerger& merger, WordMemo& memo,
              std::vector<TokenId>& ids) const;

  size_t MemoryBytes() const { return sizeof *this + merges_.MemoryBytes(); }

 private:
  void EncodeWord(const Vocabulary& vocabulary, std::string_view word, SymbolMerger& merger,
                  std::vector<TokenId>& ids) const;
  TokenId FindWholeWord(const Vocabulary& vocabulary, std::string_view word) const;
  void AppendBytes(std::string_view bytes, std::vector<TokenId>& ids) const;

  MergeTable merges_;
  Options options_;
  std::array<TokenId, 256> byte_tokens_{};
};

}  // namespace elasticmem
