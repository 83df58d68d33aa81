#include "runtime/text/special_tokens.h"

#include <algorithm>

namespace elasticmem {
namespace {

size_t StartIndex(uint8_t first, uint8_t second) { return size_t{first} << 8 | second; }

bool IsAsciiSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// `fragments` with every occurrence of `piece` in the plain ones cut out.
std::vector<TextFragment> CutOut(const std::vector<TextFragment>& fragments, std::string_view text,
                                 std::string_view piece, TokenId token, bool takes_space_after) {
  std::vector<TextFragment> cut;
  cut.reserve(fragments.size() + 2);
  for (const TextFragment& fragment : fragments) {
    if (fragment.token != kNoToken) {
      cut.push_back(fragment);
      continue;
    }
    size_t begin = fragment.begin;
    while (begin < fragment.end) {
      const size_t found = text.substr(0, fragment.end).find(piece, begin);
      if (found == std::string_view::npos) break;
      if (found > begin) cut.push_back({begin, found, kNoToken});
      size_t end = found + piece.size();
      while (takes_space_after && end < fragment.end && IsAsciiSpace(text[end])) ++end;
      cut.push_back({found, end, token});
      begin = end;
    }
    if (begin < fragment.end) cut.push_back({begin, fragment.end, kNoToken});
  }
  return cut;
}

}  // namespace

SpecialTokens::SpecialTokens(const Vocabulary& vocabulary) {
  for (size_t i = 0; i < vocabulary.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    const TokenType type = vocabulary.Type(id);
    const bool user_defined = type == TokenType::kUserDefined;
    if (!user_defined && type != TokenType::kControl && type != TokenType::kUnknown) continue;
    const std::string_view piece = vocabulary.Piece(id);
    if (piece.empty() || vocabulary.Find(piece) != id) continue;
    sorted_.push_back(id);
    const auto first = static_cast<uint8_t>(piece[0]);
    const int low = piece.size() > 1 ? static_cast<uint8_t>(piece[1]) : 0;
    const int high = piece.size() > 1 ? low : 255;
    for (int second = low; second <= high; ++second) {
      starts_[1].set(StartIndex(first, static_cast<uint8_t>(second)));
      if (user_defined) starts_[0].set(StartIndex(first, static_cast<uint8_t>(second)));
    }
  }
  std::sort(sorted_.begin(), sorted_.end(),
            [&](TokenId a, TokenId b) { return vocabulary.Piece(a) < vocabulary.Piece(b); });
  sorted_.shrink_to_fit();
}

std::vector<size_t> SpecialTokens::FindPresent(const Vocabulary& vocabulary, std::string_view text,
                                               bool parse_special) const {
  std::vector<size_t> present;
  const auto& starts = starts_[parse_special];
  if (starts.none()) return present;
  std::vector<bool> seen(sorted_.size());
  for (size_t at = 0; at < text.size(); ++at) {
    const uint8_t second = at + 1 < text.size() ? static_cast<uint8_t>(text[at + 1]) : 0;
    if (!starts.test(StartIndex(static_cast<uint8_t>(text[at]), second))) continue;
    // Narrow the range of the pieces that begin like the text, byte by byte; the shortest of a range sorts first.
    auto first = sorted_.begin(), last = sorted_.end();
    for (size_t depth = 0; at + depth < text.size() && first != last; ++depth) {
      const char byte = text[at + depth];
      const auto by_byte = [&](TokenId id) { return static_cast<uint8_t>(vocabulary.Piece(id)[depth]); };
      first = std::partition_point(first, last, [&](TokenId id) { return by_byte(id) < static_cast<uint8_t>(byte); });
      last = std::partition_point(first, last, [&](TokenId id) { return by_byte(id) <= static_cast<uint8_t>(byte); });
      if (first == last || vocabulary.Piece(*first).size() != depth + 1) continue;
      const auto index = static_cast<size_t>(first - sorted_.begin());
      const bool allowed = parse_special || vocabulary.Type(*first) == TokenType::kUserDefined;
      if (allowed && !seen[index]) {
        seen[index] = true;
        present.push_back(index);
      }
      ++first;
    }
  }
  return present;
}

std::vector<TextFragment> SpecialTokens::Partition(const Vocabulary& vocabulary, std::string_view text,
                                                   bool parse_special) const {
  std::vector<TextFragment> fragments;
  if (text.empty()) return fragments;
  fragments.push_back({0, text.size(), kNoToken});
  std::vector<size_t> present = FindPresent(vocabulary, text, parse_special);
  std::sort(present.begin(), present.end(), [&](size_t a, size_t b) {
    const size_t bytes_a = vocabulary.Piece(sorted_[a]).size(), bytes_b = vocabulary.Piece(sorted_[b]).size();
    return bytes_a != bytes_b ? bytes_a > bytes_b : sorted_[a] < sorted_[b];
  });
  for (const size_t index : present) {
    const TokenId token = sorted_[index];
    fragments = CutOut(fragments, text, vocabulary.Piece(token), token, vocabulary.TakesSpaceAfter(token));
  }
  return fragments;
}

}  // namespace elasticmem
