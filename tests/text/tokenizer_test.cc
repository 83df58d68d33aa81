#include "runtime/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "tests/gguf/gguf_builder.h"
#include "tests/text/tokenizer_golden.h"

namespace elasticmem {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Ids = std::vector<TokenId>;
using Strings = std::vector<std::string>;

constexpr EncodeOptions kPlain{.add_special = false, .parse_special = false};
constexpr EncodeOptions kParse{.add_special = false, .parse_special = true};

constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kByte = 6;

StatusOr<Tokenizer> Load(const GgufBuilder& builder, std::string_view pre = "") {
  const std::vector<std::byte> bytes = builder.Build();
  EM_ASSIGN_OR_RETURN(const GgufFile gguf, GgufFile::Parse(bytes, "test"));
  return Tokenizer::FromGguf(gguf, pre);
}

Tokenizer MustLoad(const GgufBuilder& builder, std::string_view pre = "") {
  StatusOr<Tokenizer> tokenizer = Load(builder, pre);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return std::move(tokenizer).value();
}

std::string ErrorOf(const GgufBuilder& builder, std::string_view pre = "") {
  const StatusOr<Tokenizer> tokenizer = Load(builder, pre);
  return tokenizer.ok() ? "no error" : std::string(Message(tokenizer.status()));
}

// 0 <unk>, 1 <s>, 2 </s>, 3 <0x41>, 4 <0xC3>, 5 ▁, 6 a, 7 b, 8 ab, 9 ▁ab, 10 <tool> (user-defined), 11 é, 12 ▁▁
GgufBuilder SmallSpm() {
  GgufBuilder builder;
  builder.Set("tokenizer.ggml.model", "llama");
  builder.Set("tokenizer.ggml.tokens",
              Strings{"<unk>", "<s>", "</s>", "<0x41>", "<0xC3>", "▁", "a", "b", "ab", "▁ab", "<tool>", "é", "▁▁"});
  builder.Set("tokenizer.ggml.scores", std::vector<float>{0, 0, 0, 0, 0, -5, -6, -7, -1, -2, 0, -8, -3});
  builder.Set("tokenizer.ggml.token_type",
              std::vector<int32_t>{kUnknown, kControl, kControl, kByte, kByte, kNormal, kNormal, kNormal, kNormal,
                                   kNormal, kUserDefined, kNormal, kNormal});
  return builder;
}

// Ids 0 to 255 are the bytes, then come what merges make, <|im_end|> (262), the user-defined <|x|> and a piece that no
// merge makes.
GgufBuilder SmallBpe() {
  Strings pieces;
  for (int byte = 0; byte < 256; ++byte) {
    const bool own = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const int symbol = own ? byte : 256 + (byte < 33 ? byte : byte < 161 ? byte - 127 + 33 : 67);
    std::string piece;
    if (symbol < 128) {
      piece = static_cast<char>(symbol);
    } else {
      piece = {static_cast<char>(0xC0 | symbol >> 6), static_cast<char>(0x80 | (symbol & 63))};
    }
    pieces.push_back(piece);
  }
  const Strings merges = {"a b", "ab c", "Ġ ab", "b c", "a a", "aa aa"};
  for (const char* piece : {"ab", "abc", "Ġab", "bc", "aa", "aaaa", "<|im_end|>", "<|x|>", "Ġabc"})
    pieces.push_back(piece);
  std::vector<int32_t> types(pieces.size(), kNormal);
  types[262] = kControl;
  types[263] = kUserDefined;
  GgufBuilder builder;
  builder.Set("tokenizer.ggml.model", "gpt2").Set("tokenizer.ggml.pre", "gpt-2");
  builder.Set("tokenizer.ggml.tokens", pieces).Set("tokenizer.ggml.merges", merges);
  builder.Set("tokenizer.ggml.token_type", types).Set("tokenizer.ggml.eos_token_id", uint32_t{262});
  return builder;
}

GgufFile OpenTales() {
  StatusOr<GgufFile> gguf = GgufFile::Open(EM_SOURCE_DIR "/models/tales-q8_0.gguf");
  EXPECT_TRUE(gguf.ok()) << gguf.status();
  return std::move(gguf).value();
}

TEST(Tokenizer, EqualsTheReferenceOnTales) {
  const StatusOr<Tokenizer> tokenizer = Tokenizer::FromGguf(OpenTales());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::vector<TokenizerCase> cases = ReadTokenizerCases("tales_q8_0.json");
  EXPECT_EQ(cases.size(), 15u);
  for (const TokenizerCase& c : cases) {
    EXPECT_EQ(tokenizer->Encode(c.text, kPlain), c.ids) << c.text;
    EXPECT_EQ(tokenizer->Decode(c.ids), c.text);
  }
  EXPECT_EQ(tokenizer->kind(), "spm");
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
  EXPECT_EQ(tokenizer->vocab_size(), 4096u);
  EXPECT_TRUE(tokenizer->adds_bos());
  EXPECT_THAT(tokenizer->Encode("", {}), ElementsAre(1));
  EXPECT_LT(tokenizer->MemoryBytes(), 150000u);
}

TEST(SpmTokenizer, MergesTheBestScoreFirst) {
  const Tokenizer tokenizer = MustLoad(SmallSpm());
  EXPECT_THAT(tokenizer.Encode("ab", kPlain), ElementsAre(9));       // ▁ab
  EXPECT_THAT(tokenizer.Encode("abab", kPlain), ElementsAre(9, 8));  // ▁ab ab
  EXPECT_THAT(tokenizer.Encode("  b", kPlain), ElementsAre(12, 5, 7));
}

TEST(SpmTokenizer, FallsBackToBytesThenToUnknown) {
  const Tokenizer tokenizer = MustLoad(SmallSpm());
  EXPECT_THAT(tokenizer.Encode("A", kPlain), ElementsAre(5, 3));
  EXPECT_THAT(tokenizer.Encode("é", kPlain), ElementsAre(5, 11));
  EXPECT_THAT(tokenizer.Encode("à", kPlain), ElementsAre(5, 4, 0));  // C3 has a token, A0 has none
  EXPECT_THAT(tokenizer.Encode("世", kPlain), ElementsAre(5, 0));
}

TEST(SpmTokenizer, PutsTheSpacePrefixAtTheBeginningAndAfterSpecialTokens) {
  GgufBuilder builder = SmallSpm();
  EXPECT_THAT(MustLoad(builder).Encode("b<tool>b", kPlain), ElementsAre(5, 7, 10, 5, 7));
  builder.Set("tokenizer.ggml.add_space_prefix", false);
  const Tokenizer tokenizer = MustLoad(builder);
  EXPECT_THAT(tokenizer.Encode("b<tool>b", kPlain), ElementsAre(7, 10, 7));
  EXPECT_FALSE(tokenizer.strips_space_prefix());
  EXPECT_EQ(tokenizer.Decode(Ids{9}), " ab");
}

TEST(SpmTokenizer, DecodeStripsOneSpaceOfTheFirstPiece) {
  const Tokenizer tokenizer = MustLoad(SmallSpm());
  EXPECT_EQ(tokenizer.Decode(Ids{1, 9, 9, 2}), "ab ab");
  EXPECT_EQ(tokenizer.Decode(Ids{1, 9, 2}, true), "<s>ab</s>");
  EXPECT_EQ(tokenizer.Decode(Ids{12, 7}), " b");
  EXPECT_EQ(tokenizer.Decode(Ids{-1, 13, 1 << 30}), "");
}

TEST(Tokenizer, ParsesControlTokensOnlyWhereAsked) {
  const Tokenizer bpe = MustLoad(SmallBpe());
  const Ids plain = bpe.Encode("<|im_end|>", kPlain);
  EXPECT_EQ(plain.size(), 10u);
  EXPECT_EQ(bpe.Decode(plain), "<|im_end|>");
  EXPECT_THAT(bpe.Encode("<|im_end|>", kParse), ElementsAre(262));
  EXPECT_THAT(bpe.Encode("b<|x|>b", kPlain), ElementsAre('b', 263, 'b'));  // user-defined: always
  const Tokenizer spm = MustLoad(SmallSpm());
  EXPECT_THAT(spm.Encode("</s>", kParse), ElementsAre(2));
  EXPECT_THAT(spm.Encode("</s>", kPlain), Each(testing::Ne(2)));
}

TEST(Tokenizer, AddsBosAndEosAsTheKeysSay) {
  GgufBuilder builder = SmallSpm();
  EXPECT_THAT(MustLoad(builder).Encode("ab", {}), ElementsAre(1, 9));
  builder.Set("tokenizer.ggml.add_bos_token", false).Set("tokenizer.ggml.add_eos_token", true);
  EXPECT_THAT(MustLoad(builder).Encode("ab", {}), ElementsAre(9, 2));
  GgufBuilder bpe = SmallBpe();
  EXPECT_THAT(MustLoad(bpe).Encode("ab", {}), ElementsAre(256));
  bpe.Set("tokenizer.ggml.add_bos_token", true).Set("tokenizer.ggml.bos_token_id", uint32_t{262});
  EXPECT_THAT(MustLoad(bpe).Encode("ab", {}), ElementsAre(262, 256));
}

TEST(Tokenizer, KnowsWhatEndsAGeneration) {
  GgufBuilder builder = SmallBpe();
  builder.Set("tokenizer.ggml.eot_token_id", uint32_t{263});
  const Tokenizer tokenizer = MustLoad(builder);
  EXPECT_TRUE(tokenizer.IsEndOfGeneration(262));
  EXPECT_TRUE(tokenizer.IsEndOfGeneration(263));
  EXPECT_FALSE(tokenizer.IsEndOfGeneration('a'));
  EXPECT_FALSE(tokenizer.IsEndOfGeneration(-1));
  EXPECT_TRUE(tokenizer.IsControl(262));
  EXPECT_EQ(tokenizer.TokenBytes(262), "");
  EXPECT_EQ(tokenizer.TokenBytes(262, true), "<|im_end|>");
}

TEST(Tokenizer, ShowsGptOssMarksWithoutParsingThem) {
  GgufBuilder builder = SmallSpm();
  Strings pieces = {"<unk>", "<|start|>", "<|end|>", "<|return|>", "<|call|>"};
  pieces.resize(13, "x");
  builder.Set("tokenizer.ggml.tokens", pieces).Set("tokenizer.ggml.eos_token_id", uint32_t{3});
  builder.Set("tokenizer.ggml.token_type", std::vector<int32_t>{2, 3, 3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1});
  const Tokenizer tokenizer = MustLoad(builder);
  EXPECT_THAT(tokenizer.Encode("<|start|>", kParse), ElementsAre(1));
  EXPECT_THAT(tokenizer.Encode("<|start|>", kPlain), Each(testing::Ne(1)));
  EXPECT_EQ(tokenizer.TokenBytes(1), "<|start|>");
  EXPECT_FALSE(tokenizer.IsEndOfGeneration(2));  // <|end|> ends a message, not the turn
  EXPECT_TRUE(tokenizer.IsEndOfGeneration(4));
}

TEST(BpeTokenizer, MergesByRank) {
  const Tokenizer tokenizer = MustLoad(SmallBpe());
  EXPECT_THAT(tokenizer.Encode("abc", kPlain), ElementsAre(257));
  EXPECT_THAT(tokenizer.Encode(" abc", kPlain), ElementsAre(' ', 257));  // "ab c" goes before "Ġ ab"
  EXPECT_THAT(tokenizer.Encode("aaaaa", kPlain), ElementsAre(261, 'a'));
  EXPECT_EQ(tokenizer.Find("Ġab"), 258);
  EXPECT_EQ(tokenizer.Find("nowhere"), std::nullopt);
  EXPECT_EQ(tokenizer.Piece(258), "Ġab");
  EXPECT_EQ(tokenizer.TokenBytes(258), " ab");
  EXPECT_EQ(tokenizer.kind(), "bpe");
  EXPECT_EQ(tokenizer.pre(), "gpt-2");
}

TEST(BpeTokenizer, TakesWholeWordsFirstWhereMergesAreIgnored) {
  GgufBuilder builder = SmallBpe();
  EXPECT_THAT(MustLoad(builder, "llama-bpe").Encode(" abc", kPlain), ElementsAre(264));
  builder.Set("tokenizer.ggml.ignore_merges", true);
  EXPECT_THAT(MustLoad(builder).Encode(" abc", kPlain), ElementsAre(264));
}

TEST(BpeTokenizer, RoundTripsAnyBytes) {
  const Tokenizer tokenizer = MustLoad(SmallBpe());
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    std::string text(random() % 40, ' ');
    for (char& c : text) c = static_cast<char>(random());
    EXPECT_EQ(tokenizer.Decode(tokenizer.Encode(text, kPlain)), text);
  }
}

