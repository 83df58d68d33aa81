// The growth trace and its picture, and `elasticmem bench growth` from the config to the JSON.
#include <gmock/gmock.h>

#include <csignal>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include "tests/gguf/scratch_folder.h"
#include "tests/tools/program.h"
#include "tests/tools/tiny_model.h"
#include "tools/growth_report.h"
#include "tools/growth_run.h"
#include "tools/growth_trace.h"
#include "tools/svg_plot.h"

namespace elasticmem {
namespace {

using testing::ExpectDone;
using testing::ExpectMisused;
using testing::ExpectRefused;
using testing::kTales;
using testing::Outcome;
using testing::ReadFileBytes;
using testing::RunProgram;
using testing::SourcePath;
using testing::WriteFileBytes;

GrowthSpec Spec() {
  GrowthSpec spec;
  spec.vocab = 32000;
  return spec;
}

GrowthTrace Trace(const GrowthSpec& spec) {
  const StatusOr<GrowthTrace> trace = MakeGrowthTrace(spec);
  EXPECT_TRUE(trace.ok()) << Message(trace.status());
  return trace.ok() ? *trace : GrowthTrace();
}

// Every prompt, in order.
std::vector<std::vector<TokenId>> Prompts(const GrowthTrace& trace) {
  std::vector<std::vector<TokenId>> prompts;
  for (const GrowthPhase& phase : trace.phases) {
    for (const auto& client : phase.turns) {
      for (const GrowthTurn& turn : client) prompts.push_back(turn.prompt);
    }
  }
  return prompts;
}

void ExpectSound(const GrowthSpec& spec, const GrowthTrace& trace) {
  uint64_t generated = 0;
  std::map<uint32_t, uint64_t> conversations;
  ASSERT_EQ(trace.phases.size(), spec.phases.size());
  for (size_t p = 0; p < trace.phases.size(); ++p) {
    const GrowthPhase& phase = trace.phases[p];
    ASSERT_EQ(phase.clients(), spec.phases[p]);
    for (uint32_t c = 0; c < phase.clients(); ++c) {
      EXPECT_GE(phase.turns[c].size(), 1u);
      for (const GrowthTurn& turn : phase.turns[c]) {
        EXPECT_GE(turn.prompt.size(), spec.prompt.min);
        EXPECT_LE(turn.prompt.size(), spec.prompt.max);
        EXPECT_GE(turn.answer_tokens, spec.answer.min);
        EXPECT_LE(turn.answer_tokens, spec.answer.max);
        for (const TokenId id : turn.prompt) ASSERT_LT(static_cast<uint32_t>(id), spec.vocab);
        generated += turn.answer_tokens;
        conversations[c] += turn.tokens();
      }
    }
    std::erase_if(conversations, [&](const auto& c) { return c.first >= phase.clients(); });
    uint64_t kv = 0;
    for (const auto& [client, tokens] : conversations) {
      EXPECT_LE(tokens, spec.context) << "client " << client;
      kv += tokens;
    }
    EXPECT_EQ(kv, phase.kv_tokens);
  }
  EXPECT_EQ(generated, spec.generated_tokens);
  EXPECT_EQ(generated, trace.generated_tokens);
}

TEST(GrowthTrace, GeneratesWhatIsAskedWithinTheContexts) {
  for (const uint64_t seed : {1, 2, 3, 4, 5, 77}) {
    for (const uint64_t tokens : {500, 1000, 3000, 6000, 7200}) {
      SCOPED_TRACE(fmt::format("seed {}, {} tokens", seed, tokens));
      GrowthSpec spec = Spec();
      spec.seed = seed;
      spec.generated_tokens = tokens;
      ExpectSound(spec, Trace(spec));
    }
  }
  for (const uint32_t context : {256, 512, 1024, 4096}) {
    SCOPED_TRACE(context);
    GrowthSpec spec = GrowthSpec::ForContext(context);
    spec.vocab = 300;
    spec.generated_tokens = context;
    ExpectSound(spec, Trace(spec));
  }
}

TEST(GrowthTrace, OneClientOfTheFullPhasesGrowsAndTheUsualLengthsAreKept) {
  const GrowthTrace trace = Trace(Spec());
  EXPECT_GE(trace.longest_tokens, 1900u);
  uint64_t fourth = 0;  // comes with the fullest phase and leaves after the second one
  for (const GrowthPhase& phase : trace.phases) {
    if (phase.clients() < 5) continue;
    for (const GrowthTurn& turn : phase.turns[4]) fourth += turn.tokens();
  }
  EXPECT_EQ(fourth, 2000u);
  std::vector<size_t> lengths;
  for (const auto& prompt : Prompts(trace)) lengths.push_back(prompt.size());
  std::nth_element(lengths.begin(), lengths.begin() + lengths.size() / 2, lengths.end());
  EXPECT_GT(lengths[lengths.size() / 2], 80u);
  EXPECT_LT(lengths[lengths.size() / 2], 180u);
}

TEST(GrowthTrace, FollowsFromItsSpecAlone) {
  GrowthSpec spec = Spec();
  EXPECT_EQ(Prompts(Trace(spec)), Prompts(Trace(spec)));
  spec.seed = 2;
  EXPECT_NE(Prompts(Trace(spec)), Prompts(Trace(Spec())));
}

TEST(GrowthTrace, WhatCannotFitIsRefusedWithTheNumbers) {
  const auto expect = [](const GrowthSpec& spec, std::initializer_list<std::string> parts) {
    const Status status = MakeGrowthTrace(spec).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    for (const std::string& part : parts) EXPECT_THAT(std::string(Message(status)), ::testing::HasSubstr(part));
  };
  GrowthSpec spec = Spec();
  spec.generated_tokens = 20000;
  expect(spec, {"20000", "2048", "at most"});
  spec.generated_tokens = 100;
  expect(spec, {"100", "at least"});
  spec.generated_tokens = 0;
  expect(spec, {"0 tokens"});
  spec = Spec();
  spec.context = 200;
  expect(spec, {"200"});
  spec = Spec();
  spec.phases = {1, 0, 2};
  expect(spec, {"phase 2", "0 clients"});
  spec.phases = {};
  expect(spec, {"no phases"});
}

TEST(TimeSeries, StaysBoundedAndKeepsBothEnds) {
  TimeSeries series;
  for (uint32_t i = 0; i <= 100000; ++i) {
    SeriesPoint point;
    point.seconds = i;
    point.generated_tokens = i * 2;
    series.Add(point);
    if (i % 997 == 0) {
      ASSERT_LE(series.points().size(), TimeSeries::kMost);
    }
  }
  const std::vector<SeriesPoint> points = series.points();
  EXPECT_GE(points.size(), TimeSeries::kMost / 2 - 1);
  EXPECT_EQ(points.front().seconds, 0);
  EXPECT_EQ(points.back().seconds, 100000);
  for (size_t i = 1; i < points.size(); ++i) ASSERT_GT(points[i].seconds, points[i - 1].seconds);
  for (const SpeedCurve& curve : {SpeedOverTime(points, 50), SpeedOverWork(points, 50)}) {
    ASSERT_EQ(curve.x.size(), 50u);
    for (const double speed : curve.tokens_per_second) EXPECT_NEAR(speed, 2, 1e-6);
  }
}

TEST(SpeedCurve, CountsThePausesWherePromptsAreRead) {
  // 10 tokens in a second, nothing for two, 10 tokens in another.
  const auto at = [](double seconds, uint64_t tokens) {
    SeriesPoint point;
    point.seconds = seconds;
    point.generated_tokens = tokens;
    return point;
  };
  const std::vector<SeriesPoint> points = {at(0, 0), at(1, 10), at(3, 10), at(4, 20)};
  EXPECT_THAT(SpeedOverTime(points, 4).tokens_per_second,
              ::testing::Pointwise(::testing::DoubleNear(1e-9), {10., 0., 0., 10.}));
  EXPECT_THAT(SpeedOverWork(points, 2).tokens_per_second,
              ::testing::Pointwise(::testing::DoubleNear(1e-9), {10., 10. / 3}));
}

TEST(TokenTimes, ComparesStepsWithThoseAroundThem) {
  std::vector<StepTime> steps(1000, {0.1, 4});
  for (size_t i = 0; i < steps.size(); i += 20) steps[i].seconds = 0.2;
  steps.insert(steps.end(), 1000, {0.01, 1});
  std::vector<double> waits(90, 0.1);
  waits.insert(waits.end(), 10, 0.3);
  const TokenTimes times = SummariseTokenTimes(steps, waits);
  EXPECT_NEAR(times.p50, 0.1, 1e-9);
  EXPECT_NEAR(times.p99, 0.3, 1e-9);
  EXPECT_NEAR(times.p99_over_median, 2, 1e-9);
}

TEST(GrowthRun, EndsAtTheNextStepWhenCancelled) {
  const ScratchFolder folder;
  const StatusOr<std::unique_ptr<Model>> model = Model::Open(SourcePath(kTales), {});
  ASSERT_TRUE(model.ok()) << Message(model.status());
  EngineOptions options;
  options.budget_bytes = uint64_t{1} << 30;
  options.context = 256;
  options.store_dir = folder.path();
  const auto engine = Engine::Open(**model, options);
  ASSERT_TRUE(engine.ok()) << Message(engine.status());
  GrowthSpec spec = GrowthSpec::ForContext(256);
  spec.vocab = (*model)->spec().vocab;
  spec.phases = {1};
  spec.generated_tokens = 60;
  const GrowthTrace trace = Trace(spec);
  std::atomic<bool> cancelled = false;
  uint64_t seen = 0;
  GrowthReplay replay;
  replay.batcher.max_batch = 1;
  replay.cancelled = &cancelled;
  replay.progress = [&](uint64_t tokens) {
    EXPECT_FALSE(cancelled);  // no step after the one that saw it
    seen = tokens;
    cancelled = tokens >= 5;
  };
  EXPECT_EQ(RunGrowthTrace(**engine, trace, replay).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(seen, 5u);
  cancelled = false;
  replay.progress = nullptr;
  EXPECT_TRUE(RunGrowthTrace(**engine, trace, replay).ok());
}

// Names of all elements of an XML text; a failure where tags don't match or an attribute is not quoted.
std::multiset<std::string> Elements(const std::string& xml) {
  std::multiset<std::string> names;
  std::vector<std::string> open;
  for (size_t at = xml.find('<'); at != std::string::npos; at = xml.find('<', at)) {
    const size_t end = xml.find('>', at);
    EXPECT_NE(end, std::string::npos);
    if (end == std::string::npos) return {};
    std::string tag = xml.substr(at + 1, end - at - 1);
    EXPECT_EQ(std::count(tag.begin(), tag.end(), '"') % 2, 0) << tag;
    EXPECT_EQ(tag.find('<'), std::string::npos) << tag;
    at = end;
    if (tag[0] == '?') continue;
    const std::string name = tag.substr(tag[0] == '/', tag.find_first_of(" />\n", 1) - (tag[0] == '/'));
    if (tag[0] == '/') {
      EXPECT_FALSE(open.empty());
      if (open.empty()) return {};
      EXPECT_EQ(open.back(), name);
      open.pop_back();
      continue;
    }
    names.insert(name);
    if (tag.back() != '/') open.push_back(name);
  }
  EXPECT_TRUE(open.empty());
  for (size_t at = xml.find('&'); at != std::string::npos; at = xml.find('&', at + 1)) {
    const std::string entity = xml.substr(at, xml.find(';', at) - at);
    EXPECT_TRUE(std::set<std::string>({"&amp", "&lt", "&gt", "&quot"}).contains(entity)) << entity;
  }
  return names;
}

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(SvgPlot, IsWellFormedWithEverySeries) {
  Plot plot;
  plot.title = "a <b> & \"c\"";
  PlotPanel panel;
  panel.title = "x < y";
  panel.spans = {{0, 1, "1"}, {1, 3, "8"}};
  panel.band_x = {0, 1, 2, 3};
  panel.bands = {{"low", "#ff0000", {1, 2, 3, 4}}, {"high", "#00ff00", {4, 3, 2, 1}}};
  plot.panels.push_back(panel);
  panel.bands.clear();
  panel.lines = {{"a", "#000000", "", {0, 1, 2}, {5, NAN, 7}, 1, true},
                 {"b", "#000000", "d", {0, 3}, {1, 2}, 1, false}};
  plot.panels.push_back(panel);
  plot.panels.push_back({});  // nothing to draw is no reason to fail
  const std::string svg = RenderSvg(plot);
  const auto elements = Elements(svg);
  EXPECT_EQ(elements.count("svg"), 1u);
  EXPECT_EQ(Count(svg, "class=\"area\""), 2u);
  EXPECT_EQ(Count(svg, "class=\"line\""), 2u);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

class BenchGrowth : public ::testing::Test {
 protected:
  std::string Config(const std::string& text) const {
    const std::string path = folder_.Path("growth.toml");
    WriteFileBytes(path, text);
    return path;
  }
  // The smoke config with `more` options; the neuron store that lies beside the model is used where there is one.
  Outcome Smoke(const std::vector<std::string>& more) const {
    std::vector<std::string> args = {"bench", "growth", SourcePath("configs/bench/growth_smoke.toml"), "-m",
                                     SourcePath(kTales)};
    args.insert(args.end(), more.begin(), more.end());
    return RunProgram(args);
  }

  ScratchFolder folder_;
};

TEST_F(BenchGrowth, ComparesPoliciesOnTheSameWork) {
  const std::string svg = folder_.Path("growth.svg"), report = folder_.Path("growth.json");
  // A static policy of 64 whole contexts leaves nothing for weights: that is a row too.
  const Outcome outcome = Smoke({"--policies", "elastic,static", "--slots", "2,64", "--kv-shares", "0.6", "-n", "60",
                                 "-c", "128", "--phases", "1,2,1", "--json", "--svg", svg, "--report", report});
  ExpectDone(outcome);
  const nlohmann::json json = outcome.Json();
  EXPECT_EQ(json["trace"]["generated_tokens"], 60);
  EXPECT_EQ(json["same_text"], true);
  EXPECT_EQ(json["trace"]["phases"].size(), 3u);
  const nlohmann::json& rows = json["policies"];
  ASSERT_EQ(rows.size(), 4u);
  for (const nlohmann::json& row : rows) {
    SCOPED_TRACE(row.dump().substr(0, 200));
    for (const char* key : {"policy", "slots", "kv_share", "makespan_seconds", "tokens_per_second", "store_bytes"}) {
      EXPECT_TRUE(row.contains(key)) << key;
    }
    if (row["slots"] == 64) {
      EXPECT_THAT(row["error"].get<std::string>(), ::testing::HasSubstr("too small"));
      EXPECT_TRUE(row["makespan_seconds"].is_null());
      continue;
    }
    EXPECT_TRUE(row["error"].is_null()) << row["error"];
    EXPECT_GT(row["makespan_seconds"].get<double>(), 0);
    EXPECT_NEAR(row["tokens_per_second"].get<double>() * row["makespan_seconds"].get<double>(), 60, 1e-6);
    EXPECT_EQ(row["generated_tokens"], 60);
    EXPECT_EQ(row["text_hash"], rows[0]["text_hash"]);  // the same text, too
    EXPECT_LE(row["peak_bytes"].get<uint64_t>(), row["budget_bytes"].get<uint64_t>());
    EXPECT_EQ(row["phases"].size(), 3u);
    uint64_t prompts = 0, store = 0;
    for (const nlohmann::json& phase : row["phases"]) {
      double seconds = 0;
      for (const char* kind : {"prefill", "decode", "mixed"}) {
        seconds += phase[kind]["seconds"].get<double>();
        prompts += phase[kind]["prompt_tokens"].get<uint64_t>();
      }
      EXPECT_LE(seconds, phase["seconds"].get<double>());
      EXPECT_GE(seconds, 0.8 * phase["seconds"].get<double>());  // the rest is the replay's own
      EXPECT_EQ(phase["prefill"]["decoded_tokens"], 0);
      EXPECT_EQ(phase["decode"]["prompt_tokens"], 0);
      EXPECT_GT(phase["decode"]["decoded_tokens"], 0);
      EXPECT_GT(phase["resident_neuron_fraction"].get<double>(), 0);
      EXPECT_LT(phase["memory"]["idle_fraction"].get<double>(), 1);
      store += phase["store_bytes"].get<uint64_t>();
    }
    EXPECT_EQ(row["phases"][0]["mixed"]["steps"], 0);  // one client reads or talks
    EXPECT_EQ(prompts, row["prompt_tokens"]);
    EXPECT_EQ(store, row["store_bytes"]);
    const nlohmann::json& series = row["series"];
    const size_t points = series["seconds"].size();
    EXPECT_GE(points, 10u);
    EXPECT_LE(points, TimeSeries::kMost);
    for (const char* owner : {"kv", "cached", "neurons", "free"}) {
      ASSERT_EQ(series["blocks"][owner].size(), points) << owner;
    }
    for (size_t i = 0; i < points; ++i) {
      uint64_t blocks = 0;
      for (const auto& owner : series["blocks"]) blocks += owner[i].get<uint64_t>();
      EXPECT_EQ(blocks, row["pool_blocks"]);
    }
  }
  EXPECT_EQ(rows[0]["policy"], "elastic");
  EXPECT_EQ(rows[0]["elastic_speedup"], 1);
  EXPECT_EQ(nlohmann::json::parse(ReadFileBytes(report)), json);
  const std::string picture = ReadFileBytes(svg);
  EXPECT_EQ(Elements(picture).count("svg"), 1u);
  EXPECT_EQ(Count(picture, "class=\"area\""), 3u);  // KV, neurons, free
  EXPECT_EQ(Count(picture, "class=\"line\""), 4u);  // its speed; overlaid: elastic, 2 slots, the share
}

TEST_F(BenchGrowth, LruAndOracleRunToo) {
  const Outcome outcome = Smoke(
      {"--policies", "oracle,lru", "-n", "20", "-c", "128", "--phases", "1,2", "--repeat", "2", "--memory", "60%"});
  ExpectDone(outcome);
  for (const char* part : {"oracle", "lru", "makespan", "recomputed"}) {
    EXPECT_THAT(outcome.out, ::testing::HasSubstr(part));
  }
}

TEST_F(BenchGrowth, InterruptedKeepsWhatItMeasured) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const std::string report = folder_.Path(fmt::format("growth{}.json", signal));
    testing::Program program({"bench", "growth", SourcePath("configs/bench/growth_smoke.toml"), "-m",
                              SourcePath(kTales), "--policies", "elastic", "--repeat", "500", "--report", report});
    for (int i = 0; i < 3000 && !std::filesystem::exists(report); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    program.Signal(signal);
    const Outcome outcome = program.Wait();
    EXPECT_EQ(outcome.exit_code, 130) << outcome.err;
    EXPECT_THAT(outcome.err, ::testing::HasSubstr("interrupted"));
    EXPECT_EQ(outcome.out, "");
    const nlohmann::json json = nlohmann::json::parse(ReadFileBytes(report));
    EXPECT_GE(json["policies"][0]["makespans"].size(), 1u);
    EXPECT_GT(json["policies"][0]["makespan_seconds"].get<double>(), 0);
  }
}

TEST_F(BenchGrowth, KvOfInterruptedClientsIsFoundInTheCacheOrOnDisk) {
  const std::vector<std::string> tight = {"--policies", "static",      "--slots",     "1",        "-n",
                                          "120",        "-c",          "256",         "--phases", "3",
                                          "--json",     "--store-dir", folder_.path()};
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(), tight.begin(), tight.end());
    const Outcome outcome = Smoke(more);
    ExpectDone(outcome);
    return outcome.Json()["policies"][0];
  };
  const nlohmann::json plain = run({}), cached = run({"--prefix-cache"}), swapped = run({"--swap", "64MiB"});
  EXPECT_GT(plain["recomputed_tokens"], 0);
  EXPECT_EQ(plain["cached_tokens"], 0);
  EXPECT_EQ(plain["swapped_tokens"], 0);
  EXPECT_GT(cached["cached_tokens"], 0);
  EXPECT_LT(cached["recomputed_tokens"], plain["recomputed_tokens"]);
  EXPECT_GT(swapped["swapped_tokens"], 0);
  EXPECT_LT(swapped["recomputed_tokens"], plain["recomputed_tokens"]);
  EXPECT_EQ(cached["text_hash"], plain["text_hash"]);
  EXPECT_EQ(swapped["text_hash"], plain["text_hash"]);
}

TEST_F(BenchGrowth, WhatIsWrongIsNamed) {
  const auto refused = [&](const std::string& text, std::initializer_list<std::string_view> parts) {
    SCOPED_TRACE(text);
    ExpectRefused(RunProgram({"bench", "growth", Config(text), "-m", SourcePath(kTales)}), parts);
  };
  refused("seed = 1\nslotz = [1]\n", {"growth.toml:2", "slotz"});
  refused("slots = \"4\"\n", {"growth.toml:1", "slots"});  // one number alone is a list of one
  refused("slots = [-4]\n", {"growth.toml:1", "slots"});
  refused("kv_shares = [0.5, \"x\"]\n", {"growth.toml:1", "kv_shares"});
  refused("kv_shares = [1.5]\n", {"kv-shares", "1.5"});
  refused("slots = [0]\n", {"slots", "0"});
  refused("policies = [\"fifo\"]\n", {"policies", "fifo", "oracle"});
  refused("policies = [\"lru\", \"lru\"]\n", {"policies", "lru", "once"});
  refused("scale = 0.0\n", {"scale", "0"});
  refused("repeat = 0\n", {"repeat", "0"});
  refused("phases = [0]\n", {"phase 1"});
  refused("seed = 1\nprompt = \"x\"\n", {"growth.toml:2", "prompt", "bench growth"});
  refused("policy = \"lru\"\n", {"growth.toml:1", "policy"});
  refused("swap = \"many\"\n", {"--swap", "many"});
  for (const std::vector<std::string>& early : std::vector<std::vector<std::string>>{{"-r", "2"}, {"--json"}}) {
    std::vector<std::string> args = {"bench"};
    args.insert(args.end(), early.begin(), early.end());
    args.insert(args.end(), {"growth", Config("seed = 1\n"), "-m", SourcePath(kTales)});
    ExpectMisused(RunProgram(args), {early[0] == "-r" ? "--repeat" : "--json", "growth"});
  }
  ExpectMisused(RunProgram({"bench", "growth", Config("seed = 1\n"), "--temp", "1"}), {"--temp"});
  ExpectRefused(RunProgram({"bench", "growth", Config("model = \"absent.gguf\"\n")}), {"absent.gguf", "No such file"});
  ExpectRefused(RunProgram({"bench", "growth", folder_.Path("absent.toml"), "-m", SourcePath(kTales)}),
                {"absent.toml"});
  ExpectMisused(RunProgram({"bench", "growth", Config("seed = 1\n")}), {"no model"});
  ExpectMisused(RunProgram({"bench", "growth"}), {"CONFIG"});
  ExpectMisused(RunProgram({"growth", Config("seed = 1\n")}), {"growth"});
}

TEST_F(BenchGrowth, RunAndBenchTakeAPolicyToo) {
  const auto bench = [&](std::vector<std::string> more) {
    std::vector<std::string> args = {
        "bench", "-m",    SourcePath(kTales), "--memory", "75%", "-c", "64", "--prompt", "8", "-n", "4", "-r",
        "1",     "--json"};
    args.insert(args.end(), more.begin(), more.end());
    return RunProgram(args);
  };
  const Outcome elastic = bench({});
  ExpectDone(elastic);
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"--policy", "lru"}, {"--policy", "static", "--slots", "2"}, {"--policy", "static", "--kv-share", "0.5"}}) {
    const Outcome outcome = bench(more);
    ExpectDone(outcome);
    EXPECT_EQ(outcome.Json()["logits_hash"], elastic.Json()["logits_hash"]);
  }
  ExpectRefused(bench({"--policy", "oracle"}), {"--policy", "oracle", "elastic, static, lru"});
  ExpectRefused(bench({"--slots", "2"}), {"--slots", "static"});
  ExpectRefused(bench({"--policy", "static", "--slots", "0"}), {"--slots", "0"});
  ExpectRefused(bench({"--policy", "static", "--kv-share", "1.0"}), {"--kv-share", "1"});
  ExpectRefused(bench({"--policy", "static", "--kv-share", "0.5", "--slots", "1"}), {"--kv-share", "--slots"});
}

}  // namespace
}  // namespace elasticmem
