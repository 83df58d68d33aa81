// Damaged and hostile files: each an error that says what is wrong, where, and the value seen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/gguf/gguf_builder.h"

namespace elasticmem {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string ErrorOf(std::span<const std::byte> bytes) {
  const StatusOr<GgufFile> file = GgufFile::Parse(bytes, "test.gguf");
  if (file.ok()) return "no error";
  EXPECT_THAT(std::string(Message(file.status())), StartsWith("test.gguf: "));
  return std::string(Message(file.status())).substr(11);
}
std::string ErrorOf(const GgufBuilder& builder) { return ErrorOf(builder.Build()); }

GgufBuilder::Tensor Tensor(std::string name, uint32_t type, std::vector<uint64_t> shape, size_t bytes) {
  return {std::move(name), type, std::move(shape), std::vector<std::byte>(bytes), {}};
}

TEST(GgufBadInput, EmptyFile) { EXPECT_EQ(ErrorOf(std::span<const std::byte>()), "the file is empty"); }

TEST(GgufBadInput, OtherFilesShowTheirFirstBytes) {
  GgufBuilder builder;
  builder.magic = "PK\x03\x04";
  EXPECT_EQ(ErrorOf(builder), R"(not a GGUF file: it begins with "PK\x03\x04", not with "GGUF" or "PWRI")");
  EXPECT_EQ(ErrorOf(std::as_bytes(std::span("GG", 2))),
            R"(not a GGUF file: it begins with "GG", not with "GGUF" or "PWRI")");
}

TEST(GgufBadInput, FileThatEndsInTheHeader) {
  std::vector<std::byte> bytes = GgufBuilder().Build();
  bytes.resize(4);
  EXPECT_EQ(ErrorOf(bytes), "header: the file ends at byte 4, 4 bytes were expected at byte 4");
  bytes = GgufBuilder().Build();
  bytes.resize(20);
  EXPECT_EQ(ErrorOf(bytes),
            "header, number of metadata keys: the file ends at byte 20, 8 bytes were expected at byte 16");
}

TEST(GgufBadInput, UnknownVersions) {
  GgufBuilder builder;
  for (const uint32_t version : {0u, 1u, 4u, 70000u}) {
    builder.version = version;
    EXPECT_EQ(ErrorOf(builder), fmt::format("header: GGUF version {} is not read, only 2 and 3 are", version));
  }
}

TEST(GgufBadInput, BigEndianFile) {
  GgufBuilder builder;
  builder.version = __builtin_bswap32(3);
  EXPECT_EQ(ErrorOf(builder),
            "header: the version reads 0x03000000: a big-endian file of version 3; only little-endian ones are read");
  builder.magic = "FUGG";
  EXPECT_THAT(ErrorOf(builder), StartsWith("a big-endian GGUF file"));
}

TEST(GgufBadInput, CountsBeyondTheFile) {
  GgufBuilder builder;
  builder.key_count = UINT64_MAX;
  EXPECT_EQ(ErrorOf(builder),
            "18446744073709551615 metadata keys need 13 bytes each at least, but only 0 bytes are left in the file");
  builder.key_count.reset();
  builder.tensor_count = 1ull << 60;
  builder.AddTensor(Tensor("t", 0, {4}, 16));
  EXPECT_THAT(ErrorOf(builder), StartsWith("1152921504606846976 tensors need 24 bytes each at least, but only "));
}

TEST(GgufBadInput, StringThatClaimsAGibibyteInASmallFile) {
  GgufBuilder builder;
  ByteWriter value;
  value.Number<uint64_t>(1ull << 30).Text(std::string(100, 'x'));
  builder.SetRaw("general.name", GgufType::kString, value.bytes());
  EXPECT_EQ(ErrorOf(builder),
            "key \"general.name\": a string claims 1073741824 bytes, but only 100 are left in the file");
}

TEST(GgufBadInput, KeyNameLongerThanTheFile) {
  std::vector<std::byte> bytes = GgufBuilder().Set("key", uint32_t{1}).Build();
  bytes[24 + 7] = std::byte{0x80};
  EXPECT_EQ(ErrorOf(bytes),
            "name of metadata key 1 of 1: a string claims 9223372036854775811 bytes, but only 11 are left in the file");
}

TEST(GgufBadInput, ArraysLongerThanTheFile) {
  for (const GgufType type : {GgufType::kUint8, GgufType::kBool, GgufType::kFloat64, GgufType::kString}) {
    GgufBuilder builder;
    ByteWriter value;
    value.Number(static_cast<uint32_t>(type)).Number<uint64_t>(1ull << 63).Text(std::string(100, '\0'));
    builder.SetRaw("list", GgufType::kArray, value.bytes());
    EXPECT_THAT(ErrorOf(builder), StartsWith("key \"list\": 9223372036854775808 array elements need "));
    EXPECT_THAT(ErrorOf(builder), HasSubstr("but only 100 bytes are left in the file"));
  }
}

TEST(GgufBadInput, NestedArrays) {
  GgufBuilder builder;
  ByteWriter value;
  value.Number(static_cast<uint32_t>(GgufType::kArray)).Number<uint64_t>(1);
  value.Number(static_cast<uint32_t>(GgufType::kUint8)).Number<uint64_t>(0);
  builder.SetRaw("list", GgufType::kArray, value.bytes());
  EXPECT_EQ(ErrorOf(builder), "key \"list\": it is an array of arrays, which is not read");
}

TEST(GgufBadInput, UnknownValueTypes) {
  GgufBuilder builder;
  builder.SetRaw("key", static_cast<GgufType>(13), {});
  EXPECT_EQ(ErrorOf(builder), "key \"key\": its type is 13, GGUF's are 0 to 12");
  ByteWriter value;
  value.Number<uint32_t>(99).Number<uint64_t>(0);
  builder.SetRaw("key", GgufType::kArray, value.bytes());
  EXPECT_EQ(ErrorOf(builder), "key \"key\": its element type is 99, GGUF's are 0 to 12");
}

TEST(GgufBadInput, BoolsThatAreNeither0Nor1) {
  GgufBuilder builder;
  builder.SetRaw("flag", GgufType::kBool, {std::byte{2}});
  EXPECT_EQ(ErrorOf(builder), "key \"flag\": a bool is 2, it must be 0 or 1");
  ByteWriter value;
  value.Number(static_cast<uint32_t>(GgufType::kBool)).Number<uint64_t>(2).Number<uint8_t>(1).Number<uint8_t>(255);
  builder.SetRaw("flag", GgufType::kArray, value.bytes());
  EXPECT_EQ(ErrorOf(builder), "key \"flag\": a bool is 255, it must be 0 or 1");
}

TEST(GgufBadInput, DuplicateKey) {
  GgufBuilder builder;
  builder.Set("general.name", "a").AppendRaw("general.name", GgufType::kUint8, {std::byte{1}});
  EXPECT_EQ(ErrorOf(builder), "key \"general.name\" appears twice");
}

TEST(GgufBadInput, DuplicateTensor) {
  GgufBuilder builder;
  builder.AddTensor(Tensor("a.weight", 0, {4}, 16)).AddTensor(Tensor("a.weight", 0, {4}, 16));
  EXPECT_EQ(ErrorOf(builder), "tensor \"a.weight\" appears twice");
}

TEST(GgufBadInput, Alignments) {
  GgufBuilder builder;
  builder.AddTensor(Tensor("t", 0, {4}, 16));
  for (const uint32_t alignment : {0u, 3u, 48u}) {
    builder.Set("general.alignment", alignment);
    EXPECT_EQ(ErrorOf(builder), fmt::format("general.alignment is {}, it must be a power of two", alignment));
  }
  builder.Set("general.alignment", uint32_t{1u << 30});
  EXPECT_EQ(ErrorOf(builder), "general.alignment is 1073741824, at most 1048576 is read");
  builder.Set("general.alignment", "32");
  EXPECT_EQ(ErrorOf(builder), "key \"general.alignment\" is of type string, an integer is needed");
}

TEST(GgufBadInput, ShapesThatOverflow) {
  GgufBuilder builder;
  builder.AddTensor(Tensor("big", 0, {(1ull << 63) - 1, 2, 1, 1}, 16));
  EXPECT_EQ(ErrorOf(builder),
            "tensor \"big\": its shape 9223372036854775807 x 2 x 1 x 1 has more than 2^63 - 1 elements");
  builder.FindTensor("big")->shape = {1ull << 32, 1ull << 32, 1, 1};  // 2^64 elements: 0 in 64 bits
  EXPECT_THAT(ErrorOf(builder), HasSubstr("has more than 2^63 - 1 elements"));
  builder.FindTensor("big")->shape = {UINT64_MAX};
  EXPECT_THAT(ErrorOf(builder), HasSubstr("has more than 2^63 - 1 elements"));
  builder.FindTensor("big")->shape = {1ull << 62};  // times 4 bytes: 0 in 64 bits
  EXPECT_EQ(ErrorOf(builder), "tensor \"big\": its shape 4611686018427387904 of F32 takes more than 2^64 bytes");
}

TEST(GgufBadInput, TooManyDimensionsOrAnEmptyOne) {
  GgufBuilder builder;
  builder.AddTensor(Tensor("t", 0, {1, 1, 1, 1, 1}, 4));
  EXPECT_EQ(ErrorOf(builder), "tensor \"t\": it has 5 dimensions, at most 4 are read");
  builder.FindTensor("t")->shape = {4, 0};
  EXPECT_EQ(ErrorOf(builder), "tensor \"t\": its shape 4 x 0 holds a dimension of 0");
}

TEST(GgufBadInput, TensorTypesThatAreNotRead) {
  GgufBuilder builder;
  builder.AddTensor(Tensor("t", 16, {256}, 66));
  EXPECT_EQ(
      ErrorOf(builder),
      "tensor \"t\": its type, IQ2_XXS (number 16), is not read; these are: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, "
      "Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K");
  builder.FindTensor("t")->type = 39;
  EXPECT_THAT(ErrorOf(builder), HasSubstr("its type, MXFP4 (number 39), is not read"));
  builder.FindTensor("t")->type = 4'000'000'000u;
  EXPECT_THAT(ErrorOf(builder), HasSubstr("its type, number 4000000000, is not read"));
  builder.FindTensor("t")->type = 18;
  builder.magic = "PWRI";
  EXPECT_THAT(ErrorOf(builder), HasSubstr("its type, I32 (number 18), is not read"));
}

TEST(GgufBadInput, RowsThatAreNoMultipleOfTheBlock) {
  GgufBuilder builder;
  builder.AddTensor(Tensor("t", Traits(DType::kQ8_0).gguf_type, {33, 32}, 34 * 33));
  EXPECT_EQ(ErrorOf(builder), "tensor \"t\": its rows of 33 elements are no multiple of Q8_0's block of 32");
}

TEST(GgufBadInput, TruncatedFileNamesTheTensorAndBothSizes) {
  GgufBuilder builder;
  builder.AddTensor(Tensor("a", 0, {8}, 32)).AddTensor(Tensor("b", 0, {8}, 32));
  std::vector<std::byte> bytes = builder.Build();
  const size_t whole = bytes.size();
  bytes.resize(whole - 1);
  EXPECT_EQ(ErrorOf(bytes), fmt::format("tensor \"b\" ends at byte {}, the file has {}", whole, whole - 1));
  bytes.resize(whole - 33);
  EXPECT_EQ(ErrorOf(bytes), fmt::format("tensor \"a\" ends at byte {}, the file has {}", whole - 32, whole - 33));
}

TEST(GgufBadInput, EveryTruncationIsAnError) {
  GgufBuilder builder;
  builder.Set("name", "tale").Set("list", std::vector<std::string>{"a", "b"}).Set("flags", std::vector<bool>{true});
  builder.AddTensor(Tensor("a", 0, {8}, 32));
  const std::vector<std::byte> bytes = builder.Build();
  ASSERT_TRUE(GgufFile::Parse(bytes, "test").ok());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(GgufFile::Parse(std::span(bytes).first(size), "test").ok()) << size;
  }
}

