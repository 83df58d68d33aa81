// What templates can call by name: filters, tests, global functions, and methods of str, list, dict and the rest.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/text/jinja_ast.h"

namespace elasticmem::jinja {

// nullptr where there is none of that name.
FilterFunction FindFilter(std::string_view name);
TestFunction FindTest(std::string_view name);

using Function = Value (*)(Interpreter&, Arguments& arguments);
Function FindGlobal(std::string_view name);

// Whether Python's type of `object` has the attribute `name` as a method, and whether the sandbox refuses it.
enum class MethodAccess { kNone, kAllowed, kRefused };
MethodAccess FindMethod(const Value& object, std::string_view name);
// Calls object.name(arguments); methods that Python has and we don't are errors that name them.
Value CallMethod(Interpreter& run, const Value& object, std::string_view name, Arguments& arguments);
Value CallStringMethod(Interpreter& run, const Value& object, std::string_view name, Arguments& arguments);

// str.replace: `count` < 0 means all.
std::string ReplaceText(Arena& arena, std::string_view text, std::string_view from, std::string_view to, Int count);

// Arguments matched to parameters; absent ones are empty. Errors as Python's, naming `callee`.
class Bound {
 public:
  Bound(std::string_view callee, Arguments& arguments, std::initializer_list<std::string_view> parameters,
        size_t required = 0);
  bool has(size_t i) const { return values_[i].has_value(); }
  const Value& operator[](size_t i) const { return *values_[i]; }
  Value Or(size_t i, Value otherwise) const { return has(i) ? *values_[i] : otherwise; }
  bool Flag(size_t i, bool otherwise) const { return has(i) ? Truthy(*values_[i]) : otherwise; }
  Int Integer(size_t i, Int otherwise) const;                         // error unless an int
  std::string_view Text(size_t i, std::string_view otherwise) const;  // error unless a str; None counts as absent

 private:
  std::string_view callee_;
  std::vector<std::string_view> names_;
  std::vector<std::optional<Value>> values_;
};

// "..." % values and "...".format(...), in Python's ways.
std::string FormatPercent(Interpreter& run, std::string_view format, const Value& values);
std::string FormatBraces(Interpreter& run, std::string_view format, const Arguments& arguments);

struct JsonStyle {
  bool ascii = false;
  std::optional<std::string> indent;  // absent: all on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};
// As json.dumps writes it.
std::string DumpJson(Arena& arena, const Value& value, const JsonStyle& style);

}  // namespace elasticmem::jinja
