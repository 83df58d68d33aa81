// What is read back from a store's records is what the GGUF holds, for every type and shape.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "store/neuron_store.h"
#include "runtime/model/neuron_store_packer.h"
#include "tests/gguf/scratch_folder.h"
#include "tests/model/ffn_model.h"

namespace elasticmem {
namespace {

struct Record {
  std::vector<float> gate, up, down;
};

Record ReadRecord(const NeuronStore& store, uint32_t layer, uint32_t neuron) {
  const RecordLayout& layout = store.layout();
  std::vector<std::byte> head(layout.head_bytes), tail(layout.tail_bytes);
  EM_CHECK(store.file().ReadAt(store.HeadOffset(layer, neuron), head).ok());
  EM_CHECK(store.file().ReadAt(store.TailOffset(layer, neuron), tail).ok());
  EXPECT_TRUE(store.VerifyHead(layer, neuron, head).ok());
  EXPECT_TRUE(store.VerifyTail(layer, neuron, tail).ok());
  Record record;
  const auto row = [&](DType dtype, const std::byte* bytes) {
    std::vector<float> out(layout.d_model);
    DequantizeRow(dtype, bytes, out.size(), out.data());
    return out;
  };
  if (layout.gated) record.gate = row(layout.gate, head.data());
  record.up = row(layout.up, (layout.gated ? tail : head).data() + layout.up_offset);
  record.down = row(layout.down, tail.data() + layout.down_offset);
  return record;
}

// |a - b| relative to |b|, over all elements.
double RelativeDistance(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  double difference = 0, total = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[i].size(); ++j) {
      difference += std::pow(double{a[i][j]} - b[i][j], 2);
      total += std::pow(double{b[i][j]}, 2);
    }
  }
  return std::sqrt(difference / total);
}

struct Case {
  std::string name;
  FfnShape shape;
  bool exact_down = true;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  const auto add = [&](std::string name, FfnShape shape, bool exact_down) {
    cases.push_back({std::move(name), std::move(shape), exact_down});
  };
  for (const DTypeTraits& traits : kDTypes) {
    const DType t = traits.dtype;
    const bool exact = !IsQuantized(t);
    const std::string name(traits.name);
    add(name + "Gated", {.gate = t, .up = t, .down = {t}}, exact);
    add(name + "Ungated", {.gated = false, .up = t, .down = {t}}, exact);
    add(name + "Transposed", {.down_transposed = true, .gate = t, .up = t, .down = {t}}, true);
    add(name + "UngatedTransposed", {.gated = false, .down_transposed = true, .up = t, .down = {t}}, true);
  }
  add("OddFloatShape", {.d_model = 37, .ff = 53, .layers = 3}, true);
  add("OneNeuron", {.d_model = 32, .ff = 1, .layers = 1}, true);
  add("MixedParts", {.gate = DType::kQ4_0, .up = DType::kQ8_0, .down = {DType::kF32}}, true);
  add("MixedFloatLayers", {.down = {DType::kF16, DType::kF32, DType::kBF16}}, true);
  add("MixedQuantLayers", {.layers = 3, .gate = DType::kQ4_K, .up = DType::kQ4_K, .down = {DType::kQ6_K, DType::kQ4_K}},
      false);
  return cases;
}

class RoundTripTest : public testing::TestWithParam<Case> {};

