// What each command prints where, and that it is right: text alone on stdout, one JSON object with stable names.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "tests/gguf/scratch_folder.h"
#include "tests/tools/program.h"
#include "tests/tools/tiny_model.h"

namespace elasticmem {
namespace {

using nlohmann::json;
using ::testing::Contains;
using testing::ExpectDone;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kTales;
using testing::Listing;
using ::testing::Not;
using testing::Outcome;
using testing::RunProgram;
using testing::SourcePath;

constexpr const char* kPrompt = "Once upon a time there was a king who";
constexpr const char* kTold = " had a daughter";  // the golden greedy text begins so

class Output : public ::testing::Test {
 protected:
  // A command on tales with its store in the scratch folder.
  Outcome Tales(const std::string& command, const std::vector<std::string>& more) const {
    std::vector<std::string> args = {command, "-m", SourcePath(kTales)};
    args.insert(args.end(), more.begin(), more.end());
    return RunProgram(args);
  }
  Outcome Run(const std::vector<std::string>& more) const {
    std::vector<std::string> args = {"-p", kPrompt, "--temp", "0", "--store-dir", folder_.path()};
    args.insert(args.end(), more.begin(), more.end());
    return Tales("run", args);
  }

  const ScratchFolder folder_;
};

// Every name of the report's schema (DESIGN section 13), with numbers where numbers belong.
void ExpectReport(const json& report) {
  ASSERT_TRUE(report.is_object());
  for (const char* name : {"model",
                           "budget_bytes",
                           "peak_bytes",
                           "peak_rss_bytes",
                           "mode",
                           "policy",
                           "threads",
                           "prefill",
                           "decode",
                           "ttft_seconds",
                           "active_fraction",
                           "resident_neuron_fraction",
                           "device_work_fraction",
                           "tiers",
                           "copies",
                           "memory_management_fraction",
                           "predictor",
                           "store",
                           "fragments",
                           "text",
                           "token_ids",
                           "logits_hash"}) {
    EXPECT_TRUE(report.contains(name)) << name;
  }
  for (const char* name : {"name", "arch", "file_bytes", "parameters"})
    EXPECT_TRUE(report["model"].contains(name)) << name;
  for (const char* phase : {"prefill", "decode"}) {
    for (const char* name : {"tokens", "seconds", "tokens_per_second"}) {
      EXPECT_TRUE(report[phase][name].is_number()) << phase << name;
    }
  }
  for (const char* name : {"bytes_read", "reads", "wait_seconds", "bytes_per_token"}) {
    EXPECT_TRUE(report["store"][name].is_number()) << name;
  }
  for (const char* name : {"slots", "used"}) EXPECT_TRUE(report["fragments"][name].is_number()) << name;
  for (const char* name :
       {"active_fraction", "resident_neuron_fraction", "device_work_fraction", "memory_management_fraction"}) {
    EXPECT_GE(report[name].get<double>(), 0) << name;
    EXPECT_LE(report[name].get<double>(), 1) << name;
  }
  EXPECT_LE(report["peak_bytes"].get<uint64_t>(), report["budget_bytes"].get<uint64_t>());
  EXPECT_GT(report["peak_rss_bytes"].get<uint64_t>(), 0u);
}

TEST_F(Output, RunPrintsTheTextAloneOnStdout) {
  const Outcome outcome = Run({"-n", "12", "--memory", "75%"});
  ExpectDone(outcome);
  const Outcome numbers = Run({"-n", "12", "--memory", "75%", "--json"});
  ExpectDone(numbers);
  const std::string text = numbers.Json()["text"];
  EXPECT_THAT(text, ::testing::StartsWith(kTold));
  EXPECT_EQ(outcome.out, text + "\n");
  EXPECT_THAT(outcome.err, HasSubstr(kPrompt));
  for (const char* part : {"tokens/s", "budget", "peak", "in memory", "read from the store"}) {
    EXPECT_THAT(outcome.err, HasSubstr(part));
  }
}

TEST_F(Output, JsonIsOneObjectOfTheSchema) {
  const Outcome outcome = Run({"-n", "12", "--memory", "75%", "--json", "--report", folder_.Path("r.json")});
  ExpectDone(outcome);
  const json report = outcome.Json();
  ExpectReport(report);
  EXPECT_EQ(report["model"]["name"], "tales");
  EXPECT_EQ(report["model"]["arch"], "llama");
  EXPECT_EQ(report["model"]["file_bytes"], std::filesystem::file_size(SourcePath(kTales)));
  EXPECT_EQ(report["budget_bytes"], std::filesystem::file_size(SourcePath(kTales)) * 3 / 4);
  EXPECT_EQ(report["mode"], "exact");
  EXPECT_EQ(report["prefill"]["tokens"], 10);
  EXPECT_EQ(report["decode"]["tokens"], 11);  // the first of the twelve comes out of the prefill
  EXPECT_EQ(report["token_ids"].size(), 12u);
  EXPECT_GT(report["store"]["bytes_read"].get<uint64_t>(), 0u);
  EXPECT_EQ(json::parse(testing::ReadFileBytes(folder_.Path("r.json"))), report);
}

TEST_F(Output, ReportHasATimeSeriesAndWhoHasTheMemory) {
  const json report = Run({"-n", "40", "--memory", "75%", "--json"}).Json();
  const json& series = report["series"];
  // At the beginning, after the prompt, after each token but the last, which is not read.
  ASSERT_EQ(series["seconds"].size(), 41u);
  for (size_t i = 0; i < 41; ++i) {
    EXPECT_EQ(series["generated_tokens"][i], i < 2 ? 0 : i - 1);
    EXPECT_EQ(series["prompt_tokens"][i], i < 1 ? 0 : 10);
    uint64_t blocks = 0;
    for (const auto& owner : series["blocks"]) blocks += owner[i].get<uint64_t>();
    EXPECT_EQ(blocks, report["pool_blocks"]);
    EXPECT_GE(series["seconds"][i], series["seconds"][i > 0 ? i - 1 : 0]);
  }
  EXPECT_EQ(series["blocks"]["kv"][0], 0);
  EXPECT_GT(series["blocks"]["kv"][40], 0);
  EXPECT_EQ(series["store_bytes"][40], report["store"]["bytes_read"]);
  EXPECT_EQ(static_cast<double>(series["resident_neurons"][40]) / 10240, report["resident_neuron_fraction"]);
  const json& memory = report["memory"];
  uint64_t bytes = 0;
  for (const char* name : {"weights", "kv", "neuron", "scratch", "staging", "table", "tokenizer"}) {
    bytes += memory[std::string(name) + "_bytes"].get<uint64_t>();
  }
  for (const char* parts : {"reserve", "idle"}) {
    for (const auto& part : memory[parts]) bytes += part.get<uint64_t>();
  }
  EXPECT_EQ(bytes, report["budget_bytes"]);
}

TEST_F(Output, TiersHaveTheirOwnNumbersAndPacedCopiesAreCalledSo) {
  const std::vector<std::string> args = {"-n",          "60", "--device-memory", "60%", "--host-memory", "2MiB",
                                         "--copy-gbps", "2"};
  const Outcome outcome = Run(args);
  ExpectDone(outcome);
  EXPECT_THAT(outcome.err, HasSubstr("paced to 2 GB/s"));
  std::vector<std::string> more = args;
  more.push_back("--json");
  const json report = Run(more).Json();
  ExpectReport(report);
  ASSERT_EQ(report["tiers"].size(), 2u);
  const json &device = report["tiers"][0], &host = report["tiers"][1];
  EXPECT_EQ(device["name"], "device");
  EXPECT_EQ(host["name"], "host");
  EXPECT_EQ(host["budget_bytes"], 2 << 20);
  for (const json& tier : {device, host}) {
    EXPECT_LE(tier["peak_bytes"].get<uint64_t>(), tier["budget_bytes"].get<uint64_t>());
    EXPECT_GT(tier["neurons"].get<uint64_t>(), 0u);
    EXPECT_GT(tier["work_fraction"].get<double>(), 0);
  }
  EXPECT_EQ(report["device_work_fraction"], device["work_fraction"]);
  EXPECT_EQ(report["budget_bytes"].get<uint64_t>(),
            device["budget_bytes"].get<uint64_t>() + host["budget_bytes"].get<uint64_t>());
  EXPECT_EQ(report["copies"]["device"], "host RAM, copies paced to 2 GB/s");
  EXPECT_GT(report["copies"]["up"].get<uint64_t>(), 0u);

  const json alone = Run({"-n", "60", "--memory", "60%", "--json"}).Json();
  EXPECT_EQ(alone["tiers"].size(), 1u);
  EXPECT_TRUE(alone["copies"].is_null());
  EXPECT_EQ(alone["logits_hash"], report["logits_hash"]);
}

TEST_F(Output, NoTokensAskedForGivesNone) {
  const Outcome outcome = Run({"-n", "0", "--memory", "100%"});
  ExpectDone(outcome);
  EXPECT_EQ(outcome.out, "\n");
  const json report = Run({"-n", "0", "--memory", "100%", "--json"}).Json();
  EXPECT_EQ(report["text"], "");
  EXPECT_THAT(report["token_ids"], IsEmpty());
}

TEST_F(Output, StopTextEndsAndIsNotShown) {
  const Outcome outcome = Run({"-n", "60", "--memory", "100%", "--stop", "daughter"});
  ExpectDone(outcome);
  EXPECT_EQ(outcome.out, " had a \n");
  const Outcome two = Run({"-n", "60", "--memory", "100%", "--stop", "nowhere to be seen", "--stop", "a daugh"});
  EXPECT_EQ(two.out, " had \n");
}

TEST_F(Output, SameSeedSameTextAnotherSeedAnotherText) {
  const auto tell = [&](const char* seed) {
    const Outcome outcome = Tales("run", {"-p", kPrompt, "-n", "24", "--memory", "100%", "--temp", "1", "--seed", seed,
                                          "--store-dir", folder_.path()});
    ExpectDone(outcome);
    return outcome.out;
  };
  const std::string first = tell("7");
  EXPECT_EQ(tell("7"), first);
  EXPECT_NE(tell("8"), first);
}

TEST_F(Output, PromptFromAFileIsTheSamePrompt) {
  testing::WriteFileBytes(folder_.Path("p.txt"), kPrompt);
  const Outcome outcome = Tales("run", {"-f", folder_.Path("p.txt"), "--temp", "0", "-n", "4", "--memory", "100%",
                                        "--store-dir", folder_.path()});
  EXPECT_EQ(outcome.out, Run({"-n", "4", "--memory", "100%"}).out);
}

TEST_F(Output, PackIsReusedByRun) {
  const Outcome packed = RunProgram({"pack", SourcePath(kTales), "--store-dir", folder_.path(), "--json"});
  ExpectDone(packed);
  const json result = packed.Json();
  EXPECT_EQ(result["reused"], false);
  EXPECT_EQ(std::filesystem::file_size(std::string(result["path"])), result["bytes"]);
  ASSERT_THAT(Listing(folder_.path()), ::testing::SizeIs(1));
  const Outcome run = Run({"-n", "4", "--memory", "75%"});
  ExpectDone(run);
  EXPECT_THAT(run.err, Not(HasSubstr("packed")));
  ASSERT_THAT(Listing(folder_.path()), ::testing::SizeIs(1));
  EXPECT_EQ(RunProgram({"pack", SourcePath(kTales), "--store-dir", folder_.path(), "--json"}).Json()["reused"], true);
}

TEST_F(Output, StoreGoesBesideTheModel) {
  std::filesystem::copy_file(SourcePath(testing::kTinyRelu), folder_.Path("m.gguf"));
  ExpectDone(RunProgram({"run", "-m", folder_.Path("m.gguf"), "-p", "hi", "-n", "2", "--memory", "64MiB"}));
  EXPECT_THAT(Listing(folder_.path()), ::testing::ElementsAre("m.gguf", "m.gguf.emstore"));
}

TEST_F(Output, RequantisedStoreHasAPlaceOfItsOwn) {
  std::filesystem::copy_file(SourcePath(testing::kTinyRelu), folder_.Path("m.gguf"));
  for (const char* type : {"f32", "f16", "bf16", "q8_0", "q4_0"}) {
    SCOPED_TRACE(type);
    ExpectDone(RunProgram({"pack", folder_.Path("m.gguf"), "--type", type, "--verify"}));
    ExpectDone(
        RunProgram({"run", "-m", folder_.Path("m.gguf"), "-p", "hi", "-n", "2", "--memory", "64MiB", "--type", type}));
  }
  EXPECT_THAT(Listing(folder_.path()), ::testing::SizeIs(6));
}

TEST_F(Output, InspectShowsModelsAndFilesWithoutTensors) {
  const Outcome text = RunProgram({"inspect", SourcePath(kTales)});
  ExpectDone(text);
  for (const char* part : {"llama.block_count", "relu", "budget"}) EXPECT_THAT(text.out, HasSubstr(part));
  const json whole = RunProgram({"inspect", SourcePath(kTales), "--json"}).Json();
  EXPECT_EQ(whole["model"]["architecture"], "llama");
  EXPECT_EQ(whole["model"]["sparse"], true);
  EXPECT_GT(whole["tensors"].size(), 10u);

  GgufBuilder vocabulary = testing::BuilderOf(testing::kTinyRelu);
  const GgufFile file = *GgufFile::Open(SourcePath(testing::kTinyRelu));
  for (const GgufTensor& tensor : file.tensors()) vocabulary.RemoveTensor(tensor.name);
  vocabulary.Write(folder_.Path("vocab.gguf"));
  const Outcome outcome = RunProgram({"inspect", folder_.Path("vocab.gguf")});
  ExpectDone(outcome);
  EXPECT_THAT(outcome.out, HasSubstr("cannot run it"));
  const json parts = RunProgram({"inspect", folder_.Path("vocab.gguf"), "--json"}).Json();
  EXPECT_THAT(parts["tensors"], IsEmpty());
  EXPECT_TRUE(parts.contains("cannot_run"));

  const json ids = RunProgram({"tokenize", "-m", folder_.Path("vocab.gguf"), "--json", "hi there"}).Json();
  EXPECT_EQ(ids, RunProgram({"tokenize", "-m", SourcePath(testing::kTinyRelu), "--json", "hi there"}).Json());
  EXPECT_GT(ids["ids"].size(), 2u);
}

TEST_F(Output, TokenizeAgreesWithTheGoldenCases) {
  const json golden = json::parse(testing::ReadFileBytes(SourcePath("tests/golden/tales_q8_0.json")));
  for (const json& one : golden["tokenizer"]) {
    const std::string text = one["text"];
    EXPECT_EQ(Tales("tokenize", {"--no-bos", "--json", "--", text}).Json()["ids"], one["ids"]) << text;
  }
  EXPECT_EQ(Tales("tokenize", {"--no-bos", "</s> is text"}).out.substr(0, 4), "4011");
  EXPECT_EQ(Tales("tokenize", {"--no-bos", "--parse-special", "</s> is text"}).out.substr(0, 2), "2 ");
  EXPECT_EQ(Tales("tokenize", {"king"}).out.substr(0, 2), "1 ");
}

TEST_F(Output, PlanAddsUpAndNamesTheSmallest) {
  const Outcome text = Tales("plan", {"--memory", "75%", "-c", "256"});
  ExpectDone(text);
  EXPECT_THAT(text.out, HasSubstr("smallest budget that works"));
  EXPECT_THAT(text.out, ::testing::ContainsRegex("(cores|threads) compute"));
  const json plan = Tales("plan", {"--memory", "75%", "-c", "256", "--clients", "2", "--json"}).Json();
  uint64_t sum = 0;
  for (const json& need : plan["needs"]) sum += need["bytes"].get<uint64_t>();
  EXPECT_EQ(sum, plan["total_bytes"]);
  EXPECT_EQ(plan["threads"], plan["cores"]["fast"]);
  EXPECT_LE(sum, plan["budget_bytes"].get<uint64_t>());
  const std::string smallest = std::to_string(plan["smallest_bytes"].get<uint64_t>());
  ExpectDone(Tales("plan", {"--memory", smallest, "-c", "256", "--clients", "2"}));
  testing::ExpectRefused(Tales("plan", {"--memory", "100KiB", "-c", "256", "--clients", "2"}), {smallest, "102400"});
}

TEST_F(Output, PlanOfTwoBudgetsAddsUpAndNamesTheSmallestOfBoth) {
  const auto plan = [&](const std::string& device, const std::string& host, bool as_json) {
    std::vector<std::string> args = {"--device-memory", device, "--host-memory", host, "-c", "256"};
    if (as_json) args.push_back("--json");
    return Tales("plan", args);
  };
  EXPECT_THAT(plan("7MiB", "2MiB", false).out, HasSubstr("and on the host"));
  const json roomy = plan("7MiB", "2MiB", true).Json();
  uint64_t sum = 0;
  for (const json& need : roomy["host"]["needs"]) sum += need["bytes"].get<uint64_t>();
  EXPECT_EQ(sum, roomy["host"]["total_bytes"]);
  EXPECT_LE(sum, uint64_t{2} << 20);
  EXPECT_GT(roomy["host"]["slots"].get<uint64_t>(), 1000u);
  const uint64_t device = roomy["smallest_bytes"], host = roomy["host"]["smallest_bytes"];
  ExpectDone(plan(std::to_string(device), std::to_string(host), false));
  testing::ExpectRefused(plan(std::to_string(device - 1), "2MiB", false), {"device budget", std::to_string(device)});
  testing::ExpectRefused(plan(std::to_string(device), std::to_string(host - 1), false),
                         {"host budget", std::to_string(host)});
}

TEST_F(Output, LogitsAgreeWithTheGoldenOnes) {
  const json golden = json::parse(testing::ReadFileBytes(SourcePath("tests/golden/tales_q8_0.json")));
  for (const json& one : golden["cases"]) {
    std::string ids;
    for (const int id : one["ids"]) ids += fmt::format("{}{}", ids.empty() ? "" : ",", id);
    const Outcome outcome =
        Tales("logits", {"--tokens", ids, "--top", "20", "--memory", "75%", "--store-dir", folder_.path(), "--json"});
    ExpectDone(outcome);
    const json seen = outcome.Json();
    ASSERT_EQ(seen["positions"].size(), one["ids"].size());
    const json& last = seen["positions"].back();
    EXPECT_EQ(last[0]["id"], one["argmax_per_position"].back());
    for (size_t i = 0; i < 20; ++i) {
      EXPECT_NEAR(last[i]["logit"].get<double>(), one["last_top20_logits"][i].get<double>(), 0.2);
    }
  }
}

TEST_F(Output, PerplexityIsPlausibleAndTheSameInBothModes) {
  std::map<std::string, double> seen;
  for (const char* mode : {"exact", "dense"}) {
    const Outcome outcome =
        Tales("perplexity", {"-f", SourcePath("tests/golden/heldout.txt"), "-c", "128", "--windows", "2", "--memory",
                             "75%", "--mode", mode, "--store-dir", folder_.path(), "--json"});
    ExpectDone(outcome);
    const json report = outcome.Json();
    ExpectReport(report);
    seen[mode] = report["perplexity"];
    EXPECT_EQ(report["windows"], 2);
  }
  EXPECT_GT(seen["exact"], 5);
  EXPECT_LT(seen["exact"], 60);
  EXPECT_NEAR(seen["exact"], seen["dense"], 5e-5 * seen["exact"]);
}

TEST_F(Output, BenchMeasures) {
  const Outcome outcome = Tales("bench", {"--prompt", "16", "-n", "8", "-r", "2", "--memory", "75%", "--json",
                                          "--store-dir", folder_.path(), "--report", folder_.Path("r.json")});
  ExpectDone(outcome);
  const json report = outcome.Json();
  ExpectReport(report);
  EXPECT_EQ(report["bench"]["repeats"], 2);
  EXPECT_GT(report["bench"]["decode_tokens_per_second"]["median"].get<double>(), 0);
  EXPECT_EQ(report["decode"]["tokens"], 16);
  ASSERT_EQ(report["bench"]["tests"].size(), 2u);
  EXPECT_EQ(report["bench"]["tests"][0]["test"], "prefill");
  EXPECT_EQ(report["bench"]["tests"][1]["test"], "decode");
  ExpectReport(json::parse(testing::ReadFileBytes(folder_.Path("r.json"))));
}

// A grid of tests, what each has to move, and how that compares to what memory and cores can do.
TEST_F(Output, BenchSaysHowFarFromTheLimitItIs) {
  const Outcome outcome =
      Tales("bench", {"--prompt", "0,16", "-n", "8", "--batch", "1,4", "--depth", "0,24", "--mixed", "-r", "1", "--mode",
                      "dense", "--memory", "200%", "--kv-type", "f32", "--prefill-chunk", "64", "--json", "--store-dir", folder_.path()});
  ExpectDone(outcome);
  const json bench = outcome.Json()["bench"];
  const json tests = bench["tests"];
  ASSERT_EQ(tests.size(), 2u * 5) << "two depths of a prefill, two mixed, two decodes";
  EXPECT_GT(bench["read_bytes_per_second"]["median"].get<double>(), 0);
  for (const json& test : tests) {
    SCOPED_TRACE(test.dump());
    EXPECT_GT(test["tokens_per_second"]["median"].get<double>(), 0);
    EXPECT_GT(test["bound_fraction"].get<double>(), 0);
    EXPECT_GE(test["outside_kernels_fraction"].get<double>(), 0);
    EXPECT_LT(test["outside_kernels_fraction"].get<double>(), 1);
  }
  const auto find = [&](const char* name, int batch, int depth) {
    for (const json& test : tests) {
      if (test["test"] == name && test["batch"] == batch && test["depth"] == depth) return test;
    }
    ADD_FAILURE() << name;
    return json();
  };
  EXPECT_EQ(find("decode", 4, 0)["tokens"], 32);
  EXPECT_EQ(find("prefill", 1, 24)["tokens"], 16);
  EXPECT_EQ(find("mixed", 4, 0)["tokens"], 16 + 4) << "the prompt is one chunk";
  // By hand. A batch reads the weights once: what it moves more is KV, of 8 positions from 1 on for 3 more sequences.
  const Outcome inspected = RunProgram({"inspect", SourcePath(kTales), "--json"});
  const json model = inspected.Json()["metadata"];
  const double heads = model["llama.attention.head_count_kv"], layers = model["llama.block_count"];
  const double head = model["llama.embedding_length"].get<double>() / model["llama.attention.head_count"].get<double>();
  const double token = layers * 2 * heads * head * 4;
  const auto bytes = [&](int batch, int depth) { return find("decode", batch, depth)["bytes"].get<double>(); };
  EXPECT_DOUBLE_EQ(bytes(4, 0) - bytes(1, 0), 3 * token * (2 + 3 + 4 + 5 + 6 + 7 + 8 + 9));
  EXPECT_DOUBLE_EQ(bytes(1, 24) - bytes(1, 0), 8 * 23 * token);
}

TEST_F(Output, BenchRefusesWhatItCannotDo) {
  const auto bench = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"-r", "1", "--store-dir", folder_.path()});
    return Tales("bench", more);
  };
  testing::ExpectRefused(bench({"--prompt", "0", "-n", "0"}), {"nothing to measure"});
  testing::ExpectRefused(bench({"--batch", "0"}), {"--batch", "0"});
  testing::ExpectRefused(bench({"--depth", "1000000"}), {"1000000", "context"});
  testing::ExpectRefused(bench({"--depth", "4294967295"}), {"4294967295", "context"});
  testing::ExpectRefused(bench({"--batch", "64", "--depth", "200", "--memory", "50%"}), {"too small"});
  testing::ExpectMisused(bench({"--prompt", "1,x"}), {"--prompt"});
  testing::ExpectMisused(bench({"--depth", "-1"}), {"--depth"});
}

