#include "tests/model/kill_rounds.h"

namespace elasticmem {
namespace {

TEST(KilledPackerTest, TheNextPackTakesOverWhatItLeft) { KillPackersAndPackAgain(5); }

}  // namespace
}  // namespace elasticmem
