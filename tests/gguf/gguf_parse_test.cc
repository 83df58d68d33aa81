// What the reader makes of right files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/units.h"
#include "tests/gguf/gguf_builder.h"

namespace elasticmem {
namespace {

using ::testing::ElementsAre;

GgufFile Parsed(const GgufBuilder& builder) {
  StatusOr<GgufFile> file = GgufFile::Parse(builder.Build(), "test.gguf");
  EM_CHECK(file.ok());
  return *std::move(file);
}

TEST(GgufParse, ReadsScalarsOfEveryType) {
  GgufBuilder builder;
  builder.Set("u8", uint8_t{255}).Set("u16", uint16_t{65535}).Set("u32", uint32_t{4294967295u});
  builder.Set("u64", std::numeric_limits<uint64_t>::max()).Set("i8", int8_t{-128}).Set("i16", int16_t{-32768});
  builder.Set("i32", int32_t{-5}).Set("i64", std::numeric_limits<int64_t>::min());
  builder.Set("f32", 1.5f).Set("f64", 1e300).Set("true", true).Set("false", false).Set("text", "tale");
  const GgufFile file = Parsed(builder);
  const auto value = [&file](std::string_view key) { return file.Find(key)->value; };
  using Value = decltype(GgufValue::value);
  EXPECT_EQ(value("u8"), Value(uint64_t{255}));
  EXPECT_EQ(value("u16"), Value(uint64_t{65535}));
  EXPECT_EQ(value("u32"), Value(uint64_t{4294967295u}));
  EXPECT_EQ(value("u64"), Value(std::numeric_limits<uint64_t>::max()));
  EXPECT_EQ(value("i8"), Value(int64_t{-128}));
  EXPECT_EQ(value("i16"), Value(int64_t{-32768}));
  EXPECT_EQ(value("i32"), Value(int64_t{-5}));
  EXPECT_EQ(value("i64"), Value(std::numeric_limits<int64_t>::min()));
  EXPECT_EQ(value("f32"), Value(1.5));
  EXPECT_EQ(value("f64"), Value(1e300));
  EXPECT_EQ(value("true"), Value(true));
  EXPECT_EQ(value("false"), Value(false));
  EXPECT_EQ(value("text"), Value(std::string("tale")));
  EXPECT_EQ(file.Find("i16")->type, GgufType::kInt16);
  EXPECT_EQ(file.metadata().size(), 13u);
}

template <class Stored, class Held>
void ExpectArray(std::vector<Stored> stored, std::vector<Held> held, GgufType element_type) {
  const GgufFile file = Parsed(GgufBuilder().Set("array", stored));
  const GgufValue& value = *file.Find("array");
  EXPECT_EQ(value.type, GgufType::kArray);
  EXPECT_EQ(value.element_type, element_type);
  EXPECT_EQ(std::get<std::vector<Held>>(value.value), held);
}

TEST(GgufParse, ReadsArraysOfEveryType) {
  ExpectArray<uint8_t, uint64_t>({0, 255}, {0, 255}, GgufType::kUint8);
  ExpectArray<uint16_t, uint64_t>({1, 65535}, {1, 65535}, GgufType::kUint16);
  ExpectArray<uint32_t, uint64_t>({7}, {7}, GgufType::kUint32);
  ExpectArray<uint64_t, uint64_t>({1ull << 63}, {1ull << 63}, GgufType::kUint64);
  ExpectArray<int8_t, int64_t>({-1, 2}, {-1, 2}, GgufType::kInt8);
  ExpectArray<int16_t, int64_t>({-300}, {-300}, GgufType::kInt16);
  ExpectArray<int32_t, int64_t>({-1, 0, 1}, {-1, 0, 1}, GgufType::kInt32);
  ExpectArray<int64_t, int64_t>({-(1ll << 62)}, {-(1ll << 62)}, GgufType::kInt64);
  ExpectArray<float, float>({0.5f, -2.0f}, {0.5f, -2.0f}, GgufType::kFloat32);
  ExpectArray<double, double>({1e-200}, {1e-200}, GgufType::kFloat64);
  ExpectArray<bool, uint64_t>({true, false, true}, {1, 0, 1}, GgufType::kBool);
  ExpectArray<std::string, std::string>({"", "a", "long enough to be on the heap"},
                                        {"", "a", "long enough to be on the heap"}, GgufType::kString);
  ExpectArray<std::string, std::string>({}, {}, GgufType::kString);
}

TEST(GgufParse, ReadsArraysLongerThanItsChunks) {
  std::vector<int32_t> stored(1537);
  for (size_t i = 0; i < stored.size(); ++i) stored[i] = static_cast<int32_t>(i) - 700;
  ExpectArray<int32_t, int64_t>(stored, {stored.begin(), stored.end()}, GgufType::kInt32);
}

TEST(GgufParse, KeepsNulBytesInStrings) {
  using namespace std::string_literals;
  const GgufFile file = Parsed(GgufBuilder().Set("text", "a\0b"s).Set("k\0y"s, "v"));
  EXPECT_EQ(file.String("text").value(), "a\0b"s);
  EXPECT_EQ(file.String("k\0y"s).value(), "v");
}

TEST(GgufParse, FindsWhereEachTensorIs) {
  GgufBuilder builder;
  builder.Set("general.name", "x");
  builder.AddTensor("first", {5}, std::vector<float>(5));
  builder.AddTensor("second", DType::kQ8_0, {64, 3}, std::vector<std::byte>(2 * 34 * 3));
  builder.AddTensor("scalar", {}, std::vector<float>{2.0f});
  const std::vector<std::byte> bytes = builder.Build();
  const GgufFile file = Parsed(builder);
  ASSERT_EQ(file.tensors().size(), 3u);
  const GgufTensor& first = *file.FindTensor("first");
  const GgufTensor& second = *file.FindTensor("second");
  EXPECT_EQ(first.offset % 32, 0u);
  EXPECT_EQ(first.bytes, 20u);
  EXPECT_EQ(second.offset, first.offset + 32);
  EXPECT_EQ(second.bytes, 204u);
  EXPECT_EQ(second.dtype, DType::kQ8_0);
  EXPECT_THAT(second.shape, ElementsAre(64, 3));
  EXPECT_EQ(second.cols(), 64u);
  EXPECT_EQ(second.rows(), 3u);
  const GgufTensor& scalar = *file.FindTensor("scalar");
  EXPECT_EQ(scalar.offset + 4, bytes.size());
  EXPECT_EQ(std::memcmp(bytes.data() + scalar.offset, "\0\0\0\x40", 4), 0);
  EXPECT_EQ(scalar.cols() * scalar.rows(), 1u);
  EXPECT_EQ(file.FindTensor("third"), nullptr);
  EXPECT_EQ(file.parameters(), 5u + 192u + 1u);
  EXPECT_EQ(file.file_bytes(), bytes.size());
  EXPECT_THAT(file.paths(), ElementsAre("test.gguf"));
}

TEST(GgufParse, PlacesTensorsByTheFilesAlignment) {
  for (const uint32_t alignment : {1u, 8u, 64u, 4096u, 1u << 20}) {
    GgufBuilder builder;
    builder.SetAlignment(alignment)
        .AddTensor("a", {3}, std::vector<float>(3))
        .AddTensor("b", {3}, std::vector<float>(3));
    const GgufFile file = Parsed(builder);
    EXPECT_EQ(file.FindTensor("a")->offset % alignment, 0u);
    EXPECT_EQ(file.FindTensor("b")->offset - file.FindTensor("a")->offset, RoundUp(12u, alignment));
  }
}

TEST(GgufParse, TakesTensorsInAnyOrderAndWithGaps) {
  GgufBuilder builder;
  std::vector<std::byte> data(16);
  builder.AddTensor({"late", 0, {4}, data, 96}).AddTensor({"early", 0, {4}, data, 0});
  builder.AddTensor({"filler", 0, {4}, std::vector<std::byte>(96), 32});
  const GgufFile file = Parsed(builder);
  EXPECT_EQ(file.tensors()[0].name, "late");
  EXPECT_EQ(file.FindTensor("late")->offset, file.FindTensor("early")->offset + 96);
}

TEST(GgufParse, ReadsVersion2AndPowerInfersMagic) {
  GgufBuilder builder;
  builder.version = 2;
  EXPECT_EQ(Parsed(builder).version(), 2u);
  EXPECT_FALSE(Parsed(builder).is_powerinfer());
  builder.version = 3;
  builder.magic = "PWRI";
  builder.AddTensor("blk.0.ffn_down_t.weight", {4}, std::vector<float>(4));
  EXPECT_TRUE(Parsed(builder).is_powerinfer());
  EXPECT_EQ(Parsed(builder).version(), 3u);
}

TEST(GgufParse, TakesAFileWithoutTensorsOrKeys) {
  const GgufFile file = Parsed(GgufBuilder());
  EXPECT_EQ(file.file_bytes(), 24u);
  EXPECT_TRUE(file.tensors().empty());
  EXPECT_EQ(file.parameters(), 0u);
}

}  // namespace
}  // namespace elasticmem
