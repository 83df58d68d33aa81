#include "runtime/text/jinja_lexer.h"

#include <algorithm>
#include <charconv>

#include "runtime/text/jinja_text.h"

namespace elasticmem::jinja {
namespace {

constexpr size_t kNowhere = std::string_view::npos;

// One newline convention, and the last one dropped.
std::string NormalizeNewlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
      continue;
    }
    text += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : text_(NormalizeNewlines(source)) {}

  std::vector<Token> Run() {
    while (pos_ < text_.size()) LexData();
    Add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  template <class... Args>
  [[noreturn]] void FailHere(fmt::format_string<Args...> format, Args&&... args) const {
    throw TemplateError{StatusCode::kInvalidArgument, fmt::vformat(format, fmt::make_format_args(args...)), line_};
  }

  std::string_view rest() const { return std::string_view(text_).substr(pos_); }
  bool At(std::string_view what) const { return rest().starts_with(what); }
  void Add(TokenKind kind, std::string_view text) { tokens_.push_back({kind, line_, std::string(text), Value()}); }

  void MoveTo(size_t end) {
    line_ += static_cast<int>(std::count(text_.begin() + pos_, text_.begin() + end, '\n'));
    line_starting_ = end > pos_ ? text_[end - 1] == '\n' : line_starting_;
    pos_ = end;
  }

  size_t SkipSpace(size_t at) const {
    while (at < text_.size()) {
      size_t next = at;
      if (!IsSpace(NextCodePoint(text_, next))) break;
      at = next;
    }
    return at;
  }

  // Where the next "{{", "{%" or "{#" is.
  size_t FindTag(size_t from) const {
    for (size_t at = text_.find('{', from); at != kNowhere; at = text_.find('{', at + 1)) {
      if (at + 1 < text_.size() && (text_[at + 1] == '{' || text_[at + 1] == '%' || text_[at + 1] == '#')) return at;
    }
    return kNowhere;
  }

  // Template text up to the next tag, trimmed as the tag's sign asks; then the tag.
  void LexData() {
    const size_t tag = FindTag(pos_);
    if (tag == kNowhere) {
      Add(TokenKind::kData, rest());
      MoveTo(text_.size());
      return;
    }
    const char sign = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
    const bool is_variable = text_[tag + 1] == '{';
    AddTrimmed(rest().substr(0, tag - pos_), sign, is_variable);
    MoveTo(tag);
    const size_t inside = tag + 2 + (sign == '-' || sign == '+');
    if (is_variable) {
      Add(TokenKind::kVariableBegin, "");
      MoveTo(inside);
      LexCode(TokenKind::kVariableEnd);
    } else if (text_[tag + 1] == '#') {
      LexComment(inside);
    } else if (const size_t raw = RawBegin(inside); raw != kNowhere) {
      MoveTo(raw);
      LexRaw();
    } else {
      Add(TokenKind::kBlockBegin, "");
      MoveTo(inside);
      LexCode(TokenKind::kBlockEnd);
    }
  }

  void AddTrimmed(std::string_view data, char sign, bool is_variable) {
    if (sign == '-') {
      data = Strip(data, false, true);
    } else if (sign != '+' && !is_variable) {
      // Blanks between the start of the line and a block go (lstrip_blocks).
      const size_t newline = data.rfind('\n');
      const size_t line_start = newline == kNowhere ? 0 : newline + 1;
      const bool at_line_start = line_start > 0 || line_starting_;
      if (at_line_start && Strip(data.substr(line_start), true, false).empty()) data = data.substr(0, line_start);
    }
    if (!data.empty()) Add(TokenKind::kData, data);
  }

  void LexComment(size_t inside) {
    const size_t end = text_.find("#}", inside);
    if (end == kNowhere) FailHere("Missing end of comment tag");
    MoveTo(AfterEnd(end, end > inside ? text_[end - 1] : '\0'));
  }

  // Behind the two-character end tag at `end`: '-' before it eats whitespace, '+' nothing, else one newline goes.
  size_t AfterEnd(size_t end, char sign) const {
    const size_t after = end + 2;
    if (sign == '-') return SkipSpace(after);
    if (sign == '+') return after;
    return after + (after < text_.size() && text_[after] == '\n');
  }

  // If `inside` a block stands "raw %}": behind it.
  size_t RawBegin(size_t inside) const {
    size_t at = SkipSpace(inside);
    if (!std::string_view(text_).substr(at).starts_with("raw")) return kNowhere;
    at = SkipSpace(at + 3);
    if (std::string_view(text_).substr(at).starts_with("-%}")) return SkipSpace(at + 3);
    return std::string_view(text_).substr(at).starts_with("%}") ? at + 2 : kNowhere;
  }

  void LexRaw() {
    for (size_t tag = text_.find("{%", pos_); tag != kNowhere; tag = text_.find("{%", tag + 2)) {
      const char sign = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
      size_t at = SkipSpace(tag + 2 + (sign == '-' || sign == '+'));
      if (!std::string_view(text_).substr(at).starts_with("endraw")) continue;
      at = SkipSpace(at + 6);
      const char end_sign = at < text_.size() && (text_[at] == '-' || text_[at] == '+') ? text_[at] : '\0';
      if (end_sign != '\0') ++at;
      if (!std::string_view(text_).substr(at).starts_with("%}")) continue;
      AddTrimmed(rest().substr(0, tag - pos_), sign, false);
      MoveTo(AfterEnd(at, end_sign));
      return;
    }
    FailHere("Missing end of raw directive");
  }

  // Tokens up to `end` ("}}" or "%}", outside of brackets).
  void LexCode(TokenKind end) {
    const std::string_view closing = end == TokenKind::kBlockEnd ? "%}" : "}}";
    std::string open;
    while (pos_ < text_.size()) {
      if (open.empty() && LexEnd(end, closing)) return;
      const size_t start = pos_;
      if (const size_t blank = SkipSpace(pos_); blank != pos_) {
        MoveTo(blank);
      } else if (!LexNumber() && !LexName() && !LexString()) {
        LexOperator(open);
      }
      if (pos_ == start) FailHere("unexpected character at {}", pos_);
    }
  }

  bool LexEnd(TokenKind end, std::string_view closing) {
    const char sign = text_[pos_];
    const bool signed_end = sign == '-' || (sign == '+' && end == TokenKind::kBlockEnd);
    const size_t at = pos_ + signed_end;
    if (!std::string_view(text_).substr(at).starts_with(closing)) return false;
    Add(end, "");
    if (end == TokenKind::kVariableEnd && !signed_end) {
      MoveTo(at + 2);
    } else {
      MoveTo(AfterEnd(at, signed_end ? sign : '\0'));
    }
    return true;
  }

  char Peek(size_t at) const { return at < text_.size() ? text_[at] : '\0'; }

  // Digits with single underscores between them; the place behind, `at` if there are none.
  size_t Digits(size_t at) const {
    if (!IsDigit(static_cast<unsigned char>(Peek(at)))) return at;
    while (IsDigit(static_cast<unsigned char>(Peek(at))) ||
           (Peek(at) == '_' && IsDigit(static_cast<unsigned char>(Peek(at + 1))))) {
      ++at;
    }
    return at;
  }

  bool LexNumber() {
    if (!IsDigit(static_cast<unsigned char>(text_[pos_]))) return false;
    return LexFloat() || LexInteger();
  }

  bool LexFloat() {
    if (pos_ > 0 && text_[pos_ - 1] == '.') return false;
    const size_t whole = Digits(pos_);
    size_t end = whole;
    if (Peek(whole) == '.' && Digits(whole + 1) != whole + 1) end = Digits(whole + 1);
    if (Peek(end) == 'e' || Peek(end) == 'E') {
      const size_t sign = end + 1 + (Peek(end + 1) == '+' || Peek(end + 1) == '-');
      if (Digits(sign) != sign) end = Digits(sign);
    }
    if (end == whole) return false;
    std::string digits(rest().substr(0, end - pos_));
    std::erase(digits, '_');
    double value = 0;
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (read.ec == std::errc::result_out_of_range) FailHere("the number {} is out of range", digits);
    Add(TokenKind::kFloat, digits);
    tokens_.back().number = value;
    MoveTo(end);
    return true;
  }

  bool LexInteger() {
    static constexpr std::pair<char, int> kBases[] = {{'x', 16}, {'o', 8}, {'b', 2}};
    int base = 10;
    size_t at = pos_;
    for (const auto& [letter, value] : kBases) {
      if (text_[pos_] == '0' && (Peek(pos_ + 1) | 32) == letter && DigitIn(Peek(pos_ + 2), value) >= 0) {
        base = value;
        at = pos_ + 2;
      }
    }
    const bool zero = base == 10 && text_[pos_] == '0';
    Int value = 0;
    size_t end = at;
    for (; DigitIn(Peek(end), base) >= 0 || (Peek(end) == '_' && DigitIn(Peek(end + 1), base) >= 0); ++end) {
      if (Peek(end) == '_') continue;
      if (zero && Peek(end) != '0') break;  // 012 is two numbers, and the parser's problem
      if (__builtin_mul_overflow(value, Int{base}, &value) ||
          __builtin_add_overflow(value, Int{DigitIn(Peek(end), base)}, &value)) {
        FailHere("an integer of more than 128 bits");
      }
    }
    Add(TokenKind::kInteger, rest().substr(0, end - pos_));
    tokens_.back().number = value;
    MoveTo(end);
    return true;
  }

  static int DigitIn(char c, int base) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : 99;
    return digit < base ? digit : -1;
  }

