// Packing leaves a whole store or nothing, whatever happens: cancelled, killed, raced, out of disk, bad weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <thread>

#include "store/neuron_store.h"
#include "runtime/model/neuron_store_packer.h"
#include "runtime/model/partial_file.h"
#include "tests/gguf/scratch_folder.h"
#include "tests/model/child_process.h"
#include "tests/model/ffn_model.h"

namespace elasticmem {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Listing(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string Text(const Status& status) { return std::string(Message(status)); }

class PackingTest : public testing::Test {
 protected:
  PackingTest() : model_(folder_.Path("m.gguf"), {.layers = 3}), path_(folder_.Path("m.emstore")) {}

  const ScratchFolder folder_;
  FfnModel model_;
  const std::string path_;
};

TEST_F(PackingTest, ReportsProgressUpToTheEnd) {
  uint64_t last = 0, end = 0;
  const auto progress = [&](uint64_t done, uint64_t total) {
    EXPECT_GE(done, last);
    EXPECT_LE(done, total);
    last = done;
    end = total;
  };
  const auto packed = PackNeuronStore(model_.source(), path_, {.scratch_bytes = 500'000, .progress = progress});
  ASSERT_TRUE(packed.ok()) << packed.status();
  EXPECT_EQ(end, packed->model_bytes + packed->bytes);
  EXPECT_EQ(last, end);  // the last extent of 512 records ends at a multiple of 4096
  EXPECT_THAT(Listing(folder_.path()), ElementsAre("m.emstore", "m.gguf"));
}

TEST_F(PackingTest, ReusesAStoreThatFits) {
  ASSERT_TRUE(PackNeuronStore(model_.source(), path_, {}).ok());
  const auto made = fs::last_write_time(path_);
  const auto again = PackNeuronStore(model_.source(), path_, {});
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->reused);
  EXPECT_EQ(fs::last_write_time(path_), made);
  const auto opened = OpenOrPackNeuronStore(model_.source(), path_, {}, {});
  ASSERT_TRUE(opened.ok());
  EXPECT_FALSE(opened->packed.has_value());
}

TEST_F(PackingTest, CancellingRemovesThePartial) {
  std::atomic<bool> cancelled = false;
  for (const double share : {0.0, 0.3, 0.6, 0.9}) {
    cancelled = false;
    const auto progress = [&](uint64_t done, uint64_t total) {
      cancelled = static_cast<double>(done) >= share * static_cast<double>(total);
    };
    const PackOptions options{.scratch_bytes = 300'000, .progress = progress, .cancelled = &cancelled};
    EXPECT_EQ(PackNeuronStore(model_.source(), path_, options).status().code(), StatusCode::kCancelled) << share;
    EXPECT_THAT(Listing(folder_.path()), ElementsAre("m.gguf")) << share;
  }
}

TEST_F(PackingTest, ASecondPackerUsesWhatTheFirstOneMade) {
  const auto pack = [&] {
    const auto packed = PackNeuronStore(model_.source(), path_, {.scratch_bytes = 300'000});
    return !packed.ok() ? 1 : packed->reused ? 10 : 11;
  };
  for (int round = 0; round < 5; ++round) {
    fs::remove(path_);
    const pid_t a = StartChild(pack), b = StartChild(pack), c = StartChild(pack);
    std::vector<int> results = {WaitForChild(a), WaitForChild(b), WaitForChild(c)};
    std::sort(results.begin(), results.end());
    EXPECT_THAT(results, ElementsAre(10, 10, 11));
    EXPECT_THAT(Listing(folder_.path()), ElementsAre("m.emstore", "m.gguf"));
  }
}

TEST_F(PackingTest, TwoPackersThatReplaceLeaveOneWholeStore) {
  const auto pack = [&] { return PackNeuronStore(model_.source(), path_, {.replace = true}).ok() ? 0 : 1; };
  const pid_t a = StartChild(pack), b = StartChild(pack);
  EXPECT_EQ(WaitForChild(a), 0);
  EXPECT_EQ(WaitForChild(b), 0);
  const auto store = NeuronStore::Open(path_, std::nullopt);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE(store->VerifyAll(nullptr, nullptr).ok());
  EXPECT_THAT(Listing(folder_.path()), ElementsAre("m.emstore", "m.gguf"));
}

TEST_F(PackingTest, CancellingTheOneThatWaitsLeavesTheOtherAlone) {
  const auto first = PartialFile::Lock(path_, nullptr);
  ASSERT_TRUE(first.ok());
  const std::atomic<bool> cancelled = true;
  EXPECT_EQ(PackNeuronStore(model_.source(), path_, {.cancelled = &cancelled}).status().code(), StatusCode::kCancelled);
  EXPECT_THAT(Listing(folder_.path()), ElementsAre("m.emstore.partial", "m.gguf"));
}

TEST_F(PackingTest, OneThatWaitsPacksIfTheFirstGivesUp) {
  auto first = std::make_unique<PartialFile>(*PartialFile::Lock(path_, nullptr));
  std::thread second([&] {
    const auto packed = PackNeuronStore(model_.source(), path_, {});
    EXPECT_TRUE(packed.ok() && !packed->reused) << packed.status();
  });
  first.reset();
  second.join();
  EXPECT_THAT(Listing(folder_.path()), ElementsAre("m.emstore", "m.gguf"));
}

TEST_F(PackingTest, OpeningAWholeStoreRemovesAnAbandonedPartial) {
  ASSERT_TRUE(PackNeuronStore(model_.source(), path_, {}).ok());
  WriteAll(path_ + ".partial", "left behind");
  ASSERT_TRUE(OpenOrPackNeuronStore(model_.source(), path_, {}, {}).ok());
  EXPECT_THAT(Listing(folder_.path()), ElementsAre("m.emstore", "m.gguf"));
}

TEST_F(PackingTest, RefusesToReplaceWhatIsNoStore) {
  const std::string before = ReadAll(model_.path());
  const Status onto_model = PackNeuronStore(model_.source(), model_.path(), {.replace = true}).status();
  EXPECT_THAT(Text(onto_model), HasSubstr("exists and is not a neuron store"));
  EXPECT_EQ(ReadAll(model_.path()), before);
  const Status onto_folder = PackNeuronStore(model_.source(), folder_.path(), {}).status();
  EXPECT_EQ(onto_folder.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(Listing(folder_.path()), ElementsAre("m.gguf"));
}

TEST_F(PackingTest, AFolderThatIsNotThereIsNamed) {
  const Status status = PackNeuronStore(model_.source(), folder_.Path("none/m.emstore"), {}).status();
  EXPECT_THAT(Text(status), AllOf(HasSubstr("none/m.emstore.partial"), HasSubstr("No such file or directory")));
}

// The child prints nothing; it exits with 0 if packing failed as a full disk should.
int FailsForWantOfSpace(FfnModel& model, const std::string& path) {
  const Status status = PackNeuronStore(model.source(), path, {}).status();
  const std::string text = Text(status);
  const bool clear = status.code() == StatusCode::kResourceExhausted && text.find("it needs ") != std::string::npos &&
                     text.find(" available; ") != std::string::npos && text.find("--store-dir") != std::string::npos;
  return clear && !fs::exists(path) && !fs::exists(path + ".partial") ? 0 : 1;
}

TEST_F(PackingTest, ATooSmallDiskIsAClearErrorAndLeavesNothing) {
  const std::string disk = folder_.Path("disk");
  fs::create_directory(disk);
  const int result = RunInChild([&] {
    // A mount of the child's own.
    if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=64k") != 0) {
      return kSkipped;
    }
    return FailsForWantOfSpace(model_, disk + "/m.emstore");
  });
  if (result == kSkipped) GTEST_SKIP() << "may not mount a small file system";
  EXPECT_EQ(result, 0);
}

TEST_F(PackingTest, ALimitOnFileSizesIsAClearErrorAndLeavesNothing) {
  EXPECT_EQ(RunInChild([&] {
              signal(SIGXFSZ, SIG_IGN);
              const rlimit limit{64 << 10, 64 << 10};
              return setrlimit(RLIMIT_FSIZE, &limit) != 0 ? 2 : FailsForWantOfSpace(model_, path_);
            }),
            0);
}

TEST_F(PackingTest, WeightsThatAreNotFiniteAreNamed) {
  const std::string whole = ReadAll(model_.path());
  const auto pack_with = [&](const GgufTensor& tensor, uint64_t at, uint16_t bits) {
    std::string bytes = whole;
    std::memcpy(bytes.data() + tensor.offset + at, &bits, sizeof(bits));
    WriteAll(model_.path(), bytes);
    const Status status = PackNeuronStore(model_.source(), path_, {}).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(Listing(folder_.path()), ElementsAre("m.gguf"));
    return Text(status);
  };
  const FfnTensors& tensors = model_.source().layers[1];
  EXPECT_EQ(pack_with(*tensors.gate, 7 * 512 + 20, 0x7e00),
            "tensor blk.1.ffn_gate.weight (layer 1): row 7 holds a weight that is NaN or infinite");
  EXPECT_EQ(pack_with(*tensors.up, 511 * 512 + 510, 0xfc00),
            "tensor blk.1.ffn_up.weight (layer 1): row 511 holds a weight that is NaN or infinite");
  EXPECT_EQ(pack_with(*tensors.down, 255 * 1024 + 1022, 0x7c01),
            "tensor blk.1.ffn_down.weight (layer 1): row 255 holds a weight that is NaN or infinite");
}

TEST(PackingWeightsTest, ScalesOfEveryQuantisedTypeAreChecked) {
  const std::vector<std::pair<DType, std::vector<size_t>>> scales = {
      {DType::kQ8_0, {0}},    {DType::kQ4_0, {0}},      {DType::kQ4_1, {0, 2}}, {DType::kQ5_0, {0}},
      {DType::kQ5_1, {0, 2}}, {DType::kQ2_K, {80, 82}}, {DType::kQ3_K, {108}},  {DType::kQ4_K, {0, 2}},
      {DType::kQ5_K, {0, 2}}, {DType::kQ6_K, {208}}};
  for (const auto& [dtype, offsets] : scales) {
    for (const size_t offset : offsets) {
      const ScratchFolder folder;
      FfnModel model(folder.Path("m.gguf"), {.d_model = 512, .ff = 256, .gate = dtype, .up = dtype, .down = {dtype}});
      const FfnTensors& tensors = model.source().layers[1];
      std::string bytes = ReadAll(model.path());
      // The last block of row 3 of down.
      const uint64_t row = RowBytes(dtype, 256);
      const uint16_t infinity = 0x7c00;
      std::memcpy(bytes.data() + tensors.down->offset + 4 * row - Traits(dtype).block_bytes + offset, &infinity, 2);
      WriteAll(model.path(), bytes);
      EXPECT_EQ(Text(PackNeuronStore(model.source(), folder.Path("s"), {}).status()),
                "tensor blk.1.ffn_down.weight (layer 1): row 3 holds a weight that is NaN or infinite")
          << Traits(dtype).name << " " << offset;
    }
  }
}

TEST(PackingWeightsTest, AWeightTooLargeForTheTypeAskedForIsNamed) {
  const ScratchFolder folder;
  FfnModel model(folder.Path("m.gguf"), {.d_model = 32, .ff = 32, .layers = 1, .gate = DType::kF32});
  std::string bytes = ReadAll(model.path());
  const float large = 1e6f;
  std::memcpy(bytes.data() + model.source().layers[0].gate->offset + 40, &large, sizeof(large));
  WriteAll(model.path(), bytes);
  const Status status = PackNeuronStore(model.source(), folder.Path("s"), {.type = DType::kF16}).status();
  EXPECT_THAT(Text(status), HasSubstr("tensor blk.0.ffn_gate.weight (layer 0): a weight is too large for F16"));
}

TEST(StorePathTest, IsBesideTheModelWhereThatCanBeWritten) {
  const ScratchFolder folder;
  const std::string model = folder.Path("m.gguf");
  EXPECT_EQ(*StorePath({.model_path = model, .cache_dir = folder.Path("cache")}), folder.Path("m.gguf.emstore"));
  EXPECT_EQ(*StorePath({.model_path = model, .type = DType::kQ8_0}), folder.Path("m.gguf.Q8_0.emstore"));
  EXPECT_FALSE(fs::exists(folder.Path("cache")));
}

TEST(StorePathTest, TheFolderAskedForIsMadeAndNamesKeepModelsApart) {
  const ScratchFolder folder;
  const auto path = StorePath(
      {.model_path = "/models/m.gguf", .store_dir = folder.Path("a/b"), .cache_dir = "", .model_quick_hash = 0xabc});
  EXPECT_EQ(*path, folder.Path("a/b/0000000000000abc-m.gguf.emstore"));
  EXPECT_TRUE(fs::is_directory(folder.Path("a/b")));
}

TEST(StorePathTest, AReadOnlyModelFolderFallsBackToTheCache) {
  const ScratchFolder folder;
  fs::permissions(folder.path(), fs::perms::all);
  fs::create_directory(folder.Path("models"));
  FfnModel model(folder.Path("models/m.gguf"), {.d_model = 32, .ff = 32, .layers = 1});
  const std::string beside = model.path() + ".emstore", cache = folder.Path("cache/elasticmem");
  const int result = RunInChild([&] {
    fs::permissions(folder.Path("models"), fs::perms{0555});
    if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) return kSkipped;  // root may write anywhere
    const auto path = StorePath({.model_path = model.path(), .cache_dir = cache, .model_quick_hash = 1});
    if (!path.ok() || *path != cache + "/0000000000000001-m.gguf.emstore") return 1;
    if (!PackNeuronStore(model.source(), *path, {}).ok()) return 2;
    const Status nowhere = StorePath({.model_path = model.path()}).status();
    if (Text(nowhere).find("choose a folder with --store-dir") == std::string::npos) return 3;
    const Status refused = PackNeuronStore(model.source(), beside, {}).status();
    return Text(refused).find("choose another folder with --store-dir") == std::string::npos ? 4 : 0;
  });
  fs::permissions(folder.Path("models"), fs::perms::owner_all);
  if (result == kSkipped) GTEST_SKIP() << "cannot give up root's rights";
  EXPECT_EQ(result, 0);
}

TEST(StorePathTest, AStoreInAReadOnlyModelFolderIsUsed) {
  const ScratchFolder folder;
  fs::permissions(folder.path(), fs::perms::all);
  fs::create_directory(folder.Path("models"));
  FfnModel model(folder.Path("models/m.gguf"), {.d_model = 32, .ff = 32, .layers = 1});
  const std::string beside = model.path() + ".emstore";
  ASSERT_TRUE(PackNeuronStore(model.source(), beside, {}).ok());
  const uint64_t hash = NeuronStore::Open(beside, std::nullopt)->model_quick_hash();
  const int result = RunInChild([&] {
    fs::permissions(folder.Path("models"), fs::perms{0555});
    if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) return kSkipped;
    const auto path =
        StorePath({.model_path = model.path(), .cache_dir = folder.Path("cache"), .model_quick_hash = hash});
    return path.ok() && *path == beside ? 0 : 1;
  });
  fs::permissions(folder.Path("models"), fs::perms::owner_all);
  if (result == kSkipped) GTEST_SKIP() << "cannot give up root's rights";
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace elasticmem