TEST(Tokenizer, TakesAMebibyteOfOneLetter) {
  const std::string text(1 << 20, 'a');
  const Ids ids = MustLoad(SmallBpe()).Encode(text, kPlain);
  EXPECT_EQ(ids.size(), text.size() / 4);
  EXPECT_THAT(ids, Each(261));
  EXPECT_EQ(MustLoad(SmallSpm()).Encode(text, kPlain).size(), text.size() + 1);
}

// The algorithm in its simplest form: of all neighbours whose text together is a piece, merge the best, leftmost first.
Ids NaiveSpm(const Tokenizer& tokenizer, const std::vector<float>& scores, std::string_view text) {
  Strings symbols = {"▁"};
  for (const char c : text) symbols.push_back(c == ' ' ? "▁" : std::string(1, c));
  while (true) {
    std::optional<size_t> best;
    float best_score = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto id = tokenizer.Find(symbols[i] + symbols[i + 1]);
      if (id && (!best || scores[*id] > best_score)) best = i, best_score = scores[*id];
    }
    if (!best) break;
    symbols[*best] += symbols[*best + 1];
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(*best) + 1);
  }
  Ids ids;
  for (const std::string& symbol : symbols) ids.push_back(tokenizer.Find(symbol).value_or(0));
  return ids;
}

