// `elasticmem logits`, `perplexity` and `bench`: for checking against other engines, and for speed.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <numeric>

#include <nlohmann/json.hpp>

#include "base/units.h"
#include "runtime/engine/report.h"
#include "runtime/engine/sampler.h"
#include "tools/session.h"

namespace elasticmem {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point since) { return std::chrono::duration<double>(Clock::now() - since).count(); }

// Positions whose logits are computed at once where all are wanted.
constexpr uint32_t kLogitsRows = 16;

StatusOr<std::vector<TokenId>> ParseIds(const std::string& text) {
  std::vector<TokenId> ids;
  size_t at = 0;
  while (at <= text.size()) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, comma - at);
    TokenId id = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), id);
    if (error != std::errc() || end != part.data() + part.size()) {
      return InvalidInput("--tokens: \"{}\" is not a token id; expected numbers separated by commas", part);
    }
    ids.push_back(id);
    at = comma + 1;
  }
  return ids;
}

std::vector<TokenId> TopIds(std::span<const float> logits, size_t k) {
  std::vector<TokenId> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  k = std::min(k, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + k, ids.end(),
                    [&](TokenId a, TokenId b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  ids.resize(k);
  return ids;
}

// -log p of `target`, in double.
double NegativeLogLikelihood(std::span<const float> logits, TokenId target) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  return std::log(sum) + top - logits[target];
}

struct Spread {
  double median = 0, low = 0, high = 0;
};
Spread SpreadOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return {n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2, values.front(), values.back()};
}

// What a speed was measured on, where that is made up.
std::string OnDevice(const Report& report) {
  return report.device.empty() ? "" : fmt::format(" with a device that is {}", report.device);
}

Status CheckInterrupted() {
  return interrupted.load() ? Error(StatusCode::kCancelled, "interrupted") : absl::OkStatus();
}

}  // namespace

Status LogitsCommand(const Settings& settings) {
  EM_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, OpenModel(settings));
  EM_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, ParseIds(settings.tokens));
  const uint32_t context = settings.context > 0 ? settings.context : model->spec().context;
  if (ids.size() > context) return InvalidInput("{} tokens do not fit a context of {}", ids.size(), context);
  EM_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                      OpenEngine(settings, *model, static_cast<uint32_t>(ids.size()), kLogitsRows));
  const SequenceId sequence = engine->NewSequence();
  Json json = {{"tokens", ids}, {"positions", Json::array()}};
  std::string text;
  LogitsHash hash;
  EM_RETURN_IF_ERROR(engine->AppendEach(sequence, ids, [&](uint32_t position, std::span<const float> logits) {
    hash.Add(logits);
    Json top = Json::array();
    text += fmt::format("position {} (token {})\n", position, ids[position]);
    for (const TokenId id : TopIds(logits, settings.top)) {
      const std::string piece = static_cast<size_t>(id) < model->tokenizer().vocab_size()
                                    ? std::string(model->tokenizer().Piece(id)) : "";
      top.push_back({{"id", id}, {"logit", logits[id]}, {"piece", piece}});
      text += fmt::format("  {:>8}  {:>10.5f}  {}\n", id, logits[id], piece);
    }
    json["positions"].push_back(top);
  }));
  engine->EndSequence(sequence);
  json["logits_hash"] = fmt::format("{:016x}", hash.value());
  std::printf("%s\n", settings.json ? json.dump(2, ' ', false, Json::error_handler_t::replace).c_str() : text.c_str());
  return absl::OkStatus();
}

// Windows of the context's length, one after another. With a BOS token a window is BOS and all but the last of its tokens,
// predicting all of them; without one the first is not predicted.
Status PerplexityCommand(const Settings& settings) {
  if (settings.file.empty()) return InvalidInput("no text: pass -f FILE");
  EM_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, OpenModel(settings));
  EM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(settings.file));
  const std::vector<TokenId> ids = model->tokenizer().Encode(text, {/*add_special=*/false, settings.parse_special});
  const uint32_t window = std::min<uint32_t>(settings.context > 0 ? settings.context : model->spec().context, 2048);
  if (window < 2) return InvalidInput("--context is {}; a window needs at least 2 tokens", window);
  if (ids.size() < window) {
    return InvalidInput("{} has {} tokens; a window of {} needs at least as many (--context sets its length)", settings.file,
                        ids.size(), window);
  }
  size_t windows = ids.size() / window;
  if (settings.windows > 0) windows = std::min<size_t>(windows, settings.windows);
  EM_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, OpenEngine(settings, *model, window, kLogitsRows));
  const bool with_bos = model->tokenizer().adds_bos() && model->tokenizer().bos();
  double sum = 0, square = 0;
  uint64_t count = 0;
  ProgressBar bar;
  const Clock::time_point start = Clock::now();
  for (size_t w = 0; w < windows; ++w) {
    EM_RETURN_IF_ERROR(CheckInterrupted());
    const std::span<const TokenId> targets = std::span(ids).subspan(w * window, window);
    std::vector<TokenId> input;
    if (with_bos) input.push_back(*model->tokenizer().bos());
    input.insert(input.end(), targets.begin(), targets.end() - 1);
    const SequenceId sequence = engine->NewSequence();
    EM_RETURN_IF_ERROR(engine->AppendEach(sequence, input, [&](uint32_t position, std::span<const float> logits) {
      const double nll = NegativeLogLikelihood(logits, targets[with_bos ? position : position + 1]);
      sum += nll;
      square += nll * nll;
      ++count;
    }));
    engine->EndSequence(sequence);
    bar.Update("perplexity", w + 1, windows);
  }
  bar.Clear();
  const double mean = sum / count;
  const double error = std::sqrt(std::max(0.0, square / count - mean * mean) / count);
  Report report = Report::FromEngine(*engine, ThreadCount(settings));
  report.prefill = {count, Seconds(start)};
  if (settings.json) {
    Json json = Json::parse(report.ToJson());
    json["perplexity"] = std::exp(mean);
    json["nll"] = mean;
    json["nll_error"] = error;
    json["windows"] = windows;
    json["window"] = window;
    std::printf("%s\n", json.dump(2).c_str());
  } else {
    std::printf("perplexity %.4f +- %.4f (nll %.6f), %zu windows of %u tokens, %.1f tokens/s%s\n", std::exp(mean),
                std::exp(mean) * error, mean, windows, window, report.prefill.tokens_per_second(),
                OnDevice(report).c_str());
  }
  if (!settings.report.empty()) EM_RETURN_IF_ERROR(WriteTextFile(settings.report, report.ToJson() + "\n"));
  return absl::OkStatus();
}

