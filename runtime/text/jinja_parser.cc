#include "runtime/text/jinja_parser.h"

#include <algorithm>

#include "runtime/text/jinja_expression_parser.h"
#include "runtime/text/jinja_lexer.h"

namespace elasticmem::jinja {
namespace {

constexpr size_t kMaxSourceBytes = size_t{4} << 20;

class Parser : ExpressionParser {
 public:
  Parser(Program& program, std::string_view source) : ExpressionParser(program, Tokenize(source)) {}

  void Run() {
    program_.body = ParseUntil({});
    if (!unknown_.empty()) {
      const Expr& first = *unknown_.front();
      throw TemplateError{
          StatusCode::kUnimplemented,
          fmt::format("there is no {} named '{}'", first.kind == ExprKind::kFilter ? "filter" : "test", first.name),
          first.line};
    }
  }

 private:
  using Names = std::initializer_list<std::string_view>;

  Stmt* NewStmt(StmtKind kind, int line) {
    Stmt* stmt = &program_.stmts.emplace_back();
    stmt->kind = kind;
    stmt->line = line;
    return stmt;
  }

  // Text, prints and statements up to a block whose tag is one of `ends` (which stays the current token).
  Body ParseUntil(Names ends) {
    const Nested nested(*this);
    Body body;
    while (current().kind != TokenKind::kEnd) {
      const Token& token = Take();
      if (token.kind == TokenKind::kData) {
        Stmt* text = NewStmt(StmtKind::kText, token.line);
        text->text = ConstantString(token.text);
        body.push_back(text);
      } else if (token.kind == TokenKind::kVariableBegin) {
        Stmt* print = NewStmt(StmtKind::kPrint, token.line);
        print->value = ParseTuple();
        ExpectKind(TokenKind::kVariableEnd, "end of print statement");
        body.push_back(print);
      } else {
        if (std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return current().IsName(end); }))
          return body;
        ParseStatement(body, ends);
        ExpectKind(TokenKind::kBlockEnd, "end of statement block");
      }
    }
    if (ends.size() > 0) FailAt(current().line, "Unexpected end of template; '{}' is missing", *(ends.end() - 1));
    return body;
  }

  // The rest of a statement's opening block, its body, and (unless several are possible) its closing tag.
  Body ParseBody(Names ends) {
    SkipOperator(":");
    ExpectKind(TokenKind::kBlockEnd, "end of statement block");
    Body body = ParseUntil(ends);
    if (ends.size() == 1) Take();
    return body;
  }

  // ParseBody with unknown filters known to be errors at once: jinja2 checks them when it compiles, ifs excepted.
  Body ParseInnerBody(Names ends) {
    const bool outer = std::exchange(inside_if_, false);
    Body body = ParseBody(ends);
    inside_if_ = outer;
    return body;
  }

  // Also leaves the loops: a break in here can't reach them.
  Body ParseFunctionBody(std::string_view end) {
    const int outer = std::exchange(loops_, 0);
    Body body = ParseInnerBody({end});
    loops_ = outer;
    return body;
  }

  void ParseStatement(Body& body, Names ends) {
    const Token& tag = current();
    if (tag.kind != TokenKind::kName) FailAt(tag.line, "tag name expected, got '{}'", Describe(tag));
    using Parse = Stmt* (Parser::*)(int line);
    static constexpr std::pair<std::string_view, Parse> kStatements[] = {
        {"for", &Parser::ParseFor},        {"if", &Parser::ParseIf},
        {"set", &Parser::ParseSet},        {"macro", &Parser::ParseMacro},
        {"call", &Parser::ParseCallBlock}, {"filter", &Parser::ParseFilterBlock},
        {"with", &Parser::ParseWith},      {"generation", &Parser::ParseGeneration},
        {"break", &Parser::ParseBreak},    {"continue", &Parser::ParseContinue}};
    for (const auto& [name, parse] : kStatements) {
      if (tag.text != name) continue;
      Take();
      body.push_back((this->*parse)(tag.line));
      return;
    }
    if (tag.text == "print") {
      ParsePrint(body);
      return;
    }
    for (const std::string_view name : {"block", "extends", "include", "import", "from", "autoescape"}) {
      if (tag.text == name)
        throw TemplateError{StatusCode::kUnimplemented, fmt::format("the statement '{}' is not supported", name),
                            tag.line};
    }
    if (ends.size() > 0) {
      FailAt(tag.line, "Encountered unknown tag '{}'; '{}' is still open", tag.text, *(ends.end() - 1));
    }
    FailAt(tag.line, "Encountered unknown tag '{}'", tag.text);
  }

