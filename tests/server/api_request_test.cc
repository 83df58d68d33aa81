// Requests: what is wrong is refused with the name of the field; what is right means what OpenAI's API says.
#include "server/api_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "runtime/model/model.h"

namespace elasticmem {
namespace {

using ::testing::HasSubstr;

class ApiRequest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto model = Model::Open(std::string(EM_SOURCE_DIR) + "/models/tales-q8_0.gguf", {});
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = std::move(*model).release();
    auto chat = ChatPrompt::Create(
        model_->tokenizer(),
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system comes first') }}"
        "{% endif %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]");
    ASSERT_TRUE(chat.ok()) << chat.status();
    chat_ = new ChatPrompt(*std::move(chat));
  }
  static void TearDownTestSuite() {
    delete chat_;
    delete model_;
  }
  static OrApiError<CompletionRequest> Read(const std::string& body, bool chat) {
    OrApiError<nlohmann::json> json = ParseBody(body);
    if (!json.ok()) return json.error();
    const RequestContext context{&model_->tokenizer(), chat_, {}};
    return chat ? ParseChatCompletion(*json, context) : ParseCompletion(*json, context);
  }
  // A completion with one more field.
  static OrApiError<CompletionRequest> With(const std::string& field) {
    return Read(R"({"prompt": "Once upon", )" + field + "}", false);
  }
  static void ExpectBad(const std::string& field, const std::string& param, const std::string& says) {
    const auto read = With(field);
    ASSERT_FALSE(read.ok()) << field;
    EXPECT_EQ(read.error().http_status, 400) << field;
    EXPECT_EQ(read.error().param, param) << field;
    EXPECT_THAT(read.error().message, HasSubstr(says)) << field;
  }
  static inline Model* model_ = nullptr;
  static inline ChatPrompt* chat_ = nullptr;
};

TEST_F(ApiRequest, WhatIsNoJsonObjectIsRefused) {
  for (const std::string body : {"", "{:", "[]", "7", "{\"prompt\": NaN}", "{\"prompt\": \"\xff\"}"}) {
    EXPECT_FALSE(Read(body, false).ok()) << body;
  }
  EXPECT_FALSE(ParseBody(std::string(100000, '[') + std::string(100000, ']')).ok());
  EXPECT_FALSE(ParseBody("{\"a\":" + std::string(100000, '[')).ok());
}

TEST_F(ApiRequest, FieldsOfAWrongTypeAreNamed) {
  ExpectBad(R"("stream": "false")", "stream", "\"false\"");
  ExpectBad(R"("temperature": "hot")", "temperature", "a number");
  ExpectBad(R"("temperature": [1])", "temperature", "an array");
  ExpectBad(R"("n": 1.5)", "n", "1.5");
  ExpectBad(R"("stop": 3)", "stop", "string");
  ExpectBad(R"("stop": ["a", 3])", "stop", "string");
  ExpectBad(R"("user": {})", "user", "an object");
  ExpectBad(R"("stream_options": true)", "stream_options", "an object");
  ExpectBad(R"("stream_options": {"include_usage": 1})", "stream_options.include_usage", "true or false");
}

TEST_F(ApiRequest, NumbersOutOfRangeAreNamedWithTheRange) {
  for (const char* name : {"temperature", "top_p", "min_p", "top_k", "n", "max_tokens", "max_completion_tokens",
                           "frequency_penalty", "presence_penalty", "repeat_penalty", "repeat_last_n"}) {
    for (const char* value : {"-32", "1e308"}) {
      ExpectBad(fmt::format("\"{}\": {}", name, value), name, "expected");
    }
  }
  ExpectBad(R"("n": 0)", "n", "1 to 16");
  ExpectBad(R"("n": 2147483647)", "n", "1 to 16");
  ExpectBad(R"("max_tokens": 0)", "max_tokens", "expected");
  ExpectBad(R"("seed": 1e308)", "seed", "expected");
}

TEST_F(ApiRequest, WhatWouldChangeTheAnswerAndIsNotToBeHadIsRefused) {
  ExpectBad(R"("response_format": {"type": "json_object"})", "response_format", "not supported");
  ExpectBad(R"("tools": [{}])", "tools", "not supported");
  for (const char* harmless : {R"("response_format": {"type": "text"})",
                               R"("tools": [])", R"("something_new": {"a": [1]})"}) {
    EXPECT_TRUE(With(harmless).ok()) << harmless;
  }
}

