// Which methods Python's types have, argument matching, and the methods of everything that is no string.
#include <algorithm>

#include "runtime/text/jinja_builtins.h"
#include "runtime/text/jinja_interpreter.h"
#include "runtime/text/jinja_text.h"

namespace elasticmem::jinja {
namespace {

using Names = std::initializer_list<std::string_view>;

bool Among(std::string_view name, Names names) { return std::find(names.begin(), names.end(), name) != names.end(); }

MethodAccess Access(std::string_view name, Names allowed, Names refused = {}) {
  if (Among(name, refused)) return MethodAccess::kRefused;
  return Among(name, allowed) ? MethodAccess::kAllowed : MethodAccess::kNone;
}

bool IsStringMethod(std::string_view name) {
  return Among(name,
               {"capitalize", "casefold",     "center",       "count",   "encode",     "endswith",    "expandtabs",
                "find",       "format",       "format_map",   "index",   "isalnum",    "isalpha",     "isascii",
                "isdecimal",  "isdigit",      "isidentifier", "islower", "isnumeric",  "isprintable", "isspace",
                "istitle",    "isupper",      "join",         "ljust",   "lower",      "lstrip",      "maketrans",
                "partition",  "removeprefix", "removesuffix", "replace", "rfind",      "rindex",      "rjust",
                "rpartition", "rsplit",       "rstrip",       "split",   "splitlines", "startswith",  "strip",
                "swapcase",   "title",        "translate",    "upper",   "zfill"});
}

Value DictMethod(Interpreter& run, const Dict& dict, std::string_view name, Arguments& arguments) {
  Arena& arena = run.arena();
  if (name == "get") {
    const Bound bound("get", arguments, {"", ""}, 1);
    const Value* found = dict.Find(arena, bound[0]);
    return found != nullptr ? *found : bound.Or(1, Value());
  }
  const Bound bound(name, arguments, {});
  if (name == "copy") {
    auto* copy = arena.New<Dict>();
    for (const auto& [key, value] : dict.entries) copy->Set(arena, key, value);
    return Value(copy);
  }
  Values items;
  for (const auto& [key, value] : dict.entries) {
    items.push_back(name == "keys" ? key : name == "values" ? value : arena.Tuple({key, value}));
  }
  return arena.MakeSequence(name == "keys"     ? Sequence::kKeys
                            : name == "values" ? Sequence::kValues
                                               : Sequence::kItems,
                            std::move(items));
}

Value SequenceMethod(Interpreter& run, const Value& object, std::string_view name, Arguments& arguments) {
  Arena& arena = run.arena();
  const Values items = run.Items(object);
  if (name == "copy") {
    const Bound bound(name, arguments, {});
    return arena.List(items);
  }
  const Bound bound(name, arguments, {""}, 1);
  Int count = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!Equal(arena, items[i], bound[0])) continue;
    if (name == "index") return Int(i);
    ++count;
  }
  if (name == "index") Fail("{} is not in {}", Repr(arena, bound[0]), TypeName(object));
  return count;
}

Value LoopMethod(Loop& loop, Arena& arena, std::string_view name, Arguments& arguments) {
  if (name == "cycle") {
    if (arguments.positional.empty()) Fail("no items for cycling given");
    return arguments.positional[static_cast<size_t>(loop.index0 % Int(arguments.positional.size()))];
  }
  const auto same = [&] {
    const Values& now = arguments.positional;
    return loop.last_changed && std::equal(now.begin(), now.end(), loop.last_changed->begin(), loop.last_changed->end(),
                                           [&](const Value& a, const Value& b) { return Equal(arena, a, b); });
  };
  if (same()) return false;
  loop.last_changed = arguments.positional;
  return true;
}

}  // namespace

