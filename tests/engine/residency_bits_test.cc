// The same bits at every budget, thread count, chunk and kind of I/O; the budget is never passed.
#include <cmath>

#include "tests/engine/engine_testing.h"

namespace elasticmem {
namespace {

using testing::Generated;
using testing::GenerateGreedy;
using testing::OpenEngine;
using testing::OpenModel;
using testing::RoomyOptions;
using testing::SourcePath;

constexpr size_t kTokens = 256;
constexpr size_t kContext = 272;

class SameBits : public ::testing::Test {
 protected:
  SameBits() : model_(OpenModel(SourcePath("models/tales-q8_0.gguf"))) {
    prompt_ = model_->tokenizer().Encode("Once upon a time there was a king who", {});
  }
  EngineOptions Options() const {
    EngineOptions options = RoomyOptions(folder_.path());
    options.kv_type = DType::kF16;
    options.context = kContext;
    options.kv_tokens = kContext;
    options.logits_rows = 1;
    return options;
  }
  uint64_t SmallestBudget(const EngineOptions& options) const {
    const auto plan = Engine::Plan(*model_, options, /*smallest=*/true);
    EXPECT_TRUE(plan.ok()) << Message(plan.status());
    return plan->TotalBytes();
  }
  Generated Generate(const EngineOptions& options) const {
    const auto engine = OpenEngine(*model_, options);
    if (!engine) return {};
    Generated out = GenerateGreedy(*engine, prompt_, kTokens);
    EXPECT_LE(engine->budget().peak_bytes(), options.budget_bytes);
    return out;
  }

  ScratchFolder folder_;
  std::unique_ptr<Model> model_;
  std::vector<TokenId> prompt_;
};

TEST_F(SameBits, AtEveryBudgetThreadCountAndKindOfIo) {
  const EngineOptions roomy = Options();
  const Generated expected = Generate(roomy);
  ASSERT_EQ(expected.ids.size(), kTokens);
  const uint64_t file = model_->gguf().file_bytes();
  for (const uint64_t budget : {file, file * 3 / 4, SmallestBudget(roomy)}) {
    for (const int threads : {1, 2}) {
      for (const ReadQueueKind io : {ReadQueueKind::kAuto, ReadQueueKind::kPread}) {
        EngineOptions options = Options();
        options.budget_bytes = budget;
        options.threads = threads;
        options.io = io;
        SCOPED_TRACE(fmt::format("budget {}, {} threads, io {}", budget, threads, static_cast<int>(io)));
        const Generated seen = Generate(options);
        EXPECT_EQ(seen.logits_hash, expected.logits_hash);
        EXPECT_EQ(seen.ids, expected.ids);
      }
    }
  }
}

TEST_F(SameBits, ForEveryPrefillChunkAndWithoutDirectReads) {
  EngineOptions options = Options();
  options.budget_bytes = model_->gguf().file_bytes() * 3 / 4;
  const Generated expected = Generate(options);
  for (const uint32_t chunk : {1u, 3u, 8u, 64u}) {
    options.prefill_chunk = chunk;
    options.direct_io = chunk % 2 == 0;
    SCOPED_TRACE(chunk);
    EXPECT_EQ(Generate(options).logits_hash, expected.logits_hash);
  }
}

TEST_F(SameBits, InDenseModeFromTheSameRecords) {
  EngineOptions options = Options();
  options.budget_bytes = model_->gguf().file_bytes() * 3 / 4;
  const Generated exact = Generate(options);
  options.mode = Mode::kDense;
  const Generated dense = Generate(options);
  EXPECT_EQ(dense.ids, exact.ids);
  EXPECT_EQ(dense.logits_hash, exact.logits_hash);
}

TEST_F(SameBits, AfterOtherSequencesCameAndWent) {
  EngineOptions options = Options();
  options.budget_bytes = model_->gguf().file_bytes() * 3 / 4;
  const auto engine = OpenEngine(*model_, options);
  ASSERT_NE(engine, nullptr);
  const Generated first = GenerateGreedy(*engine, prompt_, 32);
  GenerateGreedy(*engine, model_->tokenizer().Encode("The little girl went into the forest and", {}), 100);
  EXPECT_EQ(GenerateGreedy(*engine, prompt_, 32).logits_hash, first.logits_hash);
}

// F16 weights keep every bit in the store, so the two modes differ by the order of sums only.
TEST_F(SameBits, PerplexityIsEqualInExactAndDenseMode) {
  const auto model = OpenModel(SourcePath("tests/golden/tales-f16.gguf"));
  ASSERT_NE(model, nullptr);
  std::ifstream file(SourcePath("tests/golden/heldout.txt"));
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const std::vector<TokenId> ids = model->tokenizer().Encode(text, {false, false});
  double nll[2] = {0, 0};
  for (const Mode mode : {Mode::kExact, Mode::kDense}) {
    EngineOptions options = Options();
    options.mode = mode;
    options.logits_rows = 32;
    const auto engine = OpenEngine(*model, options);
    ASSERT_NE(engine, nullptr);
    size_t count = 0;
    for (int window = 0; window < 4; ++window) {
      const auto targets = std::span(ids).subspan(window * kContext, kContext);
      std::vector<TokenId> input = {*model->tokenizer().bos()};
      input.insert(input.end(), targets.begin(), targets.end() - 1);
      const SequenceId sequence = engine->NewSequence();
      const Status status = engine->AppendEach(sequence, input, [&](uint32_t p, std::span<const float> logits) {
        const double top = *std::max_element(logits.begin(), logits.end());
        double sum = 0;
        for (const float logit : logits) sum += std::exp(logit - top);
        nll[mode == Mode::kDense] += std::log(sum) + top - logits[targets[p]];
        ++count;
      });
      ASSERT_TRUE(status.ok()) << Message(status);
      engine->EndSequence(sequence);
    }
    nll[mode == Mode::kDense] /= count;
  }
  EXPECT_NEAR(std::exp(nll[0]), std::exp(nll[1]), 5e-5 * std::exp(nll[0]));
}

TEST_F(SameBits, BudgetBelowTheSmallestIsRefusedWithBothNumbers) {
  EngineOptions options = Options();
  const uint64_t smallest = SmallestBudget(options);
  options.budget_bytes = smallest;
  EXPECT_TRUE(Engine::Plan(*model_, options).ok());
  options.budget_bytes = smallest - 1;
  const auto engine = Engine::Open(*model_, options);
  ASSERT_FALSE(engine.ok());
  EXPECT_NE(Message(engine.status()).find(std::to_string(smallest)), std::string_view::npos)
      << Message(engine.status());
  EXPECT_NE(Message(engine.status()).find(std::to_string(smallest - 1)), std::string_view::npos);
}

}  // namespace
}  // namespace elasticmem
