// Chat templates: an interpreter for the part of Jinja that GGUF files use in tokenizer.chat_template.
// Semantics are those of Python's jinja2 as transformers sets it up (trim_blocks, lstrip_blocks, loop controls,
// generation blocks, tojson without HTML escapes, immutable sandbox). Statements: if, for (loop.*, else, inline if,
// recursive, break, continue), set (also blocks and namespace attributes), macro, call, filter, with, raw, generation;
// expressions with filters, tests, slices, ternaries, calls and methods. What it can't run is an error that names the
// construct and its line. Runs are bounded in steps, depth, memory and output bytes, so that no template hangs or
// exhausts the process.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace elasticmem {

// What one rendering may spend. The defaults leave room for thousands of messages.
struct TemplateLimits {
  uint64_t steps = 50'000'000;  // nodes evaluated, items made, and one for each 64 bytes of text worked on
  uint64_t string_bytes = uint64_t{64} << 20;   // any one string, the output included
  uint64_t memory_bytes = uint64_t{256} << 20;  // all strings alive and all containers made
  int depth = 1000;                             // nested evaluations (macro calls, nested values)
};

class ChatTemplate {
 public:
  // Parses `source`; syntax errors give line and what was expected.
  static StatusOr<ChatTemplate> Parse(std::string_view source);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // Renders with `context`'s keys as variables: messages, add_generation_prompt, bos_token, eos_token, tools, ...
  // raise_exception(message) becomes an error with that message. strftime_now uses `now` seconds since the epoch (UTC).
  StatusOr<std::string> Render(const nlohmann::ordered_json& context, int64_t now = 0,
                               const TemplateLimits& limits = {}) const;

 private:
  struct State;
  explicit ChatTemplate(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace elasticmem
