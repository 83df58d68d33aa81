// Options, config files and limits that a user gets wrong, and what each then reads.
#include <gmock/gmock.h>

#include <regex>

#include "tests/gguf/scratch_folder.h"
#include "tests/tools/program.h"
#include "tests/tools/tiny_model.h"

namespace elasticmem {
namespace {

using testing::ExpectDone;
using testing::ExpectMisused;
using testing::ExpectRefused;
using ::testing::HasSubstr;
using testing::kTales;
using testing::kTinyRelu;
using testing::Listing;
using testing::Outcome;
using testing::RunProgram;
using testing::SourcePath;

class Usage : public ::testing::Test {
 protected:
  // A run of the tiny model with `more` options; its store goes into the scratch folder.
  Outcome Run(const std::vector<std::string>& more, const std::string& model = kTinyRelu) const {
    std::vector<std::string> args = {"run", "-m", SourcePath(model), "--store-dir", folder_.path()};
    args.insert(args.end(), more.begin(), more.end());
    return RunProgram(args);
  }
  // The same with what it needs to work, and numbers out.
  Outcome RunTiny(const std::vector<std::string>& more) const {
    std::vector<std::string> args = {"-p", "hi", "--memory", "64MiB", "--json"};
    args.insert(args.end(), more.begin(), more.end());
    return Run(args);
  }
  std::string Config(const std::string& text) const {
    testing::WriteFileBytes(folder_.Path("c.toml"), text);
    return folder_.Path("c.toml");
  }

  const ScratchFolder folder_;
};

TEST_F(Usage, HelpAndVersionAreNoErrors) {
  for (const char* command : {"run", "inspect", "pack", "plan", "tokenize", "logits", "perplexity", "bench", "compare", "serve"}) {
    const Outcome help = RunProgram({command, "--help"});
    ExpectDone(help);
    EXPECT_THAT(help.out, HasSubstr("Example"));
    EXPECT_EQ(help.err, "");
    EXPECT_THAT(RunProgram({"--help"}).out, HasSubstr(command));
  }
  ExpectDone(RunProgram({"--version"}));
}

TEST_F(Usage, WrongUsageIsExitCode2) {
  ExpectMisused(RunProgram({}), {"--help"});
  ExpectMisused(RunProgram({"frobnicate"}), {"frobnicate"});
  ExpectMisused(RunProgram({"run", "--frobnicate"}), {"--frobnicate"});
  ExpectMisused(RunProgram({"run", "-m", "m.gguf", "-n", "many"}), {"many"});
  ExpectMisused(RunProgram({"run", "-m", "m.gguf", "-n", "-3"}), {"-3"});
  ExpectMisused(RunProgram({"run", "-m", "m.gguf", "-n"}), {"--generate"});
  ExpectMisused(RunProgram({"run", "-m", "m.gguf", "--temp", "hot"}), {"hot"});
  ExpectMisused(RunProgram({"tokenize", "-m", "m.gguf"}), {"TEXT"});
  ExpectMisused(RunProgram({"pack", "m.gguf", "--temp", "1"}), {"--temp"});
}

TEST_F(Usage, NoModelIsExitCode2) {
  for (const char* command : {"run", "inspect", "pack", "plan", "logits", "bench"}) {
    SCOPED_TRACE(command);
    ExpectMisused(RunProgram({command}), {"model"});
  }
}

TEST_F(Usage, MemoryThatIsNoSize) {
  ExpectRefused(Run({"-p", "hi", "--memory", "12 potatoes"}), {"--memory", "12 potatoes", "GiB", "%"});
  for (const char* size :
       {"potatoes", "-1GiB", "1e99GiB", "99999999999999GiB", "0", "0%", "nan", "inf%", "1 GiB GiB"}) {
    SCOPED_TRACE(size);
    ExpectRefused(Run({"-p", "hi", "--memory", size}), {"--memory", size});
  }
  EXPECT_THAT(Listing(folder_.path()), ::testing::IsEmpty());
}

TEST_F(Usage, TiersThatContradictEachOther) {
  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"-p", "hi"};
    args.insert(args.end(), more.begin(), more.end());
    return Run(args);
  };
  ExpectRefused(run({"--memory", "8MiB", "--device-memory", "8MiB"}), {"--memory", "--device-memory", "one of them"});
  ExpectRefused(run({"--host-memory", "8MiB"}), {"--host-memory", "--device-memory"});
  ExpectRefused(run({"--memory", "8MiB", "--copy-gbps", "4"}), {"--copy-gbps", "--host-memory"});
  ExpectRefused(run({"--memory", "8MiB", "--host-memory", "0"}), {"--host-memory", "0"});
  ExpectRefused(run({"--memory", "8MiB", "--host-memory", "soup"}), {"--host-memory", "soup"});
  for (const char* rate : {"0", "-2", "nan", "inf"}) {
    SCOPED_TRACE(rate);
    ExpectRefused(run({"--memory", "8MiB", "--host-memory", "8MiB", "--copy-gbps", rate}), {"--copy-gbps", rate});
  }
  ExpectRefused(Run({"-p", "hi", "--memory", "8MiB", "--host-memory", "8MiB"}, "tests/golden/tiny/qwen2.gguf"),
                {"host tier", "silu", "--memory alone"});
  ExpectDone(run({"-n", "2", "--device-memory", "8MiB"}));
}

