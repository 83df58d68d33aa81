#include "device/team.h"

#include <atomic>
#include <vector>

#include <gtest/gtest.h>

namespace elasticmem {
namespace {

class TeamOf : public ::testing::TestWithParam<int> {};

TEST_P(TeamOf, RunsEveryChunkOnce) {
  Team team(GetParam());
  Team::Session session(team);
  for (const size_t chunks : {0u, 1u, 2u, 7u, 64u, 1000u}) {
    std::vector<std::atomic<int>> runs(chunks);
    team.ParallelFor(chunks, [&](size_t chunk) { runs[chunk].fetch_add(1); });
    for (const auto& count : runs) EXPECT_EQ(count.load(), 1);
  }
}

TEST_P(TeamOf, SeesWhatEarlierJobsWrote) {
  Team team(GetParam());
  std::vector<uint64_t> values(257, 0);
  for (int session_number = 0; session_number < 20; ++session_number) {
    Team::Session session(team);
    for (int job = 0; job < 200; ++job) {
      team.ParallelFor(values.size(), [&](size_t i) { values[i] += values[i] % 3 + 1; });
    }
  }
  for (const uint64_t value : values) EXPECT_EQ(value, values[0]);
  EXPECT_GT(values[0], 4000u);
}

TEST_P(TeamOf, WorksWithoutASession) {
  Team team(GetParam());
  int sum = 0;  // not atomic: without a session the caller runs alone
  team.ParallelFor(100, [&](size_t i) { sum += static_cast<int>(i); });
  EXPECT_EQ(sum, 4950);
}

TEST_P(TeamOf, WakesWorkersThatSleep) {
  Team team(GetParam());
  Team::Session session(team);
  std::atomic<int> runs = 0;
  for (int job = 0; job < 5; ++job) {
    // Long enough for the workers to give up spinning.
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(3);
    while (std::chrono::steady_clock::now() < until) {
    }
    team.ParallelFor(8, [&](size_t) { runs.fetch_add(1); });
  }
  EXPECT_EQ(runs.load(), 40);
}

INSTANTIATE_TEST_SUITE_P(Sizes, TeamOf, ::testing::Values(1, 2, 4, 9));

}  // namespace
}  // namespace elasticmem
