// Values of a running template, as Python has them, and the arena that owns and meters them.
// A Value is cheap to copy: strings are shared, containers and callables live in the Arena until the run ends (so
// cycles through namespaces leak nothing and no destructor recurses). Containers never change once made; namespaces do.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "runtime/text/chat_template.h"

namespace elasticmem::jinja {

// How errors unwind inside the interpreter; ChatTemplate turns it into a Status. line 0: where the interpreter stands.
struct TemplateError {
  StatusCode code = StatusCode::kInvalidArgument;
  std::string message;
  int line = 0;
};

template <class... Args>
[[noreturn]] void Fail(fmt::format_string<Args...> format, Args&&... args) {
  throw TemplateError{StatusCode::kInvalidArgument, fmt::vformat(format, fmt::make_format_args(args...))};
}
template <class... Args>
[[noreturn]] void FailUnsupported(fmt::format_string<Args...> format, Args&&... args) {
  throw TemplateError{StatusCode::kUnimplemented, fmt::vformat(format, fmt::make_format_args(args...))};
}

using Int = __int128;  // Python's int, of which 128 bits are kept; overflow is an error

class Arena;
class Interpreter;

// A str. `markup`: marked safe, so that what is joined to it with + gets HTML-escaped (as Jinja's Markup).
struct Text {
  std::string bytes;
  size_t code_points = 0;
  bool markup = false;
  Arena* meter = nullptr;
  ~Text();
  bool one_byte_each() const { return code_points == bytes.size(); }
};

struct None {};
struct Undefined {
  std::shared_ptr<const std::string> message;  // what an operation on it reports
};

enum class ObjectKind : uint8_t {
  kSequence,
  kDict,
  kRange,
  kNamespace,
  kMethod,
  kFunction,
  kMacro,
  kLoop,
  kCycler,
  kJoiner
};

struct Object {
  explicit Object(ObjectKind kind) : kind(kind) {}
  virtual ~Object() = default;
  const ObjectKind kind;
};

class Value {
 public:
  Value() : data_(None{}) {}
  Value(bool b) : data_(b) {}                                    // NOLINT: a Python value is built from many things
  Value(Int i) : data_(i) {}                                     // NOLINT
  Value(double d) : data_(d) {}                                  // NOLINT
  Value(std::shared_ptr<const Text> s) : data_(std::move(s)) {}  // NOLINT
  Value(Object* object) : data_(object) {}                       // NOLINT
  Value(Undefined u) : data_(std::move(u)) {}                    // NOLINT
  Value(const char*) = delete;

  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<Int>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_string() const { return std::holds_alternative<std::shared_ptr<const Text>>(data_); }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_integral() const { return is_bool() || is_int(); }

  bool boolean() const { return std::get<bool>(data_); }
  Int integer() const { return is_bool() ? Int{boolean()} : std::get<Int>(data_); }  // bools are ints in Python
  double number() const { return is_float() ? std::get<double>(data_) : static_cast<double>(integer()); }
  const Text& text() const { return *std::get<std::shared_ptr<const Text>>(data_); }
  std::string_view str() const { return text().bytes; }
  const Undefined& undefined() const { return std::get<Undefined>(data_); }
  Object* object() const { return std::holds_alternative<Object*>(data_) ? std::get<Object*>(data_) : nullptr; }

  // The object as T where it is one, else null.
  template <class T>
  T* As() const {
    Object* o = object();
    return o != nullptr && o->kind == T::kKind ? static_cast<T*>(o) : nullptr;
  }

