// Filters on sequences and mappings.
#include <algorithm>

#include "runtime/text/jinja_filters.h"
#include "runtime/text/jinja_interpreter.h"
#include "runtime/text/jinja_text.h"

namespace elasticmem::jinja {
namespace {

// What attribute="a.b.0" means: the parts, whole numbers as indices.
Values AttributeParts(Arena& arena, const Value& attribute) {
  if (attribute.is_none()) return {};
  if (!attribute.is_string()) return {attribute};
  Values parts;
  for (std::string_view rest = attribute.str(); true;) {
    const size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    const bool number = !part.empty() && part.size() < 18 &&
                        std::all_of(part.begin(), part.end(), [](unsigned char c) { return IsDigit(c); });
    parts.push_back(number ? Value(Int{std::stoll(std::string(part))}) : arena.String(part));
    if (dot == std::string_view::npos) return parts;
    rest.remove_prefix(dot + 1);
  }
}

// item.a.b, or `otherwise` (none: no such) for parts that are undefined.
Value GetPath(Interpreter& run, Value item, const Values& parts, const Value& otherwise = Value()) {
  for (const Value& part : parts) {
    run.arena().Step();
    item = run.GetItem(item, part);
    if (item.is_undefined() && !otherwise.is_none()) item = otherwise;
  }
  return item;
}

Value IgnoreCase(Interpreter& run, const Value& value, bool case_sensitive) {
  return case_sensitive || !value.is_string() ? value : run.arena().String(Lower(value.str()));
}

Value Length(Interpreter&, const Value& input, Arguments& arguments) {
  const Bound bound("length", arguments, {});
  if (input.is_undefined()) return Int{0};
  if (input.is_string()) return Int(input.text().code_points);
  if (const auto* dict = input.As<Dict>()) return Int(dict->entries.size());
  if (const auto* range = input.As<Range>()) return Int(range->length);
  const auto* sequence = input.As<Sequence>();
  if (sequence != nullptr && sequence->type != Sequence::kGenerator) return Int(sequence->items.size());
  if (auto* loop = input.As<Loop>()) return Int(loop->Length());
  Fail("object of type '{}' has no len()", TypeName(input));
}

Value First(Interpreter& run, const Value& input, Arguments& arguments) {
  const Bound bound("first", arguments, {});
  if (auto* generator = input.As<Sequence>(); generator != nullptr && generator->type == Sequence::kGenerator) {
    if (generator->consumed < generator->items.size()) return generator->items[generator->consumed++];
  }
  const Values items = run.Items(input);
  return items.empty() ? run.arena().MakeUndefined("No first item, sequence was empty.") : items.front();
}

Value Last(Interpreter& run, const Value& input, Arguments& arguments) {
  const Bound bound("last", arguments, {});
  const auto* sequence = input.As<Sequence>();
  if (input.is_undefined() || (sequence != nullptr && sequence->type == Sequence::kGenerator)) {
    Fail("'{}' object is not reversible", TypeName(input));
  }
  const Values items = run.Items(input);
  return items.empty() ? run.arena().MakeUndefined("No last item, sequence was empty.") : items.back();
}

Value Join(Interpreter& run, const Value& input, Arguments& arguments) {
  const Bound bound("join", arguments, {"d", "attribute"});
  Arena& arena = run.arena();
  const std::string separator = bound.has(0) ? Str(arena, bound[0]) : "";
  const Values parts = AttributeParts(arena, bound.Or(1, Value()));
  std::string out;
  bool first = true;
  for (const Value& item : run.Items(input)) {
    if (!first) out += separator;
    first = false;
    out += Str(arena, GetPath(run, item, parts));
    arena.CheckStringBytes(out.size());
  }
  return arena.String(std::move(out));
}

Value ToList(Interpreter& run, const Value& input, Arguments& arguments) {
  const Bound bound("list", arguments, {});
  return run.arena().List(run.Items(input));
}

Value PairsOf(Interpreter& run, const Dict& dict, Sequence::Type type) {
  Values items;
  for (const auto& [key, value] : dict.entries) items.push_back(run.arena().Tuple({key, value}));
  return run.arena().MakeSequence(type, std::move(items));
}

Value ItemsOf(Interpreter& run, const Value& input, Arguments& arguments) {
  const Bound bound("items", arguments, {});
  if (input.is_undefined()) return run.arena().MakeSequence(Sequence::kGenerator, {});
  const auto* dict = input.As<Dict>();
  if (dict == nullptr) Fail("Can only get item pairs from a mapping.");
  return PairsOf(run, *dict, Sequence::kGenerator);
}

Value Reverse(Interpreter& run, const Value& input, Arguments& arguments) {
  const Bound bound("reverse", arguments, {});
  if (input.is_string()) return Slice(run.arena(), input, Value(), Value(), Int{-1});
  const auto* sequence = input.As<Sequence>();
  Values items = run.Items(input);
  std::reverse(items.begin(), items.end());
  const bool as_list = sequence != nullptr && sequence->type == Sequence::kGenerator;
  return run.arena().MakeSequence(as_list ? Sequence::kList : Sequence::kGenerator, std::move(items));
}

// Keys to sort by, one for each item; Python computes them first too.
Values SortedBy(Interpreter& run, const Values& items, const Values& keys, bool reverse) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return reverse ? Less(run.arena(), keys[b], keys[a]) : Less(run.arena(), keys[a], keys[b]);
  });
  Values sorted;
  for (const size_t i : order) sorted.push_back(items[i]);
  return sorted;
}

