#include "runtime/text/jinja_value.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "runtime/text/jinja_text.h"

namespace elasticmem::jinja {
namespace {

constexpr size_t kUnindexedEntries = 8;

// Sequences, ranges and dicts compare element by element.
bool EqualObjects(Arena& arena, const Value& a, const Value& b) {
  if (a.object() == b.object()) return true;
  const Arena::Nested nested(arena);
  if (const auto* x = a.As<Sequence>()) {
    const auto* y = b.As<Sequence>();
    if (y == nullptr || x->type != y->type || (!x->indexable() && x->type != Sequence::kKeys)) return false;
    if (x->items.size() != y->items.size()) return false;
    for (size_t i = 0; i < x->items.size(); ++i) {
      if (!Equal(arena, x->items[i], y->items[i])) return false;
    }
    return true;
  }
  if (const auto* x = a.As<Dict>()) {
    const auto* y = b.As<Dict>();
    if (y == nullptr || x->entries.size() != y->entries.size()) return false;
    for (const auto& [key, value] : x->entries) {
      const Value* other = y->Find(arena, key);
      if (other == nullptr || !Equal(arena, value, *other)) return false;
    }
    return true;
  }
  if (const auto* x = a.As<Range>()) {
    const auto* y = b.As<Range>();
    if (y == nullptr || x->length != y->length) return false;
    return x->length == 0 || (x->start == y->start && (x->length == 1 || x->step == y->step));
  }
  return false;
}

void AppendRepr(Arena& arena, std::string& out, const Value& value);

void AppendItems(Arena& arena, std::string& out, const Values& items) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ", ";
    AppendRepr(arena, out, items[i]);
    arena.CheckStringBytes(out.size());
  }
}

void AppendDict(Arena& arena, std::string& out, const Dict& dict) {
  out += '{';
  for (size_t i = 0; i < dict.entries.size(); ++i) {
    if (i > 0) out += ", ";
    AppendRepr(arena, out, dict.entries[i].first);
    out += ": ";
    AppendRepr(arena, out, dict.entries[i].second);
    arena.CheckStringBytes(out.size());
  }
  out += '}';
}

void AppendSequence(Arena& arena, std::string& out, const Sequence& sequence) {
  switch (sequence.type) {
    case Sequence::kGenerator:
      FailUnsupported(
          "printing a generator (what map, select, items and the like give): pass it through `list` or `join`");
    case Sequence::kTuple:
      out += '(';
      AppendItems(arena, out, sequence.items);
      out += sequence.items.size() == 1 ? ",)" : ")";
      return;
    case Sequence::kList:
      out += '[';
      AppendItems(arena, out, sequence.items);
      out += ']';
      return;
    default:
      out += std::string(TypeName(Value(const_cast<Sequence*>(&sequence)))) + "([";
      AppendItems(arena, out, sequence.items);
      out += "])";
  }
}

void AppendRepr(Arena& arena, std::string& out, const Value& value) {
  arena.Step();
  if (value.is_string()) {
    arena.Step(value.str().size() / 64);
    if (value.text().markup) {
      out += "Markup(" + QuotePython(value.str()) + ")";
    } else {
      out += QuotePython(value.str());
    }
  } else if (value.is_undefined()) {
    out += "Undefined";
  } else if (value.object() == nullptr) {
    out += Str(arena, value);
  } else {
    const Arena::Nested nested(arena);
    if (const auto* sequence = value.As<Sequence>()) {
      AppendSequence(arena, out, *sequence);
    } else if (const auto* dict = value.As<Dict>()) {
      AppendDict(arena, out, *dict);
    } else if (const auto* range = value.As<Range>()) {
      out += "range(" + FormatInt(range->start) + ", " + FormatInt(range->stop);
      out += (range->step == 1 ? "" : ", " + FormatInt(range->step)) + ")";
    } else if (const auto* ns = value.As<Namespace>()) {
      out += "<Namespace ";
      AppendDict(arena, out, *ns->attributes);
      out += '>';
    } else {
      FailUnsupported("printing a {}", TypeName(value));
    }
  }
}

bool LessSequences(Arena& arena, const Values& a, const Values& b, std::string_view op) {
  const Arena::Nested nested(arena);
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (!Equal(arena, a[i], b[i])) return Less(arena, a[i], b[i], op);
  }
  return a.size() < b.size();
}

}  // namespace

Text::~Text() {
  if (meter != nullptr) meter->ReleaseMemory(bytes.size() + sizeof(Text));
}

Range::Range(Int start, Int stop, Int step) : Object(kKind), start(start), stop(stop), step(step) {
  const Int span = step > 0 ? stop - start : start - stop;
  const Int stride = step > 0 ? step : -step;
  length = span <= 0 ? 0 : static_cast<size_t>((span - 1) / stride + 1);
}

