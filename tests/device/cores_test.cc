// Fast and slow cores, from folders like those of the systems that have both.
#include "device/cores.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/gguf/scratch_folder.h"

namespace elasticmem {
namespace {

class CoresTest : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = std::filesystem::path(folder_.path()) / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  void ExpectCores(std::vector<int> usable, int fast, int slow) const {
    const Cores cores = ClassifyCores(usable, folder_.path());
    EXPECT_EQ(cores.fast, fast);
    EXPECT_EQ(cores.slow, slow);
  }
  ScratchFolder folder_;
};

TEST_F(CoresTest, AllAreFastWhereTheSystemSaysNothing) {
  ExpectCores({0, 1, 5}, 3, 0);
  ExpectCores({}, 1, 0);
}

TEST_F(CoresTest, EfficiencyCoresAreSlow) {
  Write("cpu_core/cpus", "0-3,6");
  Write("cpu_atom/cpus", "4-5,7");
  ExpectCores({0, 1, 2, 3, 4, 5, 6, 7}, 5, 3);
  ExpectCores({2, 7}, 1, 1);
  ExpectCores({4, 7}, 2, 0);  // nothing else is to be had
}

TEST_F(CoresTest, ArmCoresOfLittleCapacityAreSlow) {
  const int capacities[] = {250, 250, 870, 870, 1024};
  for (int i = 0; i < 5; ++i) Write("system/cpu/cpu" + std::to_string(i) + "/cpu_capacity", std::to_string(capacities[i]));
  ExpectCores({0, 1, 2, 3, 4}, 3, 2);
  ExpectCores({0, 1}, 2, 0);
}

TEST_F(CoresTest, NonsenseIsNotBelieved) {
  Write("cpu_atom/cpus", "none,3-,-,x-y,1");
  Write("system/cpu/cpu0/cpu_capacity", "much");
  ExpectCores({0, 1, 3}, 2, 1);
}

TEST(UsableCores, AreThoseOfThisProcess) {
  const std::vector<int> cores = UsableCores();
  EXPECT_FALSE(cores.empty());
  EXPECT_TRUE(std::is_sorted(cores.begin(), cores.end()));
}

}  // namespace
}  // namespace elasticmem
