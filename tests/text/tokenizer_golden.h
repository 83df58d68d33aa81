// Reads the golden files' tokenizer cases: {"tokenizer": [{"text": ..., "ids": [...]}, ...]}.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/text/token_id.h"

namespace elasticmem {

struct TokenizerCase {
  std::string text;
  std::vector<TokenId> ids;
};

// `name`: a file in tests/golden.
inline std::vector<TokenizerCase> ReadTokenizerCases(const std::string& name) {
  std::ifstream file(std::string(EM_SOURCE_DIR "/tests/golden/") + name);
  std::vector<TokenizerCase> cases;
  const auto golden = nlohmann::json::parse(file);
  for (const auto& c : golden.at("tokenizer")) cases.push_back({c.at("text"), c.at("ids")});
  return cases;
}

}  // namespace elasticmem
