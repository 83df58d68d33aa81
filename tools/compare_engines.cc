#include "tools/compare_engines.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

namespace elasticmem {
namespace {

using Json = nlohmann::json;

// "<who>: <what> = 12.5 ms / 7 runs (...": as every engine of llama.cpp's family reports, whoever says it. Runs do not
// count the first token, which came of the prompt; tokens do, though their time begins with it.
struct TimingLine {
  double milliseconds = 0;
  uint64_t count = 0;
  bool runs = false;
};
StatusOr<TimingLine> FindTiming(const std::string& err, std::string_view what) {
  std::istringstream lines(err);
  for (std::string line; std::getline(lines, line);) {
    const size_t who = line.find(':');
    const size_t name = who == std::string::npos ? who : line.find_first_not_of(' ', who + 1);
    if (name == std::string::npos || std::string_view(line).substr(name, what.size()) != what) continue;
    TimingLine timing;
    char unit[8] = "";
    const char* values = line.c_str() + name + what.size();
    if (std::sscanf(values, " = %lf ms / %lu %7[a-z]", &timing.milliseconds, &timing.count, unit) < 2) continue;
    timing.runs = std::string_view(unit) == "runs";
    return timing;
  }
  return InvalidInput("no line \"...: {} = N ms / N ...\" on stderr", what);
}

// What follows the prompt in an output that begins with an echo of it, in which spaces may look different.
std::string WithoutEcho(const std::string& out, const std::string& prompt) {
  size_t at = 0;
  for (const char c : prompt) {
    if (std::isspace(static_cast<unsigned char>(c))) continue;
    at = out.find(c, at);
    if (at == std::string::npos) return out;
    ++at;
  }
  return out.substr(at);
}

// Old programs of llama.cpp's family cannot keep the prompt to themselves.
bool EchoesPrompt(EngineKind kind) { return kind == EngineKind::kPowerInfer; }

StatusOr<EngineFigures> ReadReport(const std::string& report) {
  const Json json = Json::parse(report, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return InvalidInput("its report is not JSON");
  EngineFigures figures;
  try {
    figures.prompt_tokens = json.at("prefill").at("tokens");
    figures.prefill_tokens_per_second = json.at("prefill").at("tokens_per_second");
    figures.generated_tokens = json.at("token_ids").size();
    figures.decode_tokens_per_second = json.at("decode").at("tokens_per_second");
  } catch (const Json::exception& error) {
    return InvalidInput("its report: {}", error.what());
  }
  return figures;
}

// The last character may be cut: the text ends where the tokens do.
bool IsUtf8(const std::string& text) {
  for (size_t cut = 0; cut <= std::min<size_t>(3, text.size()); ++cut) {
    try {
      (void)Json(text.substr(0, text.size() - cut)).dump();  // the library's serialiser is strict
      return true;
    } catch (const Json::exception&) {
    }
  }
  return false;
}

}  // namespace

std::vector<std::string> ArgumentsFor(const CompareConfig& config, const CompareEngine& engine,
                                      std::optional<uint64_t> budget_bytes, const std::string& report) {
  std::vector<std::string> argv = {engine.binary};
  const auto add = [&](std::initializer_list<std::string> more) { argv.insert(argv.end(), more); };
  const bool own = engine.kind == EngineKind::kElasticMem;
  if (own) add({"run"});
  add({"-m", engine.model, "-p", config.prompt, "-n", std::to_string(config.generate), "-t",
       std::to_string(config.threads), "-c", std::to_string(config.context), "--temp", "0", "--seed",
       std::to_string(config.seed), "--ignore-eos"});
  if (own) {
    add({"--report", report});
    if (!engine.mode.empty()) add({"--mode", engine.mode});
    if (budget_bytes) add({"--memory", std::to_string(*budget_bytes)});
  } else if (!EchoesPrompt(engine.kind)) {
    add({"--no-display-prompt", "--no-warmup"});
  }
  if (engine.kind == EngineKind::kLlamaCpp) add({"-no-cnv"});
  if (!own) add({"--repeat-penalty", "1"});
  argv.insert(argv.end(), engine.args.begin(), engine.args.end());
  return argv;
}

StatusOr<EngineFigures> ReadFigures(const CompareConfig& config, const CompareEngine& engine, const ChildResult& result,
                                    const std::string& report) {
  if (!result.first_output_seconds) return InvalidInput("it printed nothing on stdout");
  EngineFigures figures;
  if (engine.kind == EngineKind::kElasticMem) {
    EM_ASSIGN_OR_RETURN(figures, ReadReport(report));
    figures.text = result.out;
    figures.first_token_seconds = *result.first_output_seconds;
    return figures;
  }
  EM_ASSIGN_OR_RETURN(const TimingLine prompt, FindTiming(result.err, "prompt eval time"));
  EM_ASSIGN_OR_RETURN(const TimingLine eval, FindTiming(result.err, "eval time"));
  figures.prompt_tokens = prompt.count;
  const uint64_t decoded = eval.runs || eval.count == 0 ? eval.count : eval.count - 1;
  figures.generated_tokens = decoded + 1;
  if (prompt.milliseconds > 0) {
    figures.prefill_tokens_per_second = static_cast<double>(prompt.count) / prompt.milliseconds * 1000;
  }
  if (eval.milliseconds > 0) {
    figures.decode_tokens_per_second = static_cast<double>(decoded) / eval.milliseconds * 1000;
  }
  const bool echo = EchoesPrompt(engine.kind);
  figures.text = echo ? WithoutEcho(result.out, config.prompt) : result.out;
  // An echo is printed just before the prompt is evaluated.
  figures.first_token_seconds = *result.first_output_seconds + (echo ? prompt.milliseconds / 1000 : 0);
  return figures;
}

std::optional<std::string> WhatIsWrongWith(const EngineFigures& figures, uint32_t asked_tokens) {
  if (figures.generated_tokens < asked_tokens) {
    return fmt::format("{} tokens of {}", figures.generated_tokens, asked_tokens);
  }
  if (!IsUtf8(figures.text)) return "text that is not UTF-8";
  std::string seen;
  for (const char c : figures.text) {
    if (!std::isspace(static_cast<unsigned char>(c)) && seen.find(c) == std::string::npos) seen += c;
  }
  if (seen.empty()) return "no text";
  if (seen.size() == 1) return fmt::format("a text of \"{}\" alone", seen);
  return std::nullopt;
}

}  // namespace elasticmem
