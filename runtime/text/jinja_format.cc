// "%" formatting, str.format and the format specifications they share.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "runtime/text/jinja_builtins.h"
#include "runtime/text/jinja_interpreter.h"
#include "runtime/text/jinja_text.h"

namespace elasticmem::jinja {
namespace {

constexpr int kMaxPrecision = 4096;
constexpr Int kMaxWidth = Int{1} << 40;
constexpr size_t kNowhere = std::string_view::npos;

struct Spec {
  std::string fill = " ";
  char align = '\0';  // < > ^ =
  char sign = '-';
  bool alternate = false;
  char grouping = '\0';
  Int width = 0;
  Int precision = -1;
  char type = '\0';
};

bool TakeNumber(std::string_view text, size_t& at, Int* number) {
  const size_t start = at;
  for (*number = 0; at < text.size() && IsDigit(static_cast<unsigned char>(text[at])); ++at) {
    *number = std::min(*number * 10 + (text[at] - '0'), kMaxWidth);
  }
  return at > start;
}

Spec ParseSpec(std::string_view text) {
  Spec spec;
  size_t at = 0;
  const auto is_align = [&](size_t i) { return i < text.size() && std::string_view("<>^=").find(text[i]) != kNowhere; };
  size_t after_fill = 0;
  if (!text.empty()) NextCodePoint(text, after_fill);
  if (is_align(after_fill) && after_fill > 0) {
    spec.fill = text.substr(0, after_fill);
    spec.align = text[after_fill];
    at = after_fill + 1;
  } else if (is_align(0)) {
    spec.align = text[at++];
  }
  const auto take = [&](std::string_view among, char* where) {
    if (at < text.size() && among.find(text[at]) != kNowhere) *where = text[at++];
  };
  take("+- ", &spec.sign);
  if (at < text.size() && text[at] == '#') spec.alternate = ++at > 0;
  if (at < text.size() && text[at] == '0') {
    ++at;
    if (spec.align == '\0') {
      spec.align = '=';
      spec.fill = "0";
    }
  }
  TakeNumber(text, at, &spec.width);
  take(",_", &spec.grouping);
  if (at < text.size() && text[at] == '.') {
    ++at;
    if (!TakeNumber(text, at, &spec.precision)) Fail("Format specifier missing precision");
  }
  if (at < text.size()) spec.type = text[at++];
  if (at != text.size()) Fail("Invalid format specifier '{}'", text);
  return spec;
}

// `sign` goes before a fill of kind '='.
std::string Pad(Arena& arena, std::string_view sign, std::string_view body, const Spec& spec, char default_align) {
  const char align = spec.align == '\0' ? default_align : spec.align;
  const Int missing = spec.width - Int(CountCodePoints(sign) + CountCodePoints(body));
  std::string out;
  if (missing <= 0) return out.append(sign).append(body);
  arena.CheckStringBytes(static_cast<uint64_t>(missing) * spec.fill.size() + body.size());
  const Int left = align == '<' ? Int{0} : align == '^' ? missing / 2 : missing;
  if (align == '=') out += sign;
  for (Int i = 0; i < left; ++i) out += spec.fill;
  if (align != '=') out += sign;
  out += body;
  for (Int i = left; i < missing; ++i) out += spec.fill;
  return out;
}

std::string_view SignOf(bool negative, char sign) {
  return negative ? "-" : sign == '+' ? "+" : sign == ' ' ? " " : "";
}

void Group(std::string& digits, char separator, size_t every) {
  size_t end = std::min(digits.find_first_not_of("0123456789abcdefABCDEF"), digits.size());
  while (end > every) digits.insert(end -= every, 1, separator);
}

std::string Digits(Int value, int base, bool upper) {
  unsigned __int128 rest = value < 0 ? -static_cast<unsigned __int128>(value) : static_cast<unsigned __int128>(value);
  const char* const alphabet = upper ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string digits;
  do {
    digits += alphabet[static_cast<size_t>(rest % base)];
    rest /= base;
  } while (rest != 0);
  std::reverse(digits.begin(), digits.end());
  return digits;
}

// Magnitude of a float with one of the types e E f F g G.
std::string FloatDigits(double value, char type, Int precision, bool alternate) {
  if (precision > kMaxPrecision) FailUnsupported("a precision above {}", kMaxPrecision);
  if (!std::isfinite(value)) {
    const bool upper = type == 'E' || type == 'F' || type == 'G';
    return std::isnan(value) ? (upper ? "NAN" : "nan") : (upper ? "INF" : "inf");
  }
  const char format[] = {
      '%', alternate ? '#' : '.', alternate ? '.' : '*', alternate ? '*' : type, alternate ? type : '\0', '\0'};
  std::string out(kMaxPrecision + 400, '\0');
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  out.resize(std::snprintf(out.data(), out.size(), format, static_cast<int>(precision), std::abs(value)));
#pragma GCC diagnostic pop
  return out;
}

std::string FormatFloatSpec(Arena& arena, double value, const Spec& spec) {
  const bool negative = std::signbit(value) && !std::isnan(value);
  std::string digits;
  if (spec.type == '\0' && spec.precision < 0) {
    digits = FormatFloat(std::abs(value));
  } else if (spec.type == '\0') {
    digits = FloatDigits(value, 'g', std::max(spec.precision, Int{1}), false);
    if (digits.find_first_of(".en") == kNowhere) digits += ".0";
  } else if (spec.type == '%') {
    digits = FloatDigits(value * 100, 'f', spec.precision < 0 ? Int{6} : spec.precision, spec.alternate) + "%";
  } else {
    digits = FloatDigits(value, spec.type == 'n' ? 'g' : spec.type, spec.precision < 0 ? Int{6} : spec.precision,
                         spec.alternate);
  }
  if (spec.grouping != '\0') Group(digits, spec.grouping, 3);
  return Pad(arena, SignOf(negative, spec.sign), digits, spec, '>');
}

std::string FormatIntSpec(Arena& arena, Int value, const Spec& spec) {
  if (spec.type == 'c') {
    if (value < 0 || value > 0x10FFFF) Fail("%c arg not in range(0x110000)");
    std::string character;
    AppendUtf8(character, static_cast<char32_t>(value));
    return Pad(arena, "", character, spec, '>');
  }
  if (spec.precision >= 0) Fail("Precision not allowed in integer format specifier");
  const int base = spec.type == 'b' ? 2 : spec.type == 'o' ? 8 : (spec.type | 32) == 'x' ? 16 : 10;
  std::string digits = Digits(value, base, spec.type == 'X');
  if (spec.grouping != '\0') Group(digits, spec.grouping, base == 10 ? 3 : 4);
  std::string sign(SignOf(value < 0, spec.sign));
  if (spec.alternate && base != 10) sign += std::string("0") + spec.type;
  if (spec.align == '=' && spec.fill == "0" && spec.grouping != '\0') FailUnsupported("zero padding with grouping");
  return Pad(arena, sign, digits, spec, '>');
}

std::string FormatTextSpec(Arena& arena, std::string_view text, const Spec& spec) {
  if (spec.type != '\0' && spec.type != 's') Fail("Unknown format code '{}' for object of type 'str'", spec.type);
  if (spec.align == '=' && spec.fill != "0") Fail("'=' alignment not allowed in string format specifier");
  if (spec.precision >= 0 && spec.precision < Int(CountCodePoints(text))) {
    size_t pos = 0;
    for (Int i = 0; i < spec.precision; ++i) NextCodePoint(text, pos);
    text = text.substr(0, pos);
  }
  Spec left = spec;
  if (left.align == '=') left.align = '<';
  return Pad(arena, "", text, left, '<');
}

// format(value, spec)
std::string FormatValue(Arena& arena, const Value& value, std::string_view text) {
  if (text.empty()) return Str(arena, value);
  const Spec spec = ParseSpec(text);
  if (value.is_string()) return FormatTextSpec(arena, value.str(), spec);
  if (!value.is_number()) Fail("unsupported format string passed to {}.__format__", TypeName(value));
  const bool float_type = spec.type != '\0' && std::string_view("eEfFgG%").find(spec.type) != kNowhere;
  const bool int_type = spec.type == '\0' || std::string_view("bcdoxXn").find(spec.type) != kNowhere;
  if (float_type || (value.is_float() && (spec.type == '\0' || spec.type == 'n'))) {
    return FormatFloatSpec(arena, value.number(), spec);
  }
  if (value.is_float() || !int_type) {
    Fail("Unknown format code '{}' for object of type '{}'", spec.type, TypeName(value));
  }
  return FormatIntSpec(arena, value.integer(), spec);
}

// One format string's fields: {}, {0}, {name.attribute[item]!r:spec}.
class BraceFormatter {
 public:
  BraceFormatter(Interpreter& run, const Arguments& arguments) : run_(run), arguments_(arguments) {}

