// Logits of every architecture and type, at every position, against references made with other software.
#include <cmath>
#include <filesystem>

#include "tests/engine/engine_testing.h"

namespace elasticmem {
namespace {

using testing::OpenEngine;
using testing::OpenModel;
using testing::ReadJson;
using testing::ReadNpy;
using testing::RoomyOptions;
using testing::SourcePath;

// The largest |difference| of logits over all positions of all cases.
double LargestDifference(Engine& engine, const nlohmann::json& cases, const std::vector<float>& expected) {
  const size_t vocab = engine.model().spec().vocab;
  double largest = 0;
  size_t row = 0;
  for (const nlohmann::json& c : cases) {
    const auto ids = c["ids"].get<std::vector<TokenId>>();
    const SequenceId sequence = engine.NewSequence();
    size_t compared = 0;
    const Status status = engine.AppendEach(sequence, ids, [&](uint32_t position, std::span<const float> logits) {
      for (size_t v = 0; v < vocab; ++v) {
        const double difference = std::abs(logits[v] - expected[(row + position) * vocab + v]);
        largest = std::max(largest, std::isfinite(difference) ? difference : 1e9);
      }
      ++compared;
    });
    EXPECT_TRUE(status.ok()) << Message(status);
    EXPECT_EQ(compared, ids.size());
    engine.EndSequence(sequence);
    row += ids.size();
  }
  EXPECT_EQ(row * vocab, expected.size());
  return largest;
}

constexpr double kLogitTolerance =
    2e-3;  // float32 rounding through a few layers, with float and quantised weights alike

class TinyModel : public ::testing::TestWithParam<std::string> {};

TEST_P(TinyModel, GivesReferenceLogitsInEveryMode) {
  const nlohmann::json golden = ReadJson("tests/golden/tiny/" + GetParam() + ".json");
  const std::vector<float> expected = ReadNpy("tests/golden/tiny/" + golden["logits"].get<std::string>());
  const auto model = OpenModel(SourcePath("tests/golden/tiny/" + golden["model"].get<std::string>()));
  ASSERT_NE(model, nullptr);
  ScratchFolder folder;
  for (const Mode mode : {Mode::kExact, Mode::kDense}) {
    EngineOptions options = RoomyOptions(folder.path());
    options.mode = mode;
    const auto engine = OpenEngine(*model, options);
    ASSERT_NE(engine, nullptr);
    EXPECT_LE(LargestDifference(*engine, golden["cases"], expected), kLogitTolerance) << Name(mode);
  }
}

TEST_P(TinyModel, GivesReferenceLogitsInTheSmallestBudget) {
  const nlohmann::json golden = ReadJson("tests/golden/tiny/" + GetParam() + ".json");
  const std::vector<float> expected = ReadNpy("tests/golden/tiny/" + golden["logits"].get<std::string>());
  const auto model = OpenModel(SourcePath("tests/golden/tiny/" + golden["model"].get<std::string>()));
  ASSERT_NE(model, nullptr);
  ScratchFolder folder;
  for (const Mode mode : {Mode::kExact, Mode::kDense}) {
    EngineOptions options = RoomyOptions(folder.path());
    options.mode = mode;
    options.kv_tokens = 33;
    options.context = std::min<uint32_t>(64, model->spec().context);
    options.logits_rows = 8;
    const StatusOr<MemoryPlan> least = Engine::Plan(*model, options, /*smallest=*/true);
    ASSERT_TRUE(least.ok()) << Message(least.status());
    options.budget_bytes = least->TotalBytes();
    const auto engine = OpenEngine(*model, options);
    ASSERT_NE(engine, nullptr);
    EXPECT_LE(LargestDifference(*engine, golden["cases"], expected), kLogitTolerance) << Name(mode);
    EXPECT_LE(engine->budget().peak_bytes(), options.budget_bytes);
  }
}

std::vector<std::string> TinyModels() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(SourcePath("tests/golden/tiny"))) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem());
  }
  std::sort(names.begin(), names.end());
  return names;
}
std::string TestName(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Golden, TinyModel, ::testing::ValuesIn(TinyModels()), TestName);

TEST(Tales, F16GivesReferenceLogitsAtEveryPosition) {
  const auto model = OpenModel(SourcePath("tests/golden/tales-f16.gguf"));
  ASSERT_NE(model, nullptr);
  ScratchFolder folder;
  const nlohmann::json golden = ReadJson("tests/golden/tales_f16.json");
  const std::vector<float> expected = ReadNpy("tests/golden/tales_f16_logits.npy");
  for (const Mode mode : {Mode::kExact, Mode::kDense}) {
    EngineOptions options = RoomyOptions(folder.path());
    options.mode = mode;
    const auto engine = OpenEngine(*model, options);
    ASSERT_NE(engine, nullptr);
    EXPECT_LE(LargestDifference(*engine, golden["cases"], expected), kLogitTolerance) << Name(mode);
  }
}

}  // namespace
}  // namespace elasticmem
