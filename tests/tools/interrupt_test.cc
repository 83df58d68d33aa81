// Ctrl-C ends packing and running with exit code 130 and leaves nothing half-made behind.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <thread>

#include "tests/gguf/scratch_folder.h"
#include "tests/tools/program.h"
#include "tests/tools/tiny_model.h"

namespace elasticmem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kTales;
using testing::Listing;
using testing::Outcome;
using testing::Program;
using testing::SourcePath;
using ::testing::StartsWith;

void ExpectInterrupted(const Outcome& outcome) {
  EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
  EXPECT_EQ(outcome.signal, 0);
  EXPECT_FALSE(outcome.timed_out);
  EXPECT_THAT(outcome.err, HasSubstr("interrupted"));
}

// The tiny model with neurons enough for a store of 200 MB; its weights are a hole in the file.
void WriteLargeModel(const std::string& path) {
  constexpr uint64_t kWidth = 64, kNeurons = 260000;
  GgufBuilder builder = testing::BuilderOf(testing::kTinyRelu);
  builder.Set("llama.feed_forward_length", static_cast<uint32_t>(kNeurons));
  uint64_t end = 0;
  for (const char* name : {"blk.0.ffn_gate.weight", "blk.0.ffn_up.weight", "blk.0.ffn_down.weight"}) {
    GgufBuilder::Tensor tensor = *builder.FindTensor(name);
    builder.RemoveTensor(name);
    tensor.shape = std::string_view(name).ends_with("down.weight") ? std::vector<uint64_t>{kNeurons, kWidth}
                                                                   : std::vector<uint64_t>{kWidth, kNeurons};
    tensor.type = 0;  // F32
    tensor.data.clear();
    tensor.offset = (end += uint64_t{1} << 20);
    end = *tensor.offset + kWidth * kNeurons * sizeof(float);
    builder.AddTensor(tensor);
  }
  builder.Write(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) + end);
}

bool WaitUntil(const std::function<bool()>& condition) {
  for (int i = 0; i < 50000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return false;
}
bool WaitForFile(const std::string& path) {
  return WaitUntil([&] { return std::filesystem::exists(path); });
}

TEST(Interrupt, DuringPackRemovesThePartialStore) {
  const ScratchFolder folder;
  WriteLargeModel(folder.Path("m.gguf"));
  for (const int signal : {SIGINT, SIGTERM}) {
    Program pack({"pack", folder.Path("m.gguf")});
    ASSERT_TRUE(WaitForFile(folder.Path("m.gguf.emstore.partial")));
    pack.Signal(signal);
    ExpectInterrupted(pack.Wait());
    EXPECT_THAT(Listing(folder.path()), ElementsAre("m.gguf"));
  }
}

TEST(Interrupt, DuringThePackingOfARunRemovesThePartialStore) {
  const ScratchFolder folder;
  WriteLargeModel(folder.Path("m.gguf"));
  Program run({"run", "-m", folder.Path("m.gguf"), "-p", "hi", "-n", "4", "--memory", "400MB"});
  ASSERT_TRUE(WaitForFile(folder.Path("m.gguf.emstore.partial")));
  run.Signal(SIGINT);
  ExpectInterrupted(run.Wait());
  EXPECT_THAT(Listing(folder.path()), ElementsAre("m.gguf"));
}

TEST(Interrupt, WhileAnotherProcessPacksLeavesItsPartialAlone) {
  const ScratchFolder folder;
  std::filesystem::copy_file(SourcePath(testing::kTinyRelu), folder.Path("m.gguf"));
  const std::string partial = folder.Path("m.gguf.emstore.partial");
  const int other = open(partial.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  ASSERT_EQ(flock(other, LOCK_EX), 0);
  Program pack({"pack", folder.Path("m.gguf")});
  ASSERT_TRUE(WaitUntil([&] { return pack.HasOpen(partial); }));
  pack.Signal(SIGINT);
  ExpectInterrupted(pack.Wait());
  EXPECT_THAT(Listing(folder.path()), ElementsAre("m.gguf", "m.gguf.emstore.partial"));
  close(other);
}

TEST(Interrupt, DuringARunKeepsWhatWasTold) {
  const ScratchFolder folder;
  const std::string prompt = "Once upon a time there was a king who";
  const std::vector<std::string> args = {
      "run",      "-m",  SourcePath(kTales), "-p",          prompt,         "--temp", "0",
      "--memory", "60%", "--store-dir",      folder.path(), "--ignore-eos", "-n",     "1000"};
  Program run(args);
  ASSERT_TRUE(run.WaitForStdout(20));
  run.Signal(SIGINT);
  const Outcome outcome = run.Wait();
  ExpectInterrupted(outcome);
  EXPECT_THAT(outcome.out, StartsWith(" had a daughter"));
  EXPECT_THAT(outcome.err, HasSubstr("tokens/s"));  // the summary of what was done
  for (const std::string& name : Listing(folder.path())) EXPECT_THAT(name, ::testing::EndsWith(".emstore"));
}

TEST(Interrupt, DuringALongPrefillAndMeasurements) {
  const ScratchFolder folder;
  const std::string model = SourcePath(kTales), text = SourcePath("tests/golden/heldout.txt");
  ASSERT_EQ(testing::RunProgram({"pack", model, "--store-dir", folder.path()}).exit_code, 0);
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"perplexity", "-m", model, "-f", text, "--store-dir", folder.path(), "--memory",
                                 "60%"},
        std::vector<std::string>{"bench", "-m", model, "--store-dir", folder.path(), "--memory", "60%", "-r", "500"}}) {
    SCOPED_TRACE(args[0]);
    Program program(args);
    const std::string store = folder.Path(Listing(folder.path())[0]);
    ASSERT_TRUE(WaitUntil([&] { return program.HasOpen(store); }));
    program.Signal(SIGINT);
    const auto asked = std::chrono::steady_clock::now();
    const Outcome outcome = program.Wait();
    ExpectInterrupted(outcome);
    EXPECT_EQ(outcome.out, "");
    EXPECT_LT(std::chrono::steady_clock::now() - asked, std::chrono::seconds(10));
  }
}

TEST(Interrupt, WhileItWaitsForATextToRead) {
  const ScratchFolder folder;
  ASSERT_EQ(mkfifo(folder.Path("prompt").c_str(), 0600), 0);
  testing::Surroundings surroundings;
  surroundings.timeout = std::chrono::seconds(3);
  Program run({"run", "-m", SourcePath(testing::kTinyRelu), "-f", folder.Path("prompt"), "--memory", "64MiB"},
              surroundings);
  // It blocks in opening, which nothing shows from outside.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  run.Signal(SIGINT);
  ExpectInterrupted(run.Wait());
}

TEST(Interrupt, ClosedStdoutEndsARunWithoutACrash) {
  const ScratchFolder folder;
  Program run({"run", "-m", SourcePath(kTales), "-p", "Once", "--temp", "0", "--memory", "100%", "--store-dir",
               folder.path(), "-n", "400", "--ignore-eos"});
  ASSERT_TRUE(run.WaitForStdout(10));
  run.CloseStdout();
  const Outcome outcome = run.Wait();
  EXPECT_EQ(outcome.signal, 0);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("elasticmem: "));
}

}  // namespace
}  // namespace elasticmem
