// A short, seeded smoke of what tests/fuzz/gguf_fuzz.cc does for longer: damaged files give a Status, never a crash.
#include <gtest/gtest.h>

#include <random>

#include "tests/gguf/gguf_builder.h"

namespace elasticmem {
namespace {

std::vector<std::byte> ValidFile() {
  GgufBuilder builder;
  builder.Set("general.architecture", "llama").SetAlignment(32).Set("llama.block_count", uint32_t{2});
  builder.Set("llama.rope.freq_base", 10000.0f).Set("tokenizer.ggml.add_bos_token", true);
  builder.Set("tokenizer.ggml.tokens", std::vector<std::string>{"<unk>", "a", "b"});
  builder.Set("tokenizer.ggml.scores", std::vector<float>{0, -1, -2});
  builder.Set("tokenizer.ggml.token_type", std::vector<int32_t>{2, 1, 1}).Set("flags", std::vector<bool>{true, false});
  builder.AddTensor("token_embd.weight", DType::kQ8_0, {32, 3}, std::vector<std::byte>(34 * 3));
  builder.AddTensor("output_norm.weight", {32}, std::vector<float>(32, 1.0f));
  return builder.Build();
}

class Mutator {
 public:
  explicit Mutator(uint32_t seed) : random_(seed) {}

  void Mutate(std::vector<std::byte>& bytes) {
    const size_t at = Below(bytes.size());
    switch (Below(6)) {
      case 0:
        bytes[at] ^= static_cast<std::byte>(1u << Below(8));
        break;
      case 1:
        bytes[at] = static_cast<std::byte>(random_());
        break;
      case 2:
        bytes.resize(at + 1);
        break;
      case 3:
        bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(at), 1 + Below(16), static_cast<std::byte>(random_()));
        break;
      case 4:
        bytes.erase(bytes.begin() + static_cast<ptrdiff_t>(at),
                    bytes.begin() + static_cast<ptrdiff_t>(std::min(bytes.size(), at + 1 + Below(16))));
        break;
      case 5:
        for (size_t i = at; i < std::min(bytes.size(), at + 8); ++i) bytes[i] = std::byte{0xff};
        break;
    }
    if (bytes.empty()) bytes.push_back({});
  }
  size_t Below(size_t bound) { return random_() % bound; }

 private:
  std::mt19937 random_;
};

TEST(GgufMutation, DamagedFilesGiveAStatus) {
  const std::vector<std::byte> valid = ValidFile();
  ASSERT_TRUE(GgufFile::Parse(valid, "valid").ok());
  Mutator mutator(20'260'101);
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> bytes = valid;
    for (size_t i = 0, count = 1 + mutator.Below(4); i < count; ++i) mutator.Mutate(bytes);
    const StatusOr<GgufFile> file = GgufFile::Parse(bytes, "mutated");
    if (!file.ok()) {
      ASSERT_FALSE(Message(file.status()).empty());
      continue;
    }
    ++accepted;
    for (const GgufTensor& tensor : file->tensors()) {
      ASSERT_LE(tensor.offset, bytes.size());
      ASSERT_LE(tensor.bytes, bytes.size() - tensor.offset);
    }
  }
  EXPECT_GT(accepted, 100);  // else the mutations are too coarse to reach what lies behind the header
}

}  // namespace
}  // namespace elasticmem
