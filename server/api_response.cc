#include "server/api_response.h"

namespace elasticmem {
namespace {

using Json = nlohmann::ordered_json;

Json Body(const AnswerHead& head, bool chunk) {
  const char* object = !head.chat ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion";
  return {{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
}

Json Chunk(const AnswerHead& head, uint32_t index, Json delta, std::string_view text, Json logprobs, Json finish_reason) {
  Json choice = {{"index", index}};
  if (head.chat) {
    choice["delta"] = std::move(delta);
  } else {
    choice["text"] = text;
  }
  choice["logprobs"] = std::move(logprobs);
  choice["finish_reason"] = std::move(finish_reason);
  Json body = Body(head, true);
  body["choices"] = Json::array({std::move(choice)});
  return body;
}

}  // namespace

Json UsageJson(const std::vector<Answer>& answers) {
  uint64_t generated = 0;
  uint32_t prompt = 0, cached = 0;
  for (const Answer& answer : answers) {
    generated += answer.end.usage.generated_tokens;
    prompt = std::max(prompt, answer.end.usage.prompt_tokens);
    cached = std::max(cached, answer.end.usage.cached_tokens);
  }
  return {{"prompt_tokens", prompt},
          {"completion_tokens", generated},
          {"total_tokens", prompt + generated},
          {"prompt_tokens_details", {{"cached_tokens", cached}}}};
}

Json TimingsJson(const GenerationUsage& usage) {
  const uint32_t read = usage.prompt_tokens - usage.cached_tokens;
  const uint32_t decoded = usage.generated_tokens > 0 ? usage.generated_tokens - 1 : 0;  // the first comes of the prompt
  const auto rate = [](uint32_t tokens, double seconds) { return seconds > 0 ? tokens / seconds : 0.0; };
  return {{"queue_ms", usage.queue_seconds * 1e3},
          {"cache_n", usage.cached_tokens},
          {"prompt_n", read},
          {"prompt_ms", usage.prefill_seconds * 1e3},
          {"prompt_per_second", rate(read, usage.prefill_seconds)},
          {"predicted_n", usage.generated_tokens},
          {"predicted_ms", usage.decode_seconds * 1e3},
          {"predicted_per_second", rate(decoded, usage.decode_seconds)}};
}

Json LogprobsJson(const AnswerHead& head, const std::vector<TokenLogprobs>& logprobs) {
  if (logprobs.empty()) return nullptr;
  const auto text = [&](TokenId id) { return head.tokenizer->TokenBytes(id, /*special=*/true); };
  if (head.chat) {
    const auto entry = [&](const TokenLogprob& of) {
      const std::string bytes = text(of.token);
      Json json = {{"token", bytes}, {"logprob", of.logprob}, {"bytes", Json::array()}};
      for (const char byte : bytes) json["bytes"].push_back(static_cast<unsigned char>(byte));
      return json;
    };
    Json content = Json::array();
    for (const TokenLogprobs& token : logprobs) {
      Json json = entry(token.chosen);
      json["top_logprobs"] = Json::array();
      for (const TokenLogprob& top : token.top) json["top_logprobs"].push_back(entry(top));
      content.push_back(std::move(json));
    }
    return {{"content", std::move(content)}};
  }
  Json json = {{"tokens", Json::array()},
               {"token_logprobs", Json::array()},
               {"top_logprobs", Json::array()},
               {"text_offset", Json::array()}};
  size_t offset = 0;
  for (const TokenLogprobs& token : logprobs) {
    const std::string bytes = text(token.chosen.token);
    json["tokens"].push_back(bytes);
    json["token_logprobs"].push_back(token.chosen.logprob);
    Json tops = Json::object();
    for (const TokenLogprob& top : token.top) tops[text(top.token)] = top.logprob;
    json["top_logprobs"].push_back(std::move(tops));
    json["text_offset"].push_back(offset);
    offset += bytes.size();
  }
  return json;
}

Json WholeAnswer(const AnswerHead& head, const std::vector<Answer>& answers) {
  Json body = Body(head, false);
  body["choices"] = Json::array();
  for (uint32_t i = 0; i < answers.size(); ++i) {
    Json choice = {{"index", i}};
    if (head.chat) {
      choice["message"] = {{"role", "assistant"}, {"content", answers[i].text}};
    } else {
      choice["text"] = answers[i].text;
    }
    choice["logprobs"] = LogprobsJson(head, answers[i].logprobs);
    choice["finish_reason"] = answers[i].end.reason;
    body["choices"].push_back(std::move(choice));
  }
  body["usage"] = UsageJson(answers);
  body["timings"] = TimingsJson(answers.front().end.usage);
  return body;
}

Json RoleChunk(const AnswerHead& head, uint32_t index) {
  return Chunk(head, index, {{"role", "assistant"}, {"content", ""}}, "", nullptr, nullptr);
}

Json TextChunk(const AnswerHead& head, uint32_t index, std::string_view text,
               const std::vector<TokenLogprobs>& logprobs) {
  return Chunk(head, index, {{"content", text}}, text, LogprobsJson(head, logprobs), nullptr);
}

Json EndChunk(const AnswerHead& head, uint32_t index, const GenerationEvent::End& end) {
  Json body = Chunk(head, index, Json::object(), "", nullptr, end.reason);
  body["timings"] = TimingsJson(end.usage);
  return body;
}

Json UsageChunk(const AnswerHead& head, const std::vector<Answer>& answers) {
  Json body = Body(head, true);
  body["choices"] = Json::array();
  body["usage"] = UsageJson(answers);
  return body;
}

}  // namespace elasticmem
