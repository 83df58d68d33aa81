// Kills packers at random moments and checks that the next one leaves the same store and nothing else.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "runtime/model/neuron_store_packer.h"
#include "tests/gguf/scratch_folder.h"
#include "tests/model/child_process.h"
#include "tests/model/ffn_model.h"

namespace elasticmem {

inline void KillPackersAndPackAgain(int rounds) {
  const ScratchFolder folder;
  FfnModel model(folder.Path("m.gguf"), {.d_model = 512, .ff = 1024, .layers = 4, .down = {DType::kQ8_0}});
  const std::string path = folder.Path("m.emstore");
  const uint64_t scratch = 256 << 10;
  int reports = 0;
  const auto count = [&](uint64_t, uint64_t) { ++reports; };
  ASSERT_TRUE(PackNeuronStore(model.source(), path, {.scratch_bytes = scratch, .progress = count}).ok());
  const std::string whole = ReadAll(path);
  ASSERT_GT(reports, 20);

  std::mt19937 random(7);
  int killed = 0, partials = 0;
  for (int round = 0; round < rounds; ++round) {
    std::filesystem::remove(path);
    // The child writes a byte a report; it is killed after a random number of them, wherever it has got to by then.
    int pipe_ends[2];
    ASSERT_EQ(pipe(pipe_ends), 0);
    const pid_t child = StartChild([&] {
      const auto tell = [&](uint64_t, uint64_t) {
        const char byte = 1;
        EM_CHECK(write(pipe_ends[1], &byte, 1) == 1);
      };
      return PackNeuronStore(model.source(), path, {.scratch_bytes = scratch, .progress = tell}).ok() ? 0 : 1;
    });
    close(pipe_ends[1]);
    char byte;
    for (int n = std::uniform_int_distribution<int>(0, reports)(random); n > 0; --n) {
      if (read(pipe_ends[0], &byte, 1) != 1) break;
    }
    kill(child, SIGKILL);
    if (WaitForChild(child) == -SIGKILL) ++killed;
    close(pipe_ends[0]);
    if (std::filesystem::exists(path + ".partial")) ++partials;

    const auto opened = OpenOrPackNeuronStore(model.source(), path, {.scratch_bytes = scratch}, {});
    ASSERT_TRUE(opened.ok()) << opened.status();
    ASSERT_EQ(ReadAll(path), whole) << round;
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
      names.push_back(entry.path().filename());
    ASSERT_THAT(names, testing::UnorderedElementsAre("m.gguf", "m.emstore")) << round;
  }
  EXPECT_GT(killed, 0);
  EXPECT_GT(partials, 0);  // else nothing was tried
}

}  // namespace elasticmem
