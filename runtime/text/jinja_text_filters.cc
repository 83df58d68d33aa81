// Filters on text and numbers, and tojson.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "runtime/text/jinja_filters.h"
#include "runtime/text/jinja_interpreter.h"
#include "runtime/text/jinja_text.h"

namespace elasticmem::jinja {
namespace {

// str(value), which keeps what `safe` has marked.
Value SoftString(Interpreter& run, const Value& value) {
  return value.is_string() ? value : run.arena().String(Str(run.arena(), value));
}

template <std::string (*convert)(std::string_view)>
Value CaseFilter(Interpreter& run, const Value& input, Arguments& arguments) {
  const Bound bound("case filter", arguments, {});
  const Value text = SoftString(run, input);
  return run.arena().String(convert(text.str()), text.text().markup);
}

Value Trim(Interpreter& run, const Value& input, Arguments& arguments) {
  const Bound bound("trim", arguments, {"chars"});
  Arguments method;
  method.positional = {bound.Or(0, Value())};
  return CallStringMethod(run, SoftString(run, input), "strip", method);
}

Value Replace(Interpreter& run, const Value& input, Arguments& arguments) {
  const Bound bound("replace", arguments, {"old", "new", "count"}, 2);
  Arena& arena = run.arena();
  const Int count = bound.Or(2, Value()).is_none() ? Int{-1} : bound.Integer(2, -1);
  return arena.String(ReplaceText(arena, Str(arena, input), Str(arena, bound[0]), Str(arena, bound[1]), count));
}

Value Indent(Interpreter& run, const Value& input, Arguments& arguments) {
  const Bound bound("indent", arguments, {"width", "first", "blank"});
  Arena& arena = run.arena();
  if (input.is_undefined()) FailUndefined(input);
  if (!input.is_string()) Fail("indent: a str is expected, not {}", TypeName(input));
  std::string indention;
  if (bound.has(0) && bound[0].is_string()) {
    indention = bound[0].str();
  } else {
    const Int width = bound.Integer(0, 4);
    arena.CheckStringBytes(static_cast<uint64_t>(std::clamp(width, Int{0}, Int{1} << 40)));
    indention.assign(static_cast<size_t>(std::max(width, Int{0})), ' ');
  }
  const std::string text = std::string(input.str()) + "\n";
  const bool blank = bound.Flag(2, false);
  std::string out = bound.Flag(1, false) ? indention : "";
  bool is_first = true;
  for (const std::string_view line : SplitLines(text, false)) {
    if (!is_first) {
      out += '\n';
      if (blank || !line.empty()) out += indention;
    }
    is_first = false;
    out += line;
    arena.CheckStringBytes(out.size());
  }
  return arena.String(std::move(out), input.text().markup);
}

Value Center(Interpreter& run, const Value& input, Arguments& arguments) {
  const Bound bound("center", arguments, {"width"});
  Arguments method;
  method.positional = {bound.Or(0, Int{80})};
  return CallStringMethod(run, SoftString(run, input), "center", method);
}

Value Truncate(Interpreter& run, const Value& input, Arguments& arguments) {
  const Bound bound("truncate", arguments, {"length", "killwords", "end", "leeway"});
  Arena& arena = run.arena();
  const Int length = bound.Integer(0, 255);
  const std::string_view end = bound.Text(2, "...");
  const Int leeway = bound.Or(3, Value()).is_none() ? Int{5} : bound.Integer(3, 5);
  const Int end_length = Int(CountCodePoints(end));
  if (length < end_length || leeway < 0) Fail("truncate: expected length >= {} and leeway >= 0", FormatInt(end_length));
  if (input.is_undefined()) return input;
  if (!input.is_string()) Fail("truncate: a str is expected, not {}", TypeName(input));
  if (Int(input.text().code_points) <= length + leeway) return input;
  const Value head = Slice(arena, input, Value(), Value(length - end_length), Value());
  std::string_view kept = head.str();
  if (!bound.Flag(1, false)) kept = kept.substr(0, kept.rfind(' '));
  return arena.String(std::string(kept) + std::string(end));
}

Value WordCount(Interpreter& run, const Value& input, Arguments& arguments) {
  const Bound bound("wordcount", arguments, {});
  const Value text = SoftString(run, input);
  Int count = 0;
  bool in_word = false;
  for (size_t pos = 0; pos < text.str().size();) {
    const char32_t c = NextCodePoint(text.str(), pos);
    const bool word = IsAlpha(c) || IsDigit(c) || c == '_';
    count += word && !in_word;
    in_word = word;
  }
  return count;
}

Value Format(Interpreter& run, const Value& input, Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    Fail("can't handle positional and keyword arguments at the same time");
  }
  const Value text = SoftString(run, input);
  if (arguments.named.empty()) return run.Binary(Op::kModulo, text, run.arena().Tuple(arguments.positional));
  auto* dict = run.arena().New<Dict>();
  for (const auto& [name, value] : arguments.named) dict->Set(run.arena(), run.arena().String(name), value);
  return run.Binary(Op::kModulo, text, Value(dict));
}

Value Escape(Interpreter& run, const Value& input, Arguments& arguments) {
  const Bound bound("escape", arguments, {});
  const Value text = SoftString(run, input);
  // Joining to an empty marked string escapes what is not marked.
  return run.Binary(Op::kAdd, run.arena().String(std::string(), true), text);
}

Value ForceEscape(Interpreter& run, const Value& input, Arguments& arguments) {
  return Escape(run, run.arena().String(Str(run.arena(), input)), arguments);
}

// int("12", base) and float("1e5") of Python: blanks around, a sign, underscores between digits.
std::optional<std::string> CleanNumber(std::string_view text) {
  text = Strip(text, true, true);
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '_') {
      const auto alnum = [&](size_t at) {
        return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at]));
      };
      if (i == 0 || !alnum(i - 1) || !alnum(i + 1)) return std::nullopt;
      continue;
    }
    out += text[i];
  }
  return out;
}

