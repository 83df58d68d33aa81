// Arithmetic, membership and slices with Python's rules.
#include <algorithm>
#include <cmath>

#include "runtime/text/jinja_builtins.h"
#include "runtime/text/jinja_interpreter.h"
#include "runtime/text/jinja_text.h"

namespace elasticmem::jinja {
namespace {

std::string_view Spelling(Op op) {
  static constexpr std::string_view kSpellings[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};
  return kSpellings[static_cast<size_t>(op)];
}

[[noreturn]] void FailOperands(Op op, const Value& a, const Value& b) {
  if (a.is_undefined()) FailUndefined(a);
  if (b.is_undefined()) FailUndefined(b);
  Fail("unsupported operand type(s) for {}: '{}' and '{}'", Spelling(op), TypeName(a), TypeName(b));
}

[[noreturn]] void FailOverflow() { Fail("an integer result needs more than 128 bits"); }

// Rounds towards minus infinity; the remainder has the divisor's sign.
Int FloorDivide(Int a, Int b) {
  if (b == -1) {
    Int result;
    if (__builtin_sub_overflow(Int{0}, a, &result)) FailOverflow();
    return result;
  }
  const Int quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Int FloorModulo(Int a, Int b) {
  if (b == -1) return 0;
  const Int remainder = a % b;
  return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

Value IntegerPower(Int base, Int exponent) {
  if (exponent < 0) {
    if (base == 0) Fail("0.0 cannot be raised to a negative power");
    return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  }
  Int result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) FailOverflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) FailOverflow();
  }
  return result;
}

Value IntegerArithmetic(Op op, Int a, Int b) {
  Int result = 0;
  switch (op) {
    case Op::kAdd:
      if (__builtin_add_overflow(a, b, &result)) FailOverflow();
      return result;
    case Op::kSubtract:
      if (__builtin_sub_overflow(a, b, &result)) FailOverflow();
      return result;
    case Op::kMultiply:
      if (__builtin_mul_overflow(a, b, &result)) FailOverflow();
      return result;
    case Op::kDivide:
      if (b == 0) Fail("division by zero");
      return static_cast<double>(a) / static_cast<double>(b);
    case Op::kFloorDivide:
      if (b == 0) Fail("integer division or modulo by zero");
      return FloorDivide(a, b);
    case Op::kModulo:
      if (b == 0) Fail("integer modulo by zero");
      return FloorModulo(a, b);
    default:
      return IntegerPower(a, b);
  }
}

double FloatModulo(double a, double b) {
  double remainder = std::fmod(a, b);
  if (remainder == 0) return std::copysign(0.0, b);
  return (remainder < 0) != (b < 0) ? remainder + b : remainder;
}

double FloatFloorDivide(double a, double b) {
  const double quotient = (a - FloatModulo(a, b)) / b;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

Value FloatPower(double a, double b) {
  if (a == 0 && b < 0) Fail("0.0 cannot be raised to a negative power");
  if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b)) {
    FailUnsupported("a fractional power of a negative number, which is complex");
  }
  const double result = std::pow(a, b);
  if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) Fail("Numerical result out of range");
  return result;
}

Value FloatArithmetic(Op op, double a, double b) {
  switch (op) {
    case Op::kAdd:
      return a + b;
    case Op::kSubtract:
      return a - b;
    case Op::kMultiply:
      return a * b;
    case Op::kDivide:
      if (b == 0) Fail("float division by zero");
      return a / b;
    case Op::kFloorDivide:
      if (b == 0) Fail("float floor division by zero");
      return FloatFloorDivide(a, b);
    case Op::kModulo:
      if (b == 0) Fail("float modulo");
      return FloatModulo(a, b);
    default:
      return FloatPower(a, b);
  }
}

std::string EscapeHtml(const Value& text) {
  if (text.text().markup) return std::string(text.str());
  std::string out;
  for (const char c : text.str()) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

Value AddStrings(Arena& arena, const Value& a, const Value& b) {
  arena.CheckStringBytes(a.str().size() + b.str().size());
  const bool markup = a.text().markup || b.text().markup;
  if (markup) return arena.String(EscapeHtml(a) + EscapeHtml(b), true);
  std::string text;
  text.reserve(a.str().size() + b.str().size());
  text.append(a.str()).append(b.str());
  return arena.String(std::move(text));
}

// "ab" * 3, [1] * 3.
Value Repeat(Arena& arena, const Value& value, Int times) {
  times = std::clamp(times, Int{0}, Int{1} << 31);  // more is refused, whatever is repeated
  if (value.is_string()) {
    const Int bytes = static_cast<Int>(value.str().size()) * times;
    arena.CheckStringBytes(static_cast<uint64_t>(bytes));
    std::string text;
    text.reserve(static_cast<size_t>(bytes));
    if (!value.str().empty()) {
      for (Int i = 0; i < times; ++i) text += value.str();
    }
    return arena.String(std::move(text), value.text().markup);
  }
  const auto* sequence = value.As<Sequence>();
  const Int count = static_cast<Int>(sequence->items.size()) * times;
  arena.CheckItems(static_cast<uint64_t>(count));
  Values items;
  items.reserve(static_cast<size_t>(count));
  if (!sequence->items.empty()) {
    for (Int i = 0; i < times; ++i) items.insert(items.end(), sequence->items.begin(), sequence->items.end());
  }
  return arena.MakeSequence(sequence->type, std::move(items));
}

bool IsRepeatable(const Value& value) {
  const auto* sequence = value.As<Sequence>();
  return value.is_string() || (sequence != nullptr && sequence->indexable());
}

Int ClampIndex(const Value& bound, Int length, Int lowest, Int highest, Int otherwise) {
  if (bound.is_none()) return otherwise;
  if (!bound.is_integral()) Fail("slice indices must be integers or None or have an __index__ method");
  Int index = bound.integer();
  if (index < 0 && index > -(Int{1} << 100)) index += length;
  return std::clamp(index, lowest, highest);
}

}  // namespace