TEST(GgufBadInput, OffsetsBeyondTheFileOrBeyond64Bits) {
  GgufBuilder builder;
  builder.AddTensor({"t", 0, {4}, std::vector<std::byte>(16), 1ull << 40});
  EXPECT_THAT(ErrorOf(builder), StartsWith("tensor \"t\" ends at byte 10995116278"));
  builder.FindTensor("t")->offset = UINT64_MAX - 31;  // 96 + that + 16 is 80 in 64 bits
  EXPECT_THAT(ErrorOf(builder), StartsWith("tensor \"t\" ends at byte 184467440737095516"));
}

TEST(GgufBadInput, OffsetsOffTheAlignment) {
  GgufBuilder builder;
  builder.AddTensor({"t", 0, {4}, std::vector<std::byte>(64), 33});
  EXPECT_EQ(ErrorOf(builder), "tensor \"t\" is at offset 33, no multiple of general.alignment, 32");
}

TEST(GgufBadInput, OverlappingTensors) {
  GgufBuilder builder;
  builder.AddTensor({"b", 0, {16}, std::vector<std::byte>(64), 32});
  builder.AddTensor({"a", 0, {16}, std::vector<std::byte>(64), 0});
  EXPECT_THAT(ErrorOf(builder), ::testing::MatchesRegex("tensors \"a\" \\(bytes [0-9]+ to [0-9]+\\) and \"b\" "
                                                        "\\(from byte [0-9]+\\) overlap"));
  builder.FindTensor("b")->offset = 0;
  EXPECT_THAT(ErrorOf(builder), HasSubstr("overlap"));
}

TEST(GgufBadInput, NamesAreMadeFitForATerminal) {
  GgufBuilder builder;
  builder.SetRaw(std::string("a\x1b[2J\0\xff", 7) + std::string(1000, 'x'), GgufType::kBool, {std::byte{7}});
  const std::string error = ErrorOf(builder);
  EXPECT_THAT(error, StartsWith(R"(key "a\x1b[2J\x00\xff)"));
  EXPECT_THAT(error, HasSubstr("xxx...\""));
  EXPECT_LT(error.size(), 200u);
}

}  // namespace
}  // namespace elasticmem