std::optional<Int> ParseInt(std::string_view text, Int base) {
  if (base != 0 && (base < 2 || base > 36)) Fail("int() base must be >= 2 and <= 36, or 0");
  const std::optional<std::string> clean = CleanNumber(text);
  if (!clean) return std::nullopt;
  std::string_view digits = *clean;
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.remove_prefix(1);
  static constexpr std::pair<char, int> kPrefixes[] = {{'x', 16}, {'o', 8}, {'b', 2}};
  for (const auto& [letter, value] : kPrefixes) {
    if (digits.size() > 2 && digits[0] == '0' && (digits[1] | 32) == letter && (base == value || base == 0)) {
      digits.remove_prefix(2);
      base = value;
      break;
    }
  }
  if (base == 0) {
    if (digits.size() > 1 && digits[0] == '0' && digits.find_first_not_of('0') != std::string_view::npos)
      return std::nullopt;
    base = 10;
  }
  if (digits.empty()) return std::nullopt;
  Int number = 0;
  for (const char c : digits) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'z' ? (c | 32) - 'a' + 10 : 99;
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(number, base, &number) || __builtin_add_overflow(number, Int{digit}, &number)) {
      Fail("the integer {} needs more than 128 bits", digits.substr(0, 60));
    }
  }
  return negative ? -number : number;
}

std::optional<double> ParseFloat(std::string_view text) {
  const std::optional<std::string> clean = CleanNumber(text);
  if (!clean || clean->empty()) return std::nullopt;
  std::string_view digits = *clean;
  if (digits.starts_with('+')) {
    digits.remove_prefix(1);
    if (digits.starts_with('-')) return std::nullopt;
  }
  double value = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (read.ptr != digits.data() + digits.size() || digits.find('(') != std::string_view::npos) return std::nullopt;
  if (read.ec == std::errc::result_out_of_range) return std::strtod(std::string(digits).c_str(), nullptr);
  if (read.ec != std::errc()) return std::nullopt;
  return value;
}

Value TruncateToInt(double value) {
  if (std::abs(value) >= 1e38) Fail("the number {} needs more than 128 bits as an integer", FormatFloat(value));
  return static_cast<Int>(value);
}

Value ToInt(Interpreter&, const Value& input, Arguments& arguments) {
  const Bound bound("int", arguments, {"default", "base"});
  if (input.is_undefined()) FailUndefined(input);
  const Value otherwise = bound.Or(0, Int{0});
  if (input.is_integral()) return input.integer();
  if (input.is_float()) {
    if (std::isinf(input.number())) Fail("cannot convert float infinity to integer");
    return std::isnan(input.number()) ? otherwise : TruncateToInt(input.number());
  }
  if (!input.is_string()) return otherwise;
  if (const auto number = ParseInt(input.str(), bound.Integer(1, 10))) return *number;
  const auto number = ParseFloat(input.str());
  return number && std::isfinite(*number) ? TruncateToInt(*number) : otherwise;
}

Value ToFloat(Interpreter&, const Value& input, Arguments& arguments) {
  const Bound bound("float", arguments, {"default"});
  if (input.is_undefined()) FailUndefined(input);
  const Value otherwise = bound.Or(0, 0.0);
  if (input.is_number()) return input.number();
  if (!input.is_string()) return otherwise;
  const auto number = ParseFloat(input.str());
  return number ? Value(*number) : otherwise;
}

Value Abs(Interpreter& run, const Value& input, Arguments& arguments) {
  const Bound bound("abs", arguments, {});
  if (input.is_undefined()) FailUndefined(input);
  if (!input.is_number()) Fail("bad operand type for abs(): '{}'", TypeName(input));
  if (input.is_float()) return std::abs(input.number());
  return input.integer() < 0 ? run.Binary(Op::kSubtract, Int{0}, input) : Value(input.integer());
}

