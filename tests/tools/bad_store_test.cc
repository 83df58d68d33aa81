// Neuron stores that are damaged, stale, or cannot be written: named and refused, or made anew; never garbage text.
#include <gmock/gmock.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <span>

#include "base/stream_hash.h"
#include "store/neuron_store_format.h"
#include "tests/gguf/scratch_folder.h"
#include "tests/tools/program.h"
#include "tests/tools/tiny_model.h"

namespace elasticmem {
namespace {

using ::testing::ElementsAre;
using testing::ExpectDone;
using testing::ExpectRefused;
using testing::FlipBit;
using testing::kTales;
using testing::kTinyRelu;
using testing::Listing;
using testing::Outcome;
using testing::RunProgram;
using testing::SourcePath;
using testing::Surroundings;

class BadStore : public ::testing::Test {
 protected:
  BadStore() {
    std::filesystem::copy_file(SourcePath(kTinyRelu), model());
    const Outcome outcome = Run();
    ExpectDone(outcome);
    expected_ = outcome.out;
    EXPECT_EQ(Listing(folder_.path()), Whole());
  }
  std::string model() const { return folder_.Path("m.gguf"); }
  std::string store() const { return folder_.Path("m.gguf.emstore"); }
  static std::vector<std::string> Whole() { return {"m.gguf", "m.gguf.emstore"}; }

  Outcome Run() const {
    return RunProgram({"run", "-m", model(), "-p", "hi", "-n", "8", "--temp", "0", "--memory", "64MiB"});
  }
  StoreHeader Header() const {
    StoreHeader header;
    const std::string bytes = testing::ReadFileBytes(store());
    EM_CHECK(bytes.size() > sizeof(header));
    std::memcpy(&header, bytes.data(), sizeof(header));
    return header;
  }
  void ExpectStoreRefused(std::initializer_list<std::string_view> parts) const {
    ExpectRefused(Run(), parts);
    ExpectRefused(Run(), {"m.gguf.emstore"});
    EXPECT_EQ(Listing(folder_.path()), Whole());
  }
  // The next run packs again and tells the same text.
  void ExpectStoreRemade() const {
    const Outcome outcome = Run();
    ExpectDone(outcome);
    EXPECT_EQ(outcome.out, expected_);
    EXPECT_THAT(outcome.err, ::testing::HasSubstr("packed "));
    EXPECT_EQ(Listing(folder_.path()), Whole());
    const Outcome again = Run();
    EXPECT_THAT(again.err, ::testing::Not(::testing::HasSubstr("packed ")));
    EXPECT_EQ(again.out, expected_);
  }

