#include "server/api_request.h"

#include <charconv>
#include <cmath>
#include <limits>

namespace elasticmem {
namespace {

using Json = nlohmann::json;

constexpr int kMostLevels = 64;
constexpr uint32_t kMostAnswers = 16, kMostLogprobs = 20;
constexpr size_t kMostStops = 16, kLongestStop = 1024;

// Reads typed fields of an object; keeps the first thing that is wrong. null is as good as absent.
class Fields {
 public:
  Fields(const Json& object, std::string prefix = "") : object_(object), prefix_(std::move(prefix)) {}

  bool ok() const { return !error_; }
  const ApiError& error() const { return *error_; }
  void Fail(const std::string& name, std::string message) {
    if (!error_) error_ = BadField(prefix_ + name, std::move(message));
  }

  const Json* Find(const std::string& name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  void Read(const std::string& name, bool& out) {
    const Json* value = Find(name);
    if (!value) return;
    if (!value->is_boolean()) return Wrong(name, "true or false", *value);
    out = value->get<bool>();
  }
  void Read(const std::string& name, std::string& out) {
    const Json* value = Find(name);
    if (!value) return;
    if (!value->is_string()) return Wrong(name, "a string", *value);
    out = value->get<std::string>();
  }
  // A number from `low` to `high`.
  template <class T>
  void Read(const std::string& name, T& out, double low, double high)
    requires std::is_arithmetic_v<T>
  {
    const Json* value = Find(name);
    if (!value) return;
    constexpr bool kWhole = std::is_integral_v<T>;
    const double number = value->is_number() ? value->get<double>() : std::numeric_limits<double>::quiet_NaN();
    if (std::isnan(number) || (kWhole && number != std::floor(number))) {
      return Wrong(name, kWhole ? "a whole number" : "a number", *value);
    }
    if (number < low || number > high) {
      return Fail(name, fmt::format("\"{}\" is {}; expected {} to {}", prefix_ + name, Shown(*value), low, high));
    }
    // Whole numbers beyond 2^53 as they were written.
    out = kWhole && value->is_number_integer() ? value->get<T>() : static_cast<T>(number);
  }
  void Wrong(const std::string& name, const char* expected, const Json& value) {
    Fail(name, fmt::format("\"{}\" is {}; expected {}", prefix_ + name, Shown(value), expected));
  }

 private:
  static std::string Shown(const Json& value) {
    if (value.is_object()) return "an object";
    if (value.is_array()) return "an array";
    std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    return text.size() <= 64 ? text : text.substr(0, 61) + "...";
  }

  const Json& object_;
  const std::string prefix_;
  std::optional<ApiError> error_;
};

// What would change the answer, and is not to be had here, is refused and not passed over.
void Refuse(Fields& fields, const std::string& name, bool harmless) {
  if (fields.Find(name) && !harmless) fields.Fail(name, fmt::format("\"{}\" is not supported by this server", name));
}

void ReadStops(Fields& fields, std::vector<std::string>& stops) {
  const Json* stop = fields.Find("stop");
  if (!stop) return;
  const Json list = stop->is_array() ? *stop : Json::array({*stop});
  if (list.size() > kMostStops) {
    return fields.Fail("stop", fmt::format("\"stop\" has {} texts; {} at most", list.size(), kMostStops));
  }
  for (const Json& text : list) {
    if (!text.is_string()) return fields.Wrong("stop", "a string or an array of strings", text);
    if (text.get_ref<const std::string&>().size() > kLongestStop) {
      return fields.Fail("stop", fmt::format("a text of \"stop\" has more than {} bytes", kLongestStop));
    }
    stops.push_back(text.get<std::string>());
  }
}

// {"TOKEN ID": bias}
void ReadLogitBias(Fields& fields, size_t vocab, std::vector<std::pair<TokenId, float>>& out) {
  const Json* biases = fields.Find("logit_bias");
  if (!biases) return;
  if (!biases->is_object()) return fields.Wrong("logit_bias", "an object", *biases);
  for (const auto& [key, value] : biases->items()) {
    uint32_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id >= vocab) {
      return fields.Fail("logit_bias", fmt::format("\"logit_bias\" has \"{}\"; expected token ids from 0 to {}",
                                                   key.substr(0, 64), vocab - 1));
    }
    const double bias = value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
    if (!(bias >= -100 && bias <= 100)) return fields.Wrong("logit_bias." + key, "a number from -100 to 100", value);
    out.emplace_back(static_cast<TokenId>(id), static_cast<float>(bias));
  }
}

// What completions and chats share.
void ReadCommon(Fields& fields, const RequestContext& context, CompletionRequest& out) {
  constexpr double kAnyInt = std::numeric_limits<int32_t>::max();
  out.sampling = context.defaults;
  SamplingOptions& s = out.sampling;
  fields.Read("temperature", s.temperature, 0, 100);
  fields.Read("top_p", s.top_p, 0, 1);
  fields.Read("min_p", s.min_p, 0, 1);
  fields.Read("top_k", s.top_k, 0, kAnyInt);
  if (s.top_p == 0) s.top_p = s.top_k = 1;  // the likeliest alone
  fields.Read("frequency_penalty", s.frequency_penalty, -2, 2);
  fields.Read("presence_penalty", s.presence_penalty, -2, 2);
  fields.Read("repeat_penalty", s.repeat_penalty, 0.01, 100);
  fields.Read("repeat_last_n", s.penalty_window, -1, kAnyInt);
  fields.Read("n", out.n, 1, kMostAnswers);
  if (fields.Find("seed")) {
    int64_t seed = 0;
    fields.Read("seed", seed, -9.2e18, 9.2e18);
    out.seed = static_cast<uint64_t>(seed);
  }
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    if (!fields.Find(name)) continue;
    uint32_t most = 0;
    fields.Read(name, most, 1, kAnyInt);
    out.max_tokens = most;
  }
  fields.Read("stream", out.stream);
  fields.Read("ignore_eos", out.ignore_eos);
  std::string user;
  fields.Read("user", user);
  ReadStops(fields, out.stops);
  ReadLogitBias(fields, context.tokenizer->vocab_size(), s.logit_bias);
  if (const Json* options = fields.Find("stream_options")) {
    if (!options->is_object()) return fields.Wrong("stream_options", "an object", *options);
    Fields inner(*options, "stream_options.");
    inner.Read("include_usage", out.include_usage);
    if (!inner.ok()) return fields.Fail("stream_options.include_usage", inner.error().message);
  }
  const auto is = [&](const char* name, const Json& value) {
    const Json* found = fields.Find(name);
    return found && *found == value;
  };
  const Json* format = fields.Find("response_format");
  Refuse(fields, "response_format", format && format->is_object() && format->value("type", Json()) == "text");
  Refuse(fields, "tools", is("tools", Json::array()));
  Refuse(fields, "tool_choice", is("tool_choice", "none"));
}

// A message's content: a string, or parts of type "text".
std::optional<std::string> ContentOf(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return std::nullopt;
  std::string text;
  for (const Json& part : content) {
    if (!part.is_object() || part.value("type", Json()) != "text" || !part.value("text", Json()).is_string()) {
      return std::nullopt;
    }
    text += part["text"].get<std::string>();
  }
  return text;
}

void ReadMessages(Fields& fields, ChatPrompt& chat) {
  const Json* messages = fields.Find("messages");
  if (!messages) return fields.Fail("messages", "\"messages\" is missing");
  if (!messages->is_array()) return fields.Wrong("messages", "an array", *messages);
  if (messages->empty()) return fields.Fail("messages", "\"messages\" is empty; expected one message at least");
  for (size_t i = 0; i < messages->size(); ++i) {
    const Json& message = (*messages)[i];
    const std::string at = fmt::format("messages[{}]", i);
    if (!message.is_object()) return fields.Wrong(at, "an object", message);
    Fields inner(message, at + ".");
    std::string role;
    inner.Read("role", role);
    if (inner.ok() && role != "system" && role != "developer" && role != "user" && role != "assistant") {
      inner.Fail("role", fmt::format("\"{}.role\" is \"{}\"; expected system, developer, user or assistant", at, role));
    }
    const Json* content = inner.Find("content");
    std::optional<std::string> text;
    if (inner.ok() && content) text = ContentOf(*content);
    if (inner.ok() && !text) {
      inner.Fail("content", fmt::format("\"{}.content\" is to be a string, or an array of parts of type \"text\"", at));
    }
    if (!inner.ok()) return fields.Fail(inner.error().param, inner.error().message);
    chat.AddMessage(role == "developer" ? "system" : role, *text);
  }
}

// Text, or token ids.
void ReadPrompt(Fields& fields, const Tokenizer& tokenizer, CompletionRequest& out) {
  const Json* prompt = fields.Find("prompt");
  if (!prompt) return fields.Fail("prompt", "\"prompt\" is missing");
  const Json& one = prompt->is_array() && prompt->size() == 1 && !prompt->front().is_number() ? prompt->front() : *prompt;
  if (one.is_string()) {
    out.prompt_text = one.get<std::string>();
    out.prompt = tokenizer.Encode(out.prompt_text, {});
    if (out.prompt.empty()) fields.Fail("prompt", "\"prompt\" is empty");
    return;
  }
  if (!one.is_array()) return fields.Wrong("prompt", "a string or an array of token ids", one);
  if (one.empty()) return fields.Fail("prompt", "\"prompt\" is empty");
  for (const Json& id : one) {
    if (!id.is_number_integer()) return fields.Wrong("prompt", "a string or an array of token ids", id);
    if (id < 0 || id >= tokenizer.vocab_size()) {
      return fields.Fail("prompt", fmt::format("\"prompt\" has the token id {}; the model has 0 to {}", id.dump(),
                                               tokenizer.vocab_size() - 1));
    }
    out.prompt.push_back(id.get<TokenId>());
  }
  out.prompt_text = tokenizer.Decode(out.prompt);
}

}  // namespace