TEST_P(RoundTripTest, RecordsHoldTheRowsAndColumnsOfTheModel) {
  const ScratchFolder folder;
  FfnModel model(folder.Path("m.gguf"), GetParam().shape);
  const std::string path = folder.Path("m.emstore");
  // Less than a layer at a time.
  const auto packed = PackNeuronStore(model.source(), path, {.scratch_bytes = 100'000});
  ASSERT_TRUE(packed.ok()) << packed.status();
  EXPECT_FALSE(packed->reused);
  EXPECT_EQ(packed->bytes, ReadAll(path).size());

  const auto store = NeuronStore::Open(path, std::nullopt, {.heads = true});
  ASSERT_TRUE(store.ok()) << store.status();
  const auto layout = PackedLayout(model.source(), std::nullopt);
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(store->layout(), *layout);
  EXPECT_TRUE(store->VerifyAll(nullptr, nullptr).ok());
  const FfnShape& shape = model.shape();
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    const std::vector<std::vector<float>> columns = model.DownColumns(layer);
    std::vector<std::vector<float>> packed_columns;
    for (uint32_t neuron = 0; neuron < shape.ff; ++neuron) {
      Record record = ReadRecord(*store, layer, neuron);
      const FfnTensors& tensors = model.source().layers[layer];
      if (shape.gated) {
        ASSERT_EQ(record.gate, model.Row(*tensors.gate, neuron)) << layer << " " << neuron;
      }
      ASSERT_EQ(record.up, model.Row(*tensors.up, neuron)) << layer << " " << neuron;
      if (GetParam().exact_down) {
        ASSERT_EQ(record.down, columns[neuron]) << layer << " " << neuron;
      }
      packed_columns.push_back(std::move(record.down));
    }
    if (GetParam().exact_down) continue;
    EXPECT_EQ(store->layout().down, DType::kQ8_0);
    // A weight is off by at most half a step of max / 127 of its block, uniformly: step / sqrt(12) on average. Weights
    // of one block of 32 have max / rms below sqrt(32), so the relative error is below sqrt(32) / 127 / sqrt(12) =
    // 0.0129.
    const double distance = RelativeDistance(packed_columns, columns);
    EXPECT_GT(distance, 0);
    EXPECT_LT(distance, 0.0129);
    EXPECT_LT(packed->relative_error, 0.0129);
    EXPECT_THAT(packed->requantised, testing::HasSubstr("down "));
    EXPECT_THAT(packed->requantised, testing::HasSubstr(" -> Q8_0"));
  }
  if (GetParam().exact_down) {
    EXPECT_EQ(packed->relative_error, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, RoundTripTest, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

TEST(PackTypeTest, RequantisesAllPartsToTheTypeAskedFor) {
  const ScratchFolder folder;
  FfnModel model(folder.Path("m.gguf"), {.gate = DType::kF32, .up = DType::kF16, .down = {DType::kQ6_K}});
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0}) {
    const std::string path = folder.Path("s.emstore");
    const auto packed = PackNeuronStore(model.source(), path, {.type = type, .replace = true});
    ASSERT_TRUE(packed.ok()) << packed.status();
    const auto store = NeuronStore::Open(path, std::nullopt, {.heads = true});
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_EQ(store->layout().gate, type);
    EXPECT_EQ(store->layout().up, type);
    EXPECT_EQ(store->layout().down, type);
    const auto columns = model.DownColumns(1);
    for (const uint32_t neuron : {0u, 100u, 511u}) {
      const Record record = ReadRecord(*store, 1, neuron);
      // What QuantizeRow makes of the model's weights, bit for bit.
      const auto through = [&](const std::vector<float>& weights) {
        std::vector<std::byte> row(RowBytes(type, weights.size()));
        EM_CHECK(QuantizeRow(type, weights, row.data()).ok());
        std::vector<float> out(weights.size());
        DequantizeRow(type, row.data(), out.size(), out.data());
        return out;
      };
      EXPECT_EQ(record.gate, through(model.Row(*model.source().layers[1].gate, neuron)));
      EXPECT_EQ(record.up, through(model.Row(*model.source().layers[1].up, neuron)));
      EXPECT_EQ(record.down, through(columns[neuron]));
    }
  }
}

TEST(PackTypeTest, RefusesTypesThatCannotBeMade) {
  const ScratchFolder folder;
  FfnModel model(folder.Path("m.gguf"), {.d_model = 48, .ff = 64});
  EXPECT_EQ(PackedLayout(model.source(), DType::kQ4_K).status().code(), StatusCode::kUnimplemented);
  const Status status = PackedLayout(model.source(), DType::kQ8_0).status();
  EXPECT_THAT(std::string(Message(status)), testing::HasSubstr("blocks of 32 do not divide the model's rows of 48"));
}

TEST(PackTypeTest, NamesTheTensorWhoseShapeIsWrong) {
  const ScratchFolder folder;
  FfnModel model(folder.Path("m.gguf"), {.d_model = 64, .ff = 96});
  model.source().layers[1].down_transposed = true;
  const Status status = PackNeuronStore(model.source(), folder.Path("s.emstore"), {}).status();
  EXPECT_EQ(Message(status), "tensor blk.1.ffn_down.weight: 64 rows of 96, expected 96 rows of 64");
}

TEST(PackOrderTest, RecordsLieInTheOrderGiven) {
  const ScratchFolder folder;
  for (const DType down : {DType::kF16, DType::kQ4_0}) {
    FfnModel model(folder.Path("m.gguf"), {.down = {down}});
    const std::string plain = folder.Path("plain.emstore"), ordered = folder.Path("ordered.emstore");
    ASSERT_TRUE(PackNeuronStore(model.source(), plain, {.replace = true}).ok());
    std::mt19937 random(3);
    for (uint32_t layer = 0; layer < 2; ++layer) {
      std::vector<uint32_t> order(512);
      for (uint32_t i = 0; i < 512; ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), random);
      model.source().order.push_back(order);
    }
    const auto packed = PackNeuronStore(model.source(), ordered, {.scratch_bytes = 100'000, .replace = true});
    ASSERT_TRUE(packed.ok()) << packed.status();
    const auto a = NeuronStore::Open(plain, std::nullopt, {.heads = true});
    const auto b = NeuronStore::Open(ordered, std::nullopt, {.heads = true});
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_TRUE(b->VerifyAll(nullptr, nullptr).ok());
    for (uint32_t layer = 0; layer < 2; ++layer) {
      for (uint32_t position = 0; position < 512; ++position) {
        const uint32_t neuron = model.source().order[layer][position];
        ASSERT_EQ(b->Position(layer, neuron), position);
        const Record x = ReadRecord(*a, layer, neuron), y = ReadRecord(*b, layer, neuron);
        ASSERT_EQ(x.gate, y.gate);
        ASSERT_EQ(x.up, y.up);
        ASSERT_EQ(x.down, y.down);
      }
    }
    EXPECT_GT(b->MemoryBytes(), a->MemoryBytes());
  }
}

TEST(PackOrderTest, RefusesAnOrderThatIsNoPermutation) {
  const ScratchFolder folder;
  FfnModel model(folder.Path("m.gguf"), {.d_model = 32, .ff = 3, .layers = 1});
  for (const std::vector<uint32_t>& order : std::vector<std::vector<uint32_t>>{{0, 1}, {0, 1, 1}, {1, 2, 3}}) {
    model.source().order = {order};
    EXPECT_EQ(PackNeuronStore(model.source(), folder.Path("s"), {}).status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(PackScratchTest, TheStoreDoesNotDependOnTheScratch) {
  const ScratchFolder folder;
  FfnModel model(folder.Path("m.gguf"), {.down = {DType::kQ5_K}});
  std::string first;
  for (const uint64_t scratch : {uint64_t{1}, uint64_t{30'000}, uint64_t{300'000}, 32_MiB}) {
    const std::string path = folder.Path("s.emstore");
    ASSERT_TRUE(PackNeuronStore(model.source(), path, {.scratch_bytes = scratch, .replace = true}).ok());
    if (first.empty()) first = ReadAll(path);
    EXPECT_EQ(ReadAll(path), first) << scratch;
  }
}

TEST(RecordLayoutTest, AlignsTailsAndRecords) {
  const RecordLayout gated = RecordLayout::Make(true, 576, 1536, 30, DType::kQ8_0, DType::kQ8_0, DType::kQ8_0);
  EXPECT_EQ(gated.head_bytes, 640u);  // 612 rounded up
  EXPECT_EQ(gated.up_offset, 0u);
  EXPECT_EQ(gated.down_offset, 612u);
  EXPECT_EQ(gated.tail_bytes, 1224u);
  EXPECT_EQ(gated.slot_bytes, 1280u);
  EXPECT_EQ(gated.record_bytes, 1920u);
  const RecordLayout ungated = RecordLayout::Make(false, 32, 8, 1, DType::kF32, DType::kQ8_0, DType::kF16);
  EXPECT_EQ(ungated.head_bytes, 64u);  // 34 rounded up
  EXPECT_EQ(ungated.down_offset, 0u);
  EXPECT_EQ(ungated.tail_bytes, 64u);
  EXPECT_EQ(ungated.record_bytes, 128u);
}

}  // namespace
}  // namespace elasticmem