Arena::~Arena() { objects_.clear(); }

void Arena::OutOfSteps() const {
  throw TemplateError{StatusCode::kResourceExhausted, fmt::format("it takes more than {} steps", limits_.steps)};
}

void Arena::TooDeep() {
  --depth_;
  throw TemplateError{StatusCode::kResourceExhausted,
                      fmt::format("calls or values are nested more than {} deep", limits_.depth)};
}

void Arena::CheckStringBytes(uint64_t bytes) const {
  if (bytes > limits_.string_bytes) {
    throw TemplateError{StatusCode::kResourceExhausted,
                        fmt::format("a text of {} bytes; the limit is {}", bytes, limits_.string_bytes)};
  }
}

void Arena::CheckItems(uint64_t count) {
  Step(count);
  if (count > limits_.memory_bytes / sizeof(Value)) ChargeMemory(limits_.memory_bytes + 1);
}

void Arena::ChargeMemory(uint64_t bytes) {
  memory_bytes_ += bytes;
  if (memory_bytes_ > limits_.memory_bytes) {
    throw TemplateError{StatusCode::kResourceExhausted,
                        fmt::format("it needs more than {} bytes", limits_.memory_bytes)};
  }
}

Value Arena::String(std::string bytes, bool markup) {
  Step(bytes.size() / 64);
  CheckStringBytes(bytes.size());
  auto text = std::make_shared<Text>();
  text->code_points = CountCodePoints(bytes);
  text->bytes = std::move(bytes);
  text->markup = markup;
  text->meter = this;
  ChargeMemory(text->bytes.size() + sizeof(Text));
  return Value(std::shared_ptr<const Text>(std::move(text)));
}

Value Arena::MakeSequence(Sequence::Type type, Values items) {
  Step(items.size());
  ChargeMemory(items.size() * sizeof(Value));
  return Value(New<Sequence>(type, std::move(items)));
}

Value ConstantString(std::string bytes) {
  auto text = std::make_shared<Text>();
  text->code_points = CountCodePoints(bytes);
  text->bytes = std::move(bytes);
  return Value(std::shared_ptr<const Text>(std::move(text)));
}

size_t Dict::IndexOf(Arena& arena, const Value& key, size_t hash) const {
  if (index_.empty()) {
    for (size_t i = 0; i < entries.size(); ++i) {
      if (Equal(arena, entries[i].first, key)) return i;
    }
    return entries.size();
  }
  const auto [begin, end] = index_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    if (Equal(arena, entries[it->second].first, key)) return it->second;
  }
  return entries.size();
}

const Value* Dict::Find(Arena& arena, const Value& key) const {
  const size_t i = IndexOf(arena, key, HashOf(arena, key));
  return i == entries.size() ? nullptr : &entries[i].second;
}

const Value* Dict::Find(std::string_view key) const {
  const auto matches = [&](size_t i) { return entries[i].first.is_string() && entries[i].first.str() == key; };
  if (index_.empty()) {
    for (size_t i = 0; i < entries.size(); ++i) {
      if (matches(i)) return &entries[i].second;
    }
    return nullptr;
  }
  const auto [begin, end] = index_.equal_range(std::hash<std::string_view>{}(key));
  for (auto it = begin; it != end; ++it) {
    if (matches(it->second)) return &entries[it->second].second;
  }
  return nullptr;
}

void Dict::Set(Arena& arena, const Value& key, Value value) {
  const size_t hash = HashOf(arena, key);
  const size_t i = IndexOf(arena, key, hash);
  if (i < entries.size()) {
    entries[i].second = std::move(value);
    return;
  }
  arena.Step();
  arena.ChargeMemory(2 * sizeof(Value) + sizeof(void*));
  entries.emplace_back(key, std::move(value));
  if (!index_.empty()) {
    index_.emplace(hash, i);
  } else if (entries.size() > kUnindexedEntries) {
    for (size_t j = 0; j < entries.size(); ++j) index_.emplace(HashOf(arena, entries[j].first), j);
  }
}

