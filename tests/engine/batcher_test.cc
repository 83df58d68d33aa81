// Many conversations at once: each has the text and the logits it has alone, whatever runs beside it; KV is taken and
// given back as asked.
#include "runtime/engine/batcher.h"

#include <random>
#include <set>

#include "tests/engine/engine_testing.h"

namespace elasticmem {
namespace {

using testing::GenerateGreedy;
using testing::OpenEngine;
using testing::OpenModel;
using testing::RoomyOptions;
using testing::SourcePath;

constexpr uint32_t kConversations = 16;

class BatcherTest : public ::testing::Test {
 protected:
  BatcherTest() : model_(OpenModel(SourcePath("models/tales-q8_0.gguf"))) {}

  EngineOptions Options(uint32_t batch = kConversations) const {
    EngineOptions options = RoomyOptions(folder_.path());
    options.kv_type = DType::kF16;
    options.context = 256;
    options.kv_tokens = 1;
    options.sequences = batch;
    options.logits_rows = batch;
    return options;
  }
  // The smallest budget, with `tokens` tokens of KV in all beside it.
  uint64_t BudgetFor(EngineOptions options, uint32_t tokens) const {
    options.sequences = 1;
    options.kv_tokens = tokens;
    options.context = std::max(tokens, options.context);
    options.prefill_chunk = kConversations;
    const auto plan = Engine::Plan(*model_, options, /*smallest=*/true);
    EXPECT_TRUE(plan.ok()) << Message(plan.status());
    return plan->TotalBytes() + (300 << 10);
  }
  std::vector<TokenId> Encode(const std::string& text) const { return model_->tokenizer().Encode(text, {}); }
  std::vector<std::vector<TokenId>> Prompts() const {
    const std::vector<std::string> texts = {
        "Once upon a time there was a king who", "The little girl went into the forest and",
        "\"Who are you?\" asked the wolf.", "In the middle of the night the old woman"};
    std::vector<std::vector<TokenId>> prompts;
    for (uint32_t i = 0; i < kConversations; ++i) {
      std::string text = texts[i % texts.size()];
      for (uint32_t n = 0; n < i / 4 * 3; ++n) text += " and the king said that it was good";
      prompts.push_back(Encode(text));
    }
    return prompts;
  }
  static Request Greedy(std::vector<TokenId> prompt, uint32_t tokens) {
    Request request;
    request.prompt = std::move(prompt);
    request.max_tokens = tokens;
    request.sampling.temperature = 0;
    request.ignore_eos = true;
    return request;
  }

  struct Expected {
    std::vector<TokenId> ids;
    uint64_t hash;
  };
  std::vector<Expected> Alone(const std::vector<std::vector<TokenId>>& prompts, uint32_t tokens) const {
    const auto engine = OpenEngine(*model_, Options());
    std::vector<Expected> all;
    for (const auto& prompt : prompts) {
      testing::Generated g = GenerateGreedy(*engine, prompt, tokens);
      all.push_back({std::move(g.ids), g.logits_hash});
    }
    return all;
  }

