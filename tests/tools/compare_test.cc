// `elasticmem compare`: configs that are right and wrong, engines that work, fail, hang, take too much and talk
// nonsense (shell scripts stand in for them), and what a user gets of it.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tests/gguf/scratch_folder.h"
#include "tests/tools/program.h"
#include "tools/compare_engines.h"
#include "tools/compare_report.h"
#include "tools/memory_group.h"
#include "tools/svg_plot.h"

namespace elasticmem {
namespace {

using ::testing::Contains;
using testing::ExpectDone;
using testing::ExpectRefused;
using ::testing::HasSubstr;
using testing::Outcome;
using testing::ReadFileBytes;
using testing::RunProgram;
using testing::SourcePath;
using testing::Surroundings;

class Compare : public ::testing::Test {
 protected:
  Compare() { testing::WriteFileBytes(folder_.Path("plain.gguf"), std::string(40 << 20, 'x')); }

  std::string Write(const std::string& text) const {
    testing::WriteFileBytes(folder_.Path("c.toml"), text);
    return folder_.Path("c.toml");
  }
  // An engine that runs `script`.
  void Engine(const std::string& name, const std::string& script) const {
    testing::WriteFileBytes(folder_.Path(name), "#!/bin/sh\n" + script);
    chmod(folder_.Path(name).c_str(), 0755);
  }
  Outcome Run(const std::string& config, std::chrono::seconds timeout = std::chrono::seconds(120)) const {
    Surroundings surroundings;
    surroundings.folder = folder_.path();
    surroundings.timeout = timeout;
    return RunProgram({"compare", config, "--json"}, surroundings);
  }
  Status ReadError(const std::string& text) const { return ReadCompareConfig(Write(text)).status(); }