// round(value, precision): the nearest decimal, exact halves to even, as correctly rounded printing gives it.
double RoundDecimal(double value, Int precision) {
  if (!std::isfinite(value) || precision > 330) return value;
  if (precision < -330) return std::copysign(0.0, value);
  if (precision < 0) {
    const double unit = std::pow(10.0, static_cast<double>(-precision));
    return std::nearbyint(value / unit) * unit;
  }
  const std::string text = fmt::format("{:.{}f}", value, static_cast<int>(precision));
  return std::strtod(text.c_str(), nullptr);
}

Value Round(Interpreter& run, const Value& input, Arguments& arguments) {
  const Bound bound("round", arguments, {"precision", "method"});
  const std::string_view method = bound.Text(1, "common");
  if (method != "common" && method != "ceil" && method != "floor") Fail("method must be common, ceil or floor");
  if (input.is_undefined()) FailUndefined(input);
  if (!input.is_number()) Fail("round: a number is expected, not {}", TypeName(input));
  const Int precision = bound.Integer(0, 0);
  if (method != "common") {
    const double scale = std::pow(10.0, static_cast<double>(precision));
    const double scaled = input.number() * scale;
    if (!std::isfinite(scaled)) Fail("round: the number {} is out of range", FormatFloat(scaled));
    return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale;
  }
  if (input.is_float()) return RoundDecimal(input.number(), precision);
  if (precision >= 0) return input.integer();
  if (precision < -37) return Int{0};
  const Value unit = run.Binary(Op::kPower, Int{10}, Value(-precision));
  const Int down = run.Binary(Op::kFloorDivide, input, unit).integer();
  const Int twice_rest = 2 * run.Binary(Op::kModulo, input, unit).integer();
  const bool up = twice_rest > unit.integer() || (twice_rest == unit.integer() && down % 2 != 0);
  return run.Binary(Op::kMultiply, Value(down + up), unit);
}

Value Default(Interpreter& run, const Value& input, Arguments& arguments) {
  const Bound bound("default", arguments, {"default_value", "boolean"});
  const bool absent = input.is_undefined() || (bound.Flag(1, false) && !Truthy(input));
  return absent ? bound.Or(0, run.arena().String("")) : input;
}

JsonStyle StyleFrom(const Bound& bound) {
  JsonStyle style;
  style.ascii = bound.Flag(0, false);
  if (bound.has(1) && bound[1].is_string()) {
    style.indent = bound[1].str();
  } else if (bound.has(1) && !bound[1].is_none()) {
    const Int width = bound.Integer(1, 0);
    if (width > 1000) Fail("tojson: an indent of {}", FormatInt(width));
    style.indent = std::string(static_cast<size_t>(std::max(width, Int{0})), ' ');
  }
  if (style.indent) style.item_separator = ",";
  if (bound.has(2) && !bound[2].is_none()) {
    const auto* pair = bound[2].As<Sequence>();
    if (pair == nullptr || pair->items.size() != 2 || !pair->items[0].is_string() || !pair->items[1].is_string()) {
      Fail("tojson: separators must be two strings");
    }
    style.item_separator = pair->items[0].str();
    style.key_separator = pair->items[1].str();
  }
  style.sort_keys = bound.Flag(3, false);
  return style;
}

Value ToJson(Interpreter& run, const Value& input, Arguments& arguments) {
  const Bound bound("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  return run.arena().String(DumpJson(run.arena(), input, StyleFrom(bound)));
}

constexpr std::pair<std::string_view, FilterFunction> kFilters[] = {
    {"upper", CaseFilter<Upper>},
    {"lower", CaseFilter<Lower>},
    {"title", CaseFilter<TitleFilter>},
    {"capitalize", CaseFilter<Capitalize>},
    {"trim", Trim},
    {"replace", Replace},
    {"indent", Indent},
    {"center", Center},
    {"truncate", Truncate},
    {"wordcount", WordCount},
    {"format", Format},
    {"string",
     [](Interpreter& run, const Value& v, Arguments& a) { return Bound("string", a, {}), SoftString(run, v); }},
    {"safe", [](Interpreter& run, const Value& v,
                Arguments& a) { return Bound("safe", a, {}), run.arena().String(Str(run.arena(), v), true); }},
    {"escape", Escape},
    {"e", Escape},
    {"forceescape", ForceEscape},
    {"int", ToInt},
    {"float", ToFloat},
    {"abs", Abs},
    {"round", Round},
    {"default", Default},
    {"d", Default},
    {"tojson", ToJson},
};

}  // namespace

FilterFunction FindTextFilter(std::string_view name) {
  for (const auto& [known, filter] : kFilters) {
    if (known == name) return filter;
  }
  return nullptr;
}

}  // namespace elasticmem::jinja
