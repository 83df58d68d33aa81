#include <gtest/gtest.h>

#include "tensor/dtype.h"

namespace elasticmem {
namespace {

TEST(DTypeLookup, FindsEveryTypeByNumberAndName) {
  for (const DTypeTraits& traits : kDTypes) {
    EXPECT_EQ(DTypeFromGguf(traits.gguf_type), traits.dtype);
    EXPECT_EQ(DTypeFromName(traits.name), traits.dtype);
  }
}

TEST(DTypeLookup, IgnoresTheCaseOfNames) {
  EXPECT_EQ(DTypeFromName("q4_k"), DType::kQ4_K);
  EXPECT_EQ(DTypeFromName("bf16"), DType::kBF16);
}

TEST(DTypeLookup, FindsNothingForOthers) {
  EXPECT_EQ(DTypeFromGguf(16), std::nullopt);
  EXPECT_EQ(DTypeFromGguf(UINT32_MAX), std::nullopt);
  EXPECT_EQ(DTypeFromName("Q4"), std::nullopt);
  EXPECT_EQ(DTypeFromName("F16 "), std::nullopt);
  EXPECT_EQ(DTypeFromName(""), std::nullopt);
}

}  // namespace
}  // namespace elasticmem
