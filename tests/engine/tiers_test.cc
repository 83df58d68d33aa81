// A host tier below the device's pool, with the host as the device and its copies paced: the same bits whatever is
// where and however slowly it moves, both peaks within both budgets, and no step that waits for a copy.
#include <map>

#include "runtime/engine/batcher.h"
#include "tests/engine/engine_testing.h"

namespace elasticmem {
namespace {

using testing::Generated;
using testing::GenerateGreedy;
using testing::OpenEngine;
using testing::OpenModel;
using testing::RoomyOptions;
using testing::SourcePath;

class Tiers : public ::testing::Test {
 protected:
  Tiers() : model_(OpenModel(SourcePath("models/tales-q8_0.gguf"))) {
    prompt_ = model_->tokenizer().Encode("Once upon a time there was a king who", {});
    file_bytes_ = model_->gguf().file_bytes();
  }
  EngineOptions Options(uint32_t context) const {
    EngineOptions options = RoomyOptions(folder_.path());
    options.kv_type = DType::kF16;
    options.context = context;
    options.kv_tokens = 64;
    options.prefill_chunk = 16;
    options.logits_rows = 1;
    return options;
  }
  MemoryPlan Smallest(EngineOptions options) const {
    options.host_budget_bytes = 1;
    const auto plan = Engine::Plan(*model_, options, /*smallest=*/true);
    EXPECT_TRUE(plan.ok()) << Message(plan.status());
    return *plan;
  }
  static void CheckPeaks(const Engine& engine, const EngineOptions& options) {
    EXPECT_LE(engine.budget().peak_bytes(), options.budget_bytes);
    EXPECT_EQ(engine.budget().total_bytes(), options.budget_bytes);
    ASSERT_EQ(engine.host_budget() != nullptr, options.host_budget_bytes > 0);
    if (!engine.host_budget()) return;
    EXPECT_LE(engine.host_budget()->peak_bytes(), options.host_budget_bytes);
    EXPECT_EQ(engine.host_budget()->total_bytes(), options.host_budget_bytes);
  }
  Generated Generate(const EngineOptions& options, size_t tokens) const {
    const auto engine = OpenEngine(*model_, options);
    if (!engine) return {};
    Generated out = GenerateGreedy(*engine, prompt_, tokens);
    CheckPeaks(*engine, options);
    return out;
  }

