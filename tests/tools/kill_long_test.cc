#include "tests/tools/kill_rounds.h"

namespace elasticmem {
namespace {

TEST(KilledOften, PackOrRunLeavesNoHarm) { testing::KillProgramsAndRunAgain(20); }

}  // namespace
}  // namespace elasticmem
