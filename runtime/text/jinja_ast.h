// The parsed template. Nodes live in the Program that made them and point at each other; depth is bounded by the
// parser.
#pragma once

#include <deque>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/text/jinja_value.h"

namespace elasticmem::jinja {

class Interpreter;
struct Expr;
struct Stmt;
using Body = std::vector<Stmt*>;
using Symbol = uint32_t;  // index into Program::names

// Arguments as they arrive at a callable.
struct Arguments {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;
};

using FilterFunction = Value (*)(Interpreter&, const Value& input, Arguments& arguments);
using TestFunction = bool (*)(Interpreter&, const Value& input, Arguments& arguments);

enum class Op : uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn
};

// Arguments as they stand in the template: f(a, b, name=c, *d, **e).
struct ArgumentList {
  std::vector<Expr*> positional;
  std::vector<std::pair<std::string, Expr*>> named;
  Expr* star = nullptr;
  Expr* star_star = nullptr;
};

enum class ExprKind : uint8_t {
  kConstant,      // constant
  kName,          // symbol
  kNamespaceRef,  // children[0] . name, as a target of set
  kTuple,         // children
  kList,          // children
  kDict,          // children: key, value, key, value, ...
  kAttribute,     // children[0] . name
  kItem,          // children[0] [ children[1] ]
  kSlice,         // children[0] [ children[1] : children[2] : children[3] ], the last three may be null
  kCall,          // children[0] ( arguments )
  kFilter,        // children[0] | name ( arguments ); children[0] null: the block's text
  kTest,          // children[0] is name ( arguments )
  kNot,           // not children[0]
  kNegative,      // - children[0]
  kPositive,      // + children[0]
  kAnd,           // children[0] and children[1]
  kOr,            // children[0] or children[1]
  kBinary,        // children[0] ops[0] children[1]
  kCompare,       // children[0] ops[0] children[1] ops[1] children[2] ...
  kConcat,        // children[0] ~ children[1] ~ ...
  kConditional,   // children[1] if children[0] else children[2] (may be null)
};

struct Expr {
  ExprKind kind;
  int line = 0;
  int depth = 1;  // 1 + that of the deepest child
  Symbol symbol = 0;
  std::string name;
  Value constant;
  std::vector<Expr*> children;
  std::vector<Op> ops;
  ArgumentList arguments;
  FilterFunction filter = nullptr;  // null: unknown, an error when it runs
  TestFunction test = nullptr;
};

// A macro, or the body of a call block.
struct MacroNode {
  std::string name;
  struct Parameter {
    std::string name;
    Symbol symbol;
    Expr* default_value;  // or null
  };
  std::vector<Parameter> parameters;
  Body body;
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
};

enum class StmtKind : uint8_t {
  kText,
  kPrint,
  kIf,
  kFor,
  kSet,
  kSetBlock,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kWith,
  kGeneration,
  kBreak,
  kContinue
};

struct Stmt {
  StmtKind kind;
  int line = 0;
  Value text;              // kText
  Expr* target = nullptr;  // kFor, kSet, kSetBlock, kMacro's name
  Expr* value = nullptr;   // kPrint, kFor's iterable, kSet, kCallBlock's call, the filter of kSetBlock and kFilterBlock
  Expr* test = nullptr;    // kFor
  bool recursive = false;  // kFor
  bool uses_loop = false;  // kFor: the body may ask for `loop`
  std::vector<std::pair<Expr*, Body>> branches;      // kIf
  std::vector<std::pair<Expr*, Expr*>> assignments;  // kWith: target, value
  Body body;
  Body otherwise;  // else of kIf and kFor
  MacroNode* macro = nullptr;
};

struct Program {
  Body body;
  std::vector<std::string> names;  // by Symbol
  std::unordered_map<std::string, Symbol> symbols;
  std::deque<Expr> exprs;
  std::deque<Stmt> stmts;
  std::deque<MacroNode> macros;

  Symbol Intern(std::string_view name) {
    const auto [it, added] = symbols.emplace(std::string(name), static_cast<Symbol>(names.size()));
    if (added) names.emplace_back(name);
    return it->second;
  }
};

}  // namespace elasticmem::jinja
