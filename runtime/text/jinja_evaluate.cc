// Expressions.
#include <algorithm>

#include "runtime/text/jinja_interpreter.h"

namespace elasticmem::jinja {

Value Interpreter::Evaluate(const Expr& expr, const FramePtr& frame) {
  const Arena::Nested nested(arena_);
  arena_.Step();
  const auto child = [&](size_t i) { return Evaluate(*expr.children[i], frame); };
  switch (expr.kind) {
    case ExprKind::kConstant:
      return expr.constant;
    case ExprKind::kName:
      return EvaluateName(expr, frame);
    case ExprKind::kTuple:
    case ExprKind::kList:
    case ExprKind::kDict:
      return EvaluateContainer(expr, frame);
    case ExprKind::kAttribute: {
      const Value object = child(0);
      line_ = expr.line;
      return GetAttribute(object, expr.name);
    }
    case ExprKind::kItem: {
      const Value object = child(0);
      const Value key = child(1);
      line_ = expr.line;
      return GetItem(object, key);
    }
    case ExprKind::kSlice:
      return EvaluateSlice(expr, frame);
    case ExprKind::kCall:
      return EvaluateCall(expr, frame, nullptr);
    case ExprKind::kFilter:
      return EvaluateFilter(expr, frame, nullptr);
    case ExprKind::kTest:
      return EvaluateTest(expr, frame);
    case ExprKind::kNot:
      return !Truthy(child(0));
    case ExprKind::kNegative:
    case ExprKind::kPositive:
      return EvaluateSign(expr, frame);
    case ExprKind::kAnd: {
      Value left = child(0);
      return Truthy(left) ? child(1) : left;
    }
    case ExprKind::kOr: {
      Value left = child(0);
      return Truthy(left) ? left : child(1);
    }
    case ExprKind::kBinary: {
      const Value left = child(0);
      const Value right = child(1);
      line_ = expr.line;
      return Binary(expr.ops[0], left, right);
    }
    case ExprKind::kCompare:
      return EvaluateCompare(expr, frame);
    case ExprKind::kConcat:
      return EvaluateConcat(expr, frame);
    case ExprKind::kConditional:
      if (Truthy(child(0))) return child(1);
      if (expr.children[2] != nullptr) return child(2);
      return arena_.MakeUndefined(fmt::format(
          "the inline if-expression on line {} evaluated to false and no else section was defined.", expr.line));
    case ExprKind::kNamespaceRef:
      break;
  }
  FailUnsupported("an assignment target as a value");
}

Value Interpreter::EvaluateName(const Expr& expr, const FramePtr& frame) {
  if (const Value* value = frame->Find(expr.symbol)) return *value;
  if (const auto it = globals_.find(expr.symbol); it != globals_.end()) return it->second;
  if (const Function function = FindGlobal(expr.name)) {
    return globals_[expr.symbol] = Value(arena_.New<FunctionObject>(function, expr.name));
  }
  return arena_.MakeUndefined("'" + expr.name + "' is undefined");
}

Value Interpreter::EvaluateContainer(const Expr& expr, const FramePtr& frame) {
  if (expr.kind == ExprKind::kDict) {
    auto* dict = arena_.New<Dict>();
    for (size_t i = 0; i + 1 < expr.children.size(); i += 2) {
      const Value key = Evaluate(*expr.children[i], frame);
      dict->Set(arena_, key, Evaluate(*expr.children[i + 1], frame));
    }
    return Value(dict);
  }
  Values items;
  items.reserve(expr.children.size());
  for (const Expr* child : expr.children) items.push_back(Evaluate(*child, frame));
  return arena_.MakeSequence(expr.kind == ExprKind::kList ? Sequence::kList : Sequence::kTuple, std::move(items));
}

Value Interpreter::EvaluateSlice(const Expr& expr, const FramePtr& frame) {
  Value parts[4];
  for (size_t i = 0; i < 4; ++i) {
    if (expr.children[i] != nullptr) parts[i] = Evaluate(*expr.children[i], frame);
  }
  line_ = expr.line;
  return Slice(arena_, parts[0], parts[1], parts[2], parts[3]);
}

Arguments Interpreter::EvaluateArguments(const ArgumentList& list, const FramePtr& frame) {
  Arguments arguments;
  arguments.positional.reserve(list.positional.size());
  for (const Expr* expr : list.positional) arguments.positional.push_back(Evaluate(*expr, frame));
  for (const auto& [name, expr] : list.named) arguments.named.emplace_back(name, Evaluate(*expr, frame));
  if (list.star != nullptr) {
    const Values more = Items(Evaluate(*list.star, frame));
    arguments.positional.insert(arguments.positional.end(), more.begin(), more.end());
  }
  if (list.star_star != nullptr) {
    const Value more = Evaluate(*list.star_star, frame);
    const auto* dict = more.As<Dict>();
    if (dict == nullptr) Fail("argument after ** must be a mapping, not {}", TypeName(more));
    for (const auto& [key, value] : dict->entries) {
      if (!key.is_string()) Fail("keywords must be strings");
      for (const auto& [name, other] : arguments.named) {
        arena_.Step();
        if (name == key.str()) Fail("got multiple values for keyword argument '{}'", name);
      }
      arguments.named.emplace_back(std::string(key.str()), value);
    }
  }
  return arguments;
}

Value Interpreter::EvaluateCall(const Expr& expr, const FramePtr& frame, const Value* caller) {
  const Value callee = Evaluate(*expr.children[0], frame);
  Arguments arguments = EvaluateArguments(expr.arguments, frame);
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  line_ = expr.line;
  return Call(callee, arguments);
}

Value Interpreter::Call(const Value& callee, Arguments& arguments) {
  const Arena::Nested nested(arena_);
  if (callee.is_undefined()) FailUndefined(callee);
  if (const auto* macro = callee.As<Macro>()) return CallMacro(*macro, arguments);
  if (const auto* method = callee.As<Method>()) return CallMethod(*this, method->self, method->name, arguments);
  if (const auto* function = callee.As<FunctionObject>()) return function->function(*this, arguments);
  if (auto* loop = callee.As<Loop>()) return CallLoop(*loop, arguments);
  if (auto* joiner = callee.As<Joiner>()) {
    if (std::exchange(joiner->used, true)) return joiner->separator;
    return arena_.String("");
  }
  Fail("'{}' object is not callable", TypeName(callee));
}

Value Interpreter::EvaluateFilter(const Expr& expr, const FramePtr& frame, const Value* block_text) {
  const Expr* input = expr.children[0];
  Value value;
  if (input == nullptr) {
    value = *block_text;
  } else if (input->kind == ExprKind::kFilter) {
    const Arena::Nested nested(arena_);
    value = EvaluateFilter(*input, frame, block_text);
  } else {
    value = Evaluate(*input, frame);
  }
  Arguments arguments = EvaluateArguments(expr.arguments, frame);
  line_ = expr.line;
  arena_.Step();
  if (expr.filter == nullptr) FailUnsupported("there is no filter named '{}'", expr.name);
  return expr.filter(*this, value, arguments);
}

Value Interpreter::EvaluateTest(const Expr& expr, const FramePtr& frame) {
  const Value value = Evaluate(*expr.children[0], frame);
  Arguments arguments = EvaluateArguments(expr.arguments, frame);
  line_ = expr.line;
  if (expr.test == nullptr) FailUnsupported("there is no test named '{}'", expr.name);
  return expr.test(*this, value, arguments);
}

Value Interpreter::ApplyFilter(std::string_view name, const Value& input, Arguments& arguments) {
  const FilterFunction filter = FindFilter(name);
  if (filter == nullptr) FailUnsupported("there is no filter named '{}'", name);
  const Arena::Nested nested(arena_);
  arena_.Step();
  return filter(*this, input, arguments);
}

bool Interpreter::ApplyTest(std::string_view name, const Value& input, Arguments& arguments) {
  const TestFunction test = FindTest(name);
  if (test == nullptr) FailUnsupported("there is no test named '{}'", name);
  const Arena::Nested nested(arena_);
  arena_.Step();
  return test(*this, input, arguments);
}

Value Interpreter::EvaluateCompare(const Expr& expr, const FramePtr& frame) {
  Value left = Evaluate(*expr.children[0], frame);
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    Value right = Evaluate(*expr.children[i + 1], frame);
    line_ = expr.line;
    if (!Compare(expr.ops[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

bool Interpreter::Compare(Op op, const Value& a, const Value& b) {
  const auto ordered_and_equal = [&] {
    const bool nan = (a.is_float() && a.number() != a.number()) || (b.is_float() && b.number() != b.number());
    return !nan && Equal(arena_, a, b);
  };
  switch (op) {
    case Op::kEqual:
      return Equal(arena_, a, b);
    case Op::kNotEqual:
      return !Equal(arena_, a, b);
    case Op::kLess:
      return Less(arena_, a, b, "<");
    case Op::kGreater:
      return Less(arena_, b, a, ">");
    case Op::kLessEqual:
      return Less(arena_, a, b, "<=") || ordered_and_equal();
    case Op::kGreaterEqual:
      return Less(arena_, b, a, ">=") || ordered_and_equal();
    case Op::kIn:
      return Contains(b, a);
    default:
      return !Contains(b, a);
  }
}

Value Interpreter::EvaluateConcat(const Expr& expr, const FramePtr& frame) {
  std::string text;
  for (const Expr* child : expr.children) {
    text += Str(arena_, Evaluate(*child, frame));
    arena_.CheckStringBytes(text.size());
  }
  return arena_.String(std::move(text));
}

Value Interpreter::EvaluateSign(const Expr& expr, const FramePtr& frame) {
  const Value value = Evaluate(*expr.children[0], frame);
  line_ = expr.line;
  const bool negative = expr.kind == ExprKind::kNegative;
  if (value.is_undefined()) FailUndefined(value);
  if (!value.is_number()) Fail("bad operand type for unary {}: '{}'", negative ? '-' : '+', TypeName(value));
  if (value.is_float()) return negative ? -value.number() : value.number();
  return Binary(negative ? Op::kSubtract : Op::kAdd, Int{0}, value);
}

}  // namespace elasticmem::jinja
