// What follows an operand: subscripts, calls, filters, tests.
#include "runtime/text/jinja_builtins.h"
#include "runtime/text/jinja_expression_parser.h"

namespace elasticmem::jinja {

Expr* ExpressionParser::ParsePostfix(Expr* expr) {
  while (true) {
    if (current().IsOperator(".") || current().IsOperator("[")) {
      expr = ParseSubscript(expr);
    } else if (current().IsOperator("(")) {
      expr = ParseCall(expr);
    } else {
      return expr;
    }
  }
}

Expr* ExpressionParser::ParseSubscript(Expr* expr) {
  const int line = current().line;
  if (SkipOperator(".")) {
    const Token& token = Take();
    if (token.kind == TokenKind::kName) {
      Expr* attribute = New(ExprKind::kAttribute, line, {expr});
      attribute->name = token.text;
      return attribute;
    }
    if (token.kind != TokenKind::kInteger) FailAt(token.line, "expected name or number, got '{}'", Describe(token));
    Expr* index = New(ExprKind::kConstant, token.line);
    index->constant = token.number;
    return New(ExprKind::kItem, line, {expr, index});
  }
  ExpectOperator("[");
  if (SkipOperator("]")) return New(ExprKind::kItem, line, {expr, New(ExprKind::kTuple, line)});
  Expr* item = ParseSubscribed(expr);
  if (current().IsOperator(",")) {
    Expr* tuple = New(ExprKind::kTuple, line);
    while (true) {
      if (item->kind == ExprKind::kSlice) FailAt(line, "a slice among several indices is not supported");
      tuple->children.push_back(item->children[1]);
      if (!SkipOperator(",") || current().IsOperator("]")) break;
      item = ParseSubscribed(expr);
    }
    Finish(tuple);
    item = New(ExprKind::kItem, line, {expr, tuple});
  }
  ExpectOperator("]");
  return item;
}

// "i", or a slice: "i:j", "::k", ...
Expr* ExpressionParser::ParseSubscribed(Expr* object) {
  const int line = current().line;
  Expr* start = nullptr;
  if (!current().IsOperator(":")) {
    start = ParseExpression();
    if (!current().IsOperator(":")) return New(ExprKind::kItem, line, {object, start});
  }
  ExpectOperator(":");
  const auto bound = [&]() -> Expr* {
    const bool absent = current().IsOperator(":") || current().IsOperator("]") || current().IsOperator(",");
    return absent ? nullptr : ParseExpression();
  };
  Expr* stop = bound();
  Expr* step = SkipOperator(":") ? bound() : nullptr;
  return New(ExprKind::kSlice, line, {object, start, stop, step});
}

ArgumentList ExpressionParser::ParseArguments() {
  const int line = ExpectOperator("(").line;
  ArgumentList arguments;
  const auto require = [&](bool fine) {
    if (!fine) FailAt(line, "invalid syntax for function call expression");
  };
  for (bool first = true; !current().IsOperator(")"); first = false) {
    if (!first) {
      ExpectOperator(",");
      if (current().IsOperator(")")) break;
    }
    if (SkipOperator("*")) {
      require(arguments.star == nullptr && arguments.star_star == nullptr);
      arguments.star = ParseExpression();
    } else if (SkipOperator("**")) {
      require(arguments.star_star == nullptr);
      arguments.star_star = ParseExpression();
    } else if (current().kind == TokenKind::kName && next().IsOperator("=")) {
      require(arguments.star_star == nullptr);
      const std::string name = Take().text;
      Take();
      for (const auto& [other, value] : arguments.named) {
        if (other == name) FailAt(line, "keyword argument repeated: {}", name);
      }
      arguments.named.emplace_back(name, ParseExpression());
    } else {
      require(arguments.star == nullptr && arguments.star_star == nullptr && arguments.named.empty());
      arguments.positional.push_back(ParseExpression());
    }
  }
  ExpectOperator(")");
  return arguments;
}

Expr* ExpressionParser::ParseCall(Expr* callee) {
  Expr* call = New(ExprKind::kCall, current().line, {callee});
  call->arguments = ParseArguments();
  Finish(call);
  return call;
}

Expr* ExpressionParser::ParseFiltersAndTests(Expr* expr) {
  while (true) {
    if (current().IsOperator("|")) {
      expr = ParseFilters(expr, false);
    } else if (current().IsName("is")) {
      expr = ParseTest(expr);
    } else if (current().IsOperator("(")) {
      expr = ParseCall(expr);
    } else {
      return expr;
    }
  }
}

std::string ExpressionParser::ParseDottedName() {
  std::string name = ExpectKind(TokenKind::kName, "name").text;
  while (SkipOperator(".")) name += "." + ExpectKind(TokenKind::kName, "name").text;
  return name;
}

Expr* ExpressionParser::ParseFilters(Expr* input, bool inline_start) {
  while (inline_start || SkipOperator("|")) {
    inline_start = false;
    const int line = current().line;
    Expr* filter = New(ExprKind::kFilter, line, {input});
    filter->name = ParseDottedName();
    filter->filter = FindFilter(filter->name);
    if (current().IsOperator("(")) filter->arguments = ParseArguments();
    Finish(filter);
    if (filter->filter == nullptr && !inside_if_) unknown_.push_back(filter);
    input = filter;
  }
  return input;
}

Expr* ExpressionParser::ParseTest(Expr* input) {
  const int line = Take().line;
  const bool negated = SkipName("not");
  Expr* test = New(ExprKind::kTest, line, {input});
  test->name = ParseDottedName();
  test->test = FindTest(test->name);
  const Token& token = current();
  const bool argument = token.kind == TokenKind::kName || token.kind == TokenKind::kString ||
                        token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat || token.IsOperator("[") ||
                        token.IsOperator("{");
  if (token.IsOperator("(")) {
    test->arguments = ParseArguments();
  } else if (argument && !token.IsName("else") && !token.IsName("or") && !token.IsName("and")) {
    if (token.IsName("is")) FailAt(token.line, "You cannot chain multiple tests with is");
    test->arguments.positional.push_back(ParsePostfix(ParsePrimary()));
  }
  Finish(test);
  if (test->test == nullptr && !inside_if_) unknown_.push_back(test);
  return negated ? New(ExprKind::kNot, line, {test}) : test;
}

}  // namespace elasticmem::jinja
