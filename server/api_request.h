// Requests as OpenAI's API has them, read strictly: a known field of a wrong type or out of range is an error that names
// it; unknown fields are passed over.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/engine/sampler.h"
#include "runtime/text/chat_prompt.h"
#include "server/api_error.h"

namespace elasticmem {

// A body as JSON. Errors: what is no JSON (where and why), deeper than 64 levels, no object.
OrApiError<nlohmann::json> ParseBody(std::string_view body);

struct CompletionRequest {
  bool chat = false;
  std::vector<TokenId> prompt;
  std::string prompt_text;                // of a completion that was given as text, for echo
  std::optional<uint32_t> max_tokens;     // unset: as many as the context has room for
  uint32_t n = 1;                         // answers, each with a seed of its own
  SamplingOptions sampling;
  std::optional<uint64_t> seed;           // unset: by chance
  std::vector<std::string> stops;
  std::optional<uint32_t> logprobs;       // each token's, and those of so many of the likeliest
  bool stream = false, include_usage = false, ignore_eos = false, echo = false;
};

// What a request is read with. `chat` has no messages; null where the model has no template.
struct RequestContext {
  const Tokenizer* tokenizer;
  const ChatPrompt* chat;
  SamplingOptions defaults;
};

OrApiError<CompletionRequest> ParseCompletion(const nlohmann::json& body, const RequestContext& context);
OrApiError<CompletionRequest> ParseChatCompletion(const nlohmann::json& body, const RequestContext& context);

struct TokenizeRequest {
  std::string content;
  bool add_special = false, parse_special = true, with_pieces = false;
};
OrApiError<TokenizeRequest> ParseTokenize(const nlohmann::json& body);
// Ids below `vocab`.
OrApiError<std::vector<TokenId>> ParseDetokenize(const nlohmann::json& body, size_t vocab);

}  // namespace elasticmem
