// Answers as OpenAI's API has them: whole, or as the chunks of a stream.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "server/generator.h"

namespace elasticmem {

// What all chunks of an answer have in common.
struct AnswerHead {
  bool chat = false;
  std::string id;  // "chatcmpl-..." or "cmpl-..."
  int64_t created = 0;
  std::string model;
  const Tokenizer* tokenizer = nullptr;
};

struct Answer {
  std::string text;
  std::vector<TokenLogprobs> logprobs;
  GenerationEvent::End end;
};

// {prompt_tokens, completion_tokens, total_tokens, prompt_tokens_details {cached_tokens}} over all answers to a prompt.
nlohmann::ordered_json UsageJson(const std::vector<Answer>& answers);
// Of one answer, in milliseconds and tokens a second, under llama-server's names; and the time in the queue.
nlohmann::ordered_json TimingsJson(const GenerationUsage& usage);

nlohmann::ordered_json WholeAnswer(const AnswerHead& head, const std::vector<Answer>& answers);
// null where there are none. Of a chat: {content: [{token, logprob, bytes, top_logprobs}]}; of a completion: {tokens,
// token_logprobs, top_logprobs, text_offset}.
nlohmann::ordered_json LogprobsJson(const AnswerHead& head, const std::vector<TokenLogprobs>& logprobs);
// The first chunk of a chat's answer.
nlohmann::ordered_json RoleChunk(const AnswerHead& head, uint32_t index);
nlohmann::ordered_json TextChunk(const AnswerHead& head, uint32_t index, std::string_view text,
                                 const std::vector<TokenLogprobs>& logprobs = {});
nlohmann::ordered_json EndChunk(const AnswerHead& head, uint32_t index, const GenerationEvent::End& end);
nlohmann::ordered_json UsageChunk(const AnswerHead& head, const std::vector<Answer>& answers);

}  // namespace elasticmem
