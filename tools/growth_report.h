// A comparison of policies on the growth trace, for people (tables, a picture) and for programs (JSON).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/growth_run.h"
#include "tools/growth_trace.h"
#include "tools/svg_plot.h"

namespace elasticmem {

// A policy with its setting, and what came of it: a result, or why there is none.
struct GrowthRow {
  std::string policy;
  std::optional<uint32_t> slots;
  std::optional<double> kv_share;
  std::optional<GrowthResult> result;  // of the pass with the median makespan
  std::vector<double> makespans;       // of all passes
  std::string error;                   // one line

  std::string Setting() const;  // "8 slots", "KV 40 %", "-"
  std::string Label() const;    // "static, 8 slots"
};

struct GrowthReport {
  std::string model_name;
  uint64_t model_bytes = 0, budget_bytes = 0;
  uint64_t peak_rss_bytes = 0;  // of the process, over all passes
  int threads = 1;
  uint32_t context = 0;
  uint64_t seed = 0;
  uint32_t repeat = 1;
  const GrowthTrace* trace = nullptr;
  std::vector<GrowthRow> rows;

  // The row of a policy that has a result: of several the fastest.
  const GrowthRow* Best(const std::string& policy) const;
  // Did all policies generate the same tokens? In exact and dense mode they must.
  bool SameText() const;
  std::string ToJson() const;
  std::string ToTable() const;
  Plot ToPlot() const;

 private:
  std::vector<std::string> AgainstStatic(const GrowthRow& elastic) const;
};

// Tokens a second over equal stretches of the pass: of its time, or of its work (generated tokens). The middles of the
// stretches and the speeds there.
struct SpeedCurve {
  std::vector<double> x, tokens_per_second;
};
SpeedCurve SpeedOverTime(const std::vector<SeriesPoint>& series, size_t stretches);
SpeedCurve SpeedOverWork(const std::vector<SeriesPoint>& series, size_t stretches);

}  // namespace elasticmem
