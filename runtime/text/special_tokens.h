// Finds the tokens that are matched as whole strings in a text before it is tokenized: user-defined tokens always,
// control and unknown tokens only where the caller trusts the text.
#pragma once

#include <array>
#include <bitset>
#include <string_view>
#include <vector>

#include "runtime/text/vocabulary.h"

namespace elasticmem {

// A stretch [begin, end) of a text: one special token, or (token == kNoToken) plain text.
struct TextFragment {
  size_t begin = 0;
  size_t end = 0;
  TokenId token = kNoToken;
};

class SpecialTokens {
 public:
  // Takes the vocabulary's user-defined, control and unknown pieces.
  explicit SpecialTokens(const Vocabulary& vocabulary);

  // Cuts `text` at special tokens: the longest token first, each at its leftmost places; no fragment is empty.
  // Time: one pass over the text, and one more for each different token that is in it.
  std::vector<TextFragment> Partition(const Vocabulary& vocabulary, std::string_view text, bool parse_special) const;

  size_t MemoryBytes() const { return sizeof *this + sorted_.capacity() * sizeof(TokenId); }

 private:
  // The indices into sorted_ of the tokens that occur in `text`.
  std::vector<size_t> FindPresent(const Vocabulary& vocabulary, std::string_view text, bool parse_special) const;

  std::vector<TokenId> sorted_;  // by piece
  // First two bytes of the pieces that may match: [0] user-defined only, [1] all.
  std::array<std::bitset<65536>, 2> starts_;
};

}  // namespace elasticmem