TEST(SpmTokenizer, EqualsTheNaiveAlgorithmOnRandomVocabularies) {
  std::mt19937 random(7);
  const Strings letters = {"▁", "a", "b", "c"};
  for (int round = 0; round < 40; ++round) {
    Strings pieces = {"<unk>", "<s>", "</s>", "▁", "a", "b", "c"};
    while (pieces.size() < 40) {
      std::string piece;
      for (size_t n = 2 + random() % 4; n > 0; --n) piece += letters[random() % letters.size()];
      if (std::find(pieces.begin(), pieces.end(), piece) == pieces.end()) pieces.push_back(piece);
    }
    std::vector<float> scores;
    for (size_t i = 0; i < pieces.size(); ++i) scores.push_back(-static_cast<float>(random() % 30));
    GgufBuilder builder;
    builder.Set("tokenizer.ggml.model", "llama").Set("tokenizer.ggml.tokens", pieces);
    builder.Set("tokenizer.ggml.scores", scores);
    const Tokenizer tokenizer = MustLoad(builder);
    for (int i = 0; i < 20; ++i) {
      std::string text;  // the long ones take the heap, the short ones the scan
      for (size_t n = 1 + random() % (i % 2 ? 200 : 12); n > 0; --n) text += " abc"[random() % 4];
      ASSERT_EQ(tokenizer.Encode(text, kPlain), NaiveSpm(tokenizer, scores, text)) << text;
    }
  }
}

