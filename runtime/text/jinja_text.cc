#include "runtime/text/jinja_text.h"

#include <fmt/core.h>

#include <charconv>
#include <clocale>
#include <cmath>
#include <cstring>
#include <cwctype>

namespace elasticmem::jinja {
namespace {

// glibc's Unicode tables, whatever locale the process has chosen. Without them only ASCII has classes and case.
locale_t UnicodeLocale() {
  static const locale_t locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  return locale;
}

bool HasClass(char32_t c, int (*of)(wint_t, locale_t)) {
  if (c >= 0xD800 && c <= 0xDFFF) return false;
  const locale_t locale = UnicodeLocale();
  return locale != nullptr && of(static_cast<wint_t>(c), locale) != 0;
}

char32_t SimpleUpper(char32_t c) {
  if (c < 0x80) return c >= 'a' && c <= 'z' ? c - 32 : c;
  return UnicodeLocale() == nullptr ? c : static_cast<char32_t>(towupper_l(static_cast<wint_t>(c), UnicodeLocale()));
}

char32_t SimpleLower(char32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 32 : c;
  return UnicodeLocale() == nullptr ? c : static_cast<char32_t>(towlower_l(static_cast<wint_t>(c), UnicodeLocale()));
}

// Upper case that needs several letters: the few that occur in running text.
void AppendUpper(std::string& out, char32_t c) {
  switch (c) {
    case 0xDF:
      out += "SS";
      return;
    case 0x149:
      out += "\xCA\xBCN";
      return;
    case 0xFB00:
      out += "FF";
      return;
    case 0xFB01:
      out += "FI";
      return;
    case 0xFB02:
      out += "FL";
      return;
    case 0xFB03:
      out += "FFI";
      return;
    case 0xFB04:
      out += "FFL";
      return;
    default:
      AppendUtf8(out, SimpleUpper(c));
  }
}

void AppendTitle(std::string& out, char32_t c) {
  if (c == 0xDF) {
    out += "Ss";
  } else {
    AppendUpper(out, c);
  }
}

void AppendLower(std::string& out, char32_t c) {
  if (c == 0x130) {
    out += "i\xCC\x87";
  } else {
    AppendUtf8(out, SimpleLower(c));
  }
}

// Greek sigma at the end of a word has a form of its own.
void AppendLowerInWord(std::string& out, char32_t c, bool after_letter, std::string_view rest) {
  size_t pos = 0;
  if (c == 0x3A3 && after_letter && (rest.empty() || !IsAlpha(NextCodePoint(rest, pos)))) {
    AppendUtf8(out, 0x3C2);
  } else {
    AppendLower(out, c);
  }
}

bool IsLineEnd(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

}  // namespace

char32_t NextCodePoint(std::string_view text, size_t& pos) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(pos);
  if (lead < 0x80) {
    ++pos;
    return lead;
  }
  const int length = lead >= 0xF0 && lead < 0xF5   ? 4
                     : lead >= 0xE0 && lead < 0xF0 ? 3
                     : lead >= 0xC2 && lead < 0xE0 ? 2
                                                   : 0;
  if (length != 0 && pos + length <= text.size()) {
    char32_t c = lead & (0xFF >> (length + 1));
    bool good = true;
    for (int i = 1; i < length; ++i) {
      good = good && (byte(pos + i) & 0xC0) == 0x80;
      c = (c << 6) | (byte(pos + i) & 0x3F);
    }
    const char32_t smallest = length == 2 ? 0x80 : length == 3 ? 0x800 : 0x10000;
    if (good && c >= smallest && c <= 0x10FFFF && !(c >= 0xD800 && c <= 0xDFFF)) {
      pos += length;
      return c;
    }
  }
  ++pos;
  return 0xDC00 + lead;
}

size_t PreviousCodePoint(std::string_view text, size_t end) {
  for (size_t length = 1; length <= 4 && length <= end; ++length) {
    if ((static_cast<unsigned char>(text[end - length]) & 0xC0) == 0x80) continue;  // inside of a character
    size_t pos = end - length;
    NextCodePoint(text.substr(0, end), pos);
    if (pos == end) return end - length;
    break;
  }
  return end - 1;
}

void AppendUtf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c >= 0xDC80 && c <= 0xDCFF) {
    out += static_cast<char>(c - 0xDC00);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

size_t CountCodePoints(std::string_view text) {
  size_t count = 0;
  for (size_t pos = 0; pos < text.size(); ++count) NextCodePoint(text, pos);
  return count;
}

std::vector<size_t> CodePointOffsets(std::string_view text) {
  std::vector<size_t> offsets;
  size_t pos = 0;
  while (pos < text.size()) {
    offsets.push_back(pos);
    NextCodePoint(text, pos);
  }
  offsets.push_back(pos);
  return offsets;
}

bool IsSpace(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsDigit(char32_t c) { return c >= '0' && c <= '9'; }

bool IsAlpha(char32_t c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  return HasClass(c, iswalpha_l);
}

bool IsUpper(char32_t c) { return c < 0x80 ? c >= 'A' && c <= 'Z' : HasClass(c, iswupper_l); }

bool IsLower(char32_t c) { return c < 0x80 ? c >= 'a' && c <= 'z' : c == 0xDF || HasClass(c, iswlower_l); }

bool IsPrintable(char32_t c) {
  if (c < 0x80) return c >= 32 && c < 127;
  if (IsSpace(c) || c == 0xAD || c == 0x61C || (c >= 0x200B && c <= 0x200F) || (c >= 0x202A && c <= 0x202E) ||
      (c >= 0x2060 && c <= 0x206F) || (c >= 0xD800 && c <= 0xF8FF) || c == 0xFEFF || (c >= 0xFFF9 && c <= 0xFFFB) ||
      c >= 0xE0000) {
    return c >= 0xE0100 && c <= 0xE01EF;
  }
  return HasClass(c, iswprint_l);
}

std::string_view Strip(std::string_view text, bool left, bool right) {
  size_t begin = 0;
  size_t end = text.size();
  while (left && begin < end) {
    size_t next = begin;
    if (!IsSpace(NextCodePoint(text, next))) break;
    begin = next;
  }
  while (right && end > begin) {
    const size_t start = PreviousCodePoint(text, end);
    size_t pos = start;
    if (start < begin || !IsSpace(NextCodePoint(text, pos))) break;
    end = start;
  }
  return text.substr(begin, end - begin);
}

std::string_view StripChars(std::string_view text, std::string_view chars, bool left, bool right) {
  const auto among = [&](size_t from, size_t to) {
    const std::string_view one = text.substr(from, to - from);
    for (size_t pos = 0; pos < chars.size();) {
      const size_t start = pos;
      NextCodePoint(chars, pos);
      if (chars.substr(start, pos - start) == one) return true;
    }
    return false;
  };
  size_t begin = 0;
  size_t end = text.size();
  while (left && begin < end) {
    size_t next = begin;
    NextCodePoint(text, next);
    if (!among(begin, next)) break;
    begin = next;
  }
  while (right && end > begin) {
    const size_t start = PreviousCodePoint(text, end);
    if (start < begin || !among(start, end)) break;
    end = start;
  }
  return text.substr(begin, end - begin);
}

std::string Upper(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) AppendUpper(out, NextCodePoint(text, pos));
  return out;
}

std::string Lower(std::string_view text) {
  std::string out;
  bool after_letter = false;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = NextCodePoint(text, pos);
    AppendLowerInWord(out, c, after_letter, text.substr(pos));
    after_letter = IsAlpha(c);
  }
  return out;
}

