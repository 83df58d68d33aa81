// Methods of str.
#include <algorithm>
#include <array>

#include "runtime/text/jinja_builtins.h"
#include "runtime/text/jinja_interpreter.h"
#include "runtime/text/jinja_text.h"

namespace elasticmem::jinja {
namespace {

constexpr size_t kNowhere = std::string_view::npos;

struct Call {
  Interpreter& run;
  const Value& self;
  std::string_view name;
  Arguments& arguments;
  Arena& arena() const { return run.arena(); }
  std::string_view text() const { return self.str(); }
  Value Result(std::string text) const { return arena().String(std::move(text), self.text().markup); }
  Value Result(std::string_view text) const { return Result(std::string(text)); }
  Value ResultList(const std::vector<std::string_view>& parts) const {
    arena().CheckItems(parts.size());
    Values items;
    for (const std::string_view part : parts) items.push_back(Result(part));
    return arena().List(std::move(items));
  }
};

using StringMethod = Value (*)(const Call&);

Value CaseMethod(const Call& call, std::string (*convert)(std::string_view)) {
  const Bound bound(call.name, call.arguments, {});
  return call.Result(convert(call.text()));
}

Value StripMethod(const Call& call, bool left, bool right) {
  const Bound bound(call.name, call.arguments, {""});
  if (!bound.has(0) || bound[0].is_none()) return call.Result(Strip(call.text(), left, right));
  const std::string_view chars = bound.Text(0, "");
  call.arena().Step(call.text().size() / 64 * (1 + chars.size()));
  return call.Result(StripChars(call.text(), chars, left, right));
}

// Splits at runs of whitespace, at most `limit` times, from the left or the right.
std::vector<std::string_view> SplitBlanks(std::string_view text, Int limit, bool from_right) {
  std::vector<std::string_view> parts;
  const auto blank_before = [&](size_t end) {
    size_t pos = PreviousCodePoint(text, end);
    return IsSpace(NextCodePoint(text, pos));
  };
  while (true) {
    text = Strip(text, !from_right, from_right);
    if (text.empty()) break;
    if (Int(parts.size()) == limit) {
      parts.push_back(text);
      break;
    }
    if (from_right) {
      size_t start = text.size();
      while (start > 0 && !blank_before(start)) start = PreviousCodePoint(text, start);
      parts.push_back(text.substr(start));
      text = text.substr(0, start);
    } else {
      size_t end = 0;
      for (size_t next = 0; end < text.size(); end = next) {
        if (IsSpace(NextCodePoint(text, next))) break;
      }
      parts.push_back(text.substr(0, end));
      text = text.substr(end);
    }
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> SplitAt(std::string_view text, std::string_view separator, Int limit, bool from_right) {
  std::vector<std::string_view> parts;
  while (limit < 0 || Int(parts.size()) < limit) {
    const size_t at = from_right ? text.rfind(separator) : FindText(text, separator, 0);
    if (at == kNowhere) break;
    parts.push_back(from_right ? text.substr(at + separator.size()) : text.substr(0, at));
    text = from_right ? text.substr(0, at) : text.substr(at + separator.size());
  }
  parts.push_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

Value SplitMethod(const Call& call, bool from_right) {
  const Bound bound(call.name, call.arguments, {"sep", "maxsplit"});
  const Int limit = bound.Integer(1, -1);
  if (!bound.has(0) || bound[0].is_none()) return call.ResultList(SplitBlanks(call.text(), limit, from_right));
  const std::string_view separator = bound.Text(0, "");
  if (separator.empty()) Fail("empty separator");
  call.arena().Step(call.text().size() / 16 * (from_right ? 1 + separator.size() / 8 : 1));
  return call.ResultList(SplitAt(call.text(), separator, limit, from_right));
}

Value PartitionMethod(const Call& call, bool from_right) {
  const Bound bound(call.name, call.arguments, {""}, 1);
  const std::string_view separator = bound.Text(0, "");
  if (separator.empty()) Fail("empty separator");
  const auto parts = SplitAt(call.text(), separator, 1, from_right);
  if (parts.size() == 2)
    return call.arena().Tuple({call.Result(parts[0]), call.Result(separator), call.Result(parts[1])});
  const Value empty = call.Result(std::string());
  return call.arena().Tuple(from_right ? Values{empty, empty, call.self} : Values{call.self, empty, empty});
}

// The part that optional start and end arguments (at 1 and 2) leave, and where it starts in code points.
Value Window(const Call& call, const Bound& bound, Int* start) {
  const Value begin = bound.Or(1, Value());
  const Value end = bound.Or(2, Value());
  const Int length = call.self.text().code_points;
  *start = begin.is_integral() ? begin.integer() : Int{0};
  if (*start < 0) *start = std::max(*start + length, Int{0});
  if (begin.is_none() && end.is_none()) return call.self;
  return Slice(call.arena(), call.self, begin, end, Value());
}

Value AffixMethod(const Call& call, bool at_end) {
  const Bound bound(call.name, call.arguments, {"", "", ""}, 1);
  Int start = 0;
  const Value window = Window(call, bound, &start);
  if (start > Int(call.self.text().code_points)) return false;
  const auto matches = [&](const Value& affix) {
    if (affix.is_undefined()) FailUndefined(affix);
    if (!affix.is_string()) Fail("{} first arg must be str or a tuple of str, not {}", call.name, TypeName(affix));
    return at_end ? window.str().ends_with(affix.str()) : window.str().starts_with(affix.str());
  };
  const auto* tuple = bound[0].As<Sequence>();
  if (tuple == nullptr || tuple->type != Sequence::kTuple) return matches(bound[0]);
  return std::any_of(tuple->items.begin(), tuple->items.end(), matches);
}

Value FindMethodOf(const Call& call, bool from_right, bool must) {
  const Bound bound(call.name, call.arguments, {"", "", ""}, 1);
  const std::string_view needle = bound.Text(0, "");
  Int start = 0;
  const Value window = Window(call, bound, &start);
  call.arena().Step(window.str().size() / 16 * (from_right ? 1 + needle.size() / 8 : 1));
  size_t at = from_right ? window.str().rfind(needle) : FindText(window.str(), needle, 0);
  if (start > Int(call.self.text().code_points)) at = kNowhere;
  if (at == kNowhere) {
    if (must) Fail("substring not found");
    return Int{-1};
  }
  return start + Int(CountCodePoints(window.str().substr(0, at)));
}

Value CountMethod(const Call& call) {
  const Bound bound(call.name, call.arguments, {"", "", ""}, 1);
  const std::string_view needle = bound.Text(0, "");
  Int start = 0;
  const Value window = Window(call, bound, &start);
  if (needle.empty()) {
    return start > Int(call.self.text().code_points) ? Int{0} : Int(window.text().code_points) + 1;
  }
  call.arena().Step(window.str().size() / 16);
  Int count = 0;
  for (size_t at = FindText(window.str(), needle, 0); at != kNowhere;
       at = FindText(window.str(), needle, at + needle.size())) {
    ++count;
  }
  return count;
}

Value JoinMethod(const Call& call) {
  const Bound bound(call.name, call.arguments, {""}, 1);
  if (bound[0].is_undefined()) return call.Result(std::string());
  std::string out;
  size_t i = 0;
  for (const Value& item : call.run.Items(bound[0])) {
    if (!item.is_string()) Fail("sequence item {}: expected str instance, {} found", i, TypeName(item));
    if (i++ > 0) out += call.text();
    out += item.str();
    call.arena().CheckStringBytes(out.size());
  }
  return call.Result(std::move(out));
}

Value PadMethod(const Call& call) {
  const Bound bound(call.name, call.arguments, {"", ""}, 1);
  const std::string_view fill = bound.Text(1, " ");
  if (CountCodePoints(fill) != 1) Fail("The fill character must be exactly one character long");
  const Int missing = bound.Integer(0, 0) - Int(call.self.text().code_points);
  if (missing <= 0) return call.self;
  call.arena().CheckStringBytes(static_cast<uint64_t>(std::min(missing, Int{1} << 40)) * fill.size());
  Int left = call.name == "rjust" ? missing : Int{0};
  if (call.name == "center") {  // as CPython splits an odd rest
    const Int width = bound.Integer(0, 0);
    left = missing / 2 + (missing & width & 1);
  }
  std::string out;
  for (Int i = 0; i < left; ++i) out += fill;
  out += call.text();
  for (Int i = left; i < missing; ++i) out += fill;
  return call.Result(std::move(out));
}

Value ZeroFillMethod(const Call& call) {
  const Bound bound(call.name, call.arguments, {""}, 1);
  const Int missing = bound.Integer(0, 0) - Int(call.self.text().code_points);
  if (missing <= 0) return call.self;
  call.arena().CheckStringBytes(static_cast<uint64_t>(std::min(missing, Int{1} << 40)));
  const bool is_signed = call.text().starts_with('-') || call.text().starts_with('+');
  return call.Result(std::string(call.text().substr(0, is_signed)) + std::string(static_cast<size_t>(missing), '0') +
                     std::string(call.text().substr(is_signed)));
}

Value AffixRemoval(const Call& call) {
  const Bound bound(call.name, call.arguments, {""}, 1);
  const std::string_view affix = bound.Text(0, "");
  std::string_view text = call.text();
  if (call.name == "removeprefix" && text.starts_with(affix)) text.remove_prefix(affix.size());
  if (call.name == "removesuffix" && text.ends_with(affix)) text.remove_suffix(affix.size());
  return call.Result(text);
}

// Whether every character is of a class (and there is one); cased: at least one letter has a case, none the other.
Value ClassMethod(const Call& call) {
  const Bound bound(call.name, call.arguments, {});
  const std::string_view text = call.text();
  const std::string_view name = call.name;
  bool cased = false;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = NextCodePoint(text, pos);
    const bool fits = name == "isalnum"   ? IsAlpha(c) || IsDigit(c)
                      : name == "isalpha" ? IsAlpha(c) && !IsDigit(c)
                      : name == "isspace" ? IsSpace(c)
                      : name == "isascii" ? c < 0x80
                      : name == "islower" ? !IsUpper(c)
                      : name == "isupper" ? !IsLower(c)
                                          : IsDigit(c);
    if (!fits) return false;
    cased |= IsUpper(c) || IsLower(c);
  }
  if (name == "islower" || name == "isupper") return cased;
  return name == "isascii" || !text.empty();
}

Value ReplaceMethod(const Call& call) {
  const Bound bound(call.name, call.arguments, {"", "", ""}, 2);
  const std::string_view from = bound.Text(0, "");
  const std::string_view to = bound.Text(1, "");
  return call.Result(ReplaceText(call.arena(), call.text(), from, to, bound.Integer(2, -1)));
}

Value SplitLinesMethod(const Call& call) {
  const Bound bound(call.name, call.arguments, {"keepends"});
  return call.ResultList(SplitLines(call.text(), bound.Flag(0, false)));
}

Value FormatMethod(const Call& call) {
  if (call.name == "format") return call.Result(FormatBraces(call.run, call.text(), call.arguments));
  const Bound bound(call.name, call.arguments, {""}, 1);
  const auto* dict = bound[0].As<Dict>();
  if (dict == nullptr) Fail("format_map() takes a mapping, not {}", TypeName(bound[0]));
  Arguments named;
  for (const auto& [key, value] : dict->entries) named.named.emplace_back(Str(call.arena(), key), value);
  return call.Result(FormatBraces(call.run, call.text(), named));
}

constexpr std::pair<std::string_view, StringMethod> kMethods[] = {
    {"upper", [](const Call& c) { return CaseMethod(c, Upper); }},
    {"lower", [](const Call& c) { return CaseMethod(c, Lower); }},
    {"casefold", [](const Call& c) { return CaseMethod(c, Lower); }},
    {"title", [](const Call& c) { return CaseMethod(c, Title); }},
    {"capitalize", [](const Call& c) { return CaseMethod(c, Capitalize); }},
    {"swapcase", [](const Call& c) { return CaseMethod(c, SwapCase); }},
    {"strip", [](const Call& c) { return StripMethod(c, true, true); }},
    {"lstrip", [](const Call& c) { return StripMethod(c, true, false); }},
    {"rstrip", [](const Call& c) { return StripMethod(c, false, true); }},
    {"split", [](const Call& c) { return SplitMethod(c, false); }},
    {"rsplit", [](const Call& c) { return SplitMethod(c, true); }},
    {"partition", [](const Call& c) { return PartitionMethod(c, false); }},
    {"rpartition", [](const Call& c) { return PartitionMethod(c, true); }},
    {"startswith", [](const Call& c) { return AffixMethod(c, false); }},
    {"endswith", [](const Call& c) { return AffixMethod(c, true); }},
    {"find", [](const Call& c) { return FindMethodOf(c, false, false); }},
    {"rfind", [](const Call& c) { return FindMethodOf(c, true, false); }},
    {"index", [](const Call& c) { return FindMethodOf(c, false, true); }},
    {"rindex", [](const Call& c) { return FindMethodOf(c, true, true); }},
    {"count", CountMethod},
    {"join", JoinMethod},
    {"center", PadMethod},
    {"ljust", PadMethod},
    {"rjust", PadMethod},
    {"zfill", ZeroFillMethod},
    {"removeprefix", AffixRemoval},
    {"removesuffix", AffixRemoval},
    {"isalnum", ClassMethod},
    {"isalpha", ClassMethod},
    {"isascii", ClassMethod},
    {"isdecimal", ClassMethod},
    {"isdigit", ClassMethod},
    {"isnumeric", ClassMethod},
    {"islower", ClassMethod},
    {"isupper", ClassMethod},
    {"isspace", ClassMethod},
    {"replace", ReplaceMethod},
    {"splitlines", SplitLinesMethod},
    {"format", FormatMethod},
    {"format_map", FormatMethod},
};

}  // namespace

std::string ReplaceText(Arena& arena, std::string_view text, std::string_view from, std::string_view to, Int count) {
  arena.Step(text.size() / 16);
  std::string out;
  size_t pos = 0;
  for (; count != 0; --count) {
    const size_t at = FindText(text, from, pos);
    if (at == kNowhere) break;
    out += text.substr(pos, at - pos);
    out += to;
    arena.CheckStringBytes(out.size());
    pos = at + from.size();
    if (!from.empty()) continue;
    if (pos == text.size()) break;  // an empty `from` matches before every character and at the end
    const size_t start = pos;
    NextCodePoint(text, pos);
    out += text.substr(start, pos - start);
  }
  out += text.substr(pos);
  return out;
}

Value CallStringMethod(Interpreter& run, const Value& object, std::string_view name, Arguments& arguments) {
  run.arena().Step(object.str().size() / 64);
  for (const auto& [known, method] : kMethods) {
    if (known == name) return method({run, object, name, arguments});
  }
  FailUnsupported("the method {} of str", name);
}

}  // namespace elasticmem::jinja