TEST(Tokenizer, CutsOutTheLongestSpecialTokenFirst) {
  GgufBuilder builder = SmallSpm();
  builder.Set("tokenizer.ggml.tokens",
              Strings{"<unk>", "<s>", "</s>", "bb", "abb", "▁", "a", "b", "c", "aabb", "ca", "d", "e"});
  builder.Set("tokenizer.ggml.token_type",
              std::vector<int32_t>{kUnknown, kControl, kControl, kUserDefined, kUserDefined, kNormal, kNormal, kNormal,
                                   kNormal, kUserDefined, kUserDefined, kNormal, kNormal});
  builder.Set("tokenizer.ggml.add_space_prefix", false);
  const Tokenizer tokenizer = MustLoad(builder);
  EXPECT_THAT(tokenizer.Encode("caabbb", kPlain), ElementsAre(8, 9, 7));  // not "ca", which comes first but is shorter
  EXPECT_THAT(tokenizer.Encode("bbbbb", kPlain), ElementsAre(3, 3, 7));
  EXPECT_THAT(tokenizer.Encode("cabb", kPlain), ElementsAre(8, 4));
}

TEST(Tokenizer, Phi3SpecialTokensSwallowTheSpaceAfterThem) {
  GgufBuilder builder = SmallSpm();
  builder.Set("general.name", "Phi-3 mini");
  EXPECT_THAT(MustLoad(builder).Encode("</s> \n b", kParse), ElementsAre(2, 5, 7));
  EXPECT_THAT(MustLoad(SmallSpm()).Encode("</s> b", kParse), ElementsAre(2, 12, 7));
}