  bool LexName() {
    size_t end = pos_;
    while (end < text_.size()) {
      size_t next = end;
      const char32_t c = NextCodePoint(text_, next);
      if (!(IsAlpha(c) || c == '_' || (end > pos_ && IsDigit(c)))) break;
      end = next;
    }
    if (end == pos_) return false;
    Add(TokenKind::kName, rest().substr(0, end - pos_));
    MoveTo(end);
    return true;
  }

  bool LexString() {
    const char quote = text_[pos_];
    if (quote != '"' && quote != '\'') return false;
    size_t end = pos_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) FailHere("a string without an end");
    Add(TokenKind::kString, Unescape(rest().substr(1, end - pos_ - 1)));
    MoveTo(end + 1);
    return true;
  }

  // Python's escapes, \N{...} excepted.
  std::string Unescape(std::string_view text) const {
    static constexpr std::string_view kFrom = "\\'\"abfnrtv";
    static constexpr std::string_view kTo = "\\'\"\a\b\f\n\r\t\v";
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\') {
        out += text[i];
        continue;
      }
      const char c = text[++i];
      if (const size_t known = kFrom.find(c); known != kNowhere) {
        out += kTo[known];
      } else if (c == '\n') {  // the line goes on
      } else if (c >= '0' && c <= '7') {
        i += AppendCodePoint(out, text.substr(i, 3), 8, 1) - 1;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        i += AppendCodePoint(out, text.substr(i + 1, digits), 16, digits);
      } else if (c == 'N') {
        FailHere("the escape \\N{{...}} is not supported; use \\u");
      } else {
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  size_t AppendCodePoint(std::string& out, std::string_view digits, int base, size_t at_least) const {
    unsigned value = 0;
    size_t used = 0;
    for (; used < digits.size() && DigitIn(digits[used], base) >= 0; ++used)
      value = value * base + DigitIn(digits[used], base);
    if (used < at_least) FailHere("truncated escape \\{} in a string", digits);
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) FailHere("the escape {:#x} is no character", value);
    AppendUtf8(out, value);
    return used;
  }

  void LexOperator(std::string& open) {
    static constexpr std::string_view kDouble[] = {"//", "**", "==", "!=", ">=", "<="};
    std::string_view found;
    for (const std::string_view op : kDouble) {
      if (At(op)) found = op;
    }
    if (found.empty() && std::string_view("+-/*%~[](){}><=.:|,;").find(text_[pos_]) != kNowhere) {
      found = rest().substr(0, 1);
    }
    if (found.empty()) {
      size_t next = pos_;
      NextCodePoint(text_, next);
      FailHere("unexpected char {} at {}", QuotePython(rest().substr(0, next - pos_)), pos_);
    }
    const char c = found[0];
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) FailHere("unexpected '{}'", c);
      if (open.back() != c) FailHere("unexpected '{}', expected '{}'", c, open.back());
      open.pop_back();
    }
    Add(TokenKind::kOperator, found);
    MoveTo(pos_ + found.size());
  }

  const std::string text_;
  size_t pos_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::string Describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kData:
      return "template data / text";
    case TokenKind::kVariableBegin:
      return "begin of print statement";
    case TokenKind::kVariableEnd:
      return "end of print statement";
    case TokenKind::kBlockBegin:
      return "begin of statement block";
    case TokenKind::kBlockEnd:
      return "end of statement block";
    case TokenKind::kString:
      return "string";
    case TokenKind::kInteger:
      return "integer";
    case TokenKind::kFloat:
      return "float";
    case TokenKind::kEnd:
      return "end of template";
    default:
      return token.text;
  }
}

std::vector<Token> Tokenize(std::string_view source) { return Lexer(source).Run(); }

}  // namespace elasticmem::jinja