TEST_F(Usage, ChoicesThatAreNone) {
  const auto expect = [&](const char* flag, const char* value, const char* choice) {
    ExpectRefused(RunTiny({flag, value}), {flag, value, choice});
  };
  expect("--mode", "psychic", "exact");
  expect("--kv-type", "f64", "q8_0");
  expect("--io", "carrier-pigeon", "pread");
  expect("--type", "q3_z", "q8_0");
  expect("--policy", "monetary", "elastic");
}

TEST_F(Usage, SamplingOutOfRangeIsNamed) {
  ExpectRefused(RunTiny({"--temp", "-1"}), {"--temp", "-1"});
  ExpectRefused(RunTiny({"--top-p", "1.5"}), {"--top-p", "1.5"});
  ExpectRefused(RunTiny({"--min-p", "-0.5"}), {"--min-p", "-0.5"});
  ExpectRefused(RunTiny({"--repeat-penalty", "0"}), {"--repeat-penalty", "0"});
  ExpectRefused(RunTiny({"--temp", "nan"}), {"--temp", "nan"});
}

TEST_F(Usage, TokensThatAreNone) {
  const auto logits = [&](const char* tokens) {
    return RunProgram({"logits", "-m", SourcePath(kTinyRelu), "--store-dir", folder_.path(), "--memory", "64MiB",
                       "--tokens", tokens});
  };
  ExpectRefused(logits("1,x,3"), {"--tokens", "\"x\""});
  ExpectRefused(logits("1,,3"), {"--tokens"});
  ExpectRefused(logits("1,288"), {"288"});
  ExpectRefused(logits("-1"), {"-1"});
  ExpectRefused(logits("99999999999999"), {"99999999999999"});
}

TEST_F(Usage, PromptLongerThanTheContextIsRefusedWithBothNumbers) {
  std::string prompt;
  for (int i = 0; i < 40; ++i) prompt += "king ";
  const Outcome tokens = RunProgram({"tokenize", "-m", SourcePath(kTales), "--json", prompt});
  const size_t count = tokens.Json()["ids"].size();
  ASSERT_GT(count, 16u);
  ExpectRefused(Run({"-p", prompt, "-c", "16", "--memory", "100%"}, kTales),
                {fmt::format("{} tokens", count), "16", "--context"});
  ExpectRefused(Run({"-p", prompt, "-c", "16", "--memory", "100%", "--json"}, kTales),
                {fmt::format("{} tokens", count), "16"});
  testing::WriteFileBytes(folder_.Path("long.txt"), prompt);
  ExpectRefused(Run({"-f", folder_.Path("long.txt"), "-c", "16", "--memory", "100%"}, kTales),
                {std::to_string(count), "16"});
}

TEST_F(Usage, PromptsThatAreNone) {
  ExpectRefused(Run({"-p", "hi", "-f", "x.txt"}), {"-p", "-f", "both"});
  ExpectRefused(Run({"-f", folder_.Path("absent.txt")}), {"absent.txt", "No such file"});
  ExpectRefused(Run({"-f", folder_.path()}), {folder_.path(), "folder"});
}

TEST_F(Usage, ChatWithoutATemplateIsRefused) {
  ExpectRefused(Run({"--chat", "-p", "hi"}, kTales), {"template", "--chat"});
}