TEST(StreamingDetokenizer, NeverEmitsHalfACharacter) {
  const Tokenizer tokenizer = MustLoad(SmallBpe());
  const std::string text = "naïve 日本語 🦙!";
  StreamingDetokenizer stream(tokenizer);
  std::string streamed;
  for (const TokenId id : tokenizer.Encode(text, kPlain)) {
    const std::string part = stream.Add(id);
    const uint8_t first = part.empty() ? 0 : static_cast<uint8_t>(part[0]);
    EXPECT_NE(first & 0xC0, 0x80) << "a continuation byte begins a part";
    streamed += part;
  }
  EXPECT_EQ(streamed, text);
  EXPECT_EQ(stream.Finish(), "");
}

TEST(StreamingDetokenizer, ReplacesWhatIsNoCharacter) {
  const Tokenizer tokenizer = MustLoad(SmallBpe());
  StreamingDetokenizer stream(tokenizer);
  EXPECT_EQ(stream.Add(0xE6), "");
  EXPECT_EQ(stream.Add(0x97), "");
  EXPECT_EQ(stream.Add('a'), "\uFFFDa");
  EXPECT_EQ(stream.Add(0xFF), "\uFFFD");
  EXPECT_EQ(stream.Add(0xF0), "");
  EXPECT_EQ(stream.Finish(), "\uFFFD");
  EXPECT_EQ(stream.Finish(), "");
}

TEST(StreamingDetokenizer, StripsTheSpacePrefixOnlyAtATextsBeginning) {
  const Tokenizer tokenizer = MustLoad(SmallSpm());
  StreamingDetokenizer fresh(tokenizer);
  EXPECT_EQ(fresh.Add(1), "");
  EXPECT_EQ(fresh.Add(9), "ab");
  EXPECT_EQ(fresh.Add(9), " ab");
  StreamingDetokenizer going_on(tokenizer, false, false);
  EXPECT_EQ(going_on.Add(9), " ab");
}

TEST(TokenizerErrors, NameTheUnknownModelOrPreTokenizer) {
  EXPECT_THAT(ErrorOf(SmallSpm().Set("tokenizer.ggml.model", "t5")), AllOf(HasSubstr("\"t5\""), HasSubstr("gpt2")));
  EXPECT_THAT(ErrorOf(SmallSpm().Remove("tokenizer.ggml.model")), HasSubstr("tokenizer.ggml.model"));
  GgufBuilder bpe = SmallBpe().Set("tokenizer.ggml.pre", "novel");
  EXPECT_THAT(ErrorOf(bpe), AllOf(HasSubstr("\"novel\""), HasSubstr("llama-bpe")));
  EXPECT_EQ(MustLoad(bpe, "qwen2").pre(), "qwen2");
  EXPECT_THAT(ErrorOf(SmallBpe(), "novel"), HasSubstr("\"novel\""));
  EXPECT_THAT(ErrorOf(SmallSpm(), "qwen2"), HasSubstr("\"qwen2\""));
}

