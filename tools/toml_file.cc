#include "tools/toml_file.h"

#include <filesystem>

namespace elasticmem {

StatusOr<toml::table> ReadTomlFile(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return InvalidInput("{} is a folder, not a config file", path);
  try {
    return toml::parse_file(path);
  } catch (const toml::parse_error& parse_error) {
    return InvalidInput("{}:{}: {}", path, parse_error.source().begin.line, parse_error.description());
  }
}

}  // namespace elasticmem
