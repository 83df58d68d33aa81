// `elasticmem logits` and `perplexity`: for checking against other engines.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <numeric>

#include <nlohmann/json.hpp>

#include "base/stopwatch.h"
#include "base/units.h"
#include "runtime/engine/report.h"
#include "runtime/engine/sampler.h"
#include "tools/session.h"

namespace elasticmem {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

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
  report.prefill = {count, SecondsSince(start)};
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

}  // namespace elasticmem
