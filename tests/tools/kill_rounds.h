// Kills `pack` and first runs at random moments; the next run must tell the same tale and leave no litter.
#pragma once

#include <gmock/gmock.h>
#include <signal.h>

#include <chrono>
#include <random>
#include <string>
#include <thread>

#include "tests/gguf/scratch_folder.h"
#include "tests/tools/program.h"
#include "tests/tools/tiny_model.h"

namespace elasticmem::testing {

inline void KillProgramsAndRunAgain(int rounds) {
  using Clock = std::chrono::steady_clock;
  const ScratchFolder folder;
  const std::vector<std::string> run = {"run", "-m",          SourcePath(kTales), "-p", "Once upon a time",
                                        "-n",  "12",          "--temp",           "0",  "--memory",
                                        "75%", "--store-dir", folder.path()};
  const std::vector<std::string> pack = {"pack", SourcePath(kTales), "--store-dir", folder.path()};
  const Outcome expected = RunProgram(run);
  ExpectDone(expected);
  const std::vector<std::string> whole = Listing(folder.path());
  ASSERT_EQ(whole.size(), 1u);
  const std::string store = folder.Path(whole[0]);
  std::filesystem::remove(store);
  const Clock::time_point start = Clock::now();
  ExpectDone(RunProgram(pack));
  const auto packing = Clock::now() - start;

  std::mt19937 random(11);
  int killed = 0;
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(round);
    std::filesystem::remove(store);
    Program program(round % 4 == 3 ? run : pack);
    std::this_thread::sleep_for(packing * std::uniform_real_distribution<double>(0.02, 1)(random));
    program.Signal(SIGKILL);
    killed += program.Wait().signal == SIGKILL;
    const Outcome outcome = RunProgram(run);
    ExpectDone(outcome);
    ASSERT_EQ(outcome.out, expected.out);
    ASSERT_EQ(Listing(folder.path()), whole);
  }
  EXPECT_GT(killed, 0);
}

}  // namespace elasticmem::testing