  std::string Format(std::string_view format, int level) {
    if (level > 2) Fail("Max string recursion exceeded");
    std::string out;
    for (size_t i = 0; i < format.size(); ++i) {
      const char c = format[i];
      if ((c == '{' || c == '}') && i + 1 < format.size() && format[i + 1] == c) {
        out += c;
        ++i;
      } else if (c == '}') {
        Fail("Single '}}' encountered in format string");
      } else if (c == '{') {
        const size_t end = FieldEnd(format, i + 1);
        out += Field(format.substr(i + 1, end - i - 1), level);
        i = end;
      } else {
        out += c;
      }
      run_.arena().CheckStringBytes(out.size());
    }
    return out;
  }

 private:
  static size_t FieldEnd(std::string_view format, size_t from) {
    int open = 1;
    for (size_t i = from; i < format.size(); ++i) {
      if (format[i] == '{') ++open;
      if (format[i] == '}' && --open == 0) return i;
    }
    Fail("expected '}}' before end of string");
  }

  std::string Field(std::string_view field, int level) {
    run_.arena().Step();
    size_t name_end = 0;
    bool bracket = false;
    for (; name_end < field.size(); ++name_end) {
      if (field[name_end] == '[') bracket = true;
      if (field[name_end] == ']') bracket = false;
      if (!bracket && (field[name_end] == '!' || field[name_end] == ':')) break;
    }
    Value value = Lookup(field.substr(0, name_end));
    size_t at = name_end;
    if (at < field.size() && field[at] == '!') {
      const char conversion = at + 1 < field.size() ? field[at + 1] : '\0';
      if (conversion != 's' && conversion != 'r') Fail("Unknown conversion specifier in '{{{}}}'", field);
      value = run_.arena().String(conversion == 's' ? Str(run_.arena(), value) : Repr(run_.arena(), value));
      at += 2;
      if (at < field.size() && field[at] != ':') Fail("expected ':' after conversion specifier");
    }
    const std::string spec = at < field.size() ? Format(field.substr(at + 1), level + 1) : "";
    return FormatValue(run_.arena(), value, spec);
  }

