// The batch size follows the measured cost of steps: all where that is fastest, fewer where it is not, another one when
// that changes; and finding out costs little.
#include "runtime/engine/batch_size.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <vector>

namespace elasticmem {
namespace {

using Cost = std::function<double(uint32_t batch)>;

// A part that is the same for any batch, and one that grows with it.
double Concave(uint32_t batch) { return 1 + 0.1 * batch; }
// Neurons of more than four at once do not fit.
double Cliff(uint32_t batch) { return Concave(batch) * (batch > 4 ? 10 : 1); }

// How many of `steps` steps took each batch.
std::vector<uint32_t> Steps(BatchSize& size, uint32_t ready, uint32_t steps, const Cost& cost) {
  std::vector<uint32_t> taken(ready + 1);
  for (uint32_t i = 0; i < steps; ++i) {
    const uint32_t batch = size.Choose(ready);
    EXPECT_GE(batch, 1u);
    EXPECT_LE(batch, ready);
    ++taken[batch];
    size.Measured(batch, cost(batch));
  }
  return taken;
}

// Trials took their share and no more than a step beyond.
void ExpectTrialsBounded(const BatchSize& size, double longest_step) {
  EXPECT_LE(size.trial_seconds(), BatchSize::kTrialShare * size.seconds() + longest_step);
}

TEST(BatchSize, TakesAllWhereAStepGrowsSlowerThanItsBatch) {
  BatchSize size(8);
  const auto taken = Steps(size, 8, 10000, Concave);
  EXPECT_EQ(size.limit(), 8u);
  EXPECT_GT(taken[8], 9700u);
  EXPECT_GT(size.trials(), 0u);
  ExpectTrialsBounded(size, Concave(8));
}

TEST(BatchSize, SettlesOnFourWhereEightCostTenTimesAsMuch) {
  BatchSize size(8);
  Steps(size, 8, 300, Cliff);
  EXPECT_EQ(size.limit(), 4u);
  const auto taken = Steps(size, 8, 10000, Cliff);
  EXPECT_EQ(size.limit(), 4u);
  EXPECT_GT(taken[4], 9700u);
  ExpectTrialsBounded(size, Cliff(8));
}

TEST(BatchSize, FindsTheBestOfManySizes) {
  // Tokens a second peak at 12.
  const auto peak = [](uint32_t batch) { return 1 + 0.02 * batch + (batch > 12 ? 0.4 * (batch - 12) : 0); };
  BatchSize size(32);
  Steps(size, 32, 3000, peak);
  EXPECT_EQ(size.limit(), 12u);
  ExpectTrialsBounded(size, peak(32));
}

TEST(BatchSize, FollowsACurveThatChanges) {
  BatchSize size(8);
  for (int round = 0; round < 3; ++round) {
    Steps(size, 8, 2500, Concave);
    EXPECT_EQ(size.limit(), 8u) << round;
    Steps(size, 8, 2500, Cliff);
    EXPECT_EQ(size.limit(), 4u) << round;
  }
  ExpectTrialsBounded(size, Cliff(8));
}

TEST(BatchSize, SmallGainsAreNotWorthIt) {
  // Seven of eight are 10 % faster: within what is not clear.
  BatchSize size(8);
  const auto taken =
      Steps(size, 8, 10000, [](uint32_t batch) { return batch == 8 ? 8.0 : 8.0 * batch / (batch == 6 ? 6.6 : 6); });
  EXPECT_EQ(size.limit(), 8u);
  EXPECT_GT(taken[8], 9700u);
}

TEST(BatchSize, NoiseDoesNotMoveIt) {
  std::mt19937 rng(5);
  std::lognormal_distribution<double> noise(0, 0.2);
  for (const Cost& cost : {Cost(Concave), Cost(Cliff)}) {
    BatchSize size(8);
    const uint32_t best = cost(8) > 5 ? 4 : 8;
    // Every fiftieth step waits for something else ten times as long.
    const auto noisy = [&](uint32_t batch) { return cost(batch) * noise(rng) * (rng() % 50 == 0 ? 10 : 1); };
    Steps(size, 8, 2000, noisy);
    const auto taken = Steps(size, 8, 20000, noisy);
    EXPECT_GT(taken[best], 18500u);
  }
}

TEST(BatchSize, FewerThanTheLimitAllRun) {
  BatchSize size(8);
  Steps(size, 8, 1000, Cliff);
  ASSERT_EQ(size.limit(), 4u);
  const auto taken = Steps(size, 3, 1000, Cliff);
  EXPECT_GT(taken[3], 970u);
  EXPECT_EQ(Steps(size, 1, 10, Cliff)[1], 10u);
  EXPECT_EQ(size.limit(), 4u);  // still known
}

TEST(BatchSize, OneIsAlwaysOne) {
  BatchSize size(1);
  EXPECT_EQ(Steps(size, 1, 100, Concave)[1], 100u);
  EXPECT_EQ(size.trials(), 0u);
}

}  // namespace
}  // namespace elasticmem