Bound::Bound(std::string_view callee, Arguments& arguments, std::initializer_list<std::string_view> parameters,
             size_t required)
    : callee_(callee), names_(parameters), values_(parameters.size()) {
  if (arguments.positional.size() > parameters.size()) {
    Fail("{}() takes at most {} argument(s), {} given", callee, parameters.size(), arguments.positional.size());
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto it = std::find(names_.begin(), names_.end(), name);
    if (it == names_.end() || name.empty()) Fail("{}() got an unexpected keyword argument '{}'", callee, name);
    std::optional<Value>& place = values_[it - names_.begin()];
    if (place) Fail("{}() got multiple values for argument '{}'", callee, name);
    place = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!values_[i])
      Fail("{}() takes at least {} argument(s), {} given", callee, required, arguments.positional.size());
  }
}

Int Bound::Integer(size_t i, Int otherwise) const {
  if (!has(i)) return otherwise;
  const Value& value = *values_[i];
  if (value.is_undefined()) FailUndefined(value);
  if (!value.is_integral()) Fail("{}(): '{}' object cannot be interpreted as an integer", callee_, TypeName(value));
  // Nothing tells counts and indices this large apart, and callers may add to them.
  return std::clamp(value.integer(), -(Int{1} << 100), Int{1} << 100);
}

std::string_view Bound::Text(size_t i, std::string_view otherwise) const {
  if (!has(i) || values_[i]->is_none()) return otherwise;
  if (values_[i]->is_undefined()) FailUndefined(*values_[i]);
  if (!values_[i]->is_string()) Fail("{}(): a str is expected, not {}", callee_, TypeName(*values_[i]));
  return values_[i]->str();
}

MethodAccess FindMethod(const Value& object, std::string_view name) {
  if (object.is_string()) return IsStringMethod(name) ? MethodAccess::kAllowed : MethodAccess::kNone;
  if (object.is_integral()) {
    return Access(name, {"as_integer_ratio", "bit_count", "bit_length", "conjugate", "from_bytes", "to_bytes"});
  }
  if (object.is_float()) return Access(name, {"as_integer_ratio", "conjugate", "fromhex", "hex", "is_integer"});
  if (object.object() == nullptr) return MethodAccess::kNone;
  switch (object.object()->kind) {
    case ObjectKind::kDict:
      return Access(name, {"copy", "fromkeys", "get", "items", "keys", "values"},
                    {"clear", "pop", "popitem", "setdefault", "update"});
    case ObjectKind::kSequence: {
      const auto type = object.As<Sequence>()->type;
      if (type == Sequence::kTuple) return Access(name, {"count", "index"});
      if (type != Sequence::kList) return MethodAccess::kNone;
      return Access(name, {"copy", "count", "index"},
                    {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"});
    }
    case ObjectKind::kRange:
      return Access(name, {"count", "index"});
    case ObjectKind::kLoop:
      return Access(name, {"cycle", "changed"});
    case ObjectKind::kCycler:
      return Access(name, {"next", "reset"});
    default:
      return MethodAccess::kNone;
  }
}

Value CallMethod(Interpreter& run, const Value& object, std::string_view name, Arguments& arguments) {
  if (object.is_string()) return CallStringMethod(run, object, name, arguments);
  if (const auto* dict = object.As<Dict>(); dict != nullptr && name != "fromkeys")
    return DictMethod(run, *dict, name, arguments);
  if (object.As<Sequence>() != nullptr || object.As<Range>() != nullptr)
    return SequenceMethod(run, object, name, arguments);
  if (auto* loop = object.As<Loop>()) return LoopMethod(*loop, run.arena(), name, arguments);
  if (auto* cycler = object.As<Cycler>()) {
    const Bound bound(name, arguments, {});
    if (name == "reset") {
      cycler->position = 0;
      return Value();
    }
    Value item = cycler->items[cycler->position];
    cycler->position = (cycler->position + 1) % cycler->items.size();
    return item;
  }
  if (object.is_float() && name == "is_integer") {
    const Bound bound(name, arguments, {});
    return object.number() == static_cast<double>(static_cast<int64_t>(std::clamp(object.number(), -9e18, 9e18))) ||
           (object.number() > 9e18 && object.number() * 0 == 0) ||
           (object.number() < -9e18 && object.number() * 0 == 0);
  }
  FailUnsupported("the method {} of {}", name, TypeName(object));
}

}  // namespace elasticmem::jinja
