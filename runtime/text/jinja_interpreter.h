// Runs a Program: statements append to the output, expressions give Values. Filters, tests, functions and methods get
// the Interpreter for what they need of it: the arena, lookups, calls and iteration as Python would do them.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/text/jinja_ast.h"
#include "runtime/text/jinja_builtins.h"
#include "runtime/text/jinja_value.h"

namespace elasticmem::jinja {

// Variables of a scope and, through `parent`, of those around it in the template.
struct Frame {
  explicit Frame(std::shared_ptr<Frame> parent) : parent(std::move(parent)) {}
  std::shared_ptr<Frame> parent;
  std::vector<std::pair<Symbol, Value>> variables;
  void Set(Symbol symbol, Value value);
  const Value* Find(Symbol symbol) const;  // here or around
};

struct Macro : Object {
  static constexpr ObjectKind kKind = ObjectKind::kMacro;
  Macro(const MacroNode* node, std::shared_ptr<Frame> frame) : Object(kKind), node(node), frame(std::move(frame)) {}
  const MacroNode* node;
  std::shared_ptr<Frame> frame;  // where it was defined
};

struct Method : Object {
  static constexpr ObjectKind kKind = ObjectKind::kMethod;
  Method(Value self, std::string name) : Object(kKind), self(std::move(self)), name(std::move(name)) {}
  Value self;
  std::string name;
};

struct FunctionObject : Object {
  static constexpr ObjectKind kKind = ObjectKind::kFunction;
  FunctionObject(Function function, std::string name) : Object(kKind), function(function), name(std::move(name)) {}
  Function function;
  std::string name;
};

struct Cycler : Object {
  static constexpr ObjectKind kKind = ObjectKind::kCycler;
  explicit Cycler(Values items) : Object(kKind), items(std::move(items)) {}
  Values items;
  size_t position = 0;
};

struct Joiner : Object {
  static constexpr ObjectKind kKind = ObjectKind::kJoiner;
  explicit Joiner(Value separator) : Object(kKind), separator(std::move(separator)) {}
  Value separator;
  bool used = false;
};

// The `loop` of a for statement. Items that a loop's `if` refuses are skipped only as the loop gets there: the test may
// see what the body has set.
struct Loop : Object {
  static constexpr ObjectKind kKind = ObjectKind::kLoop;
  Loop() : Object(kKind) {}
  bool Next(Value* item);  // false at the end
  bool Peek(Value* item);
  size_t Length();

  Values source;
  size_t position = 0;                       // in source
  std::function<bool(const Value&)> admits;  // empty: all
  std::optional<Value> ahead;                // peeked at, not yet given
  std::optional<size_t> length;
  Int index0 = -1;
  Int depth0 = 0;
  Value current, previous;
  std::optional<Values> last_changed;
  const Stmt* statement = nullptr;
  std::shared_ptr<Frame> frame;  // around the loop, for loop(...) in recursive ones

 private:
  bool Fetch(Value* item);
};

class Interpreter {
 public:
  Interpreter(const Program& program, const TemplateLimits& limits, int64_t now)
      : program_(program), arena_(limits), now_(now) {}

  // Whether the template names the variable at all.
  bool Uses(std::string_view name) const;
  void SetGlobal(std::string_view name, Value value);
  std::string Run();

  Arena& arena() { return arena_; }
  int64_t now() const { return now_; }
  int line() const { return line_; }

  // object.name and object[key], jinja2's way: each falls back on the other; what is not there is undefined.
  Value GetAttribute(const Value& object, std::string_view name);
  Value GetItem(const Value& object, const Value& key);
  Value Call(const Value& callee, Arguments& arguments);
  // What iterating over `value` gives; a TypeError where Python has one. Generators are used up.
  Values Items(const Value& value);
  bool Contains(const Value& container, const Value& item);
  Value Binary(Op op, const Value& a, const Value& b);
  Value ApplyFilter(std::string_view name, const Value& input, Arguments& arguments);
  bool ApplyTest(std::string_view name, const Value& input, Arguments& arguments);

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  using FramePtr = std::shared_ptr<Frame>;

  Flow Execute(const Body& body, const FramePtr& frame);
  Flow ExecuteOne(const Stmt& stmt, const FramePtr& frame);
  Flow ExecuteIf(const Stmt& stmt, const FramePtr& frame);
  Flow ExecuteFor(const Stmt& stmt, const FramePtr& frame, const Value& iterable, Int depth0);
  Flow ExecuteWith(const Stmt& stmt, const FramePtr& frame);
  Flow ExecuteFilterBlock(const Stmt& stmt, const FramePtr& frame);
  Flow ExecuteSetBlock(const Stmt& stmt, const FramePtr& frame);
  void ExecuteCallBlock(const Stmt& stmt, const FramePtr& frame);
  void Assign(const Expr& target, const Value& value, const FramePtr& frame, const FramePtr& lookup);
  void Write(std::string_view text);
  // Runs `body` with the output going to the returned text; its flow to *flow.
  std::string Capture(const Body& body, const FramePtr& frame, Flow* flow = nullptr);

  Value Evaluate(const Expr& expr, const FramePtr& frame);
  Value EvaluateName(const Expr& expr, const FramePtr& frame);
  Value EvaluateContainer(const Expr& expr, const FramePtr& frame);
  Value EvaluateSlice(const Expr& expr, const FramePtr& frame);
  Value EvaluateCall(const Expr& expr, const FramePtr& frame, const Value* caller);
  Value EvaluateFilter(const Expr& expr, const FramePtr& frame, const Value* block_text);
  Value EvaluateTest(const Expr& expr, const FramePtr& frame);
  Value EvaluateCompare(const Expr& expr, const FramePtr& frame);
  Value EvaluateConcat(const Expr& expr, const FramePtr& frame);
  Value EvaluateSign(const Expr& expr, const FramePtr& frame);
  Arguments EvaluateArguments(const ArgumentList& list, const FramePtr& frame);
  bool Compare(Op op, const Value& a, const Value& b);

  Value CallMacro(const Macro& macro, Arguments& arguments);
  Value CallLoop(Loop& loop, Arguments& arguments);
  Value LoopAttribute(Loop& loop, std::string_view name);
  Value BindMethod(const Value& object, std::string_view name, bool* found);
  Value MissingAttribute(const Value& object, std::string_view name);

  const Program& program_;
  Arena arena_;
  const int64_t now_;
  int line_ = 1;
  std::unordered_map<Symbol, Value> globals_;
  std::string* out_ = nullptr;
};

// A slice of a str, list, tuple or range.
Value Slice(Arena& arena, const Value& object, const Value& start, const Value& stop, const Value& step);
// "dict object", "None": how messages name what lacks an attribute.
std::string DescribeObject(const Value& value);

}  // namespace elasticmem::jinja
