#include "runtime/text/jinja_expression_parser.h"

#include <algorithm>

#include "runtime/text/jinja_text.h"

namespace elasticmem::jinja {
namespace {

constexpr int kMaxSyntaxDepth = 400;  // calls of the parser into itself; a pair of brackets takes three
constexpr int kMaxTreeDepth = 400;    // long chains of operators make deep trees without nesting

}  // namespace

ExpressionParser::Nested::Nested(ExpressionParser& parser) : parser_(parser) {
  if (++parser_.depth_ > kMaxSyntaxDepth) {
    --parser_.depth_;
    FailAt(parser_.current().line, "expressions or statements are nested too deeply");
  }
}

const Token& ExpressionParser::Take() {
  const Token& token = tokens_[at_];
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool ExpressionParser::SkipName(std::string_view name) {
  if (!current().IsName(name)) return false;
  Take();
  return true;
}

bool ExpressionParser::SkipOperator(std::string_view op) {
  if (!current().IsOperator(op)) return false;
  Take();
  return true;
}

const Token& ExpressionParser::ExpectOperator(std::string_view op) {
  if (!current().IsOperator(op)) {
    FailAt(current().line, "expected token '{}', got '{}'", op, Describe(current()));
  }
  return Take();
}

const Token& ExpressionParser::ExpectKind(TokenKind kind, std::string_view description) {
  if (current().kind == kind) return Take();
  if (current().kind == TokenKind::kEnd) {
    FailAt(current().line, "unexpected end of template, expected '{}'", description);
  }
  FailAt(current().line, "expected token '{}', got '{}'", description, Describe(current()));
}

Expr* ExpressionParser::New(ExprKind kind, int line, std::initializer_list<Expr*> children) {
  Expr* expr = &program_.exprs.emplace_back();
  expr->kind = kind;
  expr->line = line;
  expr->children = children;
  Finish(expr);
  return expr;
}

void ExpressionParser::Finish(Expr* expr) {
  const auto add = [&](const Expr* child) {
    if (child != nullptr) expr->depth = std::max(expr->depth, child->depth + 1);
  };
  for (const Expr* child : expr->children) add(child);
  for (const Expr* child : expr->arguments.positional) add(child);
  for (const auto& [name, child] : expr->arguments.named) add(child);
  add(expr->arguments.star);
  add(expr->arguments.star_star);
  if (expr->depth > kMaxTreeDepth) FailAt(expr->line, "an expression of more than {} levels", kMaxTreeDepth);
}

Expr* ExpressionParser::ParseTuple(TupleMode mode, std::string_view end_name, bool in_parentheses) {
  const auto at_end = [&] {
    return current().kind == TokenKind::kVariableEnd || current().kind == TokenKind::kBlockEnd ||
           current().IsOperator(")") || (!end_name.empty() && current().IsName(end_name));
  };
  const auto parse_one = [&] {
    if (mode == TupleMode::kTargets || mode == TupleMode::kTargetsOrNamespace) {
      return ParsePrimary(mode == TupleMode::kTargetsOrNamespace);
    }
    return ParseExpression(mode == TupleMode::kFull);
  };
  const int line = current().line;
  std::vector<Expr*> items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) ExpectOperator(",");
    if (at_end()) break;
    items.push_back(parse_one());
    if (!current().IsOperator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!items.empty()) return items[0];
    if (!in_parentheses) FailAt(current().line, "Expected an expression, got '{}'", Describe(current()));
  }
  Expr* tuple = New(ExprKind::kTuple, line);
  tuple->children = std::move(items);
  Finish(tuple);
  return tuple;
}

Expr* ExpressionParser::ParseTarget(std::string_view end_name, bool with_namespace) {
  Expr* target = ParseTuple(with_namespace ? TupleMode::kTargetsOrNamespace : TupleMode::kTargets, end_name);
  const auto check = [](const Expr* expr, auto& self) -> void {
    if (expr->kind == ExprKind::kTuple) {
      for (const Expr* child : expr->children) self(child, self);
    } else if (expr->kind != ExprKind::kName && expr->kind != ExprKind::kNamespaceRef) {
      FailAt(expr->line, "can't assign to this expression; a name is expected");
    }
  };
  check(target, check);
  return target;
}

