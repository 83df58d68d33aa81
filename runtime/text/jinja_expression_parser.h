// The parser's half that reads expressions; jinja_parser.cc builds statements on it.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/jinja_ast.h"
#include "runtime/text/jinja_lexer.h"

namespace elasticmem::jinja {

class ExpressionParser {
 protected:
  ExpressionParser(Program& program, std::vector<Token> tokens) : program_(program), tokens_(std::move(tokens)) {}

  enum class TupleMode { kFull, kNoConditional, kTargets, kTargetsOrNamespace };

  // An expression, or several with commas between as a tuple; `end_name` also ends it.
  Expr* ParseTuple(TupleMode mode = TupleMode::kFull, std::string_view end_name = "", bool in_parentheses = false);
  Expr* ParseExpression(bool with_conditional = true);
  // "a", "a, b" or, with namespaces, "ns.a": what can be assigned to.
  Expr* ParseTarget(std::string_view end_name, bool with_namespace);
  Expr* ParseNameTarget();
  // One or more "| name(args)" behind `input`. `inline_start`: the first comes without its bar.
  Expr* ParseFilters(Expr* input, bool inline_start);

  const Token& current() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& Take();
  bool SkipName(std::string_view name);
  bool SkipOperator(std::string_view op);
  const Token& ExpectOperator(std::string_view op);
  const Token& ExpectKind(TokenKind kind, std::string_view description);

  template <class... Args>
  [[noreturn]] static void FailAt(int line, fmt::format_string<Args...> format, Args&&... args) {
    throw TemplateError{StatusCode::kInvalidArgument, fmt::vformat(format, fmt::make_format_args(args...)), line};
  }

  // Held while nested syntax is read.
  class Nested {
   public:
    explicit Nested(ExpressionParser& parser);
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;
    ~Nested() { --parser_.depth_; }

   private:
    ExpressionParser& parser_;
  };

  Expr* New(ExprKind kind, int line, std::initializer_list<Expr*> children = {});
  void Finish(Expr* expr);  // sets depth from the children; an error if too deep

  Program& program_;
  std::vector<MacroNode*> open_macros_;  // innermost last: told of caller, varargs and kwargs
  std::vector<Stmt*> open_loops_;        // told of `loop`
  bool inside_if_ = false;               // unknown filters and tests wait until they run
  std::vector<const Expr*> unknown_;     // filters and tests that nobody knows, outside of ifs

 private:
  Expr* ParseConditional();
  Expr* ParseOr();
  Expr* ParseAnd();
  Expr* ParseNot();
  Expr* ParseComparison();
  bool TakeComparison(Op& op);
  Expr* ParseSum();
  Expr* ParseConcat();
  Expr* ParseProduct();
  Expr* ParsePower();
  Expr* ParseUnary(bool with_filter);
  Expr* ParsePrimary(bool with_namespace = false);
  Expr* ParseName(bool with_namespace);
  Expr* ParseList();
  Expr* ParseDict();
  Expr* ParsePostfix(Expr* expr);
  Expr* ParseSubscript(Expr* expr);
  Expr* ParseSubscribed(Expr* object);
  Expr* ParseCall(Expr* callee);
  Expr* ParseFiltersAndTests(Expr* expr);
  Expr* ParseTest(Expr* input);
  ArgumentList ParseArguments();
  std::string ParseDottedName();
  void NoteName(std::string_view name);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace elasticmem::jinja