TEST_F(Output, SpeedsMeasuredWithPacedCopiesSaySo) {
  const std::vector<std::string> tiers = {"--device-memory", "60%", "--host-memory", "2MiB",
                                          "--copy-gbps",     "3",   "--store-dir",   folder_.path()};
  std::vector<std::string> bench = {"--prompt", "4", "-n", "2", "-r", "1"};
  bench.insert(bench.end(), tiers.begin(), tiers.end());
  EXPECT_THAT(Tales("bench", bench).out, HasSubstr("paced to 3 GB/s"));
  std::vector<std::string> perplexity = {"-f", SourcePath("tests/golden/heldout.txt"), "-c", "32", "--windows", "1"};
  perplexity.insert(perplexity.end(), tiers.begin(), tiers.end());
  EXPECT_THAT(Tales("perplexity", perplexity).out, HasSubstr("paced to 3 GB/s"));
}

TEST_F(Output, ChatOfATemplateTalksInTurns) {
  GgufBuilder builder = testing::BuilderOf(testing::kTinyRelu);
  builder.Set("tokenizer.chat_template",
              "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt "
              "%}assistant:{% endif %}");
  builder.Write(folder_.Path("m.gguf"));
  testing::Surroundings surroundings;
  surroundings.stdin_text = "hi\nand then?\n";
  const Outcome turns = RunProgram({"run", "-m", folder_.Path("m.gguf"), "--chat", "-n", "3", "--temp", "0",
                                    "--ignore-eos", "--memory", "64MiB", "--json"},
                                   surroundings);
  ExpectDone(turns);
  EXPECT_EQ(turns.Json()["token_ids"].size(), 6u);
  EXPECT_GT(turns.Json()["prefill"]["tokens"].get<int>(), 20);
}