 private:
  std::variant<None, Undefined, bool, Int, double, std::shared_ptr<const Text>, Object*> data_;
};

using Values = std::vector<Value>;

struct Sequence : Object {
  static constexpr ObjectKind kKind = ObjectKind::kSequence;
  enum Type { kList, kTuple, kKeys, kValues, kItems, kGenerator };
  Sequence(Type type, Values items) : Object(kKind), type(type), items(std::move(items)) {}
  bool indexable() const { return type == kList || type == kTuple; }
  const Type type;
  Values items;
  bool is_group = false;  // a pair from groupby: .grouper and .list
  size_t consumed = 0;    // a generator gives its items once
};

struct Dict : Object {
  static constexpr ObjectKind kKind = ObjectKind::kDict;
  Dict() : Object(kKind) {}
  const Value* Find(Arena& arena, const Value& key) const;
  const Value* Find(std::string_view key) const;
  void Set(Arena& arena, const Value& key, Value value);
  std::vector<std::pair<Value, Value>> entries;  // in order of insertion
 private:
  size_t IndexOf(Arena& arena, const Value& key, size_t hash) const;
  std::unordered_multimap<size_t, size_t> index_;  // hash -> entry, once there are more than a few
};

struct Range : Object {
  static constexpr ObjectKind kKind = ObjectKind::kRange;
  Range(Int start, Int stop, Int step);
  const Int start, stop, step;
  size_t length;
};

struct Namespace : Object {
  static constexpr ObjectKind kKind = ObjectKind::kNamespace;
  explicit Namespace(Dict* attributes) : Object(kKind), attributes(attributes) {}
  Dict* attributes;
};

// Owns what a run makes and counts what it spends; running out is a TemplateError.
class Arena {
 public:
  explicit Arena(const TemplateLimits& limits) : limits_(limits) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  void Step(uint64_t count = 1) {
    steps_ += count;
    if (steps_ > limits_.steps) OutOfSteps();
  }
  void CheckStringBytes(uint64_t bytes) const;  // may a string grow to this?
  void CheckItems(uint64_t count);              // may a container of this many be made? Costs steps and memory.

  Value String(std::string bytes, bool markup = false);
  Value String(std::string_view bytes, bool markup = false) { return String(std::string(bytes), markup); }
  Value String(const char* bytes) { return String(std::string(bytes)); }
  Value MakeUndefined(std::string message) const {
    return Undefined{std::make_shared<const std::string>(std::move(message))};
  }
  Value List(Values items) { return MakeSequence(Sequence::kList, std::move(items)); }
  Value Tuple(Values items) { return MakeSequence(Sequence::kTuple, std::move(items)); }
  Value MakeSequence(Sequence::Type type, Values items);

  template <class T, class... Args>
  T* New(Args&&... args) {
    ChargeMemory(sizeof(T) + sizeof(void*));
    auto object = std::make_unique<T>(std::forward<Args>(args)...);
    T* raw = object.get();
    objects_.push_back(std::move(object));
    return raw;
  }

  void ChargeMemory(uint64_t bytes);
  void ReleaseMemory(uint64_t bytes) { memory_bytes_ -= bytes; }

  // Held while a function recurses over nested values or calls.
  class Nested {
   public:
    explicit Nested(Arena& arena) : arena_(arena) {
      if (++arena_.depth_ > arena_.limits_.depth) arena_.TooDeep();
    }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;
    ~Nested() { --arena_.depth_; }

   private:
    Arena& arena_;
  };

 private:
  [[noreturn]] void OutOfSteps() const;
  [[noreturn]] void TooDeep();

  const TemplateLimits limits_;
  uint64_t steps_ = 0;
  uint64_t memory_bytes_ = 0;
  int depth_ = 0;
  std::vector<std::unique_ptr<Object>> objects_;
};

// A str that no arena meters: constants of a parsed template.
Value ConstantString(std::string bytes);

std::string_view TypeName(const Value& value);  // type(x).__name__
bool Truthy(const Value& value);
bool Equal(Arena& arena, const Value& a, const Value& b);
// a < b; the error names `op` and the types where Python has no order.
bool Less(Arena& arena, const Value& a, const Value& b, std::string_view op = "<");
size_t HashOf(Arena& arena, const Value& value);
std::string FormatInt(Int value);
std::string Str(Arena& arena, const Value& value);
std::string Repr(Arena& arena, const Value& value);
// An operation met an undefined value: says which.
[[noreturn]] void FailUndefined(const Value& undefined);

}  // namespace elasticmem::jinja
