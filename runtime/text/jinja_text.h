// Python's view of strings over UTF-8 bytes: code points, whitespace, case. Pure functions.
// Bytes that are no UTF-8 count as one code point each (0xDC00 + byte, as Python's surrogateescape has it) and are
// written back unchanged.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace elasticmem::jinja {

// The code point at text[pos]; moves pos behind it.
char32_t NextCodePoint(std::string_view text, size_t& pos);
// Where the code point that ends at `end` (> 0) starts.
size_t PreviousCodePoint(std::string_view text, size_t end);
void AppendUtf8(std::string& out, char32_t c);
size_t CountCodePoints(std::string_view text);
// Byte offsets of every code point and, last, of the end.
std::vector<size_t> CodePointOffsets(std::string_view text);

bool IsSpace(char32_t c);
bool IsAlpha(char32_t c);
bool IsDigit(char32_t c);
bool IsUpper(char32_t c);
bool IsLower(char32_t c);
bool IsPrintable(char32_t c);  // what repr() shows as it is

// The strip family: `chars` empty means whitespace.
std::string_view Strip(std::string_view text, bool left, bool right);
std::string_view StripChars(std::string_view text, std::string_view chars, bool left, bool right);

std::string Upper(std::string_view text);
std::string Lower(std::string_view text);
std::string Capitalize(std::string_view text);
std::string Title(std::string_view text);        // str.title(): every run of letters
std::string TitleFilter(std::string_view text);  // Jinja's title: words after blanks, '-' and opening brackets
std::string SwapCase(std::string_view text);

// str.splitlines(): all of Python's line boundaries.
std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends);

// First place of `needle` at or after `from`, or npos; linear whatever the text.
size_t FindText(std::string_view text, std::string_view needle, size_t from);

// repr() of a str: quotes and escapes as Python writes them.
std::string QuotePython(std::string_view text);
// A float as Python's repr() and str() write it.
std::string FormatFloat(double value);

}  // namespace elasticmem::jinja
