#include "runtime/text/utf8.h"

#include <algorithm>
#include <cstring>

namespace elasticmem {
namespace {

// The second byte of a character has a narrower range after E0, ED, F0 and F4.
bool SecondByteFits(uint8_t lead, uint8_t second) {
  switch (lead) {
    case 0xE0:
      return second >= 0xA0 && second <= 0xBF;
    case 0xED:
      return second >= 0x80 && second <= 0x9F;
    case 0xF0:
      return second >= 0x90 && second <= 0xBF;
    case 0xF4:
      return second >= 0x80 && second <= 0x8F;
    default:
      return second >= 0x80 && second <= 0xBF;
  }
}

constexpr std::array<int16_t, 324> MakeSymbolBytes() {
  std::array<int16_t, 324> bytes{};
  for (auto& byte : bytes) byte = -1;
  for (int byte = 0; byte < 256; ++byte) bytes[kByteSymbols[byte]] = static_cast<int16_t>(byte);
  return bytes;
}
constexpr std::array<int16_t, 324> kSymbolBytes = MakeSymbolBytes();
static_assert(*std::max_element(kByteSymbols.begin(), kByteSymbols.end()) == 323);

}  // namespace

Utf8Char DecodeUtf8(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(at);
  if (lead < 0x80) return {lead, 1, 1, false};
  const int bytes = lead >= 0xC2 && lead <= 0xDF ? 2 : (lead & 0xF0) == 0xE0 ? 3 : lead >= 0xF0 && lead <= 0xF4 ? 4 : 0;
  if (bytes == 0) return {};
  uint32_t code_point = lead & (0xFF >> (bytes + 1));
  for (int i = 1; i < bytes; ++i) {
    if (at + i == text.size()) return {0, 0, static_cast<uint8_t>(i), true};
    const uint8_t next = byte(at + i);
    const bool fits = i == 1 ? SecondByteFits(lead, next) : (next & 0xC0) == 0x80;
    if (!fits) return {0, 0, static_cast<uint8_t>(i), false};
    code_point = code_point << 6 | (next & 0x3F);
  }
  const auto length = static_cast<uint8_t>(bytes);
  return {code_point, length, length, false};
}

size_t ValidUtf8Prefix(std::string_view text, size_t begin) {
  size_t at = begin;
  while (at < text.size()) {
    uint64_t chunk;
    if (at + sizeof chunk <= text.size()) {
      std::memcpy(&chunk, text.data() + at, sizeof chunk);
      if ((chunk & 0x8080808080808080u) == 0) {
        at += sizeof chunk;
        continue;
      }
    }
    const uint8_t bytes = DecodeUtf8(text, at).bytes;
    if (bytes == 0) break;
    at += bytes;
  }
  return at - begin;
}

void AppendUtf8(uint32_t code_point, std::string& out) {
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    out += static_cast<char>(0xC0 | code_point >> 6);
    out += static_cast<char>(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    out += static_cast<char>(0xE0 | code_point >> 12);
    out += static_cast<char>(0x80 | (code_point >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (code_point & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | code_point >> 18);
    out += static_cast<char>(0x80 | (code_point >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (code_point >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (code_point & 0x3F));
  }
}

std::string EscapeSpaces(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size() + text.size() / 2);
  for (const char c : text) {
    if (c == ' ') {
      escaped += kSpaceSymbol;
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string UnescapeSpaces(std::string_view piece) {
  std::string text;
  size_t at = 0;
  for (size_t found; (found = piece.find(kSpaceSymbol, at)) != std::string_view::npos;
       at = found + kSpaceSymbol.size()) {
    text.append(piece.substr(at, found - at)) += ' ';
  }
  return text.append(piece.substr(at));
}

int SymbolByte(uint32_t code_point) { return code_point < kSymbolBytes.size() ? kSymbolBytes[code_point] : -1; }

}  // namespace elasticmem
