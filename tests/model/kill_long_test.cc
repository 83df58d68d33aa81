#include "tests/model/kill_rounds.h"

namespace elasticmem {
namespace {

TEST(KilledPackerTest, TheNextPackTakesOverWhatItLeftEachOfManyTimes) { KillPackersAndPackAgain(20); }

}  // namespace
}  // namespace elasticmem