Expr* ExpressionParser::ParseNameTarget() {
  const Token& token = ExpectKind(TokenKind::kName, "name");
  for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
    if (token.text == constant) FailAt(token.line, "can't assign to '{}'", constant);
  }
  Expr* name = New(ExprKind::kName, token.line);
  name->name = token.text;
  name->symbol = program_.Intern(token.text);
  return name;
}

Expr* ExpressionParser::ParseExpression(bool with_conditional) {
  const Nested nested(*this);
  return with_conditional ? ParseConditional() : ParseOr();
}

Expr* ExpressionParser::ParseConditional() {
  const Nested nested(*this);
  const int line = current().line;
  const size_t unknown_before = unknown_.size();
  Expr* value = ParseOr();
  while (SkipName("if")) {
    Expr* test = ParseOr();
    Expr* otherwise = SkipName("else") ? ParseConditional() : nullptr;
    value = New(ExprKind::kConditional, line, {test, value, otherwise});
    unknown_.resize(unknown_before);
  }
  return value;
}

Expr* ExpressionParser::ParseOr() {
  const int line = current().line;
  Expr* left = ParseAnd();
  while (SkipName("or")) left = New(ExprKind::kOr, line, {left, ParseAnd()});
  return left;
}

Expr* ExpressionParser::ParseAnd() {
  const int line = current().line;
  Expr* left = ParseNot();
  while (SkipName("and")) left = New(ExprKind::kAnd, line, {left, ParseNot()});
  return left;
}

Expr* ExpressionParser::ParseNot() {
  if (!current().IsName("not")) return ParseComparison();
  const Nested nested(*this);
  const int line = Take().line;
  return New(ExprKind::kNot, line, {ParseNot()});
}

bool ExpressionParser::TakeComparison(Op& op) {
  static constexpr std::pair<std::string_view, Op> kOperators[] = {{"==", Op::kEqual},  {"!=", Op::kNotEqual},
                                                                   {"<", Op::kLess},    {"<=", Op::kLessEqual},
                                                                   {">", Op::kGreater}, {">=", Op::kGreaterEqual}};
  for (const auto& [text, kind] : kOperators) {
    if (SkipOperator(text)) {
      op = kind;
      return true;
    }
  }
  op = Op::kIn;
  if (SkipName("in")) return true;
  if (!current().IsName("not") || !next().IsName("in")) return false;
  Take();
  Take();
  op = Op::kNotIn;
  return true;
}

Expr* ExpressionParser::ParseComparison() {
  const int line = current().line;
  Expr* first = ParseSum();
  Expr* comparison = nullptr;
  for (Op op; TakeComparison(op);) {
    if (comparison == nullptr) comparison = New(ExprKind::kCompare, line, {first});
    comparison->ops.push_back(op);
    comparison->children.push_back(ParseSum());
    Finish(comparison);
  }
  return comparison == nullptr ? first : comparison;
}

Expr* ExpressionParser::ParseSum() {
  const int line = current().line;
  Expr* left = ParseConcat();
  while (current().IsOperator("+") || current().IsOperator("-")) {
    const Op op = Take().text == "+" ? Op::kAdd : Op::kSubtract;
    left = New(ExprKind::kBinary, line, {left, ParseConcat()});
    left->ops = {op};
  }
  return left;
}

Expr* ExpressionParser::ParseConcat() {
  const int line = current().line;
  Expr* first = ParseProduct();
  if (!current().IsOperator("~")) return first;
  Expr* concat = New(ExprKind::kConcat, line, {first});
  while (SkipOperator("~")) {
    concat->children.push_back(ParseProduct());
    Finish(concat);
  }
  return concat;
}

Expr* ExpressionParser::ParseProduct() {
  static constexpr std::pair<std::string_view, Op> kOperators[] = {
      {"*", Op::kMultiply}, {"/", Op::kDivide}, {"//", Op::kFloorDivide}, {"%", Op::kModulo}};
  const int line = current().line;
  Expr* left = ParsePower();
  while (true) {
    const auto* op = std::find_if(std::begin(kOperators), std::end(kOperators),
                                  [&](const auto& candidate) { return current().IsOperator(candidate.first); });
    if (op == std::end(kOperators)) return left;
    Take();
    left = New(ExprKind::kBinary, line, {left, ParsePower()});
    left->ops = {op->second};
  }
}