  const ScratchFolder folder_;
};

constexpr char kHead[] = "plain = \"plain.gguf\"\nprompt = \"Once upon\"\ngenerate = 8\n";
constexpr char kTimings[] =
    "echo 'llama_perf_context_print:        load time = 5.00 ms' >&2\n"
    "echo 'llama_perf_context_print: prompt eval time =      20.00 ms /     5 tokens ( 4 ms per token)' >&2\n"
    "echo 'llama_perf_context_print:        eval time =     100.00 ms /     7 runs   ( 14 ms per token)' >&2\n";

TEST_F(Compare, ConfigIsRead) {
  const StatusOr<CompareConfig> config =
      ReadCompareConfig(Write(std::string(kHead) +
                              "limits = [\"none\", \"62.5%\"]\nthreads = 3\n[[engine]]\nkind = \"elasticmem\"\nmode = "
                              "\"dense\"\n[[engine]]\nname = \"peer\"\nkind = \"powerinfer\"\nbinary = \"bin/main\"\n"
                              "model = \"other.gguf\"\nconversion = \"by hand\"\nargs = [\"--x\", \"1\"]\n"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->threads, 3u);
  EXPECT_FALSE(config->LimitBytes(config->limits[0]));
  EXPECT_EQ(config->LimitBytes(config->limits[1]), (uint64_t{40} << 20) * 625 / 1000);
  ASSERT_EQ(config->engines.size(), 2u);
  EXPECT_EQ(config->engines[0].model, folder_.Path("plain.gguf"));
  EXPECT_EQ(config->engines[1].binary, folder_.Path("bin/main"));
  EXPECT_THAT(ArgumentsFor(*config, config->engines[0], 123, "r.json"),
              ::testing::IsSupersetOf({"run", "--mode", "dense", "--memory", "123", "--report", "r.json", "3"}));
  const std::vector<std::string> peer = ArgumentsFor(*config, config->engines[1], std::nullopt, "r.json");
  EXPECT_THAT(peer, ::testing::IsSupersetOf({"--ignore-eos", "--x", "1", folder_.Path("other.gguf").c_str()}));
  EXPECT_THAT(peer, ::testing::Not(Contains("--memory")));
}

TEST_F(Compare, ConfigErrorsNameThePlace) {
  const struct {
    std::string text;
    std::vector<std::string> parts;
  } cases[] = {
      {"plain = \"plain.gguf\"\nfrobnicate = 1\n", {"c.toml:2:", "frobnicate", "known are"}},
      {std::string(kHead) + "threads = 0\n", {"c.toml:4:", "threads", "0"}},
      {std::string(kHead) + "threads = \"two\"\n", {"c.toml:4:", "threads"}},
      {std::string(kHead) + "limits = [\"half\"]\n", {"c.toml:4:", "half", "60%"}},
      {std::string(kHead) + "limits = [\"60%\", \"60%\"]\n", {"c.toml:4:", "twice"}},
      {std::string(kHead) + "limits = [\"-5%\"]\n", {"-5%"}},
      {kHead, {"[[engine]]"}},
      {std::string(kHead) + "[[engine]]\nkind = \"vllm\"\n", {"c.toml:4:", "vllm"}},
      {std::string(kHead) + "[[engine]]\nkind = \"llama.cpp\"\n", {"binary"}},
      {std::string(kHead) + "[[engine]]\nkind = \"llama.cpp\"\nbinary = \"x\"\nmodel = \"y\"\n", {"conversion"}},
      {std::string(kHead) + "[[engine]]\nkind = \"elasticmem\"\n[[engine]]\nkind = \"elasticmem\"\n", {"two engines"}},
      {std::string(kHead) + "[[engine]]\nkind = \"elasticmem\"\nspeed = 1\n", {"c.toml:6:", "speed"}},
      {"plain = \"nowhere.gguf\"\n", {"nowhere.gguf"}},
      {"prompt = \"x\"\n", {"plain"}},
      {"plain = \"plain.gguf\"\n", {"prompt"}},
      {"plain = ", {"c.toml:1"}},
  };
  for (const auto& [text, parts] : cases) {
    const Status status = ReadError(text);
    EXPECT_FALSE(status.ok()) << text;
    for (const std::string& part : parts) EXPECT_THAT(std::string(status.message()), HasSubstr(part)) << text;
  }
  ExpectRefused(RunProgram({"compare", folder_.Path("none.toml")}), {"none.toml"});
}

TEST_F(Compare, TimingsOfEachFamilyAreRead) {
  CompareConfig config;
  config.prompt = "A quick fox";
  config.generate = 8;
  const CompareEngine old{"old", EngineKind::kPowerInfer, "", "", "", "", {}};
  ChildResult result;
  result.first_output_seconds = 1.5;
  result.out = " A\u2581quick\u2581fox jumps, over";
  result.err =
      "llama_print_timings:        load time =    4993.46 ms\n"
      "llama_print_timings:      sample time =       2.25 ms /     8 runs   (    0.28 ms per token)\n"
      "llama_print_timings: prompt eval time =    1000.00 ms /    24 tokens (   44.37 ms per token)\n"
      "llama_print_timings:        eval time =     700.00 ms /     7 runs   (  107.53 ms per token)\n";
  StatusOr<EngineFigures> figures = ReadFigures(config, old, result, "");
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_EQ(figures->text, " jumps, over");
  EXPECT_DOUBLE_EQ(figures->first_token_seconds, 2.5);
  EXPECT_DOUBLE_EQ(figures->prefill_tokens_per_second, 24);
  EXPECT_DOUBLE_EQ(figures->decode_tokens_per_second, 10);
  EXPECT_EQ(figures->generated_tokens, 8u);
  EXPECT_FALSE(WhatIsWrongWith(*figures, 8));
  EXPECT_THAT(WhatIsWrongWith(*figures, 9).value(), HasSubstr("8 tokens of 9"));

  const CompareEngine ik{"ik", EngineKind::kIkLlamaCpp, "", "", "", "", {}};
  result.err = "main: prompt eval time =  2.50 ms /  5 tokens (\nmain:        eval time =  8.00 ms /  8 tokens (\n";
  figures = ReadFigures(config, ik, result, "");
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_EQ(figures->generated_tokens, 8u);
  EXPECT_DOUBLE_EQ(figures->decode_tokens_per_second, 875) << "seven of them in that time";
  result.err = "main: total time = 1 ms / 2 tokens\n";
  EXPECT_THAT(std::string(ReadFigures(config, ik, result, "").status().message()), HasSubstr("prompt eval time"));

  figures->text = "caf\xc3";
  EXPECT_FALSE(WhatIsWrongWith(*figures, 8)) << "cut in its last character";
  for (const char* bad : {"", "\xff\xfe and more", ",,, ,"}) {
    figures = EngineFigures{5, 8, 1, 1, 1, bad};
    EXPECT_TRUE(WhatIsWrongWith(*figures, 8)) << bad;
  }
}

// All that engines do to us, in one comparison that goes on to its end.
TEST_F(Compare, FailuresAreResults) {
  Engine("good", std::string("printf 'and so it was'\n") + kTimings);
  Engine("failing", "echo 'cannot load the model' >&2\nexit 3\n");
  Engine("hanging", "[ \"$1\" = --version ] || sleep 100\n");
  Engine("garbage", "echo hello\n");
  Engine("dying", "kill -SEGV $$\n");
  std::string text = std::string(kHead) + "timeout_seconds = 1\nrepeat = 2\noutput = \"result\"\n";
  for (const char* name : {"good", "failing", "hanging", "garbage", "dying", "absent"}) {
    text += fmt::format("[[engine]]\nname = \"{0}\"\nkind = \"llama.cpp\"\nbinary = \"{0}\"\n", name);
  }
  const Outcome outcome = Run(Write(text));
  ExpectDone(outcome);
  const nlohmann::json json = outcome.Json();
  const auto problem = [&](size_t engine, size_t sample = 0) {
    const nlohmann::json& found = json["cells"][engine]["samples"][sample]["problem"];
    return found.is_string() ? found.get<std::string>() : "";
  };
  ASSERT_EQ(json["cells"][0]["samples"].size(), 4u);
  for (size_t sample = 0; sample < 4; ++sample) {
    EXPECT_EQ(problem(0, sample), "");
    EXPECT_EQ(json["cells"][0]["samples"][sample]["cache"], sample % 2 ? "warm" : "cold");
    EXPECT_DOUBLE_EQ(json["cells"][0]["samples"][sample]["decode_tokens_per_second"], 70);
  }
  EXPECT_EQ(json["cells"][0]["samples"][0]["text"], "and so it was");
  EXPECT_EQ(problem(1), "exit code 3");
  EXPECT_EQ(json["cells"][1]["samples"][0]["last_words"], "cannot load the model");
  EXPECT_THAT(problem(2), HasSubstr("timed out"));
  EXPECT_THAT(problem(3), HasSubstr("unreadable output"));
  EXPECT_THAT(problem(4), HasSubstr("signal 11"));
  EXPECT_THAT(json["engines"][5]["absent"].get<std::string>(), HasSubstr("absent"));
  EXPECT_EQ(json["cells"][5]["samples"].size(), 0u);
  const std::string markdown = ReadFileBytes(folder_.Path("result.md"));
  EXPECT_THAT(markdown, HasSubstr("| none | good | 70.00 | 70.00 | 1.00 x |"));
  EXPECT_THAT(markdown, HasSubstr("exit code 3"));
  EXPECT_EQ(nlohmann::json::parse(ReadFileBytes(folder_.Path("result.json"))), json);
  EXPECT_THAT(ReadFileBytes(folder_.Path("result.svg")), HasSubstr("good, warm"));
}

TEST_F(Compare, InterruptedItLeavesNobodyBehind) {
  Engine("hanging", "[ \"$1\" = --version ] && exit\necho $$ > pid.part\nmv pid.part pid\nsleep 100\n");
  const std::string config =
      Write(std::string(kHead) + "[[engine]]\nname = \"hanging\"\nkind = \"llama.cpp\"\nbinary = \"hanging\"\n");
  Surroundings surroundings;
  surroundings.folder = folder_.path();
  testing::Program program({"compare", config}, surroundings);
  for (int i = 0; i < 1000 && !std::filesystem::exists(folder_.Path("pid")); ++i) usleep(10000);
  const pid_t engine = std::stoi(ReadFileBytes(folder_.Path("pid")));
  program.Signal(SIGINT);
  EXPECT_EQ(program.Wait().exit_code, 130);
  EXPECT_NE(kill(engine, 0), 0);
  EXPECT_FALSE(std::filesystem::exists(folder_.Path("compare.json")));
}

TEST_F(Compare, LimitsKillWhoTakesMore) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer's own memory is no part of a limit";
#endif
  if (!MemoryGroup::Create(uint64_t{32} << 20).ok()) GTEST_SKIP() << "no memory control group can be made here";
  // 40 MiB in a variable do not fit 50 % of 40 MiB.
  Engine("greedy", std::string("x=$(head -c 41943040 /dev/zero | tr '\\0' 'x')\nprintf \"${#x} bytes\"\n") + kTimings);
  const std::string engine = "[[engine]]\nname = \"greedy\"\nkind = \"llama.cpp\"\nbinary = \"greedy\"\n";
  const Outcome outcome = Run(Write(std::string(kHead) + "limits = [\"none\", \"50%\"]\n" + engine));
  ExpectDone(outcome);
  const nlohmann::json json = outcome.Json();
  EXPECT_TRUE(json["cells"][0]["samples"][0]["problem"].is_null()) << json["cells"][0]["samples"][0];
  EXPECT_EQ(json["cells"][0]["samples"][0]["text"], "41943040 bytes");
  EXPECT_EQ(json["cells"][1]["samples"][0]["problem"], "out of memory: killed");
  EXPECT_LE(json["cells"][1]["samples"][0]["peak_bytes"].get<uint64_t>(), uint64_t{20} << 20);
}

// Ours, for real: the shipped smoke comparison.
TEST_F(Compare, SmokeConfigComparesTwoModes) {
  const Outcome outcome = Run(SourcePath("configs/compare/smoke.toml"));
  ExpectDone(outcome);
  const nlohmann::json json = outcome.Json();
  EXPECT_EQ(json["cells"].size(), 4u);
  for (const nlohmann::json& cell : json["cells"]) {
    if (cell["samples"][0]["problem"] == "no memory limit can be set here") continue;
    for (const nlohmann::json& sample : cell["samples"]) {
      EXPECT_TRUE(sample["problem"].is_null()) << sample;
      EXPECT_EQ(sample["generated_tokens"], 48);
      EXPECT_GT(sample["first_token_seconds"].get<double>(), 0);
    }
  }
  EXPECT_GT(json["cells"][0]["samples"][0]["read_bytes"].get<uint64_t>(), 1u << 20) << "a cold run reads its model";
  EXPECT_EQ(json["cells"][0]["samples"][0]["text"], json["cells"][2]["samples"][1]["text"]) << "exact in any budget";
  EXPECT_THAT(json["engines"][0]["version"].get<std::string>(), HasSubstr("elasticmem"));
}

TEST(ComparePlot, SpeedIsDrawnOnALogScale) {
  Plot plot;
  PlotPanel panel;
  panel.log_y = true;
  panel.height = 200;
  panel.x_ticks = {{0, "none"}, {1, "60%"}};
  panel.lines.push_back({"a", "#000000", "", {0, 1}, {100, 1}, 2, false, true});
  panel.lines.push_back({"b", "#111111", "", {0, 1}, {10, 0}, 2, false, true});
  plot.panels = {panel};
  const std::string svg = RenderSvg(plot);
  // Two decades over 200 pixels: 10 lies in the middle; what is not positive has no mark.
  std::vector<double> heights;
  for (size_t at = svg.find("cy=\""); at != std::string::npos; at = svg.find("cy=\"", at + 1)) {
    heights.push_back(std::stod(svg.substr(at + 4)));
  }
  ASSERT_EQ(heights.size(), 3u);
  EXPECT_NEAR(heights[1] - heights[0], 200, 0.2);
  EXPECT_NEAR(heights[2] - heights[0], 100, 0.2);
  EXPECT_THAT(svg, HasSubstr(">60%<"));
}

}  // namespace
}  // namespace elasticmem
