// Files on disk, and things on disk that are no files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/gguf/gguf_builder.h"
#include "tests/gguf/scratch_folder.h"

namespace elasticmem {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

std::string ErrorOf(const std::string& path) {
  const StatusOr<GgufFile> file = GgufFile::Open(path);
  return file.ok() ? "no error" : std::string(Message(file.status()));
}

TEST(GgufOpen, ReadsTheModelThatShips) {
  const std::string path = std::string(EM_SOURCE_DIR) + "/models/tales-q8_0.gguf";
  const StatusOr<GgufFile> file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->file_bytes(), std::filesystem::file_size(path));
  EXPECT_EQ(file->parameters(), 10'490'112u);
  EXPECT_EQ(file->String("general.architecture").value(), "llama");
  EXPECT_EQ(file->String("llama.ffn_activation").value(), "relu");
  EXPECT_EQ(file->Uint("llama.block_count").value(), 8u);
  EXPECT_EQ(file->Uint("llama.feed_forward_length").value(), 1280u);
  const std::vector<std::string>& tokens = **file->Strings("tokenizer.ggml.tokens");
  EXPECT_EQ(tokens.size(), 4096u);
  EXPECT_EQ(file->Floats("tokenizer.ggml.scores").value()->size(), 4096u);
  EXPECT_EQ(file->Ints("tokenizer.ggml.token_type").value()->size(), 4096u);
  const GgufTensor* gate = file->FindTensor("blk.7.ffn_gate.weight");
  ASSERT_NE(gate, nullptr);
  EXPECT_EQ(gate->dtype, DType::kQ8_0);
  EXPECT_THAT(gate->shape, ElementsAre(256, 1280));
  EXPECT_EQ(gate->bytes, 1280u * 256 / 32 * 34);
  uint64_t end = 0;
  for (const GgufTensor& tensor : file->tensors()) end = std::max(end, tensor.offset + tensor.bytes);
  EXPECT_LE(file->file_bytes() - end, 31u);  // at most padding behind the last one
}

TEST(GgufOpen, ReadsMetadataLargerThanItsWindowAsFromMemory) {
  GgufBuilder builder;
  std::vector<std::string> words;
  for (int i = 0; i < 60'000; ++i) words.push_back(fmt::format("word number {}", i));
  std::vector<float> scores(words.size());
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = -static_cast<float>(i);
  builder.Set("words", words).Set("scores", scores).AddTensor("t", {8}, std::vector<float>(8));
  const ScratchFolder folder;
  builder.Write(folder.Path("a.gguf"));
  const StatusOr<GgufFile> file = GgufFile::Open(folder.Path("a.gguf"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(**file->Strings("words"), words);
  EXPECT_EQ(**file->Floats("scores"), scores);
  EXPECT_EQ(file->FindTensor("t")->offset, GgufFile::Parse(builder.Build(), "")->FindTensor("t")->offset);
  EXPECT_THAT(file->paths(), ElementsAre(folder.Path("a.gguf")));
}

TEST(GgufOpen, TakesNoMemoryForWhatAHugeSparseFileClaims) {
  constexpr uint64_t kHugeBytes = 1ull << 40;  // so that the file's size alone lets every one of these claims pass
  const ScratchFolder folder;
  const std::string path = folder.Path("huge.gguf");
  GgufBuilder().Write(path);
  std::error_code refused;
  std::filesystem::resize_file(path, kHugeBytes, refused);
  if (refused) GTEST_SKIP() << "no sparse file of 1 TiB here: " << refused.message();
  const auto error_of = [&path](const GgufBuilder& builder) {
    builder.Write(path);
    std::filesystem::resize_file(path, kHugeBytes);
    return ErrorOf(path);
  };
  for (const GgufType type : {GgufType::kUint8, GgufType::kString}) {
    ByteWriter array;
    array.Number(static_cast<uint32_t>(type)).Number<uint64_t>(1ull << 36);
    EXPECT_THAT(
        error_of(GgufBuilder().SetRaw("list", GgufType::kArray, array.bytes())),
        EndsWith("key \"list\": 68719476736 array elements here make more metadata than the 512.0 MiB that are read"));
  }
  ByteWriter text;
  text.Number<uint64_t>(1ull << 36);
  EXPECT_THAT(error_of(GgufBuilder().SetRaw("text", GgufType::kString, text.bytes())),
              HasSubstr("68719476736 characters here make more metadata"));
  GgufBuilder builder;
  builder.tensor_count = 1ull << 32;
  EXPECT_THAT(error_of(builder), HasSubstr("4294967296 tensors here make more metadata"));
}

TEST(GgufOpen, RefusesWhatIsNoFile) {
  const ScratchFolder folder;
  EXPECT_EQ(ErrorOf(folder.path()), folder.path() + " is a folder, not a file");
  const std::string fifo = folder.Path("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(ErrorOf(fifo), fifo + " is a FIFO, not a file");
  EXPECT_EQ(ErrorOf("/dev/zero"), "/dev/zero is a device, not a file");
  EXPECT_EQ(ErrorOf(folder.Path("none.gguf")),
            fmt::format("cannot open {}: No such file or directory", folder.Path("none.gguf")));
}

TEST(GgufOpen, RefusesAnEmptyFileAndAnotherFormat) {
  const ScratchFolder folder;
  const std::string path = folder.Path("a.gguf");
  std::ofstream(path).close();
  EXPECT_EQ(ErrorOf(path), path + ": the file is empty");
  std::ofstream(path) << "%PDF-1.7";
  EXPECT_EQ(ErrorOf(path), path + ": not a GGUF file: it begins with \"%PDF\", not with \"GGUF\" or \"PWRI\"");
}

TEST(GgufOpen, SaysWhenItMayNotRead) {
  const ScratchFolder folder;
  ASSERT_EQ(chmod(folder.path().c_str(), 0755), 0);
  const std::string path = folder.Path("a.gguf");
  GgufBuilder().Write(path);
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  constexpr uid_t kNobody = 65534;
  const bool root = geteuid() == 0;  // who may read all
  if (root && seteuid(kNobody) != 0) GTEST_SKIP() << "root cannot become another user here";
  const std::string error = ErrorOf(path);
  if (root) {
    ASSERT_EQ(seteuid(0), 0);
  }
  EXPECT_EQ(error, fmt::format("cannot open {}: Permission denied", path));
}

}  // namespace
}  // namespace elasticmem