Expr* ExpressionParser::ParsePower() {
  const int line = current().line;
  Expr* left = ParseUnary(true);
  while (SkipOperator("**")) {
    left = New(ExprKind::kBinary, line, {left, ParseUnary(true)});
    left->ops = {Op::kPower};
  }
  return left;
}

Expr* ExpressionParser::ParseUnary(bool with_filter) {
  const Nested nested(*this);
  const int line = current().line;
  Expr* expr = nullptr;
  if (SkipOperator("-")) {
    expr = New(ExprKind::kNegative, line, {ParseUnary(false)});
  } else if (SkipOperator("+")) {
    expr = New(ExprKind::kPositive, line, {ParseUnary(false)});
  } else {
    expr = ParsePrimary();
  }
  expr = ParsePostfix(expr);
  return with_filter ? ParseFiltersAndTests(expr) : expr;
}

Expr* ExpressionParser::ParsePrimary(bool with_namespace) {
  const Nested nested(*this);
  const Token& token = current();
  if (token.kind == TokenKind::kName) return ParseName(with_namespace);
  if (token.kind == TokenKind::kString) {
    std::string text;
    while (current().kind == TokenKind::kString) text += Take().text;
    Expr* constant = New(ExprKind::kConstant, token.line);
    constant->constant = ConstantString(std::move(text));
    return constant;
  }
  if (token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat) {
    Expr* constant = New(ExprKind::kConstant, token.line);
    constant->constant = Take().number;
    return constant;
  }
  if (SkipOperator("(")) {
    Expr* inner = ParseTuple(TupleMode::kFull, "", true);
    ExpectOperator(")");
    return inner;
  }
  if (token.IsOperator("[")) return ParseList();
  if (token.IsOperator("{")) return ParseDict();
  FailAt(token.line, "unexpected '{}'", Describe(token));
}

Expr* ExpressionParser::ParseName(bool with_namespace) {
  const Token& token = Take();
  const std::string& name = token.text;
  if (name == "true" || name == "True" || name == "false" || name == "False" || name == "none" || name == "None") {
    Expr* constant = New(ExprKind::kConstant, token.line);
    if (name != "none" && name != "None") constant->constant = name == "true" || name == "True";
    return constant;
  }
  NoteName(name);
  Expr* expr = New(ExprKind::kName, token.line);
  expr->name = name;
  expr->symbol = program_.Intern(name);
  if (with_namespace && SkipOperator(".")) {
    Expr* reference = New(ExprKind::kNamespaceRef, token.line, {expr});
    reference->name = ExpectKind(TokenKind::kName, "name").text;
    return reference;
  }
  return expr;
}

// What a body asks for decides what its macro or loop gets.
void ExpressionParser::NoteName(std::string_view name) {
  for (MacroNode* macro : open_macros_) {
    macro->uses_caller |= name == "caller";
    macro->uses_varargs |= name == "varargs";
    macro->uses_kwargs |= name == "kwargs";
  }
  if (name == "loop") {
    for (Stmt* loop : open_loops_) loop->uses_loop = true;
  }
}

Expr* ExpressionParser::ParseList() {
  Expr* list = New(ExprKind::kList, ExpectOperator("[").line);
  while (!current().IsOperator("]")) {
    if (!list->children.empty()) ExpectOperator(",");
    if (current().IsOperator("]")) break;
    list->children.push_back(ParseExpression());
  }
  ExpectOperator("]");
  Finish(list);
  return list;
}

Expr* ExpressionParser::ParseDict() {
  Expr* dict = New(ExprKind::kDict, ExpectOperator("{").line);
  while (!current().IsOperator("}")) {
    if (!dict->children.empty()) ExpectOperator(",");
    if (current().IsOperator("}")) break;
    dict->children.push_back(ParseExpression());
    ExpectOperator(":");
    dict->children.push_back(ParseExpression());
  }
  ExpectOperator("}");
  Finish(dict);
  return dict;
}

}  // namespace elasticmem::jinja
