// Template source to Program, with jinja2's grammar and its errors.
#pragma once

#include <memory>
#include <string_view>

#include "runtime/text/jinja_ast.h"

namespace elasticmem::jinja {

// Throws TemplateError with the line: syntax errors, statements that are not supported, unknown filters and tests
// (those inside an `if` only fail when they run, as in jinja2), nesting deeper than we can run.
std::unique_ptr<Program> ParseTemplate(std::string_view source);

}  // namespace elasticmem::jinja