  Value Lookup(std::string_view name) {
    size_t at = std::min(name.find_first_of(".["), name.size());
    Value value = First(name.substr(0, at));
    while (at < name.size()) {
      if (name[at] == '.') {
        const size_t end = std::min(name.find_first_of(".[", at + 1), name.size());
        value = run_.GetAttribute(value, name.substr(at + 1, end - at - 1));
        at = end;
      } else {
        const size_t end = name.find(']', at);
        if (name[at] != '[' || end == kNowhere) Fail("Missing ']' in format string");
        const std::string_view key = name.substr(at + 1, end - at - 1);
        Int number = 0;
        size_t digits = 0;
        const bool numeric = TakeNumber(key, digits, &number) && digits == key.size();
        value = run_.GetItem(value, numeric ? Value(number) : run_.arena().String(key));
        at = end + 1;
      }
    }
    return value;
  }

  Value First(std::string_view name) {
    Int index = 0;
    size_t at = 0;
    if (name.empty()) {
      index = next_++;
    } else if (!TakeNumber(name, at, &index) || at != name.size()) {
      for (const auto& [key, value] : arguments_.named) {
        if (key == name) return value;
      }
      Fail("format: there is no argument '{}'", name);
    }
    if (index >= Int(arguments_.positional.size())) {
      Fail("Replacement index {} out of range for positional args tuple", FormatInt(index));
    }
    return arguments_.positional[static_cast<size_t>(index)];
  }

  Interpreter& run_;
  const Arguments& arguments_;
  Int next_ = 0;
};

// The values of a % expression, given out one by one or by name.
class PercentFormatter {
 public:
  PercentFormatter(Interpreter& run, const Value& values) : run_(run), values_(values) {
    const auto* tuple = values.As<Sequence>();
    if (tuple != nullptr && tuple->type == Sequence::kTuple) {
      queue_ = tuple->items;
      is_tuple_ = true;
    } else {
      queue_ = {values};
    }
  }

