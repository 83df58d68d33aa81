// A TOML file as a table.
#pragma once

#include <toml++/toml.h>

#include <string>

#include "base/status.h"

namespace elasticmem {

// Errors name the file, and the line that is no TOML.
StatusOr<toml::table> ReadTomlFile(const std::string& path);

}  // namespace elasticmem