OrApiError<Json> ParseBody(std::string_view body) {
  bool deep = false;
  const auto level = [&](int depth, Json::parse_event_t, Json&) {
    if (depth <= kMostLevels) return true;
    deep = true;
    return false;
  };
  try {
    Json json = Json::parse(body, level);
    if (deep) return BadField("", fmt::format("the body is nested deeper than {} levels", kMostLevels));
    if (!json.is_object()) return BadField("", "the body is to be a JSON object");
    return json;
  } catch (const Json::exception& error) {
    return BadField("", fmt::format("the body is not JSON: {}", error.what()));
  }
}

OrApiError<CompletionRequest> ParseCompletion(const Json& body, const RequestContext& context) {
  CompletionRequest out;
  Fields fields(body);
  ReadCommon(fields, context, out);
  fields.Read("echo", out.echo);
  if (fields.Find("logprobs")) fields.Read("logprobs", out.logprobs.emplace(), 0, kMostLogprobs);
  if (out.echo && out.logprobs) fields.Fail("logprobs", "\"logprobs\" with \"echo\" is not supported by this server");
  Refuse(fields, "suffix", false);
  if (const Json* best_of = fields.Find("best_of"); best_of && *best_of != out.n) Refuse(fields, "best_of", false);
  if (fields.ok()) ReadPrompt(fields, *context.tokenizer, out);
  if (!fields.ok()) return fields.error();
  return out;
}