TEST(TokenizerErrors, NameArraysThatAreMissingOrOfAnotherLength) {
  EXPECT_THAT(ErrorOf(SmallSpm().Remove("tokenizer.ggml.tokens")), HasSubstr("tokenizer.ggml.tokens"));
  EXPECT_THAT(ErrorOf(SmallSpm().Set("tokenizer.ggml.tokens", Strings{})), HasSubstr("tokenizer.ggml.tokens"));
  EXPECT_THAT(ErrorOf(SmallSpm().Remove("tokenizer.ggml.scores")), HasSubstr("tokenizer.ggml.scores"));
  EXPECT_THAT(ErrorOf(SmallSpm().Set("tokenizer.ggml.scores", std::vector<float>{1, 2})),
              AllOf(HasSubstr("scores has 2"), HasSubstr("13")));
  EXPECT_THAT(ErrorOf(SmallSpm().Set("tokenizer.ggml.token_type", std::vector<int32_t>{1})),
              AllOf(HasSubstr("token_type has 1"), HasSubstr("13")));
  EXPECT_THAT(ErrorOf(SmallBpe().Remove("tokenizer.ggml.merges")), HasSubstr("tokenizer.ggml.merges"));
  EXPECT_THAT(ErrorOf(SmallBpe().Set("tokenizer.ggml.tokens", "text")), HasSubstr("tokenizer.ggml.tokens"));
}

TEST(TokenizerErrors, NameEntriesThatCantBe) {
  Strings pieces(13, "");
  for (size_t i = 0; i < pieces.size(); ++i) pieces[i] = "piece" + std::to_string(i);
  pieces[3] = "<0xZZ>";
  pieces[4] = "<0xC3>";
  GgufBuilder spm = SmallSpm().Set("tokenizer.ggml.tokens", pieces);
  EXPECT_THAT(ErrorOf(spm), AllOf(HasSubstr("entry 3"), HasSubstr("<0xZZ>")));
  EXPECT_THAT(ErrorOf(spm.Remove("tokenizer.ggml.token_type")), AllOf(HasSubstr("entry 3"), HasSubstr("<0xZZ>")));
  std::vector<int32_t> types(13, kNormal);
  types[5] = 9;
  EXPECT_THAT(ErrorOf(SmallSpm().Set("tokenizer.ggml.token_type", types)), HasSubstr("token_type[5] is 9"));
  std::vector<float> scores(13, 0.0f);
  scores[7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(ErrorOf(SmallSpm().Set("tokenizer.ggml.scores", scores)), HasSubstr("scores[7]"));
}

TEST(TokenizerErrors, NameMergesThatCantBe) {
  const auto with = [](const Strings& merges) { return ErrorOf(SmallBpe().Set("tokenizer.ggml.merges", merges)); };
  EXPECT_THAT(with({"a b", "ab zz"}), AllOf(HasSubstr("merges[1]"), HasSubstr("\"zz\"")));
  EXPECT_THAT(with({"b a"}), AllOf(HasSubstr("merges[0]"), HasSubstr("\"ba\"")));
  EXPECT_THAT(with({"a b", "nospace"}), AllOf(HasSubstr("merges[1]"), HasSubstr("nospace")));
  EXPECT_THAT(with({""}), HasSubstr("merges[0]"));
}

TEST(TokenizerErrors, NameIdsOutsideTheVocabulary) {
  for (const char* key : {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.unknown_token_id"}) {
    EXPECT_THAT(ErrorOf(SmallSpm().Set(key, uint32_t{13})), AllOf(HasSubstr(key), HasSubstr("13")));
    EXPECT_THAT(ErrorOf(SmallSpm().Set(key, int32_t{-1})), HasSubstr(key));
    EXPECT_THAT(ErrorOf(SmallBpe().Set(key, uint64_t{1} << 40)), HasSubstr(key));
  }
}

}  // namespace
}  // namespace elasticmem
