// The budget holds where the system enforces it: the program lives in a memory control group of its budget and what its
// code and stacks take.
#include <gmock/gmock.h>
#include <signal.h>

#include <filesystem>
#include <memory>

#include "tests/gguf/scratch_folder.h"
#include "tests/tools/program.h"
#include "tests/tools/tiny_model.h"
#include "tools/memory_group.h"

namespace elasticmem {
namespace {

using testing::ExpectDone;
using testing::kTales;
using testing::Outcome;
using testing::RunProgram;
using testing::SourcePath;

// What a program is beside its budget: its code and libraries as far as touched, stacks of threads, the allocator's
// slack, and the work of the program around the engine (a trace, a report). It does not grow with the budget.
constexpr uint64_t kAllowanceBytes = 16 << 20;

// Null where none can be made.
std::unique_ptr<MemoryGroup> GroupOf(uint64_t limit_bytes) {
  StatusOr<std::unique_ptr<MemoryGroup>> group = MemoryGroup::Create(limit_bytes);
  return group.ok() ? *std::move(group) : nullptr;
}

class MemoryLimit : public ::testing::Test {
 protected:
  uint64_t Budget(uint32_t percent) const { return std::filesystem::file_size(SourcePath(kTales)) * percent / 100; }
  static Outcome RunIn(const std::unique_ptr<MemoryGroup>& group, const std::vector<std::string>& args) {
    testing::Surroundings surroundings;
    surroundings.cgroup = group->folder();
    surroundings.timeout = std::chrono::seconds(300);
    return RunProgram(args, surroundings);
  }
  // The store is packed inside the group, too.
  std::vector<std::string> Run(const std::string& memory) const {
    return {"run",
            "-m",
            SourcePath(kTales),
            "-p",
            "Once upon a time",
            "--temp",
            "0",
            "--memory",
            memory,
            "--store-dir",
            folder_.path(),
            "-n",
            "120",
            "--ignore-eos",
            "--json"};
  }

  const ScratchFolder folder_;
};

#define SKIP_WITHOUT(group) \
  if (!group) GTEST_SKIP() << "no memory control group can be made here"

#ifdef __SANITIZE_ADDRESS__
#define SKIP_UNDER_SANITIZERS() GTEST_SKIP() << "the sanitizer's own memory is no part of the budget"
#else
#define SKIP_UNDER_SANITIZERS()
#endif

TEST_F(MemoryLimit, RunLivesInItsBudget) {
  SKIP_UNDER_SANITIZERS();
  for (const uint32_t percent : {50u, 75u, 100u}) {
    SCOPED_TRACE(percent);
    const uint64_t limit = Budget(percent) + kAllowanceBytes;
    const std::unique_ptr<MemoryGroup> group = GroupOf(limit);
    SKIP_WITHOUT(group);
    const Outcome outcome = RunIn(group, Run(fmt::format("{}%", percent)));
    ExpectDone(outcome);
    const nlohmann::json report = outcome.Json();
    EXPECT_LE(report["peak_bytes"].get<uint64_t>(), Budget(percent));
    EXPECT_LE(report["peak_rss_bytes"].get<uint64_t>(), limit);
    EXPECT_LE(group->peak_bytes(), limit);
    RecordProperty("peak_rss_bytes", std::to_string(report["peak_rss_bytes"].get<uint64_t>()));
  }
}

TEST_F(MemoryLimit, GrowthTraceLivesInItsBudget) {
  SKIP_UNDER_SANITIZERS();
  const uint64_t limit = Budget(75) + kAllowanceBytes;
  const std::unique_ptr<MemoryGroup> group = GroupOf(limit);
  SKIP_WITHOUT(group);
  const Outcome outcome = RunIn(group, {"bench", "growth", SourcePath("configs/bench/growth_smoke.toml"), "-m",
                                        SourcePath(kTales), "--store-dir", folder_.path(), "--json"});
  ExpectDone(outcome);
  const nlohmann::json report = outcome.Json();
  for (const nlohmann::json& row : report["policies"]) {
    EXPECT_TRUE(row["error"].is_null()) << row["error"];
    EXPECT_LE(row["peak_bytes"].get<uint64_t>(), Budget(75));
  }
  EXPECT_LE(report["peak_rss_bytes"].get<uint64_t>(), limit);
  RecordProperty("peak_rss_bytes", std::to_string(report["peak_rss_bytes"].get<uint64_t>()));
}

// What the tests above pass would not pass with a budget that the group does not allow.
TEST_F(MemoryLimit, GroupKillsWhoeverTakesMore) {
  SKIP_UNDER_SANITIZERS();
  const std::unique_ptr<MemoryGroup> group = GroupOf(Budget(50) + kAllowanceBytes / 4);
  SKIP_WITHOUT(group);
  const Outcome outcome = RunIn(group, Run("400%"));
  EXPECT_EQ(outcome.signal, SIGKILL) << outcome.exit_code << outcome.err;
  EXPECT_GE(group->oom_kills(), 1u);
}

}  // namespace
}  // namespace elasticmem
