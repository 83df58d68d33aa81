// Model files that are wrong, as a user meets them: named, refused with exit code 1, nothing left behind, little memory
// taken.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tests/gguf/scratch_folder.h"
#include "tests/tools/program.h"
#include "tests/tools/tiny_model.h"

namespace elasticmem {
namespace {

using testing::BuilderOf;
using testing::ExpectDone;
using testing::ExpectRefused;
using testing::kTinyRelu;
using testing::Listing;
using testing::Outcome;
using testing::RunProgram;
using testing::SourcePath;

// A refusal reads a header; the program itself (and a sanitizer's shadow) is most of this.
constexpr uint64_t kReasonableBytes = 256 << 20;

class BadModel : public ::testing::Test {
 protected:
  std::string path() const { return folder_.Path("m.gguf"); }

  // Every command that opens models refuses the one at path(), with `parts` in the message.
  void ExpectModelRefused(std::initializer_list<std::string_view> parts) const {
    const std::vector<std::string> before = Listing(folder_.path());
    for (const std::vector<std::string>& args :
         {std::vector<std::string>{"run", "-m", path(), "-p", "hi", "-n", "4", "--memory", "64MiB"},
          std::vector<std::string>{"pack", path()}}) {
      const Outcome outcome = RunProgram(args);
      ExpectRefused(outcome, parts);
      ExpectRefused(outcome, {"m.gguf"});
      EXPECT_LT(outcome.peak_rss_bytes, kReasonableBytes);
    }
    EXPECT_EQ(Listing(folder_.path()), before);
  }
  void ExpectModelRefused(const GgufBuilder& builder, std::initializer_list<std::string_view> parts) const {
    builder.Write(path());
    ExpectModelRefused(parts);
  }
  // The tiny model with one change.
  template <class Change>
  void ExpectRefusedAfter(const Change& change, std::initializer_list<std::string_view> parts) const {
    GgufBuilder builder = BuilderOf(kTinyRelu);
    change(builder);
    ExpectModelRefused(builder, parts);
  }

