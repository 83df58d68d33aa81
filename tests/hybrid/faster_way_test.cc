// The choice between two ways of doing the same.
#include "hybrid/faster_way.h"

#include <gtest/gtest.h>

namespace elasticmem {
namespace {

// What a way takes for 1,000 units.
int CountOfSecond(FasterWay& ways, size_t tokens, uint64_t first_nanos, uint64_t second_nanos, int rounds) {
  int seconds = 0;
  for (int i = 0; i < rounds; ++i) {
    const int way = ways.Choose(tokens);
    seconds += way;
    ways.Record(tokens, way, 1000, way == 0 ? first_nanos : second_nanos);
  }
  return seconds;
}

TEST(FasterWay, TriesBothAndKeepsTheFaster) {
  FasterWay ways;
  EXPECT_EQ(CountOfSecond(ways, 8, 5000, 4000, 2), 1);
  EXPECT_EQ(CountOfSecond(ways, 8, 5000, 4000, FasterWay::kRetry - 1), FasterWay::kRetry - 1);
  EXPECT_EQ(CountOfSecond(ways, 8, 5000, 4000, FasterWay::kRetry), FasterWay::kRetry - 1);
}

TEST(FasterWay, ChoosesForEachNumberOfTokensApart) {
  FasterWay ways;
  CountOfSecond(ways, 2, 1000, 9000, 100);
  CountOfSecond(ways, 64, 9000, 1000, 100);
  EXPECT_LE(CountOfSecond(ways, 2, 1000, 9000, 10), 1);
  EXPECT_GE(CountOfSecond(ways, 33, 9000, 1000, 10), 9);  // 33 to 64 are alike
}

TEST(FasterWay, ASlowFirstTimeIsForgotten) {
  FasterWay ways;
  ways.Record(4, 0, 1000, 1'000'000);  // page faults, say
  ways.Record(4, 1, 1000, 3000);
  CountOfSecond(ways, 4, 1000, 3000, 20 * FasterWay::kRetry);
  EXPECT_EQ(CountOfSecond(ways, 4, 1000, 3000, FasterWay::kRetry), 1);
}

TEST(FasterWay, OneInterruptionChangesNothing) {
  FasterWay ways;
  CountOfSecond(ways, 16, 1000, 1500, 50);
  ways.Record(16, 0, 1000, 10'000'000);
  EXPECT_LE(CountOfSecond(ways, 16, 1000, 1500, 10), 1);
}

TEST(FasterWay, NoWorkTeachesNothing) {
  FasterWay ways;
  ways.Record(1, 0, 0, 100);
  EXPECT_EQ(ways.Choose(1), 0);
}

}  // namespace
}  // namespace elasticmem