  void ParsePrint(Body& body) {
    const int line = Take().line;
    for (bool first = true; current().kind != TokenKind::kBlockEnd; first = false) {
      if (!first) ExpectOperator(",");
      Stmt* print = NewStmt(StmtKind::kPrint, line);
      print->value = ParseExpression();
      body.push_back(print);
    }
  }

  void CheckNotLoop(const Expr* target) const {
    for (const Expr* child : target->children) CheckNotLoop(child);
    if (target->kind == ExprKind::kName && target->name == "loop") {
      FailAt(target->line, "Can't assign to special loop variable in for-loop target");
    }
  }

  Stmt* ParseFor(int line) {
    Stmt* loop = NewStmt(StmtKind::kFor, line);
    loop->target = ParseTarget("in", false);
    CheckNotLoop(loop->target);
    if (!SkipName("in")) FailAt(current().line, "expected token 'in', got '{}'", Describe(current()));
    loop->value = ParseTuple(TupleMode::kNoConditional, "recursive");
    const bool outer = std::exchange(inside_if_, false);
    if (SkipName("if")) loop->test = ParseExpression();
    inside_if_ = outer;
    loop->recursive = SkipName("recursive");
    open_loops_.push_back(loop);
    ++loops_;
    loop->body = ParseInnerBody({"else", "endfor"});
    --loops_;
    open_loops_.pop_back();
    if (Take().IsName("else")) loop->otherwise = ParseInnerBody({"endfor"});
    if (loop->recursive) {
      loop->uses_loop = true;
      program_.Intern("loop");
    }
    return loop;
  }

  Stmt* ParseIf(int line) {
    const bool outer = std::exchange(inside_if_, true);
    Stmt* stmt = NewStmt(StmtKind::kIf, line);
    while (true) {
      Expr* test = ParseTuple(TupleMode::kNoConditional);
      stmt->branches.emplace_back(test, ParseBody({"elif", "else", "endif"}));
      const Token& tag = Take();
      if (tag.IsName("elif")) continue;
      if (tag.IsName("else")) stmt->otherwise = ParseBody({"endif"});
      break;
    }
    inside_if_ = outer;
    return stmt;
  }

  Stmt* ParseSet(int line) {
    Expr* target = ParseTarget("", true);
    if (!open_loops_.empty()) CheckNotLoop(target);
    if (SkipOperator("=")) {
      Stmt* set = NewStmt(StmtKind::kSet, line);
      set->target = target;
      set->value = ParseTuple();
      return set;
    }
    Stmt* set = NewStmt(StmtKind::kSetBlock, line);
    set->target = target;
    const bool outer = std::exchange(inside_if_, false);
    if (current().IsOperator("|")) set->value = ParseFilters(nullptr, false);
    inside_if_ = outer;
    set->body = ParseInnerBody({"endset"});
    return set;
  }