TEST_F(ApiRequest, ValuesArriveWhole) {
  auto read = With(R"("temperature": 0, "top_k": 5, "seed": 9007199254740993, "stop": ["a", "b"], "max_tokens": 7,
                      "n": 3, "stream": true, "stream_options": {"include_usage": true}, "ignore_eos": true, "echo": true)");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->sampling.temperature, 0);
  EXPECT_EQ(read->sampling.top_k, 5);
  EXPECT_EQ(read->seed, 9007199254740993u);
  EXPECT_EQ(read->stops, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(read->max_tokens, 7u);
  EXPECT_EQ(read->n, 3u);
  EXPECT_TRUE(read->stream && read->include_usage && read->ignore_eos && read->echo);
  EXPECT_EQ(read->prompt, model_->tokenizer().Encode("Once upon", {}));
  EXPECT_EQ(With(R"("stop": "x")")->stops, std::vector<std::string>{"x"});
  EXPECT_EQ(With(R"("stop": null)")->stops, std::vector<std::string>{});
}

TEST_F(ApiRequest, BiasesAndLogprobs) {
  EXPECT_EQ(With(R"("logit_bias": {"5": -100, "7": 1.5})")->sampling.logit_bias,
            (std::vector<std::pair<TokenId, float>>{{5, -100.f}, {7, 1.5f}}));
  ExpectBad(R"("logit_bias": [1])", "logit_bias", "an array");
  ExpectBad(R"("logit_bias": {"five": 1})", "logit_bias", "five");
  ExpectBad(R"("logit_bias": {"99999999": 1})", "logit_bias", "99999999");
  ExpectBad(R"("logit_bias": {"-1": 1})", "logit_bias", "-1");
  ExpectBad(R"("logit_bias": {"5": 101})", "logit_bias.5", "-100 to 100");
  ExpectBad(R"("logit_bias": {"5": "1"})", "logit_bias.5", "-100 to 100");
  EXPECT_EQ(With(R"("logprobs": 3)")->logprobs, 3u);
  EXPECT_EQ(With(R"("logprobs": null)")->logprobs, std::nullopt);
  ExpectBad(R"("logprobs": 21)", "logprobs", "0 to 20");
  ExpectBad(R"("logprobs": true)", "logprobs", "a whole number");
  ExpectBad(R"("logprobs": 1, "echo": true)", "logprobs", "not supported");
  const auto chat = [&](const std::string& fields) {
    return Read(R"({"messages": [{"role": "user", "content": "hi"}], )" + fields + "}", true);
  };
  EXPECT_EQ(chat(R"("logprobs": true, "top_logprobs": 2)")->logprobs, 2u);
  EXPECT_EQ(chat(R"("logprobs": true)")->logprobs, 0u);
  EXPECT_EQ(chat(R"("logprobs": false)")->logprobs, std::nullopt);
  EXPECT_FALSE(chat(R"("top_logprobs": 2)").ok());
  EXPECT_FALSE(chat(R"("logprobs": 2)").ok());
}

TEST_F(ApiRequest, PromptsAreTextOrTokens) {
  EXPECT_EQ(Read(R"({"prompt": [1, 2, 3]})", false)->prompt, (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ(Read(R"({"prompt": ["Once"]})", false)->prompt, Read(R"({"prompt": "Once"})", false)->prompt);
  for (const char* body : {"{}", R"({"prompt": []})", R"({"prompt": [1, "a"]})", R"({"prompt": [-1]})",
                           R"({"prompt": [99999999999999999999]})", R"({"prompt": 5})", R"({"prompt": ["a", "b"]})"}) {
    const auto read = Read(body, false);
    ASSERT_FALSE(read.ok()) << body;
    EXPECT_EQ(read.error().param, "prompt") << body;
  }
}

TEST_F(ApiRequest, ChatsGoThroughTheTemplate) {
  auto read = Read(R"({"messages": [{"role": "developer", "content": "Be short."},
                                    {"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}]})",
                   true);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(model_->tokenizer().Decode(read->prompt), "[system] Be short.\n[user] Hello\n[assistant]");
}

TEST_F(ApiRequest, WrongMessagesAreNamed) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"{}", "messages"},
      {R"({"messages": []})", "messages"},
      {R"({"messages": "hi"})", "messages"},
      {R"({"messages": ["hi"]})", "messages[0]"},
      {R"({"messages": [{"role": "wizard", "content": "x"}]})", "messages[0].role"},
      {R"({"messages": [{"role": "user"}]})", "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": 5}]})", "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", "messages[0].content"},
      {R"({"messages": [{"role": "user", "content": "x"}, {"role": 1, "content": "x"}]})", "messages[1].role"}};
  for (const auto& [body, param] : bad) {
    const auto read = Read(body, true);
    ASSERT_FALSE(read.ok()) << body;
    EXPECT_EQ(read.error().param, param) << body;
  }
  const auto forbidden =
      Read(R"({"messages": [{"role": "user", "content": "x"}, {"role": "system", "content": "y"}]})", true);
  ASSERT_FALSE(forbidden.ok());
  EXPECT_THAT(forbidden.error().message, HasSubstr("system comes first"));
}

TEST_F(ApiRequest, TokensThatAreNoneAreRefused) {
  for (const char* body : {"{}", R"({"tokens": 5})", R"({"tokens": [1.5]})", R"({"tokens": [-1]})", R"({"tokens": ["a"]})"}) {
    EXPECT_FALSE(ParseDetokenize(*ParseBody(body), 100).ok()) << body;
  }
  EXPECT_FALSE(ParseDetokenize(*ParseBody(R"({"tokens": [100]})"), 100).ok());
  EXPECT_EQ(ParseDetokenize(*ParseBody(R"({"tokens": [99]})"), 100)->size(), 1u);
}

}  // namespace
}  // namespace elasticmem
