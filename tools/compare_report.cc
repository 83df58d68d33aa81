#include "tools/compare_report.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/units.h"
#include "tools/json_null.h"
#include "tools/spread.h"

namespace elasticmem {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// Of what `of` says of each cold, or each warm, run that did its work; not a number where there is none.
Spread SpreadOf(const CompareCell& cell, bool cold, double (*of)(const CompareSample&)) {
  std::vector<double> values;
  for (const CompareSample& sample : cell.samples) {
    if (sample.cold == cold && sample.figures) values.push_back(of(sample));
  }
  return values.empty() ? Spread{kNone, kNone, kNone} : elasticmem::SpreadOf(std::move(values));
}

double Decode(const CompareSample& s) { return s.figures->decode_tokens_per_second; }
double Prefill(const CompareSample& s) { return s.figures->prefill_tokens_per_second; }
double FirstToken(const CompareSample& s) { return s.figures->first_token_seconds; }
double ReadGigabytes(const CompareSample& s) { return static_cast<double>(s.read_bytes) * 1e-9; }
double PeakMegabytes(const CompareSample& s) { return static_cast<double>(s.peak_bytes) * 1e-6; }

std::string Cell(const Spread& spread, int digits = 2) {
  if (std::isnan(spread.median)) return "-";
  const std::string median = fmt::format("{:.{}f}", spread.median, digits);
  if (spread.low == spread.high) return median;
  return fmt::format("{} ({:.{}f}-{:.{}f})", median, spread.low, digits, spread.high, digits);
}

// The first that went wrong among the cold, or the warm, runs.
std::string ProblemOf(const CompareCell& cell, bool cold) {
  for (const CompareSample& sample : cell.samples) {
    if (sample.cold == cold && !sample.problem.empty()) return sample.problem;
  }
  return "";
}

// Of the first engine's decode speed, under the same limit.
std::string Ratio(const Comparison& comparison, const CompareCell& cell) {
  const CompareCell& first = comparison.cells[cell.limit * comparison.config.engines.size()];
  const double ratio = SpreadOf(first, false, Decode).median / SpreadOf(cell, false, Decode).median;
  return std::isnan(ratio) ? "-" : fmt::format("{:.2f} x", ratio);
}

std::string PlainName(const Comparison& comparison) {
  return std::filesystem::path(comparison.config.plain).filename();
}

std::string Joined(const std::vector<std::string>& argv) {
  std::string line;
  for (const std::string& argument : argv) {
    const bool plain = !argument.empty() && argument.find_first_of(" \t\n'\"\\$*?`") == std::string::npos;
    line += (line.empty() ? "" : " ") + (plain ? argument : "'" + argument + "'");
  }
  return line;
}

Json SampleJson(const CompareSample& s) {
  Json json = {{"cache", s.cold ? "cold" : "warm"},
               {"problem", OrNull(s.problem)},
               {"seconds", s.seconds},
               {"read_bytes", s.read_bytes},
               {"peak_bytes", s.peak_bytes}};
  if (!s.last_words.empty()) json["last_words"] = s.last_words;
  if (!s.figures) return json;
  json["prompt_tokens"] = s.figures->prompt_tokens;
  json["generated_tokens"] = s.figures->generated_tokens;
  json["prefill_tokens_per_second"] = s.figures->prefill_tokens_per_second;
  json["decode_tokens_per_second"] = s.figures->decode_tokens_per_second;
  json["first_token_seconds"] = s.figures->first_token_seconds;
  json["text"] = s.figures->text;
  if (s.same_bytes) json["same_bytes_as_first_engine"] = *s.same_bytes;
  return json;
}

}  // namespace