// Prompts of pseudo-random tokens; the first repetition warms up and does not count where there are more.
Status BenchCommand(const Settings& settings) {
  EM_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, OpenModel(settings));
  const uint32_t prompt = std::max<uint32_t>(1, settings.bench_prompt);
  const uint32_t generate = settings.generate;
  const uint32_t context = settings.context > 0 ? settings.context : model->spec().context;
  if (uint64_t{prompt} + generate > context) {
    return InvalidInput("--prompt {} and --generate {} do not fit a context of {}", prompt, generate, context);
  }
  if (settings.repeat == 0) return InvalidInput("--repeat is 0; expected 1 or more");
  EM_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, OpenEngine(settings, *model, prompt + generate, 1));
  std::vector<double> prefill, decode, first;
  LogitsHash hash;
  Throughput all_prefill, all_decode;
  for (uint32_t r = 0; r <= settings.repeat; ++r) {
    uint64_t state = settings.seed + 1;
    std::vector<TokenId> ids(prompt);
    for (TokenId& id : ids) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      id = static_cast<TokenId>((state >> 33) % model->spec().vocab);
    }
    const SequenceId sequence = engine->NewSequence();
    const Clock::time_point start = Clock::now();
    EM_ASSIGN_OR_RETURN(std::span<const float> logits, engine->Append(sequence, ids));
    const double prefill_seconds = Seconds(start);
    const Clock::time_point decode_start = Clock::now();
    for (uint32_t n = 0; n < generate; ++n) {
      EM_RETURN_IF_ERROR(CheckInterrupted());
      const TokenId id = ArgMax(logits);
      EM_ASSIGN_OR_RETURN(logits, engine->Append(sequence, {&id, 1}));
      if (r == settings.repeat) hash.Add(logits);
    }
    const double decode_seconds = Seconds(decode_start);
    engine->EndSequence(sequence);
    if (r == 0) continue;
    prefill.push_back(prompt / prefill_seconds);
    if (generate > 0) decode.push_back(generate / decode_seconds);
    first.push_back(prefill_seconds);
    all_prefill.tokens += prompt;
    all_prefill.seconds += prefill_seconds;
    all_decode.tokens += generate;
    all_decode.seconds += decode_seconds;
  }
  Report report = Report::FromEngine(*engine, ThreadCount(settings));
  report.prefill = all_prefill;
  report.decode = all_decode;
  report.ttft_seconds = SpreadOf(first).median;
  report.logits_hash = hash.value();
  const Spread p = SpreadOf(prefill);
  const Spread d = decode.empty() ? Spread() : SpreadOf(decode);
  if (settings.json) {
    Json json = Json::parse(report.ToJson());
    const auto spread = [](const Spread& s) { return Json{{"median", s.median}, {"low", s.low}, {"high", s.high}}; };
    json["bench"] = {{"repeats", settings.repeat}, {"prefill_tokens_per_second", spread(p)}, {"decode_tokens_per_second", spread(d)}};
    std::printf("%s\n", json.dump(2).c_str());
  } else {
    const auto row = [](const std::string& name, const Spread& s) -> std::vector<std::string> {
      return {name, fmt::format("{:.2f}", s.median), fmt::format("{:.2f}", s.low), fmt::format("{:.2f}", s.high)};
    };
    std::printf("%s", FormatTable({{"tokens/s", "median", "low", "high"},
                                   row(fmt::format("prefill {}", prompt), p),
                                   row(fmt::format("decode {}", generate), d)}).c_str());
    if (!report.device.empty()) std::printf("  measured%s\n", OnDevice(report).c_str());
    std::fprintf(stderr, "\n%s", report.ToTable().c_str());
  }
  if (!settings.report.empty()) EM_RETURN_IF_ERROR(WriteTextFile(settings.report, report.ToJson() + "\n"));
  return absl::OkStatus();
}

}  // namespace elasticmem
