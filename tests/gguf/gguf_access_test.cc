// Typed look-ups of metadata.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/gguf/gguf_builder.h"

namespace elasticmem {
namespace {

using ::testing::ElementsAre;
using ::testing::Pointee;

class GgufAccess : public ::testing::Test {
 protected:
  static GgufFile Parsed() {
    GgufBuilder builder;
    builder.Set("u16", uint16_t{7}).Set("i32", int32_t{8}).Set("negative", int8_t{-1}).Set("u64", UINT64_MAX);
    builder.Set("f32", 0.5f).Set("f64", 0.1).Set("yes", true).Set("text", "tale");
    builder.Set("strings", std::vector<std::string>{"a", "b"}).Set("floats", std::vector<float>{1, 2});
    builder.Set("ints", std::vector<int32_t>{-1, 2}).Set("bytes", std::vector<uint8_t>{3, 255});
    builder.Set("bools", std::vector<bool>{true, false}).Set("doubles", std::vector<double>{1.0});
    builder.Set("large", std::vector<uint64_t>{0, 1ull << 63});
    builder.Set("vocabulary", std::vector<std::string>(1025)).Set("layers", std::vector<int32_t>(1024));
    StatusOr<GgufFile> file = GgufFile::Parse(builder.Build(), "test");
    EM_CHECK(file.ok());
    return *std::move(file);
  }
  template <class T>
  static std::string ErrorOf(const StatusOr<T>& result) {
    return result.ok() ? "no error" : std::string(Message(result.status()));
  }

  GgufFile file_ = Parsed();
};

TEST_F(GgufAccess, GivesIntegersOfAnyTypeThatHoldTheValue) {
  EXPECT_EQ(file_.Uint("u16").value(), 7u);
  EXPECT_EQ(file_.Uint("i32").value(), 8u);
  EXPECT_EQ(file_.Uint("u64").value(), UINT64_MAX);
  EXPECT_EQ(file_.UintOr("i32", 3).value(), 8u);
  EXPECT_EQ(ErrorOf(file_.Uint("negative")), "key \"negative\" is -1, it may not be negative");
  EXPECT_EQ(ErrorOf(file_.UintOr("negative", 3)), "key \"negative\" is -1, it may not be negative");
}

TEST_F(GgufAccess, GivesFloatsBoolsAndStrings) {
  EXPECT_EQ(file_.Float("f32").value(), 0.5);
  EXPECT_EQ(file_.Float("f64").value(), 0.1);
  EXPECT_EQ(file_.FloatOr("f32", 9).value(), 0.5);
  EXPECT_TRUE(file_.BoolOr("yes", false).value());
  EXPECT_EQ(file_.String("text").value(), "tale");
  EXPECT_EQ(file_.StringOr("text", "x").value(), "tale");
}

TEST_F(GgufAccess, GivesTheFallbackOnlyWhereTheKeyIsAbsent) {
  EXPECT_EQ(file_.UintOr("none", 3).value(), 3u);
  EXPECT_EQ(file_.FloatOr("none", 0.25).value(), 0.25);
  EXPECT_TRUE(file_.BoolOr("none", true).value());
  EXPECT_EQ(file_.StringOr("none", "x").value(), "x");
  EXPECT_EQ(ErrorOf(file_.UintOr("text", 3)), "key \"text\" is of type string, an integer is needed");
  EXPECT_EQ(ErrorOf(file_.FloatOr("u16", 3)), "key \"u16\" is of type u16, f32 or f64 is needed");
  EXPECT_EQ(ErrorOf(file_.BoolOr("u16", true)), "key \"u16\" is of type u16, bool is needed");
  EXPECT_EQ(ErrorOf(file_.StringOr("strings", "")), "key \"strings\" is of type array of string, string is needed");
}

TEST_F(GgufAccess, NamesAKeyThatIsMissing) {
  EXPECT_EQ(ErrorOf(file_.Uint("none")), "key \"none\" is missing");
  EXPECT_EQ(ErrorOf(file_.Float("none")), "key \"none\" is missing");
  EXPECT_EQ(ErrorOf(file_.String("none")), "key \"none\" is missing");
  EXPECT_EQ(ErrorOf(file_.Uint("yes")), "key \"yes\" is of type bool, an integer is needed");
}

TEST_F(GgufAccess, GivesArrays) {
  EXPECT_THAT(file_.Strings("strings").value(), Pointee(ElementsAre("a", "b")));
  EXPECT_THAT(file_.Floats("floats").value(), Pointee(ElementsAre(1.0f, 2.0f)));
  EXPECT_THAT(*file_.Ints("ints").value(), ElementsAre(-1, 2));
  EXPECT_THAT(*file_.Ints("bytes").value(), ElementsAre(3, 255));
  EXPECT_THAT(*file_.Ints("bools").value(), ElementsAre(1, 0));
  EXPECT_EQ(file_.Strings("none").value(), nullptr);
  EXPECT_EQ(file_.Floats("none").value(), nullptr);
  EXPECT_EQ(file_.Ints("none").value(), std::nullopt);
}

TEST_F(GgufAccess, RefusesArraysOfAnotherType) {
  EXPECT_EQ(ErrorOf(file_.Strings("ints")), "key \"ints\" is of type array of i32, array of string is needed");
  EXPECT_EQ(ErrorOf(file_.Floats("doubles")), "key \"doubles\" is of type array of f64, array of f32 is needed");
  EXPECT_EQ(ErrorOf(file_.Ints("floats")), "key \"floats\" is of type array of f32, array of integers is needed");
  EXPECT_EQ(ErrorOf(file_.Ints("u16")), "key \"u16\" is of type u16, array of integers is needed");
  EXPECT_EQ(ErrorOf(file_.Ints("large")),
            "key \"large\": element 1 is 9223372036854775808, which is larger than 2^63 - 1");
}

TEST_F(GgufAccess, DropsOnlyLongArrays) {
  ASSERT_NE(file_.Strings("vocabulary").value(), nullptr);
  const size_t keys = file_.metadata().size();
  file_.DropArrays();
  EXPECT_EQ(file_.metadata().size(), keys - 1);
  EXPECT_EQ(file_.Strings("vocabulary").value(), nullptr);
  EXPECT_EQ(file_.Ints("layers").value()->size(), 1024u);
  EXPECT_EQ(file_.String("text").value(), "tale");
}

TEST(GgufTypeName, NamesEveryType) {
  EXPECT_EQ(GgufTypeName(GgufType::kUint8), "u8");
  EXPECT_EQ(GgufTypeName(GgufType::kString), "string");
  EXPECT_EQ(GgufTypeName(GgufType::kFloat64), "f64");
  EXPECT_EQ(GgufTypeName(static_cast<GgufType>(13)), "unknown");
}

}  // namespace
}  // namespace elasticmem
