#include "runtime/text/pretokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/text/pretokenizer_table.h"

namespace elasticmem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Words = std::vector<std::string_view>;

PreTokenizer Create(std::string_view name) {
  StatusOr<PreTokenizer> made = PreTokenizer::Create(name);
  EXPECT_TRUE(made.ok()) << made.status();
  return std::move(made).value();
}

std::vector<std::string> Split(std::string_view name, std::string_view text) {
  const Words words = Create(name).Split(text);
  return {words.begin(), words.end()};
}

TEST(PreTokenizer, Gpt2KeepsOneSpaceWithTheWordAndLeavesTheLastOfARun) {
  EXPECT_THAT(Split("gpt-2", "Hello  world, it's 2024!"),
              ElementsAre("Hello", " ", " world", ",", " it", "'s", " 2024", "!"));
  EXPECT_THAT(Split("gpt-2", "a\n\n b   "), ElementsAre("a", "\n\n", " b", "   "));
  EXPECT_THAT(Split("gpt-2", "IT'S"), ElementsAre("IT", "'", "S"));
}

TEST(PreTokenizer, Llama3TakesThreeDigitsAndAnyLeadingPunctuation) {
  EXPECT_THAT(Split("llama-bpe", "12345678"), ElementsAre("123", "456", "78"));
  EXPECT_THAT(Split("llama-bpe", "IT'S (fine)...\n\nok"), ElementsAre("IT", "'S", " (", "fine", ")...\n\n", "ok"));
  EXPECT_THAT(Split("llama-bpe", "x \n \n y"), ElementsAre("x", " \n \n", " y"));
}

TEST(PreTokenizer, Qwen2TakesSingleDigits) {
  EXPECT_THAT(Split("qwen2", "a 12"), ElementsAre("a", " ", "1", "2"));
  EXPECT_THAT(Split("qwen2", "naïve café"), ElementsAre("naïve", " café"));
}

TEST(PreTokenizer, Qwen35KeepsCombiningMarksWithTheirLetters) {
  EXPECT_THAT(Split("qwen35", "e\u0301x"), ElementsAre("e\u0301x"));
  EXPECT_THAT(Split("qwen2", "e\u0301x"), ElementsAre("e", "\u0301x"));
}

TEST(PreTokenizer, SmollmIsolatesDigitsOfAnyKind) {
  EXPECT_THAT(Split("smollm", "v 12½"), ElementsAre("v", " ", "1", "2", "½"));
}

TEST(PreTokenizer, FalconIsolatesPunctuationAndGroupsDigits) {
  EXPECT_THAT(Split("falcon", "don't 12345"), ElementsAre("don", "'", "t", " ", "123", "45"));
  EXPECT_THAT(Split("falcon", "x=12345"), ElementsAre("x", "=", "123", "45"));
}

TEST(PreTokenizer, DeepSeekLlmSeparatesLineEndsAndCjk) {
  EXPECT_THAT(Split("deepseek-llm", "Hi 中文\n\n12"), ElementsAre("Hi", " ", "中文", "\n", "\n", "12"));
  EXPECT_THAT(Split("deepseek-coder", "f(x) 12"), ElementsAre("f", "(", "x", ")", " ", "1", "2"));
  EXPECT_THAT(Split("deepseek-v3", "a 1234.com"), ElementsAre("a", " ", "123", "4", ".com"));
}

TEST(PreTokenizer, Gpt4oSplitsCamelCase) {
  EXPECT_THAT(Split("gpt-4o", "CamelCase HTMLPage's"), ElementsAre("Camel", "Case", " HTMLPage's"));
  EXPECT_THAT(Split("tekken", "CamelCase's"), ElementsAre("Camel", "Case", "'s"));
}

TEST(PreTokenizer, KimiSplitsHanFromOtherLetters) {
  EXPECT_THAT(Split("kimi-k2", "abc中文def 1234"), ElementsAre("abc", "中文", "def", " ", "123", "4"));
}

TEST(PreTokenizer, GroupsDigitsFromTheRightWhereTheModelDoes) {
  EXPECT_THAT(Split("superbpe", "1234567 a12"), ElementsAre("1", "234", "567", " a", "12"));
  EXPECT_THAT(Split("afmoe", "12345"), ElementsAre("12", "345"));
  EXPECT_THAT(Split("tiny_aya", "12345 1234x"), ElementsAre("12", "345", " ", "123", "4", "x"));
}

TEST(PreTokenizer, ExaoneMoeKeepsSpacedLettersTogether) {
  EXPECT_THAT(Split("exaone-moe", "ab cd 1"), ElementsAre("ab cd", " ", "1"));
}

TEST(PreTokenizer, Gemma4SplitsOnlyAtLineFeeds) {
  EXPECT_THAT(Split("gemma4", "a b\n\nc"), ElementsAre("a b", "\n\n", "c"));
}

TEST(PreTokenizer, KnowsUnicodeWhiteSpace) {
  EXPECT_THAT(Split("gpt-2", "a\u00A0\u3000b"), ElementsAre("a", "\u00A0", "\u3000", "b"));
  EXPECT_THAT(Split("gpt-2", "a\u180Eb"), ElementsAre("a", "\u180E", "b"));  // no space since Unicode 6.3
}

TEST(PreTokenizer, UnknownNameIsAnErrorThatListsTheKnownOnes) {
  const auto made = PreTokenizer::Create("gpt-99");
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(std::string(Message(made.status())), HasSubstr("\"gpt-99\""));
  EXPECT_THAT(std::string(Message(made.status())), HasSubstr("smollm"));
  EXPECT_FALSE(PreTokenizer::Create("").ok());
  EXPECT_FALSE(PreTokenizer::Create("gpt-2 phi-2").ok());
}

TEST(PreTokenizer, BytesThatAreNotUtf8AreWordsOfTheirOwn) {
  EXPECT_THAT(Split("gpt-2", "ab\xFF\xC3 cd\xE4\xB8"), ElementsAre("ab", "\xFF\xC3", " cd", "\xE4\xB8"));
}

// Also bounds the time: a pattern that is quadratic in the text's length would run for minutes.
TEST(PreTokenizer, WordsCoverLongTextsOfAnyKind) {
  constexpr size_t kBytes = 128 << 10;
  const std::vector<std::string> units = {"a",      "A",   "Aa",     " ",    "\n",   " \n", "1",
                                          "1a",     "12 ", "!",      "a b",  "'s",   "中",  "e\u0301",
                                          "\u0301", "<",   "\u3000", "🦙", "\xFF", "\r\n"};
  for (const PreTokenizerSpec& spec : KnownPreTokenizers()) {
    const std::string_view name = spec.names.substr(0, spec.names.find(' '));
    const PreTokenizer pre_tokenizer = Create(name);
    for (const std::string& unit : units) {
      std::string text;
      while (text.size() < kBytes) text += unit;
      text += "z";
      const char* at = text.data();
      for (const std::string_view word : pre_tokenizer.Split(text)) {
        ASSERT_EQ(word.data(), at) << name << " on " << unit;
        ASSERT_FALSE(word.empty()) << name << " on " << unit;
        at += word.size();
      }
      ASSERT_EQ(at, text.data() + text.size()) << name << " on " << unit;
    }
  }
}

}  // namespace
}  // namespace elasticmem
