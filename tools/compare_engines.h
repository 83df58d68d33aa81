// How each engine is called for the same work, and what it says about it afterwards. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/child_process.h"
#include "tools/compare_config.h"

namespace elasticmem {

// Greedy, as many tokens as asked whatever the text says. `budget_bytes`: elasticmem's --memory; `report`: the file
// that it writes its figures to.
std::vector<std::string> ArgumentsFor(const CompareConfig& config, const CompareEngine& engine,
                                      std::optional<uint64_t> budget_bytes, const std::string& report);

struct EngineFigures {
  uint64_t prompt_tokens = 0, generated_tokens = 0;
  double prefill_tokens_per_second = 0, decode_tokens_per_second = 0;
  double first_token_seconds = 0;  // from the start of the process, loading included
  std::string text;                // without the prompt
};

// From what the engine printed, and for elasticmem from its report, `report` holding the text of that file.
// Errors say what was not found.
StatusOr<EngineFigures> ReadFigures(const CompareConfig& config, const CompareEngine& engine, const ChildResult& result,
                                    const std::string& report);

// What is wrong with a text of which `figures` tell; nothing if it is sane: all its tokens, in UTF-8, not one character
// over and over.
std::optional<std::string> WhatIsWrongWith(const EngineFigures& figures, uint32_t asked_tokens);

}  // namespace elasticmem