Value Interpreter::Binary(Op op, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return IntegerArithmetic(op, a.integer(), b.integer());
    return FloatArithmetic(op, a.number(), b.number());
  }
  if (op == Op::kModulo && a.is_string()) {
    return arena_.String(FormatPercent(*this, a.str(), b), a.text().markup);
  }
  if (op == Op::kMultiply && IsRepeatable(a) && b.is_integral()) return Repeat(arena_, a, b.integer());
  if (op == Op::kMultiply && IsRepeatable(b) && a.is_integral()) return Repeat(arena_, b, a.integer());
  if (op != Op::kAdd) FailOperands(op, a, b);
  if (a.is_string() && b.is_string()) return AddStrings(arena_, a, b);
  const auto* x = a.As<Sequence>();
  const auto* y = b.As<Sequence>();
  if (x != nullptr && y != nullptr && x->type == y->type && x->indexable()) {
    arena_.CheckItems(x->items.size() + y->items.size());
    Values items = x->items;
    items.insert(items.end(), y->items.begin(), y->items.end());
    return arena_.MakeSequence(x->type, std::move(items));
  }
  if (a.is_string() && !b.is_undefined()) {
    Fail("can only concatenate str (not \"{}\") to str", TypeName(b));
  }
  if (x != nullptr && x->indexable() && !b.is_undefined()) {
    Fail("can only concatenate {0} (not \"{1}\") to {0}", TypeName(a), TypeName(b));
  }
  FailOperands(op, a, b);
}

bool Interpreter::Contains(const Value& container, const Value& item) {
  if (container.is_string()) {
    if (!item.is_string()) Fail("'in <string>' requires string as left operand, not {}", TypeName(item));
    arena_.Step(container.str().size() / 64);
    return FindText(container.str(), item.str(), 0) != std::string_view::npos;
  }
  if (const auto* dict = container.As<Dict>()) return dict->Find(arena_, item) != nullptr;
  if (container.object() == nullptr && !container.is_undefined()) {
    Fail("argument of type '{}' is not iterable", TypeName(container));
  }
  for (const Value& other : Items(container)) {
    if (Equal(arena_, other, item)) return true;
  }
  return false;
}

Value Slice(Arena& arena, const Value& object, const Value& start, const Value& stop, const Value& step) {
  if (object.is_undefined()) FailUndefined(object);
  const auto* sequence = object.As<Sequence>();
  const auto* range = object.As<Range>();
  if (!object.is_string() && range == nullptr && (sequence == nullptr || !sequence->indexable())) {
    if (object.As<Dict>() != nullptr) Fail("unhashable type: 'slice'");
    Fail("'{}' object is not subscriptable", TypeName(object));
  }
  const Int length = object.is_string() ? object.text().code_points
                     : range != nullptr ? range->length
                                        : sequence->items.size();
  if (!step.is_none() && !step.is_integral())
    Fail("slice indices must be integers or None or have an __index__ method");
  const Int stride = step.is_none() ? Int{1} : std::clamp(step.integer(), -(Int{1} << 62), Int{1} << 62);
  if (stride == 0) Fail("slice step cannot be zero");
  const bool back = stride < 0;
  const Int lowest = back ? -1 : 0;
  const Int highest = back ? length - 1 : length;
  const Int first = ClampIndex(start, length, lowest, highest, back ? highest : lowest);
  const Int last = ClampIndex(stop, length, lowest, highest, back ? lowest : highest);
  const Range picked(first, last, stride);
  if (range != nullptr) {
    const Int begin = range->start + first * range->step;
    if (picked.length < 2) return Value(arena.New<Range>(begin, begin + Int(picked.length), 1));
    return Value(arena.New<Range>(begin, range->start + last * range->step, range->step * stride));
  }
  if (sequence != nullptr) {
    Values items;
    items.reserve(picked.length);
    for (size_t i = 0; i < picked.length; ++i)
      items.push_back(sequence->items[static_cast<size_t>(first + Int(i) * stride)]);
    return arena.MakeSequence(sequence->type, std::move(items));
  }
  const std::string_view text = object.str();
  arena.Step(text.size() / 16);
  const bool markup = object.text().markup;
  if (object.text().one_byte_each() && stride == 1) {
    return arena.String(text.substr(static_cast<size_t>(first), picked.length), markup);
  }
  const std::vector<size_t> at = CodePointOffsets(text);
  std::string out;
  for (size_t i = 0; i < picked.length; ++i) {
    const auto place = static_cast<size_t>(first + Int(i) * stride);
    out += text.substr(at[place], at[place + 1] - at[place]);
  }
  return arena.String(std::move(out), markup);
}

}  // namespace elasticmem::jinja