// Bar 3 through the command line: the same bits at every budget, thread count and kind of I/O.
TEST_F(Output, LogitsHashIsTheSameEverywhere) {
  const auto hash = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"-n", "32", "--ignore-eos", "-c", "64", "--json"};
    args.insert(args.end(), more.begin(), more.end());
    const Outcome outcome = Run(args);
    ExpectDone(outcome);
    return outcome.Json()["logits_hash"].get<std::string>();
  };
  const std::string expected = hash({"--memory", "100%"});
  EXPECT_EQ(expected.size(), 16u);
  // The prompt's 10 tokens and the 32 generated ones are what the smallest budget has to hold.
  const Outcome refused = Run({"-n", "32", "-c", "64", "--memory", "64KiB"});
  const size_t at = refused.err.find("(", refused.err.find("smallest"));
  ASSERT_NE(at, std::string::npos) << refused.err;
  const std::string smallest = std::to_string(std::stoull(refused.err.substr(at + 1)));
  for (const std::string& memory : {std::string("100%"), std::string("75%"), smallest}) {
    for (const char* threads : {"1", "2"}) {
      for (const char* io : {"uring", "pread"}) {
        SCOPED_TRACE(fmt::format("{}, {} threads, {}", memory, threads, io));
        // The smallest budget depends on the number of threads; one thread needs no more than two.
        EXPECT_EQ(hash({"--memory", memory, "--threads", threads, "--io", io}), expected);
      }
    }
  }
}

}  // namespace
}  // namespace elasticmem
