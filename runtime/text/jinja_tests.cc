// What stands behind `is`, and the global functions.
#include <algorithm>
#include <ctime>

#include "runtime/text/jinja_builtins.h"
#include "runtime/text/jinja_interpreter.h"
#include "runtime/text/jinja_text.h"

namespace elasticmem::jinja {
namespace {

constexpr size_t kMaxRange = 100000;  // as jinja2's sandbox
constexpr Int kMaxRangeBound = Int{1} << 62;

bool NoArguments(std::string_view name, Arguments& arguments) {
  const Bound bound(name, arguments, {});
  return true;
}

template <class Predicate>
bool Check(std::string_view name, Arguments& arguments, Predicate predicate) {
  NoArguments(name, arguments);
  return predicate();
}

bool HasCase(Interpreter& run, const Value& value, bool upper) {
  Arguments none;
  return CallStringMethod(run, run.arena().String(Str(run.arena(), value)), upper ? "isupper" : "islower", none)
      .boolean();
}

bool IsSequence(const Value& value) {
  const auto* sequence = value.As<Sequence>();
  return value.is_string() || value.is_undefined() || (sequence != nullptr && sequence->indexable()) ||
         value.As<Dict>() != nullptr || value.As<Range>() != nullptr;
}

bool IsIterable(const Value& value) {
  return value.is_string() || value.is_undefined() || value.As<Sequence>() != nullptr || value.As<Dict>() != nullptr ||
         value.As<Range>() != nullptr || value.As<Loop>() != nullptr;
}

bool IsCallable(const Value& value) {
  if (value.is_undefined()) return true;
  if (value.object() == nullptr) return false;
  const ObjectKind kind = value.object()->kind;
  return kind == ObjectKind::kMacro || kind == ObjectKind::kMethod || kind == ObjectKind::kFunction ||
         kind == ObjectKind::kLoop || kind == ObjectKind::kJoiner;
}

// Python's `is`, as far as one may rely on it.
bool IsSame(Interpreter& run, const Value& a, const Value& b) {
  if (a.object() != nullptr || b.object() != nullptr) return a.object() == b.object();
  return TypeName(a) == TypeName(b) && Equal(run.arena(), a, b);
}

bool ModuloIs(Interpreter& run, const Value& value, const Value& divisor, Int remainder) {
  return Equal(run.arena(), run.Binary(Op::kModulo, value, divisor), remainder);
}

template <Op op>
bool CompareTest(Interpreter& run, const Value& value, Arguments& arguments) {
  const Bound bound("comparison", arguments, {""}, 1);
  const Value& other = bound[0];
  switch (op) {
    case Op::kEqual:
      return Equal(run.arena(), value, other);
    case Op::kNotEqual:
      return !Equal(run.arena(), value, other);
    case Op::kLess:
      return Less(run.arena(), value, other);
    case Op::kGreater:
      return Less(run.arena(), other, value, ">");
    case Op::kLessEqual:
      return Less(run.arena(), value, other, "<=") || Equal(run.arena(), value, other);
    default:
      return Less(run.arena(), other, value, ">=") || Equal(run.arena(), value, other);
  }
}

constexpr std::pair<std::string_view, TestFunction> kTests[] = {
    {"defined",
     [](Interpreter&, const Value& v, Arguments& a) { return Check("defined", a, [&] { return !v.is_undefined(); }); }},
    {"undefined", [](Interpreter&, const Value& v,
                     Arguments& a) { return Check("undefined", a, [&] { return v.is_undefined(); }); }},
    {"none", [](Interpreter&, const Value& v, Arguments& a) { return Check("none", a, [&] { return v.is_none(); }); }},
    {"boolean",
     [](Interpreter&, const Value& v, Arguments& a) { return Check("boolean", a, [&] { return v.is_bool(); }); }},
    {"true", [](Interpreter&, const Value& v,
                Arguments& a) { return Check("true", a, [&] { return v.is_bool() && v.boolean(); }); }},
    {"false", [](Interpreter&, const Value& v,
                 Arguments& a) { return Check("false", a, [&] { return v.is_bool() && !v.boolean(); }); }},
    {"integer",
     [](Interpreter&, const Value& v, Arguments& a) { return Check("integer", a, [&] { return v.is_int(); }); }},
    {"float",
     [](Interpreter&, const Value& v, Arguments& a) { return Check("float", a, [&] { return v.is_float(); }); }},
    {"number",
     [](Interpreter&, const Value& v, Arguments& a) { return Check("number", a, [&] { return v.is_number(); }); }},
    {"string",
     [](Interpreter&, const Value& v, Arguments& a) { return Check("string", a, [&] { return v.is_string(); }); }},
    {"mapping", [](Interpreter&, const Value& v,
                   Arguments& a) { return Check("mapping", a, [&] { return v.As<Dict>() != nullptr; }); }},
    {"sequence",
     [](Interpreter&, const Value& v, Arguments& a) { return Check("sequence", a, [&] { return IsSequence(v); }); }},
    {"iterable",
     [](Interpreter&, const Value& v, Arguments& a) { return Check("iterable", a, [&] { return IsIterable(v); }); }},
    {"callable",
     [](Interpreter&, const Value& v, Arguments& a) { return Check("callable", a, [&] { return IsCallable(v); }); }},
    {"escaped", [](Interpreter&, const Value& v,
                   Arguments& a) { return Check("escaped", a, [&] { return v.is_string() && v.text().markup; }); }},
    {"lower", [](Interpreter& run, const Value& v,
                 Arguments& a) { return Check("lower", a, [&] { return HasCase(run, v, false); }); }},
    {"upper", [](Interpreter& run, const Value& v,
                 Arguments& a) { return Check("upper", a, [&] { return HasCase(run, v, true); }); }},
    {"odd", [](Interpreter& run, const Value& v,
               Arguments& a) { return Check("odd", a, [&] { return ModuloIs(run, v, Int{2}, 1); }); }},
    {"even", [](Interpreter& run, const Value& v,
                Arguments& a) { return Check("even", a, [&] { return ModuloIs(run, v, Int{2}, 0); }); }},
    {"divisibleby", [](Interpreter& run, const Value& v,
                       Arguments& a) { return ModuloIs(run, v, Bound("divisibleby", a, {"num"}, 1)[0], 0); }},
    {"in",
     [](Interpreter& run, const Value& v, Arguments& a) { return run.Contains(Bound("in", a, {"seq"}, 1)[0], v); }},
    {"sameas", [](Interpreter& run, const Value& v,
                  Arguments& a) { return IsSame(run, v, Bound("sameas", a, {"other"}, 1)[0]); }},
    {"filter",
     [](Interpreter&, const Value& v, Arguments& a) {
       return Check("filter", a, [&] { return v.is_string() && FindFilter(v.str()) != nullptr; });
     }},
    {"test",
     [](Interpreter&, const Value& v, Arguments& a) {
       return Check("test", a, [&] { return v.is_string() && FindTest(v.str()) != nullptr; });
     }},
    {"==", CompareTest<Op::kEqual>},
    {"eq", CompareTest<Op::kEqual>},
    {"equalto", CompareTest<Op::kEqual>},
    {"!=", CompareTest<Op::kNotEqual>},
    {"ne", CompareTest<Op::kNotEqual>},
    {"<", CompareTest<Op::kLess>},
    {"lt", CompareTest<Op::kLess>},
    {"lessthan", CompareTest<Op::kLess>},
    {">", CompareTest<Op::kGreater>},
    {"gt", CompareTest<Op::kGreater>},
    {"greaterthan", CompareTest<Op::kGreater>},
    {"<=", CompareTest<Op::kLessEqual>},
    {"le", CompareTest<Op::kLessEqual>},
    {">=", CompareTest<Op::kGreaterEqual>},
    {"ge", CompareTest<Op::kGreaterEqual>},
};

// dict(mapping or pairs, name=value, ...), also what namespace() takes.
Dict* MakeDict(Interpreter& run, std::string_view callee, Arguments& arguments) {
  Arena& arena = run.arena();
  if (arguments.positional.size() > 1)
    Fail("{} expected at most 1 argument, got {}", callee, arguments.positional.size());
  auto* dict = arena.New<Dict>();
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (const auto* other = source.As<Dict>()) {
      for (const auto& [key, value] : other->entries) dict->Set(arena, key, value);
    } else {
      for (const Value& pair : run.Items(source)) {
        const Values items = run.Items(pair);
        if (items.size() != 2) Fail("{}: a sequence element has length {}; 2 is required", callee, items.size());
        dict->Set(arena, items[0], items[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) dict->Set(arena, arena.String(name), value);
  return dict;
}

Value MakeRange(Interpreter& run, Arguments& arguments) {
  const Bound bound("range", arguments, {"", "", ""}, 1);
  const Int first = bound.Integer(0, 0);
  const Int start = bound.has(1) ? first : Int{0};
  const Int stop = bound.Integer(1, first);
  const Int step = bound.Integer(2, 1);
  if (step == 0) Fail("range() arg 3 must not be zero");
  for (const Int value : {start, stop, step}) {
    if (value > kMaxRangeBound || value < -kMaxRangeBound) Fail("range({}): the number is too large", FormatInt(value));
  }
  auto* range = run.arena().New<Range>(start, stop, step);
  if (range->length > kMaxRange) {
    Fail("Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}); this one has {} items.", kMaxRange,
         range->length);
  }
  return Value(range);
}

Value StrftimeNow(Interpreter& run, Arguments& arguments) {
  const Bound bound("strftime_now", arguments, {"format"}, 1);
  const std::string format(bound.Text(0, ""));
  const time_t seconds = run.now();
  std::tm time{};
  if (gmtime_r(&seconds, &time) == nullptr) Fail("strftime_now: the time {} is out of range", run.now());
  if (format.size() > 1024) Fail("strftime_now: a format of {} bytes", format.size());
  // A space more than asked for tells an empty result from one that didn't fit.
  std::string out(16384, '\0');
  const size_t length = std::strftime(out.data(), out.size(), (format + " ").c_str(), &time);
  if (length == 0) Fail("strftime_now: the format '{}' gives too much", format);
  out.resize(length - 1);
  return run.arena().String(std::move(out));
}

Value RaiseException(Interpreter& run, Arguments& arguments) {
  const Bound bound("raise_exception", arguments, {"message"}, 1);
  throw TemplateError{StatusCode::kInvalidArgument, Str(run.arena(), bound[0])};
}

Value MakeCycler(Interpreter& run, Arguments& arguments) {
  if (arguments.positional.empty() || !arguments.named.empty()) Fail("cycler() takes at least one item");
  return Value(run.arena().New<Cycler>(arguments.positional));
}

Value MakeJoiner(Interpreter& run, Arguments& arguments) {
  const Bound bound("joiner", arguments, {"sep"});
  return Value(run.arena().New<Joiner>(bound.Or(0, run.arena().String(", "))));
}

constexpr std::pair<std::string_view, Function> kFunctions[] = {
    {"range", MakeRange},
    {"dict", [](Interpreter& run, Arguments& a) { return Value(MakeDict(run, "dict", a)); }},
    {"namespace",
     [](Interpreter& run, Arguments& a) { return Value(run.arena().New<Namespace>(MakeDict(run, "namespace", a))); }},
    {"cycler", MakeCycler},
    {"joiner", MakeJoiner},
    {"raise_exception", RaiseException},
    {"strftime_now", StrftimeNow},
};

template <class Table>
auto Find(const Table& table, std::string_view name) -> decltype(table[0].second) {
  const auto* it =
      std::find_if(std::begin(table), std::end(table), [&](const auto& entry) { return entry.first == name; });
  return it == std::end(table) ? nullptr : it->second;
}

}  // namespace

TestFunction FindTest(std::string_view name) { return Find(kTests, name); }

Function FindGlobal(std::string_view name) { return Find(kFunctions, name); }

}  // namespace elasticmem::jinja