  ScratchFolder folder_;
  std::unique_ptr<Model> model_;
};

BatcherOptions BatchOf(uint32_t conversations) {
  BatcherOptions options;
  options.max_batch = conversations;
  return options;
}

struct Pattern {
  const char* name;
  uint32_t batch;
  uint32_t kv_tokens;  // of KV in the whole budget; 0: roomy
  uint32_t prefill_beside;
  uint32_t chunk;
  bool staggered;  // they arrive one every few steps, in another order
  bool shuffled_priorities;
  Policy policy = Policy::kElastic;
  bool prefix_cache = false;
  uint32_t max_kept = 0;
  bool swap = false;
};

TEST_F(BatcherTest, EachOfSixteenHasTheBitsItHasAlone) {
  constexpr uint32_t kTokens = 16;
  const auto prompts = Prompts();
  const std::vector<Expected> expected = Alone(prompts, kTokens);
  for (const Pattern& p :
       {Pattern{"roomy", 16, 0, 64, 128, false, false}, Pattern{"few at once", 3, 0, 16, 32, false, false},
        Pattern{"staggered, shared beginnings", 16, 0, 5, 64, true, false, Policy::kElastic, true},
        Pattern{"tight", 16, 512, 16, 32, false, false},
        Pattern{"tight, staggered, priorities", 16, 288, 7, 16, true, true},
        Pattern{"tight, shared beginnings", 8, 512, 16, 32, true, true, Policy::kElastic, true},
        Pattern{"tight, paused on disk", 8, 512, 16, 32, true, true, Policy::kElastic, false, 0, true},
        Pattern{"lru", 8, 512, 16, 32, true, false, Policy::kLru},
        Pattern{"oracle that was told nothing", 8, 768, 16, 32, false, false, Policy::kOracle},
        Pattern{"static share", 4, 1500, 16, 32, true, false, Policy::kStatic},
        Pattern{"static slots", 4, 1500, 16, 32, true, true, Policy::kStatic, false, 4}}) {
    SCOPED_TRACE(p.name);
    EngineOptions options = Options(p.batch);
    options.prefill_chunk = p.chunk;
    if (p.kv_tokens > 0) options.budget_bytes = BudgetFor(options, p.kv_tokens);
    options.policy = p.policy;
    options.swap_bytes = p.swap ? 64 << 20 : 0;
    options.prefix_cache = p.prefix_cache;
    options.static_slots = std::max(1u, p.max_kept);
    if (p.max_kept == 0) options.static_kv_share = 0.8;
    const auto engine = OpenEngine(*model_, options);
    ASSERT_NE(engine, nullptr);
    std::map<ConversationId, LogitsHash> hashes;
    BatcherOptions batching;
    batching.max_batch = p.batch;
    batching.max_kept = p.max_kept;
    batching.prefill_tokens_beside_decode = p.prefill_beside;
    batching.on_logits = [&](ConversationId id, std::span<const float> logits) { hashes[id].Add(logits); };
    Batcher batcher(engine.get(), batching);
    std::mt19937 rng(7);
    std::vector<uint32_t> order(kConversations);
    for (uint32_t i = 0; i < kConversations; ++i) order[i] = i;
    if (p.staggered) std::shuffle(order.begin(), order.end(), rng);
    std::map<ConversationId, uint32_t> which;
    std::map<ConversationId, std::vector<TokenId>> seen;
    size_t next = 0, finished = 0;
    for (uint32_t step = 0; finished < kConversations; ++step) {
      ASSERT_LT(step, 20000u);
      while (next < order.size() && (!p.staggered || step >= next * 3)) {
        const ConversationId id = batcher.Open();
        which[id] = order[next];
        Request request = Greedy(prompts[order[next]], kTokens);
        if (p.shuffled_priorities) request.priority = static_cast<int>(rng() % 3);
        const Status status = batcher.Submit(id, std::move(request));
        ASSERT_TRUE(status.ok()) << Message(status);
        ++next;
      }
      const auto events = batcher.Step();
      ASSERT_TRUE(events.ok()) << Message(events.status());
      for (const BatchEvent& event : *events) {
        if (event.token) seen[event.conversation].push_back(*event.token);
        if (!event.finish) continue;
        EXPECT_EQ(*event.finish, FinishReason::kLength);
        ++finished;
      }
      if (step % 16 == 0) batcher.CheckInvariants();
    }
    for (const auto& [id, ids] : seen) {
      EXPECT_EQ(ids, expected[which[id]].ids) << "conversation " << which[id];
      EXPECT_EQ(hashes[id].value(), expected[which[id]].hash) << "conversation " << which[id];
    }
    if (p.kv_tokens > 0) {
      EXPECT_GT(batcher.statistics().preemptions + batcher.statistics().idle_drops, 0u);
    }
    EXPECT_TRUE(p.prefix_cache || batcher.statistics().cached_tokens == 0);
    EXPECT_EQ(batcher.statistics().swapped_tokens > 0, p.swap);
    if (p.swap) {
      EXPECT_EQ(batcher.statistics().recomputed_tokens, 0u);
    }
    EXPECT_LE(engine->budget().peak_bytes(), options.budget_bytes);
  }
}

TEST_F(BatcherTest, ConversationGoesOnWithItsOwnPast) {
  const auto engine = OpenEngine(*model_, Options());
  const std::vector<TokenId> first = Encode("Once upon a time there was a king who"),
                             second = Encode(" and then the queen");
  std::vector<TokenId> all = first;
  const auto answer = GenerateGreedy(*engine, first, 12).ids;
  all.insert(all.end(), answer.begin(), answer.end());
  all.insert(all.end(), second.begin(), second.end());
  const auto expected = GenerateGreedy(*engine, all, 12).ids;

  Batcher batcher(engine.get(), BatcherOptions());
  const ConversationId id = batcher.Open();
  std::vector<TokenId> seen;
  for (const auto& prompt : {first, second}) {
    ASSERT_TRUE(batcher.Submit(id, Greedy(prompt, 12)).ok());
    seen.clear();
    while (batcher.busy()) {
      const auto events = batcher.Step();
      ASSERT_TRUE(events.ok());
      for (const BatchEvent& event : *events) seen.push_back(*event.token);
    }
  }
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(batcher.tokens(id).size(), all.size() + 12);
}

TEST_F(BatcherTest, LongPromptDoesNotHoldUpOthersThatDecode) {
  EngineOptions options = Options();
  options.prefill_chunk = 64;
  const auto engine = OpenEngine(*model_, options);
  BatcherOptions batching;
  batching.prefill_tokens_beside_decode = 8;
  Batcher batcher(engine.get(), batching);
  const ConversationId talker = batcher.Open(), reader = batcher.Open();
  ASSERT_TRUE(batcher.Submit(talker, Greedy(Encode("Once upon a time"), 100)).ok());
  ASSERT_TRUE(batcher.Step().ok());
  ASSERT_TRUE(batcher.Submit(reader, Greedy(Prompts().back(), 4)).ok());
  for (uint32_t tokens = 1; batcher.running() == 2 || tokens == 1; ++tokens) {
    const uint32_t before = engine->statistics().tokens;
    const auto events = batcher.Step();
    ASSERT_TRUE(events.ok());
    EXPECT_LE(engine->statistics().tokens - before, 1 + 8u);
    bool talked = false;
    for (const BatchEvent& event : *events) talked |= event.conversation == talker && event.token.has_value();
    EXPECT_TRUE(talked) << "step " << tokens;
  }
}

TEST_F(BatcherTest, HigherPriorityRunsFirst) {
  const auto engine = OpenEngine(*model_, Options());
  BatcherOptions batching;
  batching.max_batch = 1;
  Batcher batcher(engine.get(), batching);
  const ConversationId low = batcher.Open(), high = batcher.Open();
  ASSERT_TRUE(batcher.Submit(low, Greedy(Encode("Once upon a time"), 10)).ok());
  ASSERT_TRUE(batcher.Step().ok());
  Request urgent = Greedy(Encode("The little girl"), 5);
  urgent.priority = 1;
  ASSERT_TRUE(batcher.Submit(high, std::move(urgent)).ok());
  std::vector<ConversationId> finished;
  while (batcher.busy()) {
    const auto events = batcher.Step();
    ASSERT_TRUE(events.ok());
    for (const BatchEvent& event : *events) {
      if (event.finish) finished.push_back(event.conversation);
    }
  }
  EXPECT_EQ(finished, (std::vector<ConversationId>{high, low}));
}

TEST_F(BatcherTest, CancelEndsAtTheNextStepAndKeepsWhatWasRead) {
  const auto engine = OpenEngine(*model_, Options());
  Batcher batcher(engine.get(), BatcherOptions());
  const ConversationId id = batcher.Open();
  ASSERT_TRUE(batcher.Submit(id, Greedy(Encode("Once upon a time"), 50)).ok());
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(batcher.Step().ok());
  batcher.Cancel(id);
  const auto events = batcher.Step();
  ASSERT_TRUE(events.ok());
  ASSERT_EQ(events->size(), 1u);
  EXPECT_EQ((*events)[0].finish, FinishReason::kCancelled);
  EXPECT_FALSE(batcher.busy());
  batcher.Cancel(id);  // nothing to cancel
  EXPECT_TRUE(batcher.Step()->empty());
  ASSERT_TRUE(batcher.Submit(id, Greedy(Encode(" and"), 2)).ok());
  while (batcher.busy()) ASSERT_TRUE(batcher.Step().ok());
  batcher.CheckInvariants();
}

TEST_F(BatcherTest, RequestThatCanNeverFitIsRefusedWithBothNumbers) {
  EngineOptions options = Options(1);
  options.budget_bytes = BudgetFor(options, 64);
  const auto engine = OpenEngine(*model_, options);
  ASSERT_NE(engine, nullptr);
  Batcher batcher(engine.get(), BatchOf(1));
  const ConversationId id = batcher.Open();
  const Status status = batcher.Submit(id, Greedy(Encode("Once upon a time"), 240));
  ASSERT_EQ(status.code(), StatusCode::kResourceExhausted) << Message(status);
  EXPECT_NE(std::string(Message(status)).find(std::to_string(engine->most_kv_blocks())), std::string::npos);
  EXPECT_NE(std::string(Message(status)).find(std::to_string(engine->BlocksOfSequence(240 + 5))), std::string::npos)
      << Message(status);
  const Status longer = batcher.Submit(id, Greedy(Encode("Once"), 1000));
  EXPECT_EQ(longer.code(), StatusCode::kInvalidArgument) << Message(longer);
  EXPECT_FALSE(batcher.busy());
}

TEST_F(BatcherTest, CommonBeginningsAreReadOncePerTenant) {
  EngineOptions options = Options();
  options.prefix_cache = true;
  const auto engine = OpenEngine(*model_, options);
  std::vector<TokenId> prompt = Prompts().back();
  while (prompt.size() < 200) prompt.push_back(prompt[prompt.size() - 40]);
  const auto expected = GenerateGreedy(*engine, prompt, 10).ids;
  Batcher batcher(engine.get(), BatcherOptions());
  const uint32_t whole_pages = (static_cast<uint32_t>(prompt.size()) - 1) / engine->plan().geometry.page_tokens *
                               engine->plan().geometry.page_tokens;
  ASSERT_GT(whole_pages, 0u);
  uint64_t cached = 0;
  std::set<uint64_t> known;
  for (const uint64_t tenant : {1, 1, 2, 2, 1}) {
    const ConversationId id = batcher.Open(tenant);
    ASSERT_TRUE(batcher.Submit(id, Greedy(prompt, 10)).ok());
    std::vector<TokenId> seen;
    while (batcher.busy()) {
      const auto events = batcher.Step();
      ASSERT_TRUE(events.ok());
      for (const BatchEvent& event : *events) seen.push_back(*event.token);
    }
    EXPECT_EQ(seen, expected) << "tenant " << tenant;
    batcher.Close(id);
    batcher.CheckInvariants();
    const uint64_t found = batcher.statistics().cached_tokens - cached;
    cached += found;
    EXPECT_EQ(found, known.insert(tenant).second ? 0 : whole_pages) << "tenant " << tenant;
  }
  EXPECT_EQ(cached, 3 * whole_pages);
  EXPECT_GT(engine->pool().blocks(BlockOwner::kCached), 0u);
}

// Conversations that never end, on a clock by which a step takes cost(batch) seconds.
class Turns {
 public:
  Turns(Engine* engine, const std::vector<std::vector<TokenId>>& prompts, std::vector<int> priorities,
        std::function<double(uint32_t)> cost, uint32_t answer_tokens = 150)
      : engine_(engine),
        prompts_(prompts),
        priorities_(std::move(priorities)),
        answer_tokens_(answer_tokens),
        cost_(std::move(cost)) {
    BatcherOptions options;
    options.max_batch = static_cast<uint32_t>(priorities_.size());
    options.clock = [this] {
      const uint64_t tokens = engine_->statistics().tokens;
      if (tokens > tokens_) seconds_ += cost_(static_cast<uint32_t>(tokens - tokens_));
      tokens_ = tokens;
      return seconds_;
    };
    batcher_.emplace(engine, options);
    for (size_t i = 0; i < priorities_.size(); ++i) Begin(i);
  }

