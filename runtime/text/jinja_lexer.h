// Splits a template into tokens as jinja2's lexer does with trim_blocks, lstrip_blocks and keep_trailing_newline off:
// all whitespace control happens here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/jinja_value.h"

namespace elasticmem::jinja {

enum class TokenKind : uint8_t {
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind;
  int line;
  std::string text;  // data, name, the decoded string, or the operator's characters
  Value number;      // of kInteger and kFloat
  bool Is(TokenKind k, std::string_view t) const { return kind == k && text == t; }
  bool IsName(std::string_view t) const { return Is(TokenKind::kName, t); }
  bool IsOperator(std::string_view t) const { return Is(TokenKind::kOperator, t); }
};

// As people know it: "end of print statement", a name, an operator.
std::string Describe(const Token& token);

// The tokens, the last being kEnd. Throws TemplateError with a line.
std::vector<Token> Tokenize(std::string_view source);

}  // namespace elasticmem::jinja
