#include "tools/growth_report.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/units.h"
#include "tools/console.h"
#include "tools/json_null.h"

namespace elasticmem {
namespace {

using Json = nlohmann::ordered_json;

struct OwnerLook {
  BlockOwner owner;
  const char* label;
  const char* colour;
};
// From the bottom of the stack.
constexpr OwnerLook kOwners[] = {{BlockOwner::kKv, "KV cache", "#d1603d"},
                                 {BlockOwner::kCached, "cached KV", "#f2b880"},
                                 {BlockOwner::kNeuron, "neurons", "#4a7fb0"},
                                 {BlockOwner::kFree, "free", "#dfe3e8"}};
static_assert(std::size(kOwners) == kBlockOwners);

double Gigabytes(uint64_t bytes) { return static_cast<double>(bytes) * 1e-9; }

Json ToJson(const GrowthPhase& phase) {
  size_t turns = 0;
  for (const auto& client : phase.turns) turns += client.size();
  return {{"clients", phase.clients()},
          {"turns", turns},
          {"prompt_tokens", phase.prompt_tokens},
          {"generated_tokens", phase.generated_tokens},
          {"kv_tokens", phase.kv_tokens}};
}

Json ToJson(const StepTotals& totals) {
  return {{"steps", totals.steps},
          {"seconds", totals.seconds},
          {"prompt_tokens", totals.prompt_tokens},
          {"decoded_tokens", totals.decoded_tokens}};
}

Json ResultJson(const GrowthResult& r, const GrowthTrace& trace) {
  Json phases = Json::array();
  for (size_t i = 0; i < r.phases.size(); ++i) {
    phases.push_back({{"clients", trace.phases[i].clients()},
                      {"seconds", r.phases[i].seconds},
                      {"placing_seconds", r.phases[i].placing_seconds},
                      {"tokens_per_second", r.phases[i].tokens_per_second},
                      {"prefill", ToJson(r.phases[i].prefill)},
                      {"decode", ToJson(r.phases[i].decode)},
                      {"mixed", ToJson(r.phases[i].mixed)},
                      {"store_bytes", r.phases[i].store_bytes},
                      {"resident_neuron_fraction", r.phases[i].resident_fraction},
                      {"memory", MemoryUseJson(r.phases[i].memory)}});
  }
  return {{"generated_tokens", r.generated_tokens},
          {"prompt_tokens", r.prompt_tokens},
          {"preemptions", r.preemptions},
          {"idle_drops", r.idle_drops},
          {"recomputed_tokens", r.recomputed_tokens},
          {"cached_tokens", r.cached_tokens},
          {"swapped_tokens", r.swapped_tokens},
          {"partial_steps", r.partial_steps},
          {"store_reads", r.store_reads},
          {"store_wait_seconds", r.store_wait_seconds},
          {"token_seconds",
           {{"p50", r.token_times.p50},
            {"p99", r.token_times.p99},
            {"p99_over_rolling_median", r.token_times.p99_over_median}}},
          {"neurons",
           {{"evicted_blocks", r.residency.evicted_blocks},
            {"late_blocks", r.late_blocks},
            {"dropped", r.residency.dropped},
            {"relocated", r.residency.relocated},
            {"promoted", r.residency.promoted}}},
          {"memory_management_fraction", r.management_fraction},
          {"pool_blocks", r.pool_blocks},
          {"block_bytes", r.block_bytes},
          {"budget_bytes", r.budget_bytes},
          {"peak_bytes", r.peak_bytes},
          {"text_hash", fmt::format("{:016x}", r.text_hash)},
          {"phases", phases},
          {"series", SeriesJson(r.series)}};
}

// Where the piecewise linear curve through (x[i], y[i]), x not falling, first has `at`.
template <class X, class Y>
double Interpolate(const std::vector<SeriesPoint>& series, double at, X&& x, Y&& y) {
  const auto right =
      std::find_if(series.begin(), series.end(), [&](const SeriesPoint& point) { return x(point) >= at; });
  if (right == series.begin()) return y(series.front());
  if (right == series.end()) return y(series.back());
  const SeriesPoint& left = *std::prev(right);
  return y(left) + (y(*right) - y(left)) * (at - x(left)) / (x(*right) - x(left));
}

double SecondsOf(const SeriesPoint& point) { return point.seconds; }
double TokensOf(const SeriesPoint& point) { return static_cast<double>(point.generated_tokens); }

PlotPanel BlocksPanel(const GrowthRow& row, const std::vector<PlotSpan>& spans) {
  const GrowthResult& r = *row.result;
  const bool large = r.pool_blocks * r.block_bytes >= 1'000'000'000;
  PlotPanel panel;
  panel.title = fmt::format("Who has the pool's blocks: {}", row.Label());
  panel.x_label = "time, s";
  panel.y_label = large ? "memory, GB" : "memory, MB";
  panel.height = 250;
  panel.spans_label = "active clients";
  panel.spans = spans;
  for (const SeriesPoint& point : r.series) panel.band_x.push_back(point.seconds);
  for (const OwnerLook& look : kOwners) {
    PlotBand band{look.label, look.colour, {}};
    uint64_t sum = 0;
    for (const SeriesPoint& point : r.series) {
      const uint32_t blocks = point.blocks[static_cast<size_t>(look.owner)];
      sum += blocks;
      band.y.push_back(static_cast<double>(blocks * r.block_bytes) * (large ? 1e-9 : 1e-6));
    }
    if (sum > 0 || look.owner != BlockOwner::kCached) panel.bands.push_back(std::move(band));
  }
  return panel;
}

}  // namespace

std::string GrowthRow::Setting() const {
  if (slots) return fmt::format("{} slot{}", *slots, *slots == 1 ? "" : "s");
  if (kv_share) return fmt::format("KV {:g} %", *kv_share * 100);
  return "-";
}

std::string GrowthRow::Label() const { return slots || kv_share ? fmt::format("{}, {}", policy, Setting()) : policy; }

const GrowthRow* GrowthReport::Best(const std::string& policy) const {
  const GrowthRow* best = nullptr;
  for (const GrowthRow& row : rows) {
    if (row.policy != policy || !row.result) continue;
    if (!best || row.result->makespan_seconds < best->result->makespan_seconds) best = &row;
  }
  return best;
}

SpeedCurve SpeedOverTime(const std::vector<SeriesPoint>& series, size_t stretches) {
  SpeedCurve curve;
  const double length = series.empty() ? 0 : series.back().seconds / static_cast<double>(stretches);
  for (size_t i = 0; length > 0 && i < stretches; ++i) {
    const double begin = length * static_cast<double>(i);
    const double tokens =
        Interpolate(series, begin + length, SecondsOf, TokensOf) - Interpolate(series, begin, SecondsOf, TokensOf);
    curve.x.push_back(begin + length / 2);
    curve.tokens_per_second.push_back(tokens / length);
  }
  return curve;
}

SpeedCurve SpeedOverWork(const std::vector<SeriesPoint>& series, size_t stretches) {
  SpeedCurve curve;
  const double length = series.empty() ? 0 : TokensOf(series.back()) / static_cast<double>(stretches);
  for (size_t i = 0; length > 0 && i < stretches; ++i) {
    const double begin = length * static_cast<double>(i);
    const double seconds =
        Interpolate(series, begin + length, TokensOf, SecondsOf) - Interpolate(series, begin, TokensOf, SecondsOf);
    curve.x.push_back(begin + length / 2);
    curve.tokens_per_second.push_back(seconds > 0 ? length / seconds : 0);
  }
  return curve;
}

bool GrowthReport::SameText() const {
  const GrowthResult* first = nullptr;
  for (const GrowthRow& row : rows) {
    if (!row.result) continue;
    if (first && row.result->text_hash != first->text_hash) return false;
    first = &*row.result;
  }
  return true;
}

std::string GrowthReport::ToJson() const {
  const GrowthRow* elastic = Best("elastic");
  Json phases = Json::array();
  for (const GrowthPhase& phase : trace->phases) phases.push_back(elasticmem::ToJson(phase));
  Json policies = Json::array();
  for (const GrowthRow& row : rows) {
    Json json = {{"policy", row.policy},
                 {"slots", OrNull(row.slots)},
                 {"kv_share", OrNull(row.kv_share)},
                 {"error", OrNull(row.error)},
                 {"makespan_seconds", nullptr},
                 {"tokens_per_second", nullptr},
                 {"store_bytes", nullptr},
                 {"elastic_speedup", nullptr},
                 {"makespans", row.makespans}};
    if (row.result) {
      json["makespan_seconds"] = row.result->makespan_seconds;
      json["tokens_per_second"] = row.result->tokens_per_second;
      json["store_bytes"] = row.result->store_bytes;
      if (elastic) json["elastic_speedup"] = row.result->makespan_seconds / elastic->result->makespan_seconds;
      json.update(ResultJson(*row.result, *trace));
    }
    policies.push_back(std::move(json));
  }
  const Json json = {{"bench", "growth"},
                     {"same_text", SameText()},
                     {"model", {{"name", model_name}, {"file_bytes", model_bytes}}},
                     {"budget_bytes", budget_bytes},
                     {"peak_rss_bytes", peak_rss_bytes},
                     {"threads", threads},
                     {"context", context},
                     {"seed", seed},
                     {"repeat", repeat},
                     {"trace",
                      {{"phases", phases},
                       {"generated_tokens", trace->generated_tokens},
                       {"prompt_tokens", trace->prompt_tokens},
                       {"longest_tokens", trace->longest_tokens},
                       {"peak_kv_tokens", trace->peak_kv_tokens}}},
                     {"policies", policies}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

// Elastic's speed in each phase over that of the static row that is the fastest there.
std::vector<std::string> GrowthReport::AgainstStatic(const GrowthRow& elastic) const {
  std::vector<std::string> cells = {"elastic over", "best static"};
  for (size_t phase = 0; phase < trace->phases.size(); ++phase) {
    double best = 0;
    for (const GrowthRow& row : rows) {
      if (row.policy == "static" && row.result) best = std::max(best, row.result->phases[phase].tokens_per_second);
    }
    cells.push_back(fmt::format("{:.2f} x", elastic.result->phases[phase].tokens_per_second / best));
  }
  return cells;
}

std::string GrowthReport::ToTable() const {
  const GrowthRow* elastic = Best("elastic");
  std::vector<std::vector<std::string>> table = {
      {"policy", "setting", "makespan s", "tokens/s", "elastic is", "store GB", "preempted", "recomputed"}};
  std::vector<std::vector<std::string>> speeds = {{"tokens/s with clients:", ""}};
  for (const GrowthPhase& phase : trace->phases) speeds[0].push_back(std::to_string(phase.clients()));
  std::string errors;
  for (const GrowthRow& row : rows) {
    if (!row.result) {
      table.push_back({row.policy, row.Setting(), "-", "-", "-", "-", "-", "-"});
      errors += fmt::format("  {}: {}\n", row.Label(), row.error);
      continue;
    }
    const GrowthResult& r = *row.result;
    table.push_back({row.policy, row.Setting(), fmt::format("{:.2f}", r.makespan_seconds),
                     fmt::format("{:.2f}", r.tokens_per_second),
                     elastic ? fmt::format("{:.2f} x", r.makespan_seconds / elastic->result->makespan_seconds) : "-",
                     fmt::format("{:.2f}", Gigabytes(r.store_bytes)), std::to_string(r.preemptions + r.idle_drops),
                     std::to_string(r.recomputed_tokens)});
    speeds.push_back({row.policy, row.Setting()});
    for (const GrowthPhaseResult& phase : r.phases)
      speeds.back().push_back(fmt::format("{:.2f}", phase.tokens_per_second));
  }
  if (elastic && Best("static")) speeds.push_back(AgainstStatic(*elastic));
  std::string text = fmt::format(
      "{} tokens generated after {} of prompts; up to {} clients and {} tokens of KV at once; median of {}\n"
      "{}\n\n",
      trace->generated_tokens, trace->prompt_tokens, trace->most_clients, trace->peak_kv_tokens, repeat,
      SameText() ? "all policies generated the same text" : "POLICIES GENERATED DIFFERENT TEXTS");
  text += FormatTable(table);
  if (!errors.empty()) text += "\n" + errors;
  if (speeds.size() > 1) text += "\n" + FormatTable(speeds);
  return text;
}

Plot GrowthReport::ToPlot() const {
  Plot plot;
  plot.title = "Growth trace: KV cache and neurons on one budget";
  plot.subtitle = fmt::format("{} ({}) in {}, {} threads · {} tokens generated after {} of prompts, the same for all",
                              model_name, FormatBytes(model_bytes), FormatBytes(budget_bytes), threads,
                              trace->generated_tokens, trace->prompt_tokens);
  struct Look {
    const GrowthRow* row;
    const char* colour;
    double width;
    bool dashed;
  };
  // Of the static ones: the one provisioned for most, and the best of each way to split.
  const GrowthRow* provisioned = nullptr;
  const GrowthRow* best_slots = nullptr;
  const GrowthRow* best_share = nullptr;
  const auto better = [](const GrowthRow& row, const GrowthRow* than) {
    return !than || row.result->makespan_seconds < than->result->makespan_seconds;
  };
  for (const GrowthRow& row : rows) {
    if (!row.result) continue;
    if (row.slots && (!provisioned || *row.slots > *provisioned->slots)) provisioned = &row;
    if (row.slots && better(row, best_slots)) best_slots = &row;
    if (row.kv_share && better(row, best_share)) best_share = &row;
  }
  if (best_slots == provisioned) best_slots = nullptr;
  const std::vector<Look> looks = {{provisioned, "#b5392f", 1.8, false},   {best_slots, "#d98a3d", 1.8, false},
                                   {best_share, "#8a6bb1", 1.8, false},    {Best("lru"), "#4a7fb0", 1.8, false},
                                   {Best("oracle"), "#24292f", 1.6, true}, {Best("elastic"), "#0f8a5f", 2.8, false}};
  PlotPanel overlay;
  overlay.title = "Speed at the same point of the same work";
  overlay.x_label = "tokens generated";
  overlay.y_label = "tokens/s";
  overlay.height = 280;
  overlay.spans_label = "active clients";
  const size_t stretches = std::clamp<uint64_t>(trace->generated_tokens / 20, 12, 60);
  const GrowthRow* shown = nullptr;
  for (const Look& look : looks) {
    if (!look.row) continue;
    shown = look.row;
    const SpeedCurve curve = SpeedOverWork(look.row->result->series, stretches);
    overlay.lines.push_back({look.row->Label(), look.colour,
                             fmt::format("{:.1f} s in all", look.row->result->makespan_seconds), curve.x,
                             curve.tokens_per_second, look.width, look.dashed});
  }
  if (!shown) return plot;
  std::vector<PlotSpan> in_time;
  for (size_t i = 0; i < trace->phases.size(); ++i) {
    const GrowthPhaseResult& phase = shown->result->phases[i];
    const std::string clients = std::to_string(trace->phases[i].clients());
    in_time.push_back({phase.begin_seconds, phase.begin_seconds + phase.seconds, clients});
    const double begin = static_cast<double>(phase.begin_tokens);
    overlay.spans.push_back({begin, begin + static_cast<double>(trace->phases[i].generated_tokens), clients});
  }
  PlotPanel speed;
  speed.title = fmt::format("Speed: {}", shown->Label());
  speed.x_label = "time, s";
  speed.y_label = "tokens/s";
  speed.height = 170;
  speed.spans_label = "active clients";
  speed.spans = in_time;
  const SpeedCurve curve = SpeedOverTime(shown->result->series, 2 * stretches);
  speed.lines.push_back(
      {"tokens generated", "#0f8a5f", "prompts are read in between", curve.x, curve.tokens_per_second, 1.8, false});
  plot.panels = {BlocksPanel(*shown, in_time), std::move(speed), std::move(overlay)};
  return plot;
}

}  // namespace elasticmem
