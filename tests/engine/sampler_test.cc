#include "runtime/engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace elasticmem {
namespace {

SamplingOptions Neutral() {
  SamplingOptions options;
  options.temperature = 1;
  options.top_k = 0;
  options.top_p = 1;
  options.min_p = 0;
  return options;
}

std::map<TokenId, int> Draw(const SamplingOptions& options, const std::vector<float>& logits, int count,
                            const std::vector<TokenId>& history = {}) {
  Sampler sampler(options);
  std::map<TokenId, int> seen;
  for (int i = 0; i < count; ++i) ++seen[sampler.Sample(logits, history)];
  return seen;
}

const std::vector<float> kLogits = {1.0f, 3.0f, 2.0f, 3.0f, -1.0f};

TEST(Sampler, GreedyPicksTheFirstOfTheLargest) {
  SamplingOptions options = Neutral();
  options.temperature = 0;
  EXPECT_EQ(Sampler(options).Sample(kLogits, {}), 1);
}

TEST(Sampler, DrawsInProportionWhenAllOptionsAreNeutral) {
  constexpr int kDraws = 40000;
  const auto seen = Draw(Neutral(), kLogits, kDraws);
  double total = 0;
  for (const float logit : kLogits) total += std::exp(logit);
  for (size_t v = 0; v < kLogits.size(); ++v) {
    const double p = std::exp(kLogits[v]) / total;
    // Five standard deviations of a binomial.
    EXPECT_NEAR(seen.at(static_cast<TokenId>(v)), kDraws * p, 5 * std::sqrt(kDraws * p * (1 - p))) << v;
  }
}

TEST(Sampler, TopKKeepsTheLikeliest) {
  SamplingOptions options = Neutral();
  options.top_k = 2;
  const auto seen = Draw(options, kLogits, 500);
  EXPECT_EQ(seen.size(), 2u);
  EXPECT_TRUE(seen.contains(1) && seen.contains(3));
}

TEST(Sampler, TopPKeepsTheFewestThatReachIt) {
  SamplingOptions options = Neutral();
  options.top_p = 0.5f;  // the two largest have 0.39 each
  const auto seen = Draw(options, kLogits, 500);
  EXPECT_EQ(seen.size(), 2u);
}

TEST(Sampler, MinPDropsTheUnlikely) {
  SamplingOptions options = Neutral();
  options.min_p = 0.3f;  // exp(2 - 3) = 0.37 stays, exp(1 - 3) = 0.14 goes
  const auto seen = Draw(options, kLogits, 2000);
  EXPECT_EQ(seen.size(), 3u);
  EXPECT_FALSE(seen.contains(0));
}

TEST(Sampler, PenaltiesLowerWhatWasSeen) {
  SamplingOptions options = Neutral();
  options.temperature = 0;
  options.repeat_penalty = 2;  // 3 -> 1.5
  EXPECT_EQ(Sampler(options).Sample(kLogits, std::vector<TokenId>{1, 3}), 2);
  options.repeat_penalty = 1;
  options.presence_penalty = 0.5f;
  EXPECT_EQ(Sampler(options).Sample(kLogits, std::vector<TokenId>{1}), 3);
  options.presence_penalty = 0;
  options.frequency_penalty = 0.4f;  // 3 - 3 * 0.4 = 1.8 < 2
  EXPECT_EQ(Sampler(options).Sample(kLogits, std::vector<TokenId>{1, 1, 1, 3, 3, 3}), 2);
}

TEST(Sampler, PenaltyWindowForgetsOlderTokens) {
  SamplingOptions options = Neutral();
  options.temperature = 0;
  options.presence_penalty = 10;
  options.penalty_window = 1;
  EXPECT_EQ(Sampler(options).Sample(kLogits, std::vector<TokenId>{1, 3}), 1);
  options.penalty_window = 0;
  EXPECT_EQ(Sampler(options).Sample(kLogits, std::vector<TokenId>{1, 3}), 1);
  options.penalty_window = -1;
  EXPECT_EQ(Sampler(options).Sample(kLogits, std::vector<TokenId>{1, 3}), 2);
}

TEST(Sampler, SameSeedGivesTheSameDraws) {
  SamplingOptions options = Neutral();
  options.seed = 5;
  Sampler a(options), b(options);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(a.Sample(kLogits, {}), b.Sample(kLogits, {}));
}

TEST(Sampler, OptionsOutOfRangeAreNamed) {
  const auto message = [](auto change) {
    SamplingOptions options = Neutral();
    change(options);
    return std::string(Message(options.Check()));
  };
  EXPECT_TRUE(Neutral().Check().ok());
  EXPECT_NE(message([](auto& o) { o.temperature = -1; }).find("--temp is -1"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.top_p = 0; }).find("--top-p"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.min_p = 2; }).find("--min-p"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.repeat_penalty = 0; }).find("--repeat-penalty"), std::string::npos);
  EXPECT_NE(message([](auto& o) { o.temperature = NAN; }).find("--temp"), std::string::npos);
}

}  // namespace
}  // namespace elasticmem
