// Chat templates: an interpreter for the part of Jinja that GGUF files use in tokenizer.chat_template.
// Statements: if/elif/else, for (with loop.*, else, inline if, recursive not), set (also blocks and namespace attributes),
// macro, generation blocks; expressions with filters, tests, slices, ternaries, calls and methods. What it can't run is an
// error that names the construct and its line. Runs are bounded in steps, depth and output bytes, so that no template
// hangs or exhausts the process.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "base/status.h"

namespace elasticmem {

class ChatTemplate {
 public:
  // Parses `source`; syntax errors give line and what was expected.
  static StatusOr<ChatTemplate> Parse(std::string_view source);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // Renders with `context`'s keys as variables: messages, add_generation_prompt, bos_token, eos_token, tools, ...
  // raise_exception(message) becomes an error with that message. strftime_now uses `now` seconds since the epoch (UTC).
  StatusOr<std::string> Render(const nlohmann::ordered_json& context, int64_t now = 0) const;

 private:
  struct State;
  explicit ChatTemplate(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace elasticmem
