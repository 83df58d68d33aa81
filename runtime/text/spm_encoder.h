// SentencePiece's BPE: characters are merged into the pieces with the highest scores; what is no piece becomes byte
// tokens.
#pragma once

#include <array>
#include <bitset>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "runtime/text/symbol_merger.h"
#include "runtime/text/vocabulary.h"
#include "runtime/text/word_memo.h"

namespace elasticmem {

class SpmEncoder {
 public:
  // `scores`: one a piece. `unknown`: for characters that have neither piece nor byte tokens (kNoToken: they are
  // dropped).
  static StatusOr<SpmEncoder> Build(const Vocabulary& vocabulary, const std::vector<float>& scores, TokenId unknown);

  // Appends the ids of `text` (with `space_prefix`: of " " + text).
  void Encode(const Vocabulary& vocabulary, std::string_view text, bool space_prefix, SymbolMerger& merger,
              WordMemo& memo, std::vector<TokenId>& ids) const;

  size_t MemoryBytes() const { return sizeof *this + orders_.capacity() * sizeof(uint32_t); }

 private:
  // `chunk`: text whose spaces are "▁", and whose merges don't depend on what is around it.
  void EncodeChunk(const Vocabulary& vocabulary, std::string_view chunk, SymbolMerger& merger, WordMemo& memo,
                   std::vector<TokenId>& ids) const;
  void AppendSymbol(std::string_view chunk, const MergeSymbol& symbol, std::vector<TokenId>& ids) const;

  std::vector<uint32_t> orders_;  // [size] a score as an integer, the smaller the better
  std::array<TokenId, 256> byte_tokens_{};
  // Bytes that come right before "▁" within some piece. After any other byte, "▁" begins a chunk of its own.
  std::bitset<256> before_space_;
  TokenId unknown_ = kNoToken;
};

}  // namespace elasticmem
