// Against real vocabularies: models that scripts/fetch_models.sh fetches, and the test vectors in llama.cpp's models/
// folder.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "runtime/text/tokenizer.h"
#include "tests/text/tokenizer_golden.h"

namespace elasticmem {
namespace {

using Ids = std::vector<TokenId>;

StatusOr<Tokenizer> Load(const std::string& path) {
  EM_ASSIGN_OR_RETURN(const GgufFile gguf, GgufFile::Open(path));
  return Tokenizer::FromGguf(gguf);
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void ExpectGolden(const std::string& model, const std::string& golden, const EncodeOptions& options) {
  const std::string path = EM_MODELS_DIR "/" + model;
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there; scripts/fetch_models.sh fetches it";
  const StatusOr<Tokenizer> tokenizer = Load(path);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::vector<TokenizerCase> cases = ReadTokenizerCases(golden);
  EXPECT_GE(cases.size(), 10u);
  for (const TokenizerCase& c : cases) {
    EXPECT_EQ(tokenizer->Encode(c.text, options), c.ids) << c.text;
    EXPECT_EQ(tokenizer->Decode(c.ids, options.parse_special), c.text);
    StreamingDetokenizer stream(*tokenizer, options.parse_special);
    std::string streamed;
    for (const TokenId id : c.ids) streamed += stream.Add(id);
    EXPECT_EQ(streamed + stream.Finish(), c.text);
  }
}

TEST(TokenizerModels, SmolLm2EqualsTheReference) {
  ExpectGolden("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2.json", {.add_special = true, .parse_special = true});
}

TEST(TokenizerModels, Gemma3EqualsTheReference) {
  ExpectGolden("gemma-3-270m-q4_k_m.gguf", "gemma3_270m.json", {.add_special = true, .parse_special = false});
}

// NAME.gguf.inp holds texts, a marker line after each; NAME.gguf.out a line of ids for each.
void ExpectVectors(const std::string& path) {
  const StatusOr<Tokenizer> tokenizer = Load(path);
  if (!tokenizer.ok() && tokenizer.status().code() == StatusCode::kUnimplemented) {
    std::printf("%s: %s\n", path.c_str(), tokenizer.status().ToString().c_str());
    return;
  }
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string marker = "\n__ggml_vocab_test__\n";
  const std::string input = ReadFile(path + ".inp") + marker;
  std::istringstream expected(ReadFile(path + ".out"));
  size_t begin = 0, cases = 0;
  for (std::string line; std::getline(expected, line); ++cases) {
    const size_t end = input.find(marker, begin);
    ASSERT_NE(end, std::string::npos) << "more expected lines than texts";
    const std::string text = input.substr(begin, end - begin);
    begin = end + marker.size();
    std::istringstream numbers(line);
    Ids ids;
    for (TokenId id; numbers >> id;) ids.push_back(id);
    EXPECT_EQ(tokenizer->Encode(text, {.add_special = false, .parse_special = false}), ids) << text;
    EXPECT_EQ(tokenizer->Decode(ids), text);
  }
  std::printf("%s: %zu cases\n", path.c_str(), cases);
}

TEST(TokenizerModels, EqualsLlamaCppsTestVectors) {
  const std::string folder = EM_LLAMA_VOCABS;
  if (folder.empty()) {
    GTEST_SKIP() << "configure with -DELASTICMEM_LLAMA_VOCABS=DIR, DIR holding llama.cpp's ggml-vocab-*.gguf";
  }
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string path = entry.path().string();
    if (entry.path().extension() != ".gguf" || !std::filesystem::exists(path + ".out")) continue;
    SCOPED_TRACE(path);
    ExpectVectors(path);
    ++files;
  }
  EXPECT_GE(files, 5u);
}

}  // namespace
}  // namespace elasticmem