  const ScratchFolder folder_;
  std::string expected_;
};

TEST_F(BadStore, TruncatedNamesBothSizes) {
  const uint64_t whole = std::filesystem::file_size(store());
  std::filesystem::resize_file(store(), whole - 4096);
  ExpectStoreRefused({std::to_string(whole), std::to_string(whole - 4096)});
}

TEST_F(BadStore, TruncatedAnywhereIsRefused) {
  const std::string whole = testing::ReadFileBytes(store());
  for (const size_t bytes : {size_t{0}, size_t{7}, size_t{24}, size_t{255}, size_t{256}, size_t{4096}}) {
    SCOPED_TRACE(bytes);
    testing::WriteFileBytes(store(), std::string_view(whole).substr(0, bytes));
    ExpectStoreRefused({});
  }
}

TEST_F(BadStore, BitFlippedInARecordNamesTheNeuron) {
  const StoreHeader header = Header();
  FlipBit(store(), header.data_offset + 5 * uint64_t{header.record_bytes} + header.head_bytes + 3);
  ExpectStoreRefused({"layer 0", "neuron 5"});
}

TEST_F(BadStore, BitFlippedInTheHeaderOrTables) {
  FlipBit(store(), offsetof(StoreHeader, layers));
  ExpectStoreRefused({"header"});
  FlipBit(store(), offsetof(StoreHeader, layers));
  ExpectDone(Run());
  FlipBit(store(), sizeof(StoreHeader) + sizeof(StoreExtent) + 10);
  ExpectStoreRefused({"table"});
}

TEST_F(BadStore, OfAnotherVersionIsMadeAnew) {
  StoreHeader header = Header();
  header.version = 99;
  header.header_checksum = 0;
  StreamHash hash;
  hash.Add(std::as_bytes(std::span(&header, 1)));
  header.header_checksum = hash.Digest();
  testing::Poke(store(), 0, {reinterpret_cast<const char*>(&header), sizeof(header)});
  ExpectStoreRemade();
}

TEST_F(BadStore, OfAnotherModelIsMadeAnew) {
  const std::string other = folder_.Path("other.gguf");
  testing::BuilderOf("tests/golden/tiny/opt.gguf").Write(other);
  ExpectDone(RunProgram({"pack", other, "-o", store() + ".other"}));
  std::filesystem::rename(store() + ".other", store());
  std::filesystem::remove(other);
  ExpectStoreRemade();
}

TEST_F(BadStore, OfTheModelBeforeItChangedIsMadeAnew) {
  const uint64_t offset = testing::OffsetOf(model(), "blk.0.ffn_up.weight");
  testing::Poke(model(), offset + 100, std::string(2, '\x30'));
  const Outcome changed = Run();
  ExpectDone(changed);
  expected_ = changed.out;
  EXPECT_THAT(changed.err, ::testing::HasSubstr("packed "));
  EXPECT_EQ(Run().out, expected_);
}

TEST_F(BadStore, SomethingElseUnderItsNameIsLeftAlone) {
  testing::WriteFileBytes(store(), "my own notes, not a store");
  ExpectStoreRefused({});
  EXPECT_EQ(testing::ReadFileBytes(store()), "my own notes, not a store");
  std::filesystem::remove(store());
  std::filesystem::create_directory(store());
  ExpectStoreRefused({"folder"});
}

TEST_F(BadStore, StalePartialIsTakenOver) {
  std::filesystem::remove(store());
  testing::WriteFileBytes(store() + ".partial", "left by a killed packer");
  const Outcome outcome = Run();
  ExpectDone(outcome);
  EXPECT_EQ(outcome.out, expected_);
  EXPECT_EQ(Listing(folder_.path()), Whole());
}

TEST_F(BadStore, VerifyNamesTheNeuron) {
  const StoreHeader header = Header();
  ExpectDone(RunProgram({"pack", model(), "--verify"}));
  FlipBit(store(), header.data_offset + 7 * uint64_t{header.record_bytes} + header.head_bytes + 1);
  ExpectRefused(RunProgram({"pack", model(), "--verify"}), {"m.gguf.emstore", "layer 0", "neuron 7"});
}

class NoRoom : public ::testing::Test {
 protected:
  const ScratchFolder folder_;
};

TEST_F(NoRoom, FileSizeLimitIsNamedAndNothingLeft) {
  Surroundings surroundings;
  surroundings.file_size_limit = 1 << 20;
  const std::string tales = SourcePath(kTales);
  ExpectRefused(RunProgram({"pack", tales, "--store-dir", folder_.path()}, surroundings),
                {"emstore", "bytes", "--store-dir"});
  EXPECT_THAT(Listing(folder_.path()), ElementsAre());
  ExpectRefused(RunProgram({"run", "-m", tales, "-p", "hi", "-n", "4", "--store-dir", folder_.path()}, surroundings),
                {"emstore", "bytes", "--store-dir"});
  EXPECT_THAT(Listing(folder_.path()), ElementsAre());
}

TEST_F(NoRoom, FullDiskSaysWhatIsNeededAndThere) {
  const std::string disk = folder_.Path("disk");
  std::filesystem::create_directory(disk);
  if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=4m") != 0) {
    GTEST_SKIP() << "no permission to mount a small disk";
  }
  const std::string tales = SourcePath(kTales);
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"pack", tales, "--store-dir", disk},
        std::vector<std::string>{"pack", tales, "-o", disk + "/x.emstore"},
        std::vector<std::string>{"run", "-m", tales, "-p", "hi", "-n", "4", "--store-dir", disk}}) {
    ExpectRefused(RunProgram(args), {"emstore", "the disk is full", "4194304", "--store-dir"});
    EXPECT_THAT(Listing(disk), ElementsAre());
  }
  umount(disk.c_str());
}