std::string_view TypeName(const Value& value) {
  if (value.is_none()) return "NoneType";
  if (value.is_undefined()) return "Undefined";
  if (value.is_bool()) return "bool";
  if (value.is_int()) return "int";
  if (value.is_float()) return "float";
  if (value.is_string()) return value.text().markup ? "Markup" : "str";
  switch (value.object()->kind) {
    case ObjectKind::kSequence: {
      static constexpr std::string_view kNames[] = {"list",        "tuple",      "dict_keys",
                                                    "dict_values", "dict_items", "generator"};
      return kNames[value.As<Sequence>()->type];
    }
    case ObjectKind::kDict:
      return "dict";
    case ObjectKind::kRange:
      return "range";
    case ObjectKind::kNamespace:
      return "Namespace";
    case ObjectKind::kMethod:
      return "builtin_function_or_method";
    case ObjectKind::kFunction:
      return "function";
    case ObjectKind::kMacro:
      return "Macro";
    case ObjectKind::kLoop:
      return "LoopContext";
    case ObjectKind::kCycler:
      return "Cycler";
    case ObjectKind::kJoiner:
      return "Joiner";
  }
  return "object";
}

bool Truthy(const Value& value) {
  if (value.is_none() || value.is_undefined()) return false;
  if (value.is_integral()) return value.integer() != 0;
  if (value.is_float()) return value.number() != 0;
  if (value.is_string()) return !value.str().empty();
  if (const auto* sequence = value.As<Sequence>()) {
    return sequence->type == Sequence::kGenerator || !sequence->items.empty();
  }
  if (const auto* dict = value.As<Dict>()) return !dict->entries.empty();
  if (const auto* range = value.As<Range>()) return range->length != 0;
  return true;
}

bool Equal(Arena& arena, const Value& a, const Value& b) {
  arena.Step();
  if (a.is_number() && b.is_number()) {
    return a.is_integral() && b.is_integral() ? a.integer() == b.integer() : a.number() == b.number();
  }
  if (a.is_string() && b.is_string()) {
    arena.Step(std::min(a.str().size(), b.str().size()) / 64);
    return a.str() == b.str();
  }
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  if (a.object() == nullptr || b.object() == nullptr) return false;
  return EqualObjects(arena, a, b);
}

bool Less(Arena& arena, const Value& a, const Value& b, std::string_view op) {
  arena.Step();
  if (a.is_undefined()) FailUndefined(a);
  if (b.is_undefined()) FailUndefined(b);
  if (a.is_number() && b.is_number()) {
    return a.is_integral() && b.is_integral() ? a.integer() < b.integer() : a.number() < b.number();
  }
  if (a.is_string() && b.is_string()) {
    arena.Step(std::min(a.str().size(), b.str().size()) / 64);
    return a.str() < b.str();  // UTF-8 sorts as its code points do
  }
  const auto* x = a.As<Sequence>();
  const auto* y = b.As<Sequence>();
  if (x != nullptr && y != nullptr && x->indexable() && x->type == y->type) {
    return LessSequences(arena, x->items, y->items, op);
  }
  Fail("'{}' not supported between instances of '{}' and '{}'", op, TypeName(a), TypeName(b));
}

size_t HashOf(Arena& arena, const Value& value) {
  arena.Step();
  if (value.is_string()) {
    arena.Step(value.str().size() / 64);
    return std::hash<std::string_view>{}(value.str());
  }
  if (value.is_integral()) return std::hash<int64_t>{}(static_cast<int64_t>(value.integer()));
  if (value.is_float()) {
    const double d = value.number();
    const bool whole = std::abs(d) < 1e18 && d == std::floor(d);
    return whole ? std::hash<int64_t>{}(static_cast<int64_t>(d)) : std::hash<double>{}(d);
  }
  if (value.is_none()) return 0x5bd1e995;
  if (value.is_undefined()) return 0x1b873593;
  if (const auto* sequence = value.As<Sequence>(); sequence != nullptr && sequence->type == Sequence::kTuple) {
    const Arena::Nested nested(arena);
    size_t hash = sequence->items.size();
    for (const Value& item : sequence->items) hash = hash * 1000003 ^ HashOf(arena, item);
    return hash;
  }
  if (value.As<Sequence>() != nullptr || value.As<Dict>() != nullptr) Fail("unhashable type: '{}'", TypeName(value));
  return std::hash<const void*>{}(value.object());
}

std::string FormatInt(Int value) { return fmt::format("{}", value); }

std::string Str(Arena& arena, const Value& value) {
  if (value.is_string()) {
    arena.Step(value.str().size() / 64);
    return std::string(value.str());
  }
  if (value.is_undefined()) return "";
  if (value.is_none()) return "None";
  if (value.is_bool()) return value.boolean() ? "True" : "False";
  if (value.is_int()) return FormatInt(value.integer());
  if (value.is_float()) return FormatFloat(value.number());
  return Repr(arena, value);
}

std::string Repr(Arena& arena, const Value& value) {
  std::string out;
  AppendRepr(arena, out, value);
  return out;
}

void FailUndefined(const Value& undefined) { Fail("{}", *undefined.undefined().message); }

}  // namespace elasticmem::jinja