  const ScratchFolder folder_;
};

TEST_F(BadModel, IsNoneWhenNothingWasChanged) {
  BuilderOf(kTinyRelu).Write(path());
  ExpectDone(RunProgram({"run", "-m", path(), "-p", "hi", "-n", "4", "--memory", "64MiB"}));
}

TEST_F(BadModel, TruncatedNamesTheTensorAndBothSizes) {
  BuilderOf(kTinyRelu).Write(path());
  const uint64_t whole = std::filesystem::file_size(path());
  const uint64_t cut = whole - 100;
  std::filesystem::resize_file(path(), cut);
  ExpectModelRefused({"ends at byte ", fmt::format("the file has {}", cut)});
  const StatusOr<GgufFile> file = GgufFile::Open(SourcePath(kTinyRelu));
  ASSERT_TRUE(file.ok());
  ExpectModelRefused({file->tensors().back().name});
}

TEST_F(BadModel, TruncatedAnywhereIsRefused) {
  const std::string whole = testing::ReadFileBytes(SourcePath(kTinyRelu));
  for (const size_t bytes : {size_t{1}, size_t{3}, size_t{4}, size_t{8}, size_t{23}, size_t{24}, size_t{200},
                             size_t{4000}, whole.size() / 2}) {
    SCOPED_TRACE(bytes);
    testing::WriteFileBytes(path(), std::string_view(whole).substr(0, bytes));
    ExpectModelRefused({});
  }
}

TEST_F(BadModel, StringOfAGigabyteInAFileOf160Bytes) {
  GgufBuilder builder;
  builder.Set("general.architecture", "llama");
  ByteWriter value;
  value.Number<uint64_t>(1 << 30);
  builder.SetRaw("general.name", GgufType::kString, value.bytes());
  std::vector<std::byte> bytes = builder.Build();
  bytes.resize(160);
  testing::WriteFileBytes(path(), {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  ExpectModelRefused({"general.name", "1073741824"});
}

TEST_F(BadModel, ArrayOfTwoToThe63Elements) {
  GgufBuilder builder = BuilderOf(kTinyRelu);
  ByteWriter value;
  value.Number(static_cast<uint32_t>(GgufType::kUint8)).Number(uint64_t{1} << 63);
  builder.SetRaw("tokenizer.ggml.huge", GgufType::kArray, value.bytes());
  ExpectModelRefused(builder, {"tokenizer.ggml.huge", "9223372036854775808"});
}

TEST_F(BadModel, ShapeWhoseProductOverflows) {
  ExpectRefusedAfter(
      [](GgufBuilder& b) {
        b.FindTensor("output_norm.weight")->shape = {0x7fffffffffffffff, 2, 1, 1};
      },
      {"output_norm.weight", "9223372036854775807"});
}

TEST_F(BadModel, CountsThatNoFileHolds) {
  ExpectRefusedAfter([](GgufBuilder& b) { b.tensor_count = ~uint64_t{0}; }, {"18446744073709551615"});
  ExpectRefusedAfter([](GgufBuilder& b) { b.key_count = uint64_t{1} << 60; }, {"1152921504606846976"});
}

TEST_F(BadModel, TensorTwice) {
  ExpectRefusedAfter([](GgufBuilder& b) { b.AddTensor(*b.FindTensor("blk.0.attn_q.weight")); },
                     {"blk.0.attn_q.weight", "twice"});
}

TEST_F(BadModel, KeyTwice) {
  ExpectRefusedAfter(
      [](GgufBuilder& b) {
        ByteWriter value;
        value.Number<uint32_t>(1);
        b.AppendRaw("llama.block_count", GgufType::kUint32, value.bytes());
      },
      {"llama.block_count", "twice"});
}

TEST_F(BadModel, AlignmentThatIsNone) {
  for (const uint32_t alignment : {0u, 3u, 1u << 30}) {
    SCOPED_TRACE(alignment);
    ExpectRefusedAfter([&](GgufBuilder& b) { b.Set("general.alignment", alignment); },
                       {"alignment", std::to_string(alignment)});
  }
}

TEST_F(BadModel, BigEndian) {
  ExpectRefusedAfter([](GgufBuilder& b) { b.version = 0x03000000; }, {"big-endian"});
}

TEST_F(BadModel, AnotherVersionOrMagic) {
  ExpectRefusedAfter([](GgufBuilder& b) { b.version = 4; }, {"version", "4"});
  ExpectRefusedAfter([](GgufBuilder& b) { b.version = 1; }, {"version", "1"});
  ExpectRefusedAfter([](GgufBuilder& b) { b.magic = "GGML"; }, {"GGML"});
}

TEST_F(BadModel, UnknownArchitecture) {
  ExpectRefusedAfter([](GgufBuilder& b) { b.Set("general.architecture", "mamba"); }, {"architecture", "mamba"});
  ExpectRefusedAfter([](GgufBuilder& b) { b.Remove("general.architecture"); }, {"general.architecture"});
}

TEST_F(BadModel, UnknownTensorType) {
  ExpectRefusedAfter([](GgufBuilder& b) { b.FindTensor("blk.0.attn_q.weight")->type = 16; },
                     {"blk.0.attn_q.weight", "IQ2_XXS"});
  ExpectRefusedAfter([](GgufBuilder& b) { b.FindTensor("blk.0.attn_q.weight")->type = 4711; },
                     {"blk.0.attn_q.weight", "4711"});
}

TEST_F(BadModel, UnknownPreTokenizerIsNamedAndCanBeOverridden) {
  const auto change = [](GgufBuilder& b) {
    b.Set("tokenizer.ggml.model", "gpt2").Set("tokenizer.ggml.pre", "martian");
    b.Set("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
  };
  ExpectRefusedAfter(change, {"pre-tokenizer", "martian", "--pre-tokenizer"});
  const Outcome overridden =
      RunProgram({"run", "-m", path(), "-p", "hi", "-n", "1", "--memory", "64MiB", "--pre-tokenizer", "gpt-2"});
  EXPECT_EQ(overridden.err.find("martian"), std::string::npos) << overridden.err;
  ExpectRefused(RunProgram({"run", "-m", path(), "-p", "hi", "--memory", "64MiB", "--pre-tokenizer", "venusian"}),
                {"venusian"});
}

TEST_F(BadModel, UnknownTokenizer) {
  ExpectRefusedAfter([](GgufBuilder& b) { b.Set("tokenizer.ggml.model", "rosetta"); }, {"rosetta"});
}

TEST_F(BadModel, MissingTensor) {
  for (const char* name : {"token_embd.weight", "output_norm.weight", "blk.0.attn_k.weight", "blk.0.ffn_down.weight"}) {
    SCOPED_TRACE(name);
    ExpectRefusedAfter([&](GgufBuilder& b) { b.RemoveTensor(name); }, {name});
  }
}

TEST_F(BadModel, MissingKey) {
  for (const char* key : {"llama.block_count", "llama.embedding_length", "llama.attention.head_count",
                          "llama.feed_forward_length", "tokenizer.ggml.tokens"}) {
    SCOPED_TRACE(key);
    ExpectRefusedAfter([&](GgufBuilder& b) { b.Remove(key); }, {key});
  }
}

TEST_F(BadModel, KeyOfAnotherType) {
  ExpectRefusedAfter([](GgufBuilder& b) { b.Set("llama.block_count", "two"); }, {"llama.block_count", "string"});
  ExpectRefusedAfter([](GgufBuilder& b) { b.Set("tokenizer.ggml.tokens", uint32_t{7}); }, {"tokenizer.ggml.tokens"});
}

TEST_F(BadModel, ShapesThatDisagreeWithTheMetadata) {
  ExpectRefusedAfter(
      [](GgufBuilder& b) {
        b.FindTensor("blk.0.attn_q.weight")->shape = {32, 128};
      },
      {"blk.0.attn_q.weight", "32", "64"});
  ExpectRefusedAfter([](GgufBuilder& b) { b.Set("llama.feed_forward_length", uint32_t{95}); }, {"ffn_", "95", "96"});
  ExpectRefusedAfter([](GgufBuilder& b) { b.FindTensor("token_embd.weight")->shape = {64, 287}; }, {"token_embd"});
}

TEST_F(BadModel, HeadCountsThatDoNotDivide) {
  ExpectRefusedAfter([](GgufBuilder& b) { b.Set("llama.attention.head_count_kv", uint32_t{3}); }, {"3", "4", "head"});
  ExpectRefusedAfter(
      [](GgufBuilder& b) {
        b.Set("llama.attention.head_count", uint32_t{5}).Set("llama.attention.head_count_kv", uint32_t{5});
        b.Remove("llama.rope.dimension_count");
      },
      {"5", "64", "head"});
  ExpectRefusedAfter([](GgufBuilder& b) { b.Set("llama.attention.head_count", uint32_t{0}); }, {"head_count", "0"});
  ExpectRefusedAfter([](GgufBuilder& b) { b.Set("llama.attention.head_count_kv", uint32_t{0}); },
                     {"head_count_kv", "0"});
}

TEST_F(BadModel, SizesThatAreZeroOrHuge) {
  ExpectRefusedAfter([](GgufBuilder& b) { b.Set("llama.block_count", uint32_t{0}); }, {"llama.block_count", "0"});
  ExpectRefusedAfter([](GgufBuilder& b) { b.Set("llama.block_count", uint32_t{0xffffffff}); }, {"4294967295"});
  ExpectRefusedAfter([](GgufBuilder& b) { b.Set("llama.embedding_length", uint32_t{0}); }, {"llama.embedding_length"});
  ExpectRefusedAfter([](GgufBuilder& b) { b.Set("llama.feed_forward_length", uint32_t{0}); },
                     {"llama.feed_forward_length"});
  ExpectRefusedAfter([](GgufBuilder& b) { b.Set("llama.context_length", uint32_t{0}); }, {"llama.context_length"});
}

TEST_F(BadModel, VocabularyEntryThatIsNoByte) {
  GgufBuilder builder = BuilderOf(kTinyRelu);
  const StatusOr<GgufFile> file = GgufFile::Open(SourcePath(kTinyRelu));
  ASSERT_TRUE(file.ok());
  std::vector<std::string> tokens = **file->Strings("tokenizer.ggml.tokens");
  ASSERT_EQ(tokens[0x20 + 3], "<0x20>");
  tokens[0x20 + 3] = "<0xZZ>";
  builder.Set("tokenizer.ggml.tokens", tokens);
  ExpectModelRefused(builder, {"<0xZZ>", "35"});
}

TEST_F(BadModel, UnknownActivation) {
  ExpectRefusedAfter([](GgufBuilder& b) { b.Set("llama.ffn_activation", "wibble"); }, {"wibble"});
  BuilderOf(kTinyRelu).Write(path());
  ExpectRefused(RunProgram({"run", "-m", path(), "-p", "hi", "--memory", "64MiB", "--activation", "wobble"}),
                {"activation", "wobble", "relu"});
}

// Refusals name the path; what is there stays as it was.
TEST_F(BadModel, IsAFolder) {
  std::filesystem::create_directory(path());
  ExpectModelRefused({"folder"});
}

TEST_F(BadModel, IsEmpty) {
  testing::WriteFileBytes(path(), "");
  ExpectModelRefused({"empty"});
}

TEST_F(BadModel, IsNotThere) { ExpectModelRefused({"No such file"}); }

TEST_F(BadModel, IsText) {
  testing::WriteFileBytes(path(), "Dear reader,\nthis is a letter and no model, long enough to have a header.\n");
  ExpectModelRefused({"GGUF"});
}

TEST_F(BadModel, MayNotBeRead) {
  if (!testing::CanObeyPermissions()) GTEST_SKIP() << "root here may read any file";
  BuilderOf(kTinyRelu).Write(path());
  ASSERT_EQ(chmod(path().c_str(), 0), 0);
  testing::Surroundings surroundings;
  surroundings.obey_permissions = true;
  ExpectRefused(RunProgram({"run", "-m", path(), "-p", "hi", "--memory", "64MiB"}, surroundings),
                {"m.gguf", "ermission denied"});
}

TEST_F(BadModel, IsAFifo) {
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  ExpectModelRefused({"FIFO"});
}

TEST_F(BadModel, IsADevice) {
  ExpectRefused(RunProgram({"run", "-m", "/dev/zero", "-p", "hi", "--memory", "64MiB"}), {"/dev/zero"});
}

class SplitModel : public ::testing::Test {
 protected:
  SplitModel() {
    for (const int part : {1, 2}) {
      std::filesystem::copy_file(SourcePath("tests/golden/tiny/" + Name(part)), folder_.Path(Name(part)));
    }
  }
  static std::string Name(int part) { return fmt::format("llama-split-0000{}-of-00002.gguf", part); }
  Outcome Run(int part) const {
    return RunProgram({"run", "-m", folder_.Path(Name(part)), "-p", "hi", "-n", "4", "--memory", "64MiB"});
  }

  const ScratchFolder folder_;
};

TEST_F(SplitModel, RunsFromItsFirstPart) { ExpectDone(Run(1)); }

TEST_F(SplitModel, SecondPartMissingIsNamed) {
  std::filesystem::remove(folder_.Path(Name(2)));
  ExpectRefused(Run(1), {Name(2), "No such file"});
}

TEST_F(SplitModel, SecondPartOpenedFirst) { ExpectRefused(Run(2), {Name(2), "part 2 of 2", Name(1)}); }

TEST_F(SplitModel, SecondPartOfAnotherKind) {
  std::filesystem::copy_file(SourcePath(kTinyRelu), folder_.Path(Name(2)),
                             std::filesystem::copy_options::overwrite_existing);
  ExpectRefused(Run(1), {Name(2)});
}

TEST_F(SplitModel, SecondPartTruncated) {
  std::filesystem::resize_file(folder_.Path(Name(2)), std::filesystem::file_size(folder_.Path(Name(2))) - 64);
  ExpectRefused(Run(1), {Name(2), "ends at byte"});
}

}  // namespace
}  // namespace elasticmem