  void ParseSignature(MacroNode* macro) {
    ExpectOperator("(");
    for (bool first = true; !current().IsOperator(")"); first = false) {
      if (!first) ExpectOperator(",");
      const Expr* name = ParseNameTarget();
      for (const auto& other : macro->parameters) {
        if (other.name == name->name) FailAt(name->line, "the parameter '{}' occurs twice", name->name);
      }
      Expr* default_value = nullptr;
      if (SkipOperator("=")) {
        const bool outer = std::exchange(inside_if_, false);
        default_value = ParseExpression();
        inside_if_ = outer;
      } else if (!macro->parameters.empty() && macro->parameters.back().default_value != nullptr) {
        FailAt(name->line, "non-default argument follows default argument");
      }
      macro->parameters.push_back({name->name, name->symbol, default_value});
    }
    ExpectOperator(")");
  }

  void ParseMacroBody(MacroNode* macro, int line, std::string_view end) {
    open_macros_.push_back(macro);
    macro->body = ParseFunctionBody(end);
    open_macros_.pop_back();
    for (const auto& parameter : macro->parameters) {  // declared ones are ordinary parameters
      if (parameter.name == "kwargs") macro->uses_kwargs = false;
      if (parameter.name == "varargs") macro->uses_varargs = false;
      if (parameter.name != "caller") continue;
      if (macro->uses_caller && parameter.default_value == nullptr) {
        FailAt(line,
               "When defining macros or call blocks the special \"caller\" argument must be omitted or be given a "
               "default.");
      }
      macro->uses_caller = false;
    }
  }

  Stmt* ParseMacro(int line) {
    Stmt* stmt = NewStmt(StmtKind::kMacro, line);
    stmt->target = ParseNameTarget();
    stmt->macro = &program_.macros.emplace_back();
    stmt->macro->name = stmt->target->name;
    ParseSignature(stmt->macro);
    ParseMacroBody(stmt->macro, line, "endmacro");
    return stmt;
  }

  Stmt* ParseCallBlock(int line) {
    Stmt* stmt = NewStmt(StmtKind::kCallBlock, line);
    stmt->macro = &program_.macros.emplace_back();
    stmt->macro->name = "caller";
    if (current().IsOperator("(")) ParseSignature(stmt->macro);
    stmt->value = ParseExpression();
    if (stmt->value->kind != ExprKind::kCall) FailAt(line, "expected call");
    ParseMacroBody(stmt->macro, line, "endcall");
    return stmt;
  }

  Stmt* ParseFilterBlock(int line) {
    Stmt* stmt = NewStmt(StmtKind::kFilterBlock, line);
    const bool outer = std::exchange(inside_if_, false);
    stmt->value = ParseFilters(nullptr, true);
    inside_if_ = outer;
    stmt->body = ParseInnerBody({"endfilter"});
    return stmt;
  }

  Stmt* ParseWith(int line) {
    Stmt* stmt = NewStmt(StmtKind::kWith, line);
    while (current().kind != TokenKind::kBlockEnd) {
      if (!stmt->assignments.empty()) ExpectOperator(",");
      Expr* target = ParseTarget("", false);
      ExpectOperator("=");
      stmt->assignments.emplace_back(target, ParseExpression());
    }
    stmt->body = ParseInnerBody({"endwith"});
    return stmt;
  }

  Stmt* ParseGeneration(int line) {
    Stmt* stmt = NewStmt(StmtKind::kGeneration, line);
    stmt->body = ParseFunctionBody("endgeneration");
    return stmt;
  }

  Stmt* ParseBreak(int line) {
    if (loops_ == 0) FailAt(line, "'break' outside loop");
    return NewStmt(StmtKind::kBreak, line);
  }

  Stmt* ParseContinue(int line) {
    if (loops_ == 0) FailAt(line, "'continue' outside loop");
    return NewStmt(StmtKind::kContinue, line);
  }

  int loops_ = 0;  // open in this function
};

}  // namespace

std::unique_ptr<Program> ParseTemplate(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    Fail("the template has {} bytes; at most {} are read", source.size(), kMaxSourceBytes);
  }
  auto program = std::make_unique<Program>();
  Parser(*program, source).Run();
  return program;
}

}  // namespace elasticmem::jinja
