// Runs a comparison: every engine does the same work under every memory limit, once from a cold page cache and at once
// again, in turns.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/compare_engines.h"

namespace elasticmem {

// What a process holds beside its budget: code, libraries, stacks, the allocator's slack.
inline constexpr uint64_t kProcessAllowance = 32 << 20;

// One run of one engine. Whatever went wrong is `problem`; then there are no figures.
struct CompareSample {
  bool cold = false;
  std::string problem;     // "" if it did its work: "out of memory", "timed out", "exit code 1", ...
  std::string last_words;  // what it printed last, where there is a problem
  double seconds = 0;
  uint64_t read_bytes = 0;  // from disks
  uint64_t peak_bytes = 0;  // of the group, page cache included; without a group what the process had resident
  std::optional<EngineFigures> figures;
  std::optional<size_t> same_bytes;  // as the first engine's text, from the beginning; nothing for that engine
};

// One engine under one limit.
struct CompareCell {
  size_t engine = 0, limit = 0;  // indices of the config's
  std::vector<std::string> argv;
  std::optional<uint64_t> budget_bytes;  // of elasticmem: the limit less kProcessAllowance
  std::vector<CompareSample> samples;
};

struct EngineFacts {
  std::string version;  // as it tells; "unknown"
  std::string absent;   // why it can't run here; "" if it can
  std::string device;   // that the model lies on
  std::optional<uint64_t> read_ahead_bytes;
  uint64_t model_bytes = 0;
};

struct Comparison {
  CompareConfig config;
  std::string date, cpu, kernel;
  uint32_t cores = 0;
  uint64_t memory_bytes = 0;
  std::string limits_unset;        // why memory limits could not be set; "" if they could
  std::string groups;              // "cgroup v1"
  std::string cache_note;          // what stayed in the page cache though a cold run wanted it gone
  std::vector<EngineFacts> facts;  // of each engine
  std::vector<CompareCell> cells;
};

// `progress` gets what runs now, runs done and runs in all; `checkpoint` what is known after each cell.
// Errors: cancelled; folders that can't be written.
StatusOr<Comparison> RunComparison(const CompareConfig& config,
                                   const std::function<void(const std::string&, size_t, size_t)>& progress,
                                   const std::function<Status(const Comparison&)>& checkpoint);

}  // namespace elasticmem
