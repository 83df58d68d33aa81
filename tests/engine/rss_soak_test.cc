// The process does not grow with what it generates: one engine, one sequence after another as each fills.
// The long one (label `long`) is bar 8 of the foundation: 5,000 tokens.
#include <malloc.h>
#include <unistd.h>

#include <fstream>

#include "tests/engine/engine_testing.h"

namespace elasticmem {
namespace {

using testing::GenerateGreedy;
using testing::OpenEngine;
using testing::OpenModel;
using testing::RoomyOptions;
using testing::SourcePath;

uint64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// A leak of one KV page table, token list or read a sequence shows as a slope; what the allocator, the threads' stacks
// and the system touch late does not. After the warm-up (every buffer used once, the KV cache full once) twice as many
// tokens must not take more than this.
constexpr uint64_t kAllowedBytes = 512 << 10;

void GenerateWithoutGrowing(size_t tokens) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer keeps freed memory";
#endif
  constexpr uint32_t kContext = 250;
  const ScratchFolder folder;
  const auto model = OpenModel(SourcePath("models/tales-q8_0.gguf"));
  ASSERT_NE(model, nullptr);
  EngineOptions options = RoomyOptions(folder.path());
  options.kv_type = DType::kF16;
  options.context = kContext;
  options.kv_tokens = kContext;
  options.budget_bytes = model->gguf().file_bytes() * 3 / 4;
  options.logits_rows = 1;
  const auto engine = OpenEngine(*model, options);
  ASSERT_NE(engine, nullptr);
  const std::vector<TokenId> prompt = model->tokenizer().Encode("Once upon a time there was a king who", {});
  const size_t a_sequence = kContext - prompt.size();

  uint64_t hash = 0;
  size_t done = 0;
  const auto generate = [&](size_t until) {
    while (done < until) {
      const size_t count = std::min(a_sequence, until - done);
      const testing::Generated seen = GenerateGreedy(*engine, prompt, count);
      ASSERT_EQ(seen.ids.size(), count);
      if (count == a_sequence) {
        if (hash == 0) hash = seen.logits_hash;
        ASSERT_EQ(seen.logits_hash, hash);  // and every tale is the same tale
      }
      done += count;
    }
  };
  generate(2 * a_sequence);
  malloc_trim(0);
  const uint64_t warm = ResidentBytes(), accounted = engine->budget().current_bytes();
  generate(done + tokens);
  malloc_trim(0);
  const uint64_t after = ResidentBytes();
  EXPECT_LE(after, warm + kAllowedBytes) << "grew by " << after - warm << " bytes over " << tokens << " tokens";
  EXPECT_EQ(engine->budget().current_bytes(), accounted);
  EXPECT_LE(engine->budget().peak_bytes(), options.budget_bytes);
}

#ifdef EM_LONG
TEST(RssSoak, FiveThousandTokensTakeNoMoreMemory) { GenerateWithoutGrowing(5000); }
#else
TEST(RssSmoke, FiveHundredTokensTakeNoMoreMemory) { GenerateWithoutGrowing(500); }
#endif

}  // namespace
}  // namespace elasticmem
