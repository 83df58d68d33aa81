// KV and neurons share the pool: what the plan promises is what a run has, steps never wait for blocks, and what KV
// gives back neurons take.
#include "tests/engine/engine_testing.h"

namespace elasticmem {
namespace {

using testing::OpenEngine;
using testing::OpenModel;
using testing::RoomyOptions;
using testing::SourcePath;

class Elastic : public ::testing::Test {
 protected:
  Elastic() : model_(OpenModel(SourcePath("models/tales-q8_0.gguf"))) {}
  // Room for all neurons, but not beside the KV of a whole context.
  EngineOptions Options() const {
    EngineOptions options = RoomyOptions(folder_.path());
    options.kv_type = DType::kF16;
    options.context = 1024;
    options.logits_rows = 1;
    options.prefill_chunk = 32;
    options.budget_bytes = model_->gguf().file_bytes() * 105 / 100;
    return options;
  }
  // Tokens as the model itself would go on.
  static void Generate(Engine& engine, SequenceId sequence, uint32_t until) {
    TokenId id = 100;
    while (engine.tokens(sequence) < until) {
      const auto logits = engine.Append(sequence, {&id, 1});
      ASSERT_TRUE(logits.ok()) << Message(logits.status());
      id = ArgMax(*logits);
      if (id < 10) id = static_cast<TokenId>(200 + engine.tokens(sequence));
    }
  }
  double Share(const Engine& engine) const {
    return engine.residency()->resident() / (static_cast<double>(model_->spec().layers) * model_->spec().ff);
  }

