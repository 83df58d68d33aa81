// Models in several files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/gguf/gguf_builder.h"
#include "tests/gguf/scratch_folder.h"

namespace elasticmem {
namespace {

using ::testing::ElementsAre;

class GgufSplit : public ::testing::Test {
 protected:
  // Three parts with the tensors t0; t1 and more1; t2.
  GgufSplit() {
    for (uint16_t i = 0; i < 3; ++i) {
      GgufBuilder& part = parts_[i];
      part.Set("split.no", i).Set("split.count", uint16_t{3}).Set("split.tensors.count", int32_t{4});
      part.AddTensor(fmt::format("t{}", i), {8}, std::vector<float>(8));
    }
    parts_[0].Set("general.name", "three parts");
    parts_[1].AddTensor("more1", {4, 2}, std::vector<float>(8));
    Write();
  }
  void Write() {
    for (int i = 0; i < 3; ++i) parts_[i].Write(Path(i + 1));
  }
  std::string Path(int number) const { return folder_.Path(fmt::format("tale-{:05}-of-00003.gguf", number)); }
  static std::string ErrorOf(const std::string& path) {
    const StatusOr<GgufFile> file = GgufFile::Open(path);
    return file.ok() ? "no error" : std::string(Message(file.status()));
  }

  ScratchFolder folder_;
  GgufBuilder parts_[3];
};

TEST_F(GgufSplit, GathersTheTensorsOfAllParts) {
  const StatusOr<GgufFile> file = GgufFile::Open(Path(1));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->paths(), ElementsAre(Path(1), Path(2), Path(3)));
  ASSERT_EQ(file->tensors().size(), 4u);
  EXPECT_EQ(file->FindTensor("t0")->file, 0u);
  EXPECT_EQ(file->FindTensor("more1")->file, 1u);
  EXPECT_EQ(file->FindTensor("t2")->file, 2u);
  EXPECT_EQ(file->String("general.name").value(), "three parts");
  EXPECT_EQ(file->parameters(), 32u);
  uint64_t bytes = 0;
  for (int i = 1; i <= 3; ++i) bytes += std::filesystem::file_size(Path(i));
  EXPECT_EQ(file->file_bytes(), bytes);
}

TEST_F(GgufSplit, OpeningALaterPartTellsWhichToOpen) {
  EXPECT_EQ(ErrorOf(Path(2)), fmt::format("{} is part 2 of 3: open the first part, {}", Path(2), Path(1)));
  std::filesystem::rename(Path(2), folder_.Path("renamed.gguf"));
  EXPECT_EQ(ErrorOf(folder_.Path("renamed.gguf")),
            fmt::format("{} is part 2 of 3: open the first part, the file that ends in -00001-of-00003.gguf",
                        folder_.Path("renamed.gguf")));
}

TEST_F(GgufSplit, NamesAMissingPart) {
  std::filesystem::remove(Path(2));
  EXPECT_EQ(ErrorOf(Path(1)), fmt::format("part 2 of 3: cannot open {}: No such file or directory", Path(2)));
}

TEST_F(GgufSplit, NamesADamagedPart) {
  std::filesystem::resize_file(Path(3), 10);
  EXPECT_EQ(ErrorOf(Path(1)),
            fmt::format("part 3 of 3: {}: header, number of tensors: the file ends at byte 10, 8 bytes "
                        "were expected at byte 8",
                        Path(3)));
}

TEST_F(GgufSplit, FirstPartUnderAnotherName) {
  const std::string path = folder_.Path("renamed.gguf");
  std::filesystem::rename(Path(1), path);
  EXPECT_EQ(ErrorOf(path), fmt::format("{} is part 1 of 3, but its name does not end in -00001-of-00003.gguf, so the "
                                       "other parts can't be found",
                                       path));
}

TEST_F(GgufSplit, PartThatSaysItIsAnother) {
  std::filesystem::copy_file(Path(3), Path(2), std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(ErrorOf(Path(1)), fmt::format("{} says it is part 3 of 3, part 2 of 3 was expected", Path(2)));
  GgufBuilder().Write(Path(2));
  EXPECT_EQ(ErrorOf(Path(1)), fmt::format("{} says it is part 1 of 1, part 2 of 3 was expected", Path(2)));
}

TEST_F(GgufSplit, CountOfTensorsThatDisagrees) {
  parts_[1].RemoveTensor("more1");
  Write();
  EXPECT_EQ(ErrorOf(Path(1)), fmt::format("{}: split.tensors.count is 4, but the 3 parts hold 3 tensors", Path(1)));
}

TEST_F(GgufSplit, TensorInTwoParts) {
  parts_[2].AddTensor("t0", {8}, std::vector<float>(8));
  Write();
  EXPECT_EQ(ErrorOf(Path(1)), fmt::format("tensor \"t0\" is in {} and again in {}", Path(1), Path(3)));
}

TEST_F(GgufSplit, PartsWithDifferentMagics) {
  parts_[1].magic = "PWRI";
  Write();
  EXPECT_EQ(ErrorOf(Path(1)), fmt::format("{} and {} begin with different magics, GGUF and PWRI", Path(1), Path(2)));
}

TEST_F(GgufSplit, ImpossibleNumbers) {
  parts_[0].Set("split.no", uint16_t{3});
  Write();
  EXPECT_EQ(ErrorOf(Path(1)), Path(1) + ": split.no is 3, but split.count is 3");
  parts_[0].Set("split.count", uint32_t{100'000});
  Write();
  EXPECT_EQ(ErrorOf(Path(1)), Path(1) + ": split.count is 100000, at most 99999 is read");
  parts_[0].Set("split.count", int32_t{-3});
  Write();
  EXPECT_EQ(ErrorOf(Path(1)), Path(1) + ": key \"split.count\" is -3, it may not be negative");
}

TEST_F(GgufSplit, CountOfOneIsNoSplit) {
  parts_[0].Set("split.count", uint16_t{1}).Remove("split.tensors.count");
  const std::string path = folder_.Path("one.gguf");
  parts_[0].Write(path);
  EXPECT_TRUE(GgufFile::Open(path).ok());
}

}  // namespace
}  // namespace elasticmem