  void Run(uint32_t steps) {
    for (uint32_t i = 0; i < steps; ++i) {
      ++step_;
      const auto events = batcher_->Step();
      ASSERT_TRUE(events.ok()) << Message(events.status());
      for (const BatchEvent& event : *events) {
        const size_t which = which_.at(event.conversation);
        ++tokens[which];
        longest_wait[which] = std::max(longest_wait[which], step_ - last_[which]);
        last_[which] = step_;
        if (!event.finish) continue;
        const auto& all = batcher_->tokens(event.conversation);
        const auto& first = texts_.try_emplace(which, all).first->second;
        EXPECT_EQ(all, first);  // the same each time, whoever ran beside it
        batcher_->Close(event.conversation);
        Begin(which);
      }
    }
    batcher_->CheckInvariants();
  }
  const Batcher& batcher() const { return *batcher_; }

  std::map<size_t, uint32_t> tokens, longest_wait;

 private:
  void Begin(size_t which) {
    const ConversationId id = batcher_->Open();
    which_[id] = which;
    Request request;
    request.prompt = prompts_[which];
    request.max_tokens = answer_tokens_;
    request.sampling.temperature = 0;
    request.ignore_eos = true;
    request.priority = priorities_[which];
    ASSERT_TRUE(batcher_->Submit(id, std::move(request)).ok());
  }

