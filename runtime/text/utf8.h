// UTF-8 by hand: what the tokenizers need to walk text that may be damaged, and GPT-2's printable stand-ins for bytes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace elasticmem {

// "▁" (U+2581): the space of SentencePiece vocabularies.
inline constexpr std::string_view kSpaceSymbol = "\xe2\x96\x81";

// The character at `text[at]`: its bytes (1..4) if it is well formed (no surrogate, no overlong form), 0 if it is not.
// Then `prefix` says how many bytes belong together as the beginning of a character (at least 1), and `cut_short`
// whether the text ends before that character does.
struct Utf8Char {
  uint32_t code_point = 0;
  uint8_t bytes = 0;
  uint8_t prefix = 1;
  bool cut_short = false;
};
Utf8Char DecodeUtf8(std::string_view text, size_t at);

// How many bytes from `begin` on are well formed characters.
size_t ValidUtf8Prefix(std::string_view text, size_t begin);

void AppendUtf8(uint32_t code_point, std::string& out);

// `text` with "▁" for each space, and a piece's text the other way.
std::string EscapeSpaces(std::string_view text);
std::string UnescapeSpaces(std::string_view piece);

// GPT-2's alphabet: each byte is one printable character of the vocabulary's pieces ("Ġ" is the space).
constexpr bool IsOwnSymbol(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}
constexpr std::array<uint16_t, 256> MakeByteSymbols() {
  std::array<uint16_t, 256> symbols{};
  uint16_t next = 256;
  for (int byte = 0; byte < 256; ++byte) symbols[byte] = IsOwnSymbol(byte) ? static_cast<uint16_t>(byte) : next++;
  return symbols;
}
inline constexpr std::array<uint16_t, 256> kByteSymbols = MakeByteSymbols();

// The byte that `code_point` stands for, or -1.
int SymbolByte(uint32_t code_point);

}  // namespace elasticmem