std::string CompareJson(const Comparison& c) {
  Json engines = Json::array();
  for (size_t i = 0; i < c.facts.size(); ++i) {
    const CompareEngine& engine = c.config.engines[i];
    const EngineFacts& facts = c.facts[i];
    engines.push_back({{"name", engine.name},
                       {"kind", NameOf(engine.kind)},
                       {"version", facts.version},
                       {"binary", engine.binary},
                       {"absent", OrNull(facts.absent)},
                       {"model", engine.model},
                       {"model_bytes", facts.model_bytes},
                       {"conversion", OrNull(engine.conversion)},
                       {"device", facts.device},
                       {"read_ahead_bytes", OrNull(facts.read_ahead_bytes)}});
  }
  Json cells = Json::array();
  for (const CompareCell& cell : c.cells) {
    const std::optional<uint64_t> limit = c.config.LimitBytes(c.config.limits[cell.limit]);
    Json samples = Json::array();
    for (const CompareSample& sample : cell.samples) samples.push_back(SampleJson(sample));
    cells.push_back({{"engine", c.config.engines[cell.engine].name},
                     {"limit", c.config.limits[cell.limit].label},
                     {"limit_bytes", OrNull(limit)},
                     {"budget_bytes", OrNull(cell.budget_bytes)},
                     {"argv", cell.argv},
                     {"samples", samples}});
  }
  const Json json = {
      {"compare", c.config.plain},
      {"date", c.date},
      {"machine", {{"cpu", c.cpu}, {"cores", c.cores}, {"memory_bytes", c.memory_bytes}, {"kernel", c.kernel}}},
      {"limits_by", OrNull(c.groups)},
      {"limits_unset", OrNull(c.limits_unset)},
      {"left_in_page_cache", OrNull(c.cache_note)},
      {"plain_bytes", c.config.plain_bytes},
      {"threads", c.config.threads},
      {"context", c.config.context},
      {"generate", c.config.generate},
      {"repeat", c.config.repeat},
      {"seed", c.config.seed},
      {"prompt", c.config.prompt},
      {"engines", engines},
      {"cells", cells}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::string CompareMarkdown(const Comparison& c) {
  std::string text = fmt::format(
      "{}, {} cores, {} of memory, {}; {}. The same prompt, {} tokens generated greedily, {} threads, context {}; "
      "{} of each, in turns, medians (lowest-highest).\n",
      c.cpu, c.cores, FormatBytes(c.memory_bytes), c.kernel, c.date, c.config.generate, c.config.threads,
      c.config.context, c.config.repeat == 1 ? "one" : std::to_string(c.config.repeat));
  text += fmt::format("Limits are shares of {} ({} bytes){}.\n", PlainName(c), c.config.plain_bytes,
                      c.groups.empty() ? "" : ", set by " + c.groups + ", page cache included");
  if (!c.limits_unset.empty()) text += fmt::format("Memory limits could not be set: {}.\n", c.limits_unset);
  if (!c.cache_note.empty()) text += fmt::format("Not quite cold: {} stayed in the page cache.\n", c.cache_note);
  text += fmt::format(
      "\n| limit | engine | decode, tokens/s: warm | cold | {} is, warm | prefill, warm | first token, s: "
      "warm | cold | read, GB: warm | cold | peak, MB |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
      c.config.engines[0].name);
  for (const CompareCell& cell : c.cells) {
    const std::string& limit = c.config.limits[cell.limit].label;
    const std::string& name = c.config.engines[cell.engine].name;
    if (cell.samples.empty()) continue;
    const std::string warm = ProblemOf(cell, false), cold = ProblemOf(cell, true);
    const auto speed = [&](bool is_cold, const std::string& problem) {
      return problem.empty() ? Cell(SpreadOf(cell, is_cold, Decode)) : problem;
    };
    text += fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", limit, name, speed(false, warm),
                        speed(true, cold), Ratio(c, cell), Cell(SpreadOf(cell, false, Prefill), 1),
                        Cell(SpreadOf(cell, false, FirstToken)), Cell(SpreadOf(cell, true, FirstToken)),
                        Cell(SpreadOf(cell, false, ReadGigabytes)), Cell(SpreadOf(cell, true, ReadGigabytes)),
                        Cell(SpreadOf(cell, false, PeakMegabytes), 0));
  }
  text += "\n| engine | version | model | made of the plain file by | disk, read-ahead |\n|---|---|---|---|---|\n";
  for (size_t i = 0; i < c.facts.size(); ++i) {
    const CompareEngine& engine = c.config.engines[i];
    const EngineFacts& facts = c.facts[i];
    text += fmt::format("| {} | {} | {} | {} | {}, {} |\n", engine.name,
                        facts.absent.empty() ? facts.version : "absent: " + facts.absent,
                        FormatBytes(facts.model_bytes), engine.conversion.empty() ? "it is that" : engine.conversion,
                        facts.device, facts.read_ahead_bytes ? FormatBytes(*facts.read_ahead_bytes) : "unknown");
  }
  text += fmt::format(
      "\nelasticmem's `--memory` is the limit less {} for code, stacks and libraries. Bytes read are the "
      "process's, from disks. A cold run's files were dropped from the page cache; a warm run follows a "
      "cold one in the same group.\n\n```\n",
      FormatBytes(kProcessAllowance));
  for (const CompareCell& cell : c.cells) {
    if (!cell.argv.empty()) text += fmt::format("{:>5}  {}\n", c.config.limits[cell.limit].label, Joined(cell.argv));
  }
  return text + "```\n";
}

Plot ComparePlot(const Comparison& c) {
  static constexpr const char* kColours[] = {"#0f8a5f", "#b5392f", "#4a7fb0", "#d98a3d", "#8a6bb1", "#24292f"};
  Plot plot;
  plot.title = "The same work in less and less memory";
  plot.subtitle = fmt::format("{} · {} threads, {} tokens generated · {}", PlainName(c), c.config.threads,
                              c.config.generate, c.cpu);
  const auto panel = [&](const char* title, const char* unit, double (*of)(const CompareSample&)) {
    PlotPanel panel;
    panel.title = title;
    panel.x_label = "memory limit, % of the plain file";
    panel.y_label = unit;
    panel.log_y = true;
    for (size_t i = 0; i < c.config.limits.size(); ++i) {
      panel.x_ticks.push_back({static_cast<double>(i), c.config.limits[i].label});
    }
    for (size_t engine = c.config.engines.size(); engine-- > 0;) {
      for (const bool cold : {true, false}) {
        PlotLine line{c.config.engines[engine].name + (cold ? ", cold" : ", warm"),
                      kColours[engine % std::size(kColours)],
                      "",
                      {},
                      {},
                      engine == 0 ? 2.8 : 1.8,
                      cold,
                      true};
        for (const CompareCell& cell : c.cells) {
          if (cell.engine != engine) continue;
          line.x.push_back(static_cast<double>(cell.limit));
          line.y.push_back(SpreadOf(cell, cold, of).median);
        }
        const bool any = std::any_of(line.y.begin(), line.y.end(), [](double y) { return y > 0; });
        if (any) panel.lines.push_back(std::move(line));
      }
    }
    plot.panels.push_back(std::move(panel));
  };
  panel("Decode", "tokens/s", Decode);
  panel("Time to the first token, loading included", "s", FirstToken);
  panel("Read from disk", "GB", ReadGigabytes);
  return plot;
}

}  // namespace elasticmem
