#include "tests/tools/kill_rounds.h"

namespace elasticmem {
namespace {

TEST(Killed, PackOrRunLeavesNoHarm) { testing::KillProgramsAndRunAgain(5); }

}  // namespace
}  // namespace elasticmem