Value Sort(Interpreter& run, const Value& input, Arguments& arguments) {
  const Bound bound("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  Arena& arena = run.arena();
  std::vector<Values> paths;
  const Value attribute = bound.Or(2, Value());
  if (attribute.is_string()) {
    for (std::string_view rest = attribute.str(); true;) {
      const size_t comma = rest.find(',');
      paths.push_back(AttributeParts(arena, arena.String(rest.substr(0, comma))));
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
  } else {
    paths.push_back(AttributeParts(arena, attribute));
  }
  const Values items = run.Items(input);
  Values keys;
  for (const Value& item : items) {
    Values key;
    for (const Values& path : paths) key.push_back(IgnoreCase(run, GetPath(run, item, path), bound.Flag(1, false)));
    keys.push_back(arena.List(std::move(key)));
  }
  return arena.List(SortedBy(run, items, keys, bound.Flag(0, false)));
}

Value DictSort(Interpreter& run, const Value& input, Arguments& arguments) {
  const Bound bound("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const std::string_view by = bound.Text(1, "key");
  if (by != "key" && by != "value") Fail("You can only sort by either \"key\" or \"value\"");
  if (input.is_undefined()) FailUndefined(input);
  const auto* dict = input.As<Dict>();
  if (dict == nullptr) Fail("'{}' object has no attribute 'items'", TypeName(input));
  Values keys;
  for (const auto& [key, value] : dict->entries) {
    keys.push_back(IgnoreCase(run, by == "key" ? key : value, bound.Flag(0, false)));
  }
  const Value pairs = PairsOf(run, *dict, Sequence::kList);
  return run.arena().List(SortedBy(run, pairs.As<Sequence>()->items, keys, bound.Flag(2, false)));
}

Value Unique(Interpreter& run, const Value& input, Arguments& arguments) {
  const Bound bound("unique", arguments, {"case_sensitive", "attribute"});
  const Values parts = AttributeParts(run.arena(), bound.Or(1, Value()));
  Dict seen;
  Values items;
  for (const Value& item : run.Items(input)) {
    const Value key = IgnoreCase(run, GetPath(run, item, parts), bound.Flag(0, false));
    if (seen.Find(run.arena(), key) != nullptr) continue;
    seen.Set(run.arena(), key, Value());
    items.push_back(item);
  }
  return run.arena().MakeSequence(Sequence::kGenerator, std::move(items));
}

template <bool largest>
Value Extreme(Interpreter& run, const Value& input, Arguments& arguments) {
  const Bound bound(largest ? "max" : "min", arguments, {"case_sensitive", "attribute"});
  const Values parts = AttributeParts(run.arena(), bound.Or(1, Value()));
  const Values items = run.Items(input);
  if (items.empty()) return run.arena().MakeUndefined("No aggregated item, sequence was empty.");
  const auto key_of = [&](const Value& item) {
    return IgnoreCase(run, GetPath(run, item, parts), bound.Flag(0, false));
  };
  const Value* best = &items[0];
  Value best_key = key_of(*best);
  for (size_t i = 1; i < items.size(); ++i) {
    Value key = key_of(items[i]);
    const bool better = largest ? Less(run.arena(), best_key, key, ">") : Less(run.arena(), key, best_key);
    if (!better) continue;
    best = &items[i];
    best_key = std::move(key);
  }
  return *best;
}

Value Sum(Interpreter& run, const Value& input, Arguments& arguments) {
  const Bound bound("sum", arguments, {"attribute", "start"});
  const Values parts = AttributeParts(run.arena(), bound.Or(0, Value()));
  Value total = bound.Or(1, Int{0});
  if (total.is_string()) Fail("sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& item : run.Items(input)) total = run.Binary(Op::kAdd, total, GetPath(run, item, parts));
  return total;
}

Value Map(Interpreter& run, const Value& input, Arguments& arguments) {
  Values results;
  if (!Truthy(input)) return run.arena().MakeSequence(Sequence::kGenerator, {});
  if (arguments.positional.empty()) {
    const Bound bound("map", arguments, {"attribute", "default"});
    if (!bound.has(0)) Fail("map requires a filter argument");
    const Values parts = AttributeParts(run.arena(), bound[0]);
    for (const Value& item : run.Items(input)) results.push_back(GetPath(run, item, parts, bound.Or(1, Value())));
  } else {
    const Value name = arguments.positional[0];
    if (!name.is_string()) Fail("map: the name of a filter is expected, not {}", TypeName(name));
    for (const Value& item : run.Items(input)) {
      Arguments rest = arguments;
      rest.positional.erase(rest.positional.begin());
      results.push_back(run.ApplyFilter(name.str(), item, rest));
    }
  }
  return run.arena().MakeSequence(Sequence::kGenerator, std::move(results));
}

template <bool wanted, bool by_attribute>
Value Select(Interpreter& run, const Value& input, Arguments& arguments) {
  Values kept;
  if (!Truthy(input)) return run.arena().MakeSequence(Sequence::kGenerator, {});
  Values parts;
  Arguments rest = arguments;
  if (by_attribute) {
    if (rest.positional.empty()) Fail("Missing parameter for attribute name");
    parts = AttributeParts(run.arena(), rest.positional[0]);
    rest.positional.erase(rest.positional.begin());
  }
  Value name;
  if (!rest.positional.empty()) {
    name = rest.positional[0];
    if (!name.is_string()) Fail("select: the name of a test is expected, not {}", TypeName(name));
    rest.positional.erase(rest.positional.begin());
  }
  for (const Value& item : run.Items(input)) {
    const Value subject = by_attribute ? GetPath(run, item, parts) : item;
    Arguments test_arguments = rest;
    const bool passes = name.is_none() ? Truthy(subject) : run.ApplyTest(name.str(), subject, test_arguments);
    if (passes == wanted) kept.push_back(item);
  }
  return run.arena().MakeSequence(Sequence::kGenerator, std::move(kept));
}

Value Batch(Interpreter& run, const Value& input, Arguments& arguments) {
  const Bound bound("batch", arguments, {"linecount", "fill_with"}, 1);
  Arena& arena = run.arena();
  const Int size = bound.Integer(0, 1);
  Values rows;
  Values row;
  const auto flush = [&] { rows.push_back(arena.List(std::exchange(row, {}))); };
  for (const Value& item : run.Items(input)) {
    if (Int(row.size()) == size) flush();
    row.push_back(item);
  }
  if (!row.empty()) {
    const Value fill = bound.Or(1, Value());
    const Int missing = fill.is_none() ? Int{0} : std::max(size - Int(row.size()), Int{0});
    arena.CheckItems(static_cast<uint64_t>(std::min(missing, Int{1} << 40)));
    row.insert(row.end(), static_cast<size_t>(missing), fill);
    flush();
  }
  return arena.MakeSequence(Sequence::kGenerator, std::move(rows));
}

Value SliceFilter(Interpreter& run, const Value& input, Arguments& arguments) {
  const Bound bound("slice", arguments, {"slices", "fill_with"}, 1);
  Arena& arena = run.arena();
  const Values items = run.Items(input);
  const Int slices = bound.Integer(0, 1);
  if (slices == 0) Fail("integer division or modulo by zero");
  arena.CheckItems(static_cast<uint64_t>(std::clamp(slices, Int{0}, Int{1} << 40)));
  const Value fill = bound.Or(1, Value());
  Values rows;
  size_t begin = 0;
  for (Int i = 0; i < slices; ++i) {
    const Int longer = Int(items.size()) % slices;
    const auto length = static_cast<size_t>(Int(items.size()) / slices + (i < longer ? 1 : 0));
    Values row(items.begin() + begin, items.begin() + begin + length);
    begin += length;
    if (!fill.is_none() && i >= longer) row.push_back(fill);
    rows.push_back(arena.List(std::move(row)));
  }
  return arena.MakeSequence(Sequence::kGenerator, std::move(rows));
}

Value GroupBy(Interpreter& run, const Value& input, Arguments& arguments) {
  const Bound bound("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
  Arena& arena = run.arena();
  const Values parts = AttributeParts(arena, bound[0]);
  const Value otherwise = bound.Or(1, Value());
  const auto key_of = [&](const Value& item) {
    return IgnoreCase(run, GetPath(run, item, parts, otherwise), bound.Flag(2, false));
  };
  const Values items = run.Items(input);
  Values keys;
  for (const Value& item : items) keys.push_back(key_of(item));
  Values groups;
  Values group;
  const auto flush = [&] {
    const Value grouper = GetPath(run, group[0], parts, otherwise);
    const Value pair = arena.Tuple({grouper, arena.List(std::exchange(group, {}))});
    pair.As<Sequence>()->is_group = true;
    groups.push_back(pair);
  };
  for (const Value& item : SortedBy(run, items, keys, false)) {
    if (!group.empty() && !Equal(arena, key_of(group[0]), key_of(item))) flush();
    group.push_back(item);
  }
  if (!group.empty()) flush();
  return arena.List(std::move(groups));
}

Value Attribute(Interpreter& run, const Value& input, Arguments& arguments) {
  const Bound bound("attr", arguments, {"name"}, 1);
  if (!bound[0].is_string()) Fail("attr: attribute name must be string, not '{}'", TypeName(bound[0]));
  // A key of a dict is no attribute here.
  if (input.As<Dict>() != nullptr && FindMethod(input, bound[0].str()) == MethodAccess::kNone) {
    return run.arena().MakeUndefined(
        fmt::format("{} has no attribute {}", QuotePython(DescribeObject(input)), QuotePython(bound[0].str())));
  }
  return run.GetAttribute(input, bound[0].str());
}

constexpr std::pair<std::string_view, FilterFunction> kFilters[] = {
    {"length", Length},
    {"count", Length},
    {"first", First},
    {"last", Last},
    {"join", Join},
    {"list", ToList},
    {"items", ItemsOf},
    {"reverse", Reverse},
    {"sort", Sort},
    {"dictsort", DictSort},
    {"unique", Unique},
    {"min", Extreme<false>},
    {"max", Extreme<true>},
    {"sum", Sum},
    {"map", Map},
    {"select", Select<true, false>},
    {"reject", Select<false, false>},
    {"selectattr", Select<true, true>},
    {"rejectattr", Select<false, true>},
    {"batch", Batch},
    {"slice", SliceFilter},
    {"groupby", GroupBy},
    {"attr", Attribute},
};

}  // namespace

FilterFunction FindSequenceFilter(std::string_view name) {
  for (const auto& [known, filter] : kFilters) {
    if (known == name) return filter;
  }
  return nullptr;
}

FilterFunction FindFilter(std::string_view name) {
  const FilterFunction filter = FindTextFilter(name);
  return filter != nullptr ? filter : FindSequenceFilter(name);
}

}  // namespace elasticmem::jinja
