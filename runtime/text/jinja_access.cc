// Looking into values: attributes, items, iteration.
#include "runtime/text/jinja_builtins.h"
#include "runtime/text/jinja_interpreter.h"
#include "runtime/text/jinja_text.h"

namespace elasticmem::jinja {
namespace {

// A place in a list, tuple, str or range; false if out of it.
bool ResolveIndex(Int index, size_t length, size_t* place) {
  if (index < 0) index += static_cast<Int>(length);
  if (index < 0 || index >= static_cast<Int>(length)) return false;
  *place = static_cast<size_t>(index);
  return true;
}

Value CharacterAt(Arena& arena, const Value& text, size_t place) {
  const std::string_view bytes = text.str();
  if (text.text().one_byte_each()) return arena.String(bytes.substr(place, 1), text.text().markup);
  arena.Step(place / 16);
  size_t pos = 0;
  for (size_t i = 0; i < place; ++i) NextCodePoint(bytes, pos);
  const size_t start = pos;
  NextCodePoint(bytes, pos);
  return arena.String(bytes.substr(start, pos - start), text.text().markup);
}

// object[index] for what has numbered items; false where it has not, or not that one.
bool ElementAt(Arena& arena, const Value& object, Int index, Value* element) {
  size_t place = 0;
  if (object.is_string()) {
    if (!ResolveIndex(index, object.text().code_points, &place)) return false;
    *element = CharacterAt(arena, object, place);
    return true;
  }
  if (const auto* range = object.As<Range>()) {
    if (!ResolveIndex(index, range->length, &place)) return false;
    *element = range->start + Int(place) * range->step;
    return true;
  }
  const auto* sequence = object.As<Sequence>();
  if (sequence == nullptr || !sequence->indexable() || !ResolveIndex(index, sequence->items.size(), &place))
    return false;
  *element = sequence->items[place];
  return true;
}

}  // namespace

std::string DescribeObject(const Value& value) {
  if (value.is_none()) return "None";
  const std::string name(TypeName(value));
  if (name == "Namespace" || name == "Cycler" || name == "Joiner") return "jinja2.utils." + name + " object";
  if (name == "LoopContext" || name == "Macro" || name == "Undefined") return "jinja2.runtime." + name + " object";
  return name == "Markup" ? "markupsafe.Markup object" : name + " object";
}

Value Interpreter::MissingAttribute(const Value& object, std::string_view name) {
  return arena_.MakeUndefined(
      fmt::format("{} has no attribute {}", QuotePython(DescribeObject(object)), QuotePython(name)));
}

// Python's getattr within the sandbox; *found says whether there is one.
Value Interpreter::BindMethod(const Value& object, std::string_view name, bool* found) {
  *found = true;
  const auto refuse = [&] {
    return arena_.MakeUndefined(
        fmt::format("access to attribute {} of '{}' object is unsafe.", QuotePython(name), TypeName(object)));
  };
  if (name.size() > 4 && name.starts_with("__") && name.ends_with("__") && object.As<Namespace>() == nullptr)
    return refuse();
  if (const auto* ns = object.As<Namespace>()) {
    const Value* value = ns->attributes->Find(name);
    if (value != nullptr) return name.starts_with("_") ? refuse() : *value;
  }
  if (const auto* macro = object.As<Macro>(); macro != nullptr && name == "name")
    return arena_.String(macro->node->name);
  if (const auto* cycler = object.As<Cycler>(); cycler != nullptr && name == "current") {
    return cycler->items[cycler->position];
  }
  if (const auto* group = object.As<Sequence>(); group != nullptr && group->is_group) {
    if (name == "grouper") return group->items[0];
    if (name == "list") return group->items[1];
  }
  const MethodAccess access = FindMethod(object, name);
  if (access == MethodAccess::kRefused) return refuse();
  if (access == MethodAccess::kAllowed) return Value(arena_.New<Method>(object, std::string(name)));
  if (auto* loop = object.As<Loop>()) {
    Value value = LoopAttribute(*loop, name);
    if (!value.is_undefined() || name == "previtem" || name == "nextitem") return value;
  }
  *found = false;
  return Value();
}

Value Interpreter::GetAttribute(const Value& object, std::string_view name) {
  if (object.is_undefined()) FailUndefined(object);
  bool found = false;
  Value value = BindMethod(object, name, &found);
  if (found) return value;
  if (const auto* dict = object.As<Dict>()) {
    arena_.Step();
    if (const Value* entry = dict->Find(name)) return *entry;
  }
  return MissingAttribute(object, name);
}

Value Interpreter::GetItem(const Value& object, const Value& key) {
  if (object.is_undefined()) FailUndefined(object);
  if (const auto* dict = object.As<Dict>()) {
    const bool hashable =
        key.As<Dict>() == nullptr && (key.As<Sequence>() == nullptr || key.As<Sequence>()->type == Sequence::kTuple);
    const Value* entry = hashable ? dict->Find(arena_, key) : nullptr;
    if (entry != nullptr) return *entry;
  } else if (Value element; key.is_integral() && ElementAt(arena_, object, key.integer(), &element)) {
    return element;
  }
  if (key.is_string()) {
    bool found = false;
    Value value = BindMethod(object, key.str(), &found);
    return found ? value : MissingAttribute(object, key.str());
  }
  return arena_.MakeUndefined(DescribeObject(object) + " has no element " + Repr(arena_, key));
}

Values Interpreter::Items(const Value& value) {
  Values items;
  if (value.is_undefined()) return items;
  if (auto* sequence = value.As<Sequence>()) {
    arena_.CheckItems(sequence->items.size());
    if (sequence->type != Sequence::kGenerator) return sequence->items;
    items.assign(sequence->items.begin() + sequence->consumed, sequence->items.end());
    sequence->consumed = sequence->items.size();
  } else if (const auto* dict = value.As<Dict>()) {
    arena_.CheckItems(dict->entries.size());
    for (const auto& [key, entry] : dict->entries) items.push_back(key);
  } else if (const auto* range = value.As<Range>()) {
    arena_.CheckItems(range->length);
    for (size_t i = 0; i < range->length; ++i) items.emplace_back(range->start + Int(i) * range->step);
  } else if (value.is_string()) {
    const std::string_view text = value.str();
    arena_.CheckItems(value.text().code_points);
    for (size_t pos = 0; pos < text.size();) {
      const size_t start = pos;
      NextCodePoint(text, pos);
      items.push_back(arena_.String(text.substr(start, pos - start), value.text().markup));
    }
  } else if (auto* loop = value.As<Loop>()) {
    FailUnsupported("iterating over {}", TypeName(Value(loop)));
  } else {
    Fail("'{}' object is not iterable", TypeName(value));
  }
  return items;
}

}  // namespace elasticmem::jinja
