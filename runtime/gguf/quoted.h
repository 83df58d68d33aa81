// Names from files, made fit for an error message.
#pragma once

#include <string>
#include <string_view>

namespace elasticmem {

// `text` in double quotes; bytes outside printable ASCII as \xNN, and cut with "..." where it is long.
std::string Quoted(std::string_view text);

}  // namespace elasticmem
