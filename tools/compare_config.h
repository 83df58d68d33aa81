// What a comparison is to do: a TOML file of engines, memory limits and one piece of work that all of them get.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace elasticmem {

enum class EngineKind { kElasticMem, kLlamaCpp, kIkLlamaCpp, kPowerInfer };
std::string_view NameOf(EngineKind kind);

struct CompareEngine {
  std::string name;
  EngineKind kind = EngineKind::kElasticMem;
  std::string binary;             // elasticmem: this program, unless it names another
  std::string model;              // default: the plain file
  std::string conversion;         // how the model was made of the plain file, where it is another
  std::string mode;               // elasticmem: --mode
  std::vector<std::string> args;  // more of its own options
};

// Of memory; without a percentage none is set.
struct CompareLimit {
  std::string label;              // as the file has it
  std::optional<double> percent;  // of the plain file
};

struct CompareConfig {
  std::string plain;  // the model in the form that limits are shares of
  uint64_t plain_bytes = 0;
  std::string prompt;
  uint32_t threads = 0;
  uint32_t context = 512, generate = 32, repeat = 1, timeout_seconds = 600;
  uint64_t seed = 1;
  std::vector<CompareLimit> limits;
  std::vector<CompareEngine> engines;
  std::string output = "compare";  // .json, .md and .svg are added

  std::optional<uint64_t> LimitBytes(const CompareLimit& limit) const;
};

// Paths in the file are relative to its folder, `output` to the working folder. Errors name the file, line and column
// of what is unknown, missing or out of range. Whether binaries are there is not checked: one that is absent is a
// result.
StatusOr<CompareConfig> ReadCompareConfig(const std::string& path);

}  // namespace elasticmem