  std::string Format(std::string_view format) {
    std::string out;
    for (size_t at = 0; at < format.size();) {
      if (format[at] != '%') {
        out += format[at++];
        continue;
      }
      ++at;
      out += Conversion(format, at);
      run_.arena().CheckStringBytes(out.size());
    }
    const bool mapping = values_.As<Dict>() != nullptr;
    if (next_ < queue_.size() && !mapping) Fail("not all arguments converted during string formatting");
    return out;
  }

 private:
  Value Take() {
    if (next_ >= queue_.size()) Fail("not enough arguments for format string");
    return queue_[next_++];
  }

  std::string Conversion(std::string_view format, size_t& at) {
    run_.arena().Step();
    std::optional<Value> named;
    if (at < format.size() && format[at] == '(') {
      const size_t end = format.find(')', at);
      if (end == kNowhere) Fail("incomplete format key");
      const auto* dict = values_.As<Dict>();
      if (dict == nullptr) Fail("format requires a mapping");
      const std::string_view key = format.substr(at + 1, end - at - 1);
      const Value* found = dict->Find(key);
      if (found == nullptr) Fail("format: there is no key '{}'", key);
      named = *found;
      next_ = queue_.size();
      at = end + 1;
    }
    Spec spec;
    spec.align = '>';
    for (; at < format.size() && std::string_view("-+ #0").find(format[at]) != kNowhere; ++at) {
      if (format[at] == '-') spec.align = '<';
      if (format[at] == '+' || (format[at] == ' ' && spec.sign != '+')) spec.sign = format[at];
      if (format[at] == '#') spec.alternate = true;
      if (format[at] == '0' && spec.align != '<') spec.fill = "0";
    }
    if (at < format.size() && format[at] == '*') FailUnsupported("'*' as a width in % formatting");
    TakeNumber(format, at, &spec.width);
    if (at < format.size() && format[at] == '.') {
      ++at;
      TakeNumber(format, at, &spec.precision);
    }
    while (at < format.size() && (format[at] == 'l' || format[at] == 'h' || format[at] == 'L')) ++at;
    if (at >= format.size()) Fail("incomplete format");
    spec.type = format[at++];
    if (spec.type == '%') return "%";
    return Convert(named ? *named : Take(), spec);
  }

  std::string Convert(const Value& value, Spec spec) {
    Arena& arena = run_.arena();
    const char type = spec.type;
    if (type == 's' || type == 'r') {
      spec.fill = " ";
      spec.type = 's';
      return FormatTextSpec(arena, type == 's' ? Str(arena, value) : Repr(arena, value), spec);
    }
    if (type == 'c' && value.is_string() && value.text().code_points == 1) {
      spec.type = 's';
      return FormatTextSpec(arena, value.str(), spec);
    }
    if (std::string_view("diuxXoeEfFgGc").find(type) == kNowhere) Fail("unsupported format character '{}'", type);
    if (value.is_undefined()) FailUndefined(value);
    if (!value.is_number()) Fail("%{} format: a real number is required, not {}", type, TypeName(value));
    if (spec.fill == "0" && spec.align == '>') spec.align = '=';
    if (std::string_view("eEfFgG").find(type) != kNowhere) return FormatFloatSpec(arena, value.number(), spec);
    if (value.is_float() && std::string_view("xXoc").find(type) != kNowhere) {
      Fail("%{} format: an integer is required, not float", type);
    }
    if (value.is_float() && !(std::abs(value.number()) < 1e36)) Fail("cannot convert this float to an integer");
    const Int number = value.is_float() ? static_cast<Int>(value.number()) : value.integer();
    if (type == 'd' || type == 'i' || type == 'u') spec.type = '\0';
    const Int precision = std::exchange(spec.precision, -1);
    if (precision > 0) FailUnsupported("a precision for integers in % formatting");
    return FormatIntSpec(arena, number, spec);
  }

  Interpreter& run_;
  const Value& values_;
  Values queue_;
  size_t next_ = 0;
  bool is_tuple_ = false;
};

}  // namespace

std::string FormatPercent(Interpreter& run, std::string_view format, const Value& values) {
  return PercentFormatter(run, values).Format(format);
}

std::string FormatBraces(Interpreter& run, std::string_view format, const Arguments& arguments) {
  return BraceFormatter(run, arguments).Format(format, 1);
}

}  // namespace elasticmem::jinja