TEST_F(Usage, ContextTooShortForThePrompt) { ExpectRefused(RunTiny({"-c", "1"}), {"context", "1"}); }

TEST_F(Usage, BudgetTooSmallShowsTheNeedsAndTheSmallestThatWorks) {
  const std::vector<std::string> rest = {"-p", "Once upon a time", "-n", "8", "--temp", "0", "-c", "64"};
  const auto with = [&](const std::string& memory) {
    std::vector<std::string> args = rest;
    args.insert(args.end(), {"--memory", memory});
    return Run(args, kTales);
  };
  const Outcome refused = with("64KiB");
  ExpectRefused(refused, {"65536 bytes", "too small", "smallest", "tokenizer", "KV for", "total"});
  std::smatch found;
  ASSERT_TRUE(std::regex_search(refused.err, found, std::regex("smallest[^\\n]*\\((\\d+) bytes\\)"))) << refused.err;
  const uint64_t smallest = std::stoull(found[1]);
  EXPECT_GT(smallest, uint64_t{1} << 16);
  EXPECT_THAT(Listing(folder_.path()), ::testing::IsEmpty());  // nothing was packed for it

  ExpectRefused(with(std::to_string(smallest - 1)), {std::to_string(smallest)});
  const Outcome works = with(std::to_string(smallest));
  ExpectDone(works);
  EXPECT_EQ(works.out, with("100%").out);
}

TEST_F(Usage, NeedsBeyondAllNumbersAreTooLarge) {
  ExpectRefused(
      RunProgram({"plan", "-m", SourcePath(kTales), "--clients", "1000000", "-c", "4294967295", "--memory", "64MiB"}),
      {"67108864"});
}

TEST_F(Usage, ConfigSetsWhatTheCommandLineDoesNot) {
  const std::string config = Config("generate = 3\ntemp = 0.0\nignore_eos = true\nstop = []\nkv-type = \"f32\"\n");
  const Outcome from_config = RunTiny({"--config", config});
  ExpectDone(from_config);
  EXPECT_EQ(from_config.Json()["token_ids"].size(), 3u);
  const Outcome overridden = RunTiny({"--config", config, "-n", "5"});
  ExpectDone(overridden);
  EXPECT_EQ(overridden.Json()["token_ids"].size(), 5u);
}

TEST_F(Usage, ConfigMayNameTheModelAndServeSeveralCommands) {
  const std::string config =
      Config(fmt::format("model = \"{}\"\nmemory = \"64MiB\"\nstore-dir = \"{}\"\nprompt = \"hi\"\ngenerate = 2\n",
                         SourcePath(kTinyRelu), folder_.path()));
  ExpectDone(RunProgram({"run", "--config", config}));
  ExpectDone(RunProgram({"plan", "--config", config}));
  ExpectDone(RunProgram({"inspect", "--config", config}));
}

TEST_F(Usage, ConfigThatIsWrongNamesFileLineAndKey) {
  const auto expect = [&](const std::string& text, std::initializer_list<std::string_view> parts) {
    SCOPED_TRACE(text);
    ExpectRefused(RunTiny({"--config", Config(text)}), parts);
  };
  expect("# one\ngenerate = 3\nfrobnicate = 1\n", {"c.toml:3", "frobnicate"});
  expect("\ngenerate = \"three\"\n", {"c.toml:2", "generate"});
  expect("generate = -1\n", {"c.toml:1", "generate"});
  expect("generate = 1.5\n", {"c.toml:1", "generate"});
  expect("memory = 12\n", {"c.toml:1", "memory"});
  expect("stop = [1]\n", {"c.toml:1", "stop"});
  expect("generate = 4294967296\n", {"c.toml:1", "generate"});
  expect("generate = 3\ngenerate = \n", {"c.toml:2"});
  expect("[table]\ngenerate = 3\n", {"c.toml:1", "table"});
  ExpectRefused(RunTiny({"--config", folder_.Path("absent.toml")}), {"absent.toml"});
  ExpectRefused(RunTiny({"--config", folder_.path()}), {folder_.path()});
}

TEST_F(Usage, ReportThatCannotBeWrittenIsNamed) {
  const Outcome outcome = Run({"-p", "hi", "-n", "2", "--memory", "64MiB", "--report", folder_.Path("no/where.json")});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("no/where.json"));
}

}  // namespace
}  // namespace elasticmem
