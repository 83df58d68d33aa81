#include "mem/geometry.h"

#include <gtest/gtest.h>

#include <random>

#include "base/units.h"
#include "tests/mem/random_seed.h"

namespace elasticmem {
namespace {

TEST(ChooseGeometry, SharedBlocksComeOutWithoutWasteForTheMeasureModel) {
  // d 2048, f16, 16 KV heads of 128: 8 KiB of KV a token and layer; [up, down] is 8 KiB as well.
  const auto g = ChooseGeometry(
      {.layers = 24, .kv_bytes_per_token_layer = 8192, .slot_bytes = 8192, .pool_bytes = 1_GiB, .context = 2048});
  ASSERT_TRUE(g.ok()) << g.status();
  EXPECT_EQ(g->page_tokens, 16u);
  EXPECT_EQ(g->block_bytes, 128_KiB);
  EXPECT_EQ(g->records_per_block, 16u);
  EXPECT_EQ(g->capacity_blocks, 8192u);
  EXPECT_EQ(g->kv_tail_bytes, 0u);
  EXPECT_EQ(g->neuron_tail_bytes, 0u);
  EXPECT_LT(g->waste, 0.01);
}

TEST(ChooseGeometry, ABlockHoldsAtLeastOneRecord) {
  const auto g = ChooseGeometry(
      {.layers = 2, .kv_bytes_per_token_layer = 64, .slot_bytes = 20032, .pool_bytes = 10_MiB, .context = 1024});
  ASSERT_TRUE(g.ok()) << g.status();
  EXPECT_EQ(g->block_bytes, 20480u);
  EXPECT_EQ(g->records_per_block, 1u);
}

TEST(ChooseGeometry, SaysWhichPoolWouldDo) {
  GeometryShapes shapes = {.layers = 24,
                           .kv_bytes_per_token_layer = 8192,
                           .slot_bytes = 8192,
                           .pool_bytes = 24 * 128_KiB - 1,
                           .context = 2048};
  const Status status = ChooseGeometry(shapes).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(status.message()).find(std::to_string(24 * 128_KiB)), std::string::npos) << status;
  ++shapes.pool_bytes;
  EXPECT_TRUE(ChooseGeometry(shapes).ok());
}

TEST(ChooseGeometry, RefusesShapesThatNoBlockHolds) {
  EXPECT_EQ(ChooseGeometry({.layers = 1, .kv_bytes_per_token_layer = 1_MiB, .pool_bytes = 1_GiB}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(ChooseGeometry({.layers = 0, .kv_bytes_per_token_layer = 64, .pool_bytes = 1_GiB}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(ChooseGeometry, RandomShapesKeepTheEquations) {
  std::mt19937_64 random(TestSeed(6));
  for (int round = 0; round < 5000; ++round) {
    GeometryShapes shapes;
    shapes.layers = static_cast<uint32_t>(1 + random() % 80);
    shapes.kv_bytes_per_token_layer = 32 * (1 + random() % 600);
    shapes.slot_bytes = random() % 5 == 0 ? 0 : 64 * (1 + random() % 2000);
    shapes.pool_bytes = 1_MiB + random() % 4_GiB;
    shapes.context = static_cast<uint32_t>(1 + random() % 16384);
    const auto g = ChooseGeometry(shapes);
    if (!g.ok()) {
      ASSERT_EQ(g.status().code(), StatusCode::kResourceExhausted) << g.status();
      continue;
    }
    ASSERT_TRUE(g->page_tokens == 16 || g->page_tokens == 32 || g->page_tokens == 64 || g->page_tokens == 128);
    ASSERT_EQ(g->page_bytes, g->page_tokens * shapes.kv_bytes_per_token_layer);
    ASSERT_EQ(g->block_bytes % 4_KiB, 0u);
    ASSERT_LE(g->block_bytes, 4_MiB);
    ASSERT_GE(g->block_bytes, g->page_bytes);
    ASSERT_EQ(g->kv_tail_bytes, g->block_bytes - g->page_bytes);
    ASSERT_EQ(g->records_per_block * shapes.slot_bytes + g->neuron_tail_bytes, shapes.slot_bytes ? g->block_bytes : 0);
    ASSERT_TRUE(shapes.slot_bytes == 0 || g->records_per_block > 0);
    ASSERT_GE(g->capacity_blocks, shapes.layers);
    ASSERT_GE(g->waste, 0);
    ASSERT_TRUE(g->kv_tail_waste >= 0 && g->kv_tail_waste < 1);
  }
}

}  // namespace
}  // namespace elasticmem