std::string Capitalize(std::string_view text) {
  if (text.empty()) return "";
  std::string out;
  size_t pos = 0;
  AppendTitle(out, NextCodePoint(text, pos));
  return out + Lower(text.substr(pos));
}

std::string Title(std::string_view text) {
  std::string out;
  bool in_word = false;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = NextCodePoint(text, pos);
    if (in_word) {
      AppendLowerInWord(out, c, true, text.substr(pos));
    } else {
      AppendTitle(out, c);
    }
    in_word = IsUpper(c) || IsLower(c);
  }
  return out;
}

std::string TitleFilter(std::string_view text) {
  const auto separates = [](char32_t c) {
    return IsSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  };
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t first = NextCodePoint(text, pos);
    if (separates(first)) {
      AppendUtf8(out, first);
      continue;
    }
    const size_t rest = pos;
    for (size_t next = pos; pos < text.size(); pos = next) {
      if (separates(NextCodePoint(text, next))) break;
    }
    AppendUpper(out, first);
    out += Lower(text.substr(rest, pos - rest));
  }
  return out;
}

std::string SwapCase(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = NextCodePoint(text, pos);
    if (IsUpper(c)) {
      AppendLower(out, c);
    } else {
      AppendUpper(out, c);
    }
  }
  return out;
}

std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = pos;
    const char32_t c = NextCodePoint(text, pos);
    if (!IsLineEnd(c)) continue;
    if (c == '\r' && pos < text.size() && text[pos] == '\n') ++pos;
    lines.push_back(text.substr(begin, (keep_ends ? pos : end) - begin));
    begin = pos;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

size_t FindText(std::string_view text, std::string_view needle, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  const void* found = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  return found == nullptr ? std::string_view::npos : static_cast<const char*>(found) - text.data();
}

std::string QuotePython(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = NextCodePoint(text, pos);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (IsPrintable(c)) {
      AppendUtf8(out, c);
    } else if (c < 0x100) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    } else if (c < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += fmt::format("\\U{:08x}", static_cast<unsigned>(c));
    }
  }
  out += quote;
  return out;
}

std::string FormatFloat(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto written = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string_view text(buffer, written.ptr - buffer);
  const size_t e = text.find('e');
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (c != '.' && c != '-') digits += c;
  }
  int exponent = 0;
  const size_t exponent_at = e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(text.data() + exponent_at, text.data() + text.size(), exponent);
  const std::string sign = std::signbit(value) ? "-" : "";
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    const std::string mantissa = count == 1 ? digits : digits.substr(0, 1) + "." + digits.substr(1);
    return fmt::format("{}{}e{}{:02d}", sign, mantissa, exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return sign + "0." + std::string(-exponent - 1, '0') + digits;
  if (count <= exponent + 1) return sign + digits + std::string(exponent + 1 - count, '0') + ".0";
  return sign + digits.substr(0, exponent + 1) + "." + digits.substr(exponent + 1);
}

}  // namespace elasticmem::jinja
