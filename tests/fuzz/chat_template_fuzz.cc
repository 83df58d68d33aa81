// Any bytes as a chat template over a fixed conversation: an error or a text, never a crash, a hang or runaway memory.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "runtime/text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto* context = new nlohmann::ordered_json(nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hé 日本"},
                 {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1.5}}}]},
                 {"role": "tool", "content": [{"type": "text", "text": "42"}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"items": [1, 2, true, -7]}}}],
    "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>", "n": 3, "x": 0.25})"));
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto parsed = elasticmem::ChatTemplate::Parse(source);
  if (!parsed.ok()) return 0;
  elasticmem::TemplateLimits limits;
  limits.steps = 100'000;
  limits.string_bytes = 1 << 20;
  limits.memory_bytes = 16 << 20;
  (void)parsed->Render(*context, 1'720'000'000, limits);
  return 0;
}
