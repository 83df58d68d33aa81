// `elasticmem bench`: speed, and how far it is from what memory and cores allow.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "runtime/engine/report.h"
#include "tools/bench_run.h"
#include "tools/session.h"

namespace elasticmem {
namespace {

using Json = nlohmann::ordered_json;
using Kind = BenchTest::Kind;

std::vector<uint32_t> Or(const std::vector<uint32_t>& values, uint32_t otherwise) {
  return values.empty() ? std::vector<uint32_t>{otherwise} : values;
}

StatusOr<std::vector<BenchTest>> TestsOf(const Settings& settings, uint32_t context) {
  std::vector<BenchTest> tests;
  for (const uint32_t depth : Or(settings.bench_depths, 0)) {
    const std::vector<uint32_t> batches = Or(settings.bench_batches, 1);
    for (const uint32_t prompt : Or(settings.bench_prompts, 128)) {
      if (prompt == 0) continue;
      tests.push_back({Kind::kPrefill, prompt, 0, 1, depth});
      for (const uint32_t batch : batches) {
        if (settings.bench_mixed) tests.push_back({Kind::kMixed, prompt, 0, batch, depth});
      }
    }
    for (const uint32_t batch : batches) {
      if (batch == 0 || batch > 1024) return InvalidInput("--batch has {}; expected 1 to 1024", batch);
      for (const uint32_t generate : Or(settings.bench_generates, 64)) {
        if (generate > 0) tests.push_back({Kind::kDecode, 0, generate, batch, depth});
      }
    }
  }
  if (tests.empty()) return InvalidInput("--prompt and --generate are 0: there is nothing to measure");
  for (const BenchTest& test : tests) {
    if (test.longest() > context) {
      return InvalidInput("{} after {} tokens does not fit a context of {} (--context)", test.Name(), test.depth,
                          context);
    }
  }
  return tests;
}

Json ToJson(const Spread& spread) { return {{"median", spread.median}, {"low", spread.low}, {"high", spread.high}}; }

Spread SpeedOf(const BenchResult& result) { return SpreadOf(result, &BenchSample::tokens_per_second); }

Json ToJson(const BenchResult& result, int threads) {
  static constexpr const char* kNames[] = {"prefill", "decode", "mixed"};
  const BenchSample& last = result.samples.back();
  return {{"test", kNames[static_cast<int>(result.test.kind)]},
          {"prompt", result.test.prompt},
          {"generate", result.test.generate},
          {"batch", result.test.batch},
          {"depth", result.test.depth},
          {"tokens", last.tokens},
          {"tokens_per_second", ToJson(SpeedOf(result))},
          {"bytes", last.bytes},
          {"multiply_adds", last.multiply_adds},
          {"bytes_per_second", SpreadOf(result, &BenchSample::bytes_per_second).median},
          {"read_bytes_per_second", ToJson(SpreadOf(result.read_rates))},
          {"hot_multiply_adds_per_second", ToJson(SpreadOf(result.multiply_rates))},
          {"bound_fraction", BoundShare(result)},
          {"outside_kernels_fraction", OutsideKernels(result, threads)},
          {"logits_hash", fmt::format("{:016x}", result.logits_hash)}};
}

std::string Table(const std::vector<BenchResult>& results, int threads) {
  std::vector<std::vector<std::string>> table = {
      {"test", "batch", "depth", "tokens/s", "low", "high", "GB/s", "GFLOP/s", "of bound", "outside kernels"}};
  for (const BenchResult& result : results) {
    const Spread speed = SpeedOf(result);
    const double flops = 2e-9 * SpreadOf(result, &BenchSample::multiply_adds_per_second).median;
    const double bound = BoundShare(result);
    table.push_back({result.test.Name(), std::to_string(result.test.batch), std::to_string(result.test.depth),
                     fmt::format("{:.2f}", speed.median), fmt::format("{:.2f}", speed.low),
                     fmt::format("{:.2f}", speed.high),
                     fmt::format("{:.2f}", SpreadOf(result, &BenchSample::bytes_per_second).median * 1e-9),
                     fmt::format("{:.1f}", flops), bound > 0 ? fmt::format("{:.0f} %", bound * 100) : "-",
                     fmt::format("{:.1f} %", OutsideKernels(result, threads) * 100)});
  }
  return FormatTable(table);
}

// Reading memory, over all repetitions.
Spread ReadRate(const std::vector<BenchResult>& results) {
  std::vector<double> rates;
  for (const BenchResult& result : results) {
    rates.insert(rates.end(), result.read_rates.begin(), result.read_rates.end());
  }
  return SpreadOf(std::move(rates));
}

}  // namespace

Status BenchCommand(const Settings& settings) {
  EM_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, OpenModel(settings));
  if (settings.repeat == 0) return InvalidInput("--repeat is 0; expected 1 or more");
  EM_ASSIGN_OR_RETURN(const std::vector<BenchTest> tests,
                      TestsOf(settings, settings.context > 0 ? settings.context : model->spec().context));
  uint32_t longest = 0, sequences = 0;
  for (const BenchTest& test : tests) {
    longest = std::max(longest, static_cast<uint32_t>(test.longest()));
    sequences = std::max(sequences, test.sequences());
  }
  EM_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                      OpenEngine(settings, *model, longest, sequences, sequences));
  engine->MeasureKernels();
  std::vector<BenchResult> results;
  Throughput all_prefill, all_decode;
  double first_token = 0;
  uint64_t hash = 0;
  ProgressBar bar;
  uint64_t done = 0;
  const uint64_t runs = tests.size() * (settings.repeat + uint64_t{1});
  for (const BenchTest& test : tests) {
    bar.Update(fmt::format("measuring ({})", test.Name()), done, runs, "runs");
    EM_ASSIGN_OR_RETURN(BenchResult result, RunBenchTest(*engine, test, settings.repeat, settings.seed, [&] {
                          bar.Update(fmt::format("measuring ({})", test.Name()), ++done, runs, "runs");
                        }));
    if (test.kind != Kind::kMixed) {
      Throughput& all = test.kind == Kind::kPrefill ? all_prefill : all_decode;
      for (const BenchSample& sample : result.samples) {
        all.tokens += sample.tokens;
        all.seconds += sample.seconds;
      }
    }
    if (test.kind == Kind::kPrefill && first_token == 0) first_token = test.prompt / SpeedOf(result).median;
    if (test.kind == Kind::kDecode) hash = result.logits_hash;
    results.push_back(std::move(result));
  }
  bar.Clear();
  Report report = Report::FromEngine(*engine, ThreadCount(settings));
  report.prefill = all_prefill;
  report.decode = all_decode;
  report.ttft_seconds = first_token;
  report.logits_hash = hash;
  if (settings.json) {
    Json json = Json::parse(report.ToJson());
    Json rows = Json::array();
    for (const BenchResult& result : results) rows.push_back(ToJson(result, report.threads));
    json["bench"] = {
        {"repeats", settings.repeat}, {"read_bytes_per_second", ToJson(ReadRate(results))}, {"tests", rows}};
    // Of the first test of each kind, for who measures one of each.
    for (const auto& [kind, key] : {std::pair(Kind::kPrefill, "prefill_tokens_per_second"),
                                    std::pair(Kind::kDecode, "decode_tokens_per_second")}) {
      const auto first = std::find_if(results.begin(), results.end(),
                                      [&](const BenchResult& result) { return result.test.kind == kind; });
      if (first != results.end()) json["bench"][key] = ToJson(SpeedOf(*first));
    }
    std::printf("%s\n", json.dump(2).c_str());
  } else {
    std::printf("%s", Table(results, report.threads).c_str());
    const Spread read = ReadRate(results);
    if (read.median > 0) {
      std::printf("  reading the dense weights alone: %.2f GB/s (%.2f to %.2f)\n", read.median * 1e-9, read.low * 1e-9,
                  read.high * 1e-9);
    }
    if (!report.device.empty()) std::printf("  measured with a device that is %s\n", report.device.c_str());
    std::fprintf(stderr, "\n%s", report.ToTable().c_str());
  }
  if (!settings.report.empty()) EM_RETURN_IF_ERROR(WriteTextFile(settings.report, report.ToJson() + "\n"));
  return absl::OkStatus();
}

}  // namespace elasticmem
