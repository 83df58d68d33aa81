#include "runtime/text/spm_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "runtime/gguf/quoted.h"
#include "runtime/text/utf8.h"

namespace elasticmem {
namespace {

// Order-reversing map of floats to integers: the greater the score, the smaller the result.
uint32_t OrderOfScore(float score) {
  const auto bits = std::bit_cast<uint32_t>(score == 0.0f ? 0.0f : score);  // -0 is 0
  return ~(bits & 0x80000000u ? ~bits : bits | 0x80000000u);
}

}  // namespace

StatusOr<SpmEncoder> SpmEncoder::Build(const Vocabulary& vocabulary, const std::vector<float>& scores,
                                       TokenId unknown) {
  if (scores.size() != vocabulary.size()) {
    return InvalidInput("tokenizer.ggml.scores has {} entries, tokenizer.ggml.tokens has {}", scores.size(),
                        vocabulary.size());
  }
  SpmEncoder encoder;
  encoder.unknown_ = unknown;
  encoder.orders_.reserve(scores.size());
  for (size_t i = 0; i < scores.size(); ++i) {
    if (std::isnan(scores[i])) return InvalidInput("tokenizer.ggml.scores[{}] is not a number", i);
    encoder.orders_.push_back(OrderOfScore(scores[i]));
    const std::string_view piece = vocabulary.Piece(static_cast<TokenId>(i));
    if (BytePieceValue(piece) == -2) {
      return InvalidInput("vocabulary entry {} is {}: not a byte from <0x00> to <0xFF>", i, Quoted(piece));
    }
    for (size_t at = piece.find(kSpaceSymbol); at != std::string_view::npos; at = piece.find(kSpaceSymbol, at + 1)) {
      if (at > 0) encoder.before_space_.set(static_cast<uint8_t>(piece[at - 1]));
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char self = static_cast<char>(byte);
    const TokenId id = vocabulary.Find(fmt::format("<0x{:02X}>", byte));
    encoder.byte_tokens_[byte] = id != kNoToken ? id : vocabulary.Find({&self, 1});
  }
  return encoder;
}

void SpmEncoder::Encode(const Vocabulary& vocabulary, std::string_view text, bool space_prefix, SymbolMerger& merger,
                        WordMemo& memo, std::vector<TokenId>& ids) const {
  std::string chunk(space_prefix ? kSpaceSymbol : "");
  for (const char c : text) {
    if (c != ' ') {
      chunk += c;
      continue;
    }
    if (!chunk.empty() && !before_space_.test(static_cast<uint8_t>(chunk.back()))) {
      EncodeChunk(vocabulary, chunk, merger, memo, ids);
      chunk.clear();
    }
    chunk += kSpaceSymbol;
  }
  EncodeChunk(vocabulary, chunk, merger, memo, ids);
}

void SpmEncoder::EncodeChunk(const Vocabulary& vocabulary, std::string_view chunk, SymbolMerger& merger, WordMemo& memo,
                             std::vector<TokenId>& ids) const {
  if (memo.Recall(chunk, ids)) return;
  const size_t first = ids.size();
  merger.symbols.clear();
  for (size_t at = 0; at < chunk.size();) {
    const auto bytes = std::max<uint32_t>(1, DecodeUtf8(chunk, at).bytes);
    merger.symbols.push_back({vocabulary.Find(chunk.substr(at, bytes)), static_cast<uint32_t>(at), bytes});
    at += bytes;
  }
  merger.Run([&](const MergeSymbol& left, const MergeSymbol& right) -> Merge {
    const TokenId id = vocabulary.Find(chunk.substr(left.begin, left.bytes + right.bytes));
    return id == kNoToken ? Merge{} : Merge{orders_[id], id};
  });
  for (const MergeSymbol& symbol : merger.symbols) AppendSymbol(chunk, symbol, ids);
  memo.Remember(chunk, ids, first);
}

void SpmEncoder::AppendSymbol(std::string_view chunk, const MergeSymbol& symbol, std::vector<TokenId>& ids) const {
  if (symbol.id != kNoToken) {
    ids.push_back(symbol.id);
    return;
  }
  for (const char c : chunk.substr(symbol.begin, symbol.bytes)) {
    const TokenId id = byte_tokens_[static_cast<uint8_t>(c)];
    if (id != kNoToken) {
      ids.push_back(id);
    } else if (unknown_ != kNoToken) {
      ids.push_back(unknown_);
      return;  // one for the character
    }
  }
}

}  // namespace elasticmem