  ScratchFolder folder_;
  std::unique_ptr<Model> model_;
};

TEST_F(Elastic, ResidentShareIsWhatThePlanSaysAtEveryFill) {
  const auto engine = OpenEngine(*model_, Options());
  ASSERT_NE(engine, nullptr);
  const SequenceId sequence = engine->NewSequence();
  const ModelSpec& spec = model_->spec();
  double last = 2;
  for (const uint32_t tokens : {200u, 552u, 1000u}) {
    Generate(*engine, sequence, tokens);
    const double planned = engine->plan().ResidentShare(spec, 1, tokens);
    EXPECT_NEAR(Share(*engine), planned, 0.02 * planned) << tokens << " tokens";
    EXPECT_LT(planned, last);
    last = planned;
  }
  EXPECT_LT(last, 0.9);
  engine->CheckInvariants();
}

TEST_F(Elastic, DecodingNeverWaitsForBlocks) {
  const auto engine = OpenEngine(*model_, Options());
  ASSERT_NE(engine, nullptr);
  const SequenceId sequence = engine->NewSequence();
  Generate(*engine, sequence, 2);
  const uint64_t at_start = engine->statistics().late_blocks;
  Generate(*engine, sequence, 1000);
  EXPECT_EQ(engine->statistics().late_blocks, at_start);
  EXPECT_GT(engine->residency()->statistics().evicted_blocks, 0u);
}

TEST_F(Elastic, NeuronsComeBackWhenSequencesEnd) {
  const auto engine = OpenEngine(*model_, Options());
  ASSERT_NE(engine, nullptr);
  const SequenceId longer = engine->NewSequence();
  Generate(*engine, longer, 1000);
  const double pressed = Share(*engine);
  engine->EndSequence(longer);
  const uint64_t promoted = engine->residency()->statistics().promoted;
  const SequenceId shorter = engine->NewSequence();
  Generate(*engine, shorter, 100);
  const double planned = engine->plan().ResidentShare(model_->spec(), 1, 100);
  EXPECT_GT(Share(*engine), pressed);
  EXPECT_NEAR(Share(*engine), planned, 0.05 * planned);
  EXPECT_GT(engine->residency()->statistics().promoted, promoted);
  engine->CheckInvariants();
}

// At steady state, with more neurons than fit and several sequences on their way, nearly every byte works.
TEST_F(Elastic, NearlyEveryByteIsInUseAtSteadyState) {
  struct Case {
    uint32_t percent, sequences, tokens;
  };
  for (const auto& [percent, count, tokens] : {Case{90, 2, 200}, Case{105, 4, 200}, Case{120, 4, 240}}) {
    SCOPED_TRACE(percent);
    EngineOptions options = Options();
    options.sequences = options.logits_rows = count;
    options.budget_bytes = model_->gguf().file_bytes() * percent / 100;
    options.context = 256;
    const auto engine = OpenEngine(*model_, options);
    ASSERT_NE(engine, nullptr);
    std::vector<SequenceId> sequences;
    for (uint32_t i = 0; i < count; ++i) sequences.push_back(engine->NewSequence());
    double idle = 0, reserve = 0;
    uint32_t samples = 0;
    for (uint32_t step = 0; step < tokens; ++step) {
      std::vector<StepSlice> slices;
      std::vector<TokenId> ids;
      for (uint32_t i = 0; i < count; ++i) ids.push_back(static_cast<TokenId>(100 + (step * 37 + i * 911) % 1500));
      // They began at different times.
      for (uint32_t i = 0; i < count; ++i) {
        if (step >= i * 9) slices.push_back({sequences[i], {&ids[i], 1}, false, 1});
      }
      const Status status = engine->Step(slices).status();
      ASSERT_TRUE(status.ok()) << Message(status);
      if (step < 100 || Share(*engine) == 1) continue;
      const MemoryUse use = engine->memory_use();
      idle += use.idle_share();
      reserve += use.reserve_share();
      ++samples;
    }
    ASSERT_GT(samples, 50u);
    EXPECT_LE(idle / samples, 0.01) << MemoryUseJson(engine->memory_use()).dump(2);
    EXPECT_LE(reserve / samples, 0.02);
    RecordProperty(fmt::format("idle_{}", percent), fmt::format("{:.5f}", idle / samples));
    RecordProperty(fmt::format("reserve_{}", percent), fmt::format("{:.5f}", reserve / samples));
  }
}

TEST_F(Elastic, NothingIsKeptForASequenceThatHasEnded) {
  const auto engine = OpenEngine(*model_, Options());
  ASSERT_NE(engine, nullptr);
  const uint32_t page = engine->plan().geometry.page_tokens;
  const SequenceId sequence = engine->NewSequence();
  Generate(*engine, sequence, 6 * page - 1);  // the next page is due soon
  ASSERT_GT(engine->pool().free(), 0u);
  ASSERT_LT(Share(*engine), 1);
  engine->EndSequence(sequence);
  EXPECT_EQ(engine->pool().free(), 0u);
  engine->CheckInvariants();
}

TEST_F(Elastic, StaticPolicyNeverMovesANeuron) {
  EngineOptions options = Options();
  options.policy = Policy::kStatic;
  options.static_slots = 1;
  std::vector<float> profile(size_t{model_->spec().layers} * model_->spec().ff);
  for (size_t i = 0; i < profile.size(); ++i) profile[i] = static_cast<float>(i * 7919 % 1000);
  options.profile = profile;
  const auto engine = OpenEngine(*model_, options);
  ASSERT_NE(engine, nullptr);
  const uint32_t resident = engine->residency()->resident();
  EXPECT_NEAR(Share(*engine), engine->plan().ResidentShare(model_->spec(), 1, 0), 0.01);
  // Those that the profile says are the hottest.
  float coldest_in = 1e9f, hottest_out = -1;
  for (uint32_t l = 0; l < model_->spec().layers; ++l) {
    for (uint32_t n = 0; n < model_->spec().ff; ++n) {
      const float worth = profile[size_t{l} * model_->spec().ff + n];
      if (engine->residency()->Record({l, n})) {
        coldest_in = std::min(coldest_in, worth);
      } else {
        hottest_out = std::max(hottest_out, worth);
      }
    }
  }
  EXPECT_LE(hottest_out, coldest_in);
  const SequenceId sequence = engine->NewSequence();
  Generate(*engine, sequence, 1000);
  EXPECT_EQ(engine->residency()->resident(), resident);
  EXPECT_EQ(engine->residency()->statistics().dropped, 0u);
  engine->CheckInvariants();
}

TEST_F(Elastic, PlacedNeuronsAreTheMostValuable) {
  EngineOptions options = Options();
  options.policy = Policy::kOracle;
  options.budget_bytes = model_->gguf().file_bytes() * 80 / 100;
  const auto engine = OpenEngine(*model_, options);
  ASSERT_NE(engine, nullptr);
  std::vector<float> worth(size_t{model_->spec().layers} * model_->spec().ff);
  for (const uint32_t salt : {1u, 3u}) {
    for (size_t i = 0; i < worth.size(); ++i) worth[i] = static_cast<float>(i * 2654435761u * salt % 10007);
    const Status status = engine->PlaceNeurons(worth);
    ASSERT_TRUE(status.ok()) << Message(status);
    EXPECT_EQ(engine->residency()->free_slots(), 0u);
    float coldest_in = 1e9f, hottest_out = -1;
    for (uint32_t l = 0; l < model_->spec().layers; ++l) {
      for (uint32_t n = 0; n < model_->spec().ff; ++n) {
        float& bound = engine->residency()->Record({l, n}) ? coldest_in : hottest_out;
        const float value = worth[size_t{l} * model_->spec().ff + n];
        bound = &bound == &coldest_in ? std::min(bound, value) : std::max(bound, value);
      }
    }
    EXPECT_LE(hottest_out, coldest_in);
    engine->CheckInvariants();
  }
}

}  // namespace
}  // namespace elasticmem