  Engine* const engine_;
  const std::vector<std::vector<TokenId>> prompts_;
  const std::vector<int> priorities_;
  const uint32_t answer_tokens_;
  const std::function<double(uint32_t)> cost_;
  std::optional<Batcher> batcher_;
  std::map<ConversationId, size_t> which_;
  std::map<size_t, std::vector<TokenId>> texts_;
  std::map<size_t, uint32_t> last_;
  uint32_t step_ = 0;
  uint64_t tokens_ = 0;
  double seconds_ = 0;
};

double Cheaper(uint32_t batch) { return 1 + 0.1 * batch; }
double DearBeyondFour(uint32_t batch) { return Cheaper(batch) * (batch > 4 ? 10 : 1); }

TEST_F(BatcherTest, AllDecodeAtOnceWhereThatIsFastest) {
  const auto engine = OpenEngine(*model_, Options());
  Turns turns(engine.get(), Prompts(), std::vector<int>(8), Cheaper);
  turns.Run(200);
  EXPECT_EQ(turns.batcher().batch_size().limit(), 8u);
  EXPECT_LT(turns.batcher().statistics().partial_steps, 20u);
}

TEST_F(BatcherTest, FewerDecodeAtOnceInTurnWhereThatIsFaster) {
  const auto engine = OpenEngine(*model_, Options());
  Turns turns(engine.get(), Prompts(), std::vector<int>(8), DearBeyondFour);
  turns.Run(120);
  EXPECT_EQ(turns.batcher().batch_size().limit(), 4u);
  turns.tokens.clear();
  turns.longest_wait.clear();
  turns.Run(200);
  for (const auto& [which, tokens] : turns.tokens) {
    EXPECT_NEAR(tokens, 100, 12) << which;
    EXPECT_LE(turns.longest_wait[which], 6u) << which;
  }
  EXPECT_EQ(turns.tokens.size(), 8u);
}

TEST_F(BatcherTest, TurnsRespectPrioritiesButStarveNobody) {
  const auto engine = OpenEngine(*model_, Options());
  Turns turns(engine.get(), Prompts(), {0, 0, 1, 1, 1, 1, 0, 0}, DearBeyondFour);
  turns.Run(120);
  ASSERT_EQ(turns.batcher().batch_size().limit(), 4u);
  turns.tokens.clear();
  turns.longest_wait.clear();
  turns.Run(200);
  for (size_t which = 0; which < 8; ++which) {
    const bool high = which >= 2 && which < 6;
    EXPECT_GT(turns.tokens[which], high ? 150u : 3u) << which;
    EXPECT_LE(turns.longest_wait[which], high ? 6u : 40u) << which;
  }
}

TEST_F(BatcherTest, ThoseLeftOutFindTheirBlocksReady) {
  EngineOptions options = Options(8);
  options.budget_bytes = BudgetFor(options, 8 * 250);
  const auto engine = OpenEngine(*model_, options);
  ASSERT_NE(engine, nullptr);
  const std::vector<std::vector<TokenId>> prompts(8, Encode("Once upon a time"));
  Turns turns(
      engine.get(), prompts, std::vector<int>(8), [](uint32_t batch) { return batch * batch; }, 240);
  turns.Run(10);  // the prompts are read
  const uint64_t late = engine->statistics().late_blocks;
  turns.Run(225);  // none has ended
  EXPECT_GT(turns.batcher().statistics().partial_steps, 40u);
  EXPECT_EQ(engine->statistics().late_blocks, late);
}

TEST_F(BatcherTest, NobodyWhoDecodesWaitsForTheBlocksOfAnothersPrompt) {
  EngineOptions options = Options(4);
  options.kv_tokens = 250;
  options.budget_bytes = BudgetFor(options, 6 * 250);
  const auto engine = OpenEngine(*model_, options);
  ASSERT_NE(engine, nullptr);
  Batcher batcher(engine.get(), BatchOf(4));
  std::vector<TokenId> prompt;
  while (prompt.size() < 150) prompt.push_back(static_cast<TokenId>(300 + prompt.size()));
  const ConversationId first = batcher.Open();
  const Status submitted = batcher.Submit(first, Greedy(Encode("Once upon a time"), 200));
  ASSERT_TRUE(submitted.ok()) << Message(submitted);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(batcher.Step().ok());
  ASSERT_LT(engine->pool().free(), engine->BlocksOfSequence(150));
  const uint64_t late = engine->statistics().late_blocks;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(batcher.Submit(batcher.Open(), Greedy(prompt, 2)).ok());
    for (int step = 0; step < 60; ++step) {
      const auto events = batcher.Step();
      ASSERT_TRUE(events.ok());
      const auto of_first = [&](const BatchEvent& event) { return event.conversation == first && event.token; };
      EXPECT_TRUE(std::any_of(events->begin(), events->end(), of_first));
    }
  }
  EXPECT_EQ(batcher.running(), 1u);  // the others have their answers
  EXPECT_GT(engine->residency()->statistics().evicted_blocks, 0u);
  EXPECT_EQ(engine->statistics().late_blocks, late);
}

// Admitted and cancelled in every state: all blocks come back.
void Churn(const Model& model, const EngineOptions& options, int rounds) {
  const auto engine = OpenEngine(model, options);
  ASSERT_NE(engine, nullptr);
  const uint32_t neurons = engine->pool().blocks(BlockOwner::kNeuron), free = engine->pool().free();
  const uint64_t bytes = engine->budget().available_bytes();
  Batcher batcher(engine.get(), BatchOf(4));
  std::mt19937 rng(3);
  std::vector<ConversationId> open;
  for (int i = 0; i < rounds; ++i) {
    open.push_back(batcher.Open());
    std::vector<TokenId> prompt(1 + rng() % 40);
    for (TokenId& id : prompt) id = static_cast<TokenId>(rng() % model.spec().vocab);
    Request request;
    request.prompt = std::move(prompt);
    request.max_tokens = 1 + rng() % 20;
    ASSERT_TRUE(batcher.Submit(open.back(), std::move(request)).ok());
    if (rng() % 4 == 0) {
      ASSERT_TRUE(batcher.Step().ok());
    }
    if (open.size() > 6 || rng() % 3 == 0) {
      const size_t k = rng() % open.size();
      if (rng() % 2 == 0) batcher.Cancel(open[k]);
      batcher.Close(open[k]);
      open.erase(open.begin() + static_cast<long>(k));
    }
    if (i % 64 == 0) batcher.CheckInvariants();
  }
  for (const ConversationId id : open) batcher.Close(id);
  EXPECT_FALSE(batcher.busy());
  EXPECT_EQ(engine->pool().blocks(BlockOwner::kKv), 0u);
  EXPECT_EQ(engine->pool().blocks(BlockOwner::kNeuron), neurons);
  EXPECT_EQ(engine->pool().free(), free);
  EXPECT_EQ(engine->budget().available_bytes(), bytes);
  engine->CheckInvariants();
}

#ifdef EM_LONG
TEST_F(BatcherTest, TenThousandAdmittedAndCancelledLeaveThePoolAsItWas) {
  EngineOptions options = Options(4);
  options.budget_bytes = BudgetFor(options, 512);
  Churn(*model_, options, 10000);
}
#else
TEST_F(BatcherTest, AdmittedAndCancelledLeaveThePoolAsItWas) {
  EngineOptions options = Options(4);
  options.budget_bytes = BudgetFor(options, 512);
  Churn(*model_, options, 200);
}
#endif

}  // namespace
}  // namespace elasticmem
