#include "runtime/text/chat_prompt.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace elasticmem {
namespace {

class ChatPromptTest : public ::testing::Test {
 protected:
  ChatPromptTest()
      : tokenizer_(Tokenizer::FromGguf(GgufFile::Open(std::string(EM_SOURCE_DIR) + "/models/tales-q8_0.gguf").value()).value()) {}

  // Ids of one user message under `chat_template`.
  std::vector<TokenId> Encode(const std::string& chat_template, const std::string& content) const {
    ChatPrompt chat = ChatPrompt::Create(tokenizer_, chat_template).value();
    chat.AddMessage("user", content);
    const StatusOr<std::vector<TokenId>> ids = chat.Encode();
    EXPECT_TRUE(ids.ok()) << Message(ids.status());
    return ids.ok() ? *ids : std::vector<TokenId>();
  }
  long Count(const std::vector<TokenId>& ids, TokenId id) const { return std::count(ids.begin(), ids.end(), id); }

  Tokenizer tokenizer_;
};

constexpr const char* kTemplate =
    "{% for m in messages %}{{ bos_token }}{{ m.content }}{{ eos_token }}{% endfor %}";

TEST_F(ChatPromptTest, ControlTokensCountOnlyWhereTheTemplateWroteThem) {
  for (const char* content : {"Who are you?", "</s>", "a</s>b<s></s>", "<s", "</s></s></s>"}) {
    const std::vector<TokenId> ids = Encode(kTemplate, content);
    EXPECT_EQ(Count(ids, *tokenizer_.bos()), 1) << content;
    EXPECT_EQ(Count(ids, *tokenizer_.eos()), 1) << content;
    EXPECT_EQ(ids.front(), *tokenizer_.bos()) << content;
    EXPECT_EQ(ids.back(), *tokenizer_.eos()) << content;
    EXPECT_NE(tokenizer_.Decode(ids).find(content), std::string::npos) << tokenizer_.Decode(ids);
  }
}

TEST_F(ChatPromptTest, StaysPlainThroughATemplateThatChangesTheText) {
  const std::vector<TokenId> ids = Encode("{{ bos_token }}{{ messages[0].content | upper | replace('A', '</s>') }}", "</s>a");
  EXPECT_EQ(Count(ids, *tokenizer_.eos()), 1);  // the one that the template wrote in place of "A"
}

TEST_F(ChatPromptTest, ATemplateThatMakesNothingIsAnError) {
  ChatPrompt chat = ChatPrompt::Create(tokenizer_, "{# nothing #}").value();
  chat.AddMessage("user", "hi");
  const StatusOr<std::vector<TokenId>> ids = chat.Encode();
  if (tokenizer_.adds_bos()) {
    ASSERT_TRUE(ids.ok());
    EXPECT_EQ(ids->size(), 1u);
  } else {
    EXPECT_FALSE(ids.ok());
  }
  EXPECT_FALSE(ChatPrompt::Create(tokenizer_, "").ok());
}

}  // namespace
}  // namespace elasticmem
