// The filters, in two tables: on text and numbers, and on sequences.
#pragma once

#include <string_view>

#include "runtime/text/jinja_builtins.h"

namespace elasticmem::jinja {

FilterFunction FindTextFilter(std::string_view name);
FilterFunction FindSequenceFilter(std::string_view name);

}  // namespace elasticmem::jinja