TEST_F(NoRoom, FoldersThatCannotBeWrittenAreNamed) {
  if (!testing::CanObeyPermissions()) GTEST_SKIP() << "root here may write anywhere";
  std::filesystem::copy_file(SourcePath(kTinyRelu), folder_.Path("m.gguf"));
  const std::string closed = folder_.Path("closed");
  std::filesystem::create_directory(closed);
  ASSERT_EQ(chmod(closed.c_str(), 0555), 0);
  Surroundings surroundings;
  surroundings.obey_permissions = true;
  ExpectRefused(RunProgram({"pack", folder_.Path("m.gguf"), "--store-dir", closed}, surroundings),
                {"closed", "ermission denied"});
  // A model folder that can't be written is no error: the cache folder takes the store.
  ASSERT_EQ(chmod(folder_.path().c_str(), 0555), 0);
  ExpectDone(
      RunProgram({"run", "-m", folder_.Path("m.gguf"), "-p", "hi", "-n", "4", "--memory", "64MiB"}, surroundings));
  ASSERT_EQ(chmod(folder_.path().c_str(), 0755), 0);
  EXPECT_THAT(Listing(folder_.path()), ElementsAre("closed", "m.gguf"));
}

// NaN in weights is named, never garbage text.
class NotANumber : public ::testing::Test {
 protected:
  NotANumber() { std::filesystem::copy_file(SourcePath(kTinyRelu), model()); }
  std::string model() const { return folder_.Path("m.gguf"); }
  Outcome Run() const {
    return RunProgram({"run", "-m", model(), "-p", "hi", "-n", "8", "--temp", "0", "--memory", "64MiB", "--json"});
  }
  // NaN (f16) as the fifth weight of every row of `tensor`, so that any row that is used has one.
  void Spoil(const std::string& tensor, uint64_t rows, uint64_t cols) const {
    const uint64_t offset = testing::OffsetOf(model(), tensor);
    for (uint64_t row = 0; row < rows; ++row) testing::Poke(model(), offset + (row * cols + 4) * 2, "\x01\x7e");
  }

  const ScratchFolder folder_;
};

TEST_F(NotANumber, InADenseTensorIsNamedAtRun) {
  struct Case {
    const char* tensor;
    uint64_t rows, cols;
  };
  for (const auto& [tensor, rows, cols] :
       {Case{"blk.0.attn_q.weight", 64, 64}, Case{"blk.0.attn_output.weight", 64, 64},
        Case{"token_embd.weight", 288, 64}, Case{"blk.0.ffn_gate.weight", 96, 64}}) {
    SCOPED_TRACE(tensor);
    std::filesystem::copy_file(SourcePath(kTinyRelu), model(), std::filesystem::copy_options::overwrite_existing);
    Spoil(tensor, rows, cols);
    ExpectRefused(Run(), {tensor, "m.gguf", "NaN"});
  }
}

TEST_F(NotANumber, InANormIsNamedAtRun) {
  testing::Poke(model(), testing::OffsetOf(model(), "output_norm.weight"), std::string("\0\0\xc0\x7f", 4));
  ExpectRefused(Run(), {"output_norm.weight", "m.gguf", "NaN"});
}

TEST_F(NotANumber, InANeuronIsRefusedByThePacker) {
  for (const char* tensor : {"blk.0.ffn_up.weight", "blk.0.ffn_down.weight"}) {
    SCOPED_TRACE(tensor);
    std::filesystem::copy_file(SourcePath(kTinyRelu), model(), std::filesystem::copy_options::overwrite_existing);
    testing::Poke(model(), testing::OffsetOf(model(), tensor) + 8, "\x01\x7e");
    ExpectRefused(RunProgram({"pack", model()}), {tensor, "row 0", "m.gguf"});
    ExpectRefused(Run(), {tensor, "row 0", "m.gguf"});
    EXPECT_THAT(Listing(folder_.path()), ElementsAre("m.gguf"));
  }
}

TEST_F(NotANumber, ThatCameAfterTheStoreWasPackedIsNamedToo) {
  ExpectDone(Run());
  for (const char* tensor : {"blk.0.ffn_up.weight", "blk.0.ffn_down.weight"}) {
    SCOPED_TRACE(tensor);
    std::filesystem::copy_file(SourcePath(kTinyRelu), model(), std::filesystem::copy_options::overwrite_existing);
    testing::Poke(model(), testing::OffsetOf(model(), tensor) + 8, "\x01\x7e");
    ExpectRefused(Run(), {tensor, "row 0", "m.gguf"});
  }
}

TEST_F(NotANumber, InADenseModelIsNamed) {
  std::filesystem::copy_file(SourcePath("tests/golden/tiny/llama-silu.gguf"), model(),
                             std::filesystem::copy_options::overwrite_existing);
  testing::Poke(model(), testing::OffsetOf(model(), "blk.1.ffn_up.weight") + 8, "\x01\x7e");
  ExpectRefused(Run(), {"blk.1.ffn_up.weight", "m.gguf", "NaN"});
}

}  // namespace
}  // namespace elasticmem