OrApiError<CompletionRequest> ParseChatCompletion(const Json& body, const RequestContext& context) {
  CompletionRequest out;
  out.chat = true;
  Fields fields(body);
  ReadCommon(fields, context, out);
  bool logprobs = false;
  fields.Read("logprobs", logprobs);
  if (logprobs) out.logprobs = 0;
  if (fields.Find("top_logprobs")) {
    uint32_t top = 0;
    fields.Read("top_logprobs", top, 0, kMostLogprobs);
    if (!logprobs) fields.Fail("top_logprobs", "\"top_logprobs\" wants \"logprobs\": true beside it");
    out.logprobs = top;
  }
  if (!fields.ok()) return fields.error();
  if (!context.chat) {
    return BadField("messages", "this model's file has no chat template; ask /v1/completions with a prompt");
  }
  ChatPrompt chat = context.chat->Empty();
  ReadMessages(fields, chat);
  if (!fields.ok()) return fields.error();
  StatusOr<std::vector<TokenId>> ids = chat.Encode();
  if (!ids.ok()) return BadField("messages", std::string(Message(ids.status())));
  out.prompt = *std::move(ids);
  return out;
}

OrApiError<TokenizeRequest> ParseTokenize(const Json& body) {
  TokenizeRequest out;
  Fields fields(body);
  if (!fields.Find("content")) fields.Fail("content", "\"content\" is missing");
  fields.Read("content", out.content);
  fields.Read("add_special", out.add_special);
  fields.Read("parse_special", out.parse_special);
  fields.Read("with_pieces", out.with_pieces);
  if (!fields.ok()) return fields.error();
  return out;
}

OrApiError<std::vector<TokenId>> ParseDetokenize(const Json& body, size_t vocab) {
  Fields fields(body);
  const Json* tokens = fields.Find("tokens");
  if (!tokens || !tokens->is_array()) return BadField("tokens", "\"tokens\" is to be an array of token ids");
  std::vector<TokenId> ids;
  for (const Json& id : *tokens) {
    if (!id.is_number_integer() || id < 0 || id >= vocab) {
      return BadField("tokens", fmt::format("\"tokens\" has {}; expected token ids from 0 to {}",
                                            id.dump(-1, ' ', false, Json::error_handler_t::replace), vocab - 1));
    }
    ids.push_back(id.get<TokenId>());
  }
  return ids;
}

}  // namespace elasticmem