  ScratchFolder folder_;
  std::unique_ptr<Model> model_;
  std::vector<TokenId> prompt_;
  uint64_t file_bytes_ = 0;
};

TEST_F(Tiers, SameBitsAtEveryPairOfBudgetsAndEveryCopyRate) {
  constexpr size_t kTokens = 48;
  EngineOptions options = Options(64);
  const Generated expected = Generate(options, kTokens);
  ASSERT_EQ(expected.ids.size(), kTokens);
  const MemoryPlan smallest = Smallest(options);
  for (const uint64_t device : {smallest.TotalBytes(), file_bytes_ * 6 / 10, file_bytes_}) {
    for (const uint64_t host : {smallest.HostBytes(), file_bytes_ / 4}) {
      for (const double gbps : {0.0, 1.0, 0.001}) {
        options.budget_bytes = device;
        options.host_budget_bytes = host;
        options.copy_gbps = gbps;
        SCOPED_TRACE(fmt::format("device {}, host {}, {} GB/s", device, host, gbps));
        const Generated seen = Generate(options, kTokens);
        EXPECT_EQ(seen.logits_hash, expected.logits_hash);
        EXPECT_EQ(seen.ids, expected.ids);
      }
    }
  }
}

// KV takes the device's blocks as it grows, and neurons go down ahead of it.
TEST_F(Tiers, NeuronsGoDownAsKvGrowsAndUpAgain) {
  constexpr size_t kTokens = 700;
  const Generated expected = Generate(Options(1024), kTokens);
  for (const double gbps : {0.0, 0.02, 0.0005}) {
    SCOPED_TRACE(gbps);
    EngineOptions options = Options(1024);
    options.budget_bytes = file_bytes_ * 82 / 100;
    options.host_budget_bytes = file_bytes_ * 2 / 10;
    options.copy_gbps = gbps;
    const auto engine = OpenEngine(*model_, options);
    ASSERT_NE(engine, nullptr);
    const NeuronResidency& residency = *engine->residency();
    EXPECT_GT(residency.resident(Tier::kDevice), 0u);
    EXPECT_GT(residency.resident(Tier::kHost), 0u);
    const uint32_t at_start = residency.resident(Tier::kDevice);
    // In between, to look at the engine while copies are on their way.
    const SequenceId other = engine->NewSequence();
    const auto appended = engine->Append(other, prompt_);
    ASSERT_TRUE(appended.ok()) << Message(appended.status());
    engine->CheckInvariants();
    engine->EndSequence(other);
    const Generated seen = GenerateGreedy(*engine, prompt_, kTokens);
    EXPECT_EQ(seen.logits_hash, expected.logits_hash);
    EXPECT_EQ(seen.ids, expected.ids);
    CheckPeaks(*engine, options);
    const ResidencyStatistics& statistics = residency.statistics();
    EXPECT_GT(statistics.moved_down, 0u);
    EXPECT_GT(statistics.moved_up, 0u);
    EXPECT_EQ(statistics.copy_waits, 0u);
    EXPECT_GT(statistics.evicted_blocks, 0u);
    EXPECT_LE(residency.resident(Tier::kDevice), at_start);
    const SparseFfnStatistics ffn = engine->statistics().ffn;
    EXPECT_GT(ffn.on_host, 0u);
    EXPECT_GT(ffn.resident, ffn.on_host);
  }
}

// Conversations that come and go, with their KV paused on disk, dropped, or kept and found again: page ends, tails and
// whole blocks change hands while copies are on their way.
TEST_F(Tiers, ConversationsHaveTheBitsThatTheyHaveAlone) {
  constexpr uint32_t kConversations = 8, kTokens = 24;
  const std::vector<std::string> texts = {"Once upon a time there was a king who",
                                          "The little girl went into the forest and",
                                          "\"Who are you?\" asked the wolf."};
  std::vector<std::vector<TokenId>> prompts;
  std::vector<Generated> expected;
  {
    const auto engine = OpenEngine(*model_, Options(256));
    ASSERT_NE(engine, nullptr);
    for (uint32_t i = 0; i < kConversations; ++i) {
      std::string text = texts[i % texts.size()];
      for (uint32_t n = 0; n < i; ++n) text += " and the king said that it was good";
      prompts.push_back(model_->tokenizer().Encode(text, {}));
      expected.push_back(GenerateGreedy(*engine, prompts.back(), kTokens));
    }
  }
  for (const bool swap : {false, true}) {
    for (const double gbps : {0.0, 0.02, 0.0005}) {
      SCOPED_TRACE(fmt::format("{} GB/s, swap {}", gbps, swap));
      EngineOptions options = Options(256);
      options.prefill_chunk = 32;
      options.logits_rows = 4;
      options.kv_tokens = 48;  // of each; less than the longest come to
      options.sequences = 4;
      const MemoryPlan smallest = Smallest(options);
      options.prefix_cache = !swap;
      options.swap_bytes = swap ? 64 << 20 : 0;
      options.budget_bytes = smallest.TotalBytes() + (200 << 10);
      options.host_budget_bytes = smallest.HostBytes() + (800 << 10);
      options.copy_gbps = gbps;
      const auto engine = OpenEngine(*model_, options);
      ASSERT_NE(engine, nullptr);
      std::map<ConversationId, LogitsHash> hashes;
      BatcherOptions batching;
      batching.max_batch = 4;
      batching.prefill_tokens_beside_decode = 16;
      batching.on_logits = [&](ConversationId id, std::span<const float> logits) { hashes[id].Add(logits); };
      Batcher batcher(engine.get(), batching);
      std::map<ConversationId, uint32_t> which;
      std::map<ConversationId, std::vector<TokenId>> seen;
      for (uint32_t step = 0; step == 0 || batcher.busy() || which.size() < kConversations; ++step) {
        if (which.size() < kConversations && step >= which.size() * 3) {
          const ConversationId id = batcher.Open();
          which[id] = static_cast<uint32_t>(which.size());
          Request request;
          request.prompt = prompts[which[id]];
          request.max_tokens = kTokens;
          request.sampling.temperature = 0;
          request.ignore_eos = true;
          request.priority = static_cast<int>(step % 3);
          const Status status = batcher.Submit(id, std::move(request));
          ASSERT_TRUE(status.ok()) << Message(status);
        }
        const auto events = batcher.Step();
        ASSERT_TRUE(events.ok()) << Message(events.status());
        for (const BatchEvent& event : *events) {
          if (event.token) seen[event.conversation].push_back(*event.token);
        }
        if (step % 8 == 0) engine->CheckInvariants();
      }
      EXPECT_GT(batcher.statistics().preemptions + batcher.statistics().idle_drops, 0u);
      for (const auto& [id, ids] : seen) {
        EXPECT_EQ(ids, expected[which[id]].ids) << "conversation " << which[id];
        EXPECT_EQ(hashes[id].value(), expected[which[id]].logits_hash) << "conversation " << which[id];
      }
      EXPECT_EQ(seen.size(), kConversations);
      EXPECT_GT(engine->residency()->statistics().moved_up, 0u);
      CheckPeaks(*engine, options);
    }
  }
}

}  // namespace
}  // namespace elasticmem
