#include "tools/compare_run.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <thread>

#include "base/units.h"
#include "tools/memory_group.h"
#include "tools/session.h"

namespace elasticmem {
namespace {

namespace fs = std::filesystem;

std::string FirstLineWith(const std::string& text, std::string_view word) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    if (line.find(word) != std::string::npos) return line;
    at = end + 1;
  }
  return "";
}

std::string LastLines(const std::string& text, size_t count) {
  size_t at = text.find_last_not_of('\n');
  if (at == std::string::npos) return "";
  const size_t end = at + 1;
  for (size_t lines = 0; at > 0; --at) {
    if (text[at - 1] == '\n' && ++lines == count) break;
  }
  return text.substr(at, end - at);
}

void DescribeMachine(Comparison& comparison) {
  char date[64] = "";
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  std::strftime(date, sizeof(date), "%Y-%m-%d %H:%M UTC", gmtime_r(&now, &utc));
  comparison.date = date;
  const std::string model = FirstLineWith(ReadTextFile("/proc/cpuinfo").value_or(""), "model name");
  comparison.cpu = model.empty() ? "unknown" : model.substr(model.find(": ") + 2);
  comparison.cores = std::max(1u, std::thread::hardware_concurrency());
  comparison.memory_bytes =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  utsname name{};
  if (uname(&name) == 0) comparison.kernel = fmt::format("{} {}", name.sysname, name.release);
}

EngineFacts FactsOf(const CompareEngine& engine) {
  EngineFacts facts;
  std::error_code error;
  facts.model_bytes = fs::file_size(engine.model, error);
  if (error) facts.absent = fmt::format("{}: {}", engine.model, error.message());
  if (access(engine.binary.c_str(), X_OK) != 0) {
    facts.absent = fmt::format("{} is not a program that can be run here", engine.binary);
  }
  facts.device = "unknown";
  facts.version = "unknown";
  struct stat status;
  if (stat(engine.model.c_str(), &status) == 0) {
    const fs::path block = fmt::format("/sys/dev/block/{}:{}", major(status.st_dev), minor(status.st_dev));
    const fs::path real = fs::canonical(block, error);
    if (!error) {
      facts.device = real.filename();
      for (const fs::path& queue : {real / "queue", real.parent_path() / "queue"}) {  // of a partition: its disk's
        const std::string kib = ReadTextFile(queue / "read_ahead_kb").value_or("");
        if (!kib.empty()) {
          facts.read_ahead_bytes = std::stoull(kib) << 10;
          break;
        }
      }
    }
  }
  if (!facts.absent.empty()) return facts;
  ChildSpec spec{{engine.binary, "--version"}, "", std::chrono::seconds(20), &interrupted};
  const StatusOr<ChildResult> asked = RunChild(spec);
  if (!asked.ok() || asked->exit_code != 0) return facts;
  const std::string told = engine.kind == EngineKind::kElasticMem ? FirstLineWith(asked->out, "elasticmem")
                                                                  : FirstLineWith(asked->out + asked->err, "version");
  if (!told.empty()) facts.version = told;
  return facts;
}

// How much of the file lies in the page cache, 0 to 1.
double CachedShare(int file, size_t bytes) {
  void* mapped = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) return 0;
  const size_t pages = CeilDiv<size_t>(bytes, static_cast<size_t>(sysconf(_SC_PAGESIZE)));
  std::vector<unsigned char> present(pages);
  const bool known = mincore(mapped, bytes, present.data()) == 0;
  munmap(mapped, bytes);
  const auto count = std::count_if(present.begin(), present.end(), [](unsigned char p) { return p & 1; });
  return known ? static_cast<double>(count) / static_cast<double>(pages) : 0;
}

// Drops the model, and what engines keep beside it under its name (a neuron store, say), from the page cache. A group
// is charged for the pages that it reads itself, so pages that are there already would be free memory beyond its limit.
// Returns what stayed, in words; "" if nothing did.
std::string DropFromCache(const std::string& model) {
  sync();  // dirty pages cannot be dropped
  const fs::path path(model);
  const fs::path folder = path.has_parent_path() ? path.parent_path() : ".";
  std::error_code error;
  std::string stayed;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (!entry.path().filename().string().starts_with(path.filename().string())) continue;
    if (!entry.is_regular_file(error)) continue;
    const int file = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    const uint64_t bytes = entry.file_size(error);
    if (file < 0) continue;
    if (bytes > 0) {
      posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
      const double share = CachedShare(file, bytes);
      if (share > 0.01) stayed = fmt::format("{:.0f} % of {}", share * 100, entry.path().string());
    }
    close(file);
  }
  return stayed;
}

class Runner {
 public:
  // Engines write their figures to a file beside the output, which goes with this.
  explicit Runner(Comparison& comparison) : comparison_(comparison), report_(comparison.config.output + ".run.json") {}
  ~Runner() { RemoveReport(); }

  // A store that has to be made first is not part of what is measured.
  Status Prepare(const CompareEngine& engine, EngineFacts& facts) {
    if (engine.kind != EngineKind::kElasticMem) return absl::OkStatus();
    CompareConfig one = comparison_.config;
    one.generate = 1;
    const ChildSpec spec{ArgumentsFor(one, engine, std::nullopt, report_), "", Timeout(), &interrupted};
    EM_ASSIGN_OR_RETURN(const ChildResult result, RunChild(spec));
    if (result.exit_code != 0) facts.absent = LastLines(result.err, 3);
    return absl::OkStatus();
  }

  // Cold, then warm, in one group: what the first leaves in the page cache is the second's.
  Status RunCell(CompareCell& cell, const std::function<void(bool)>& before) {
    const CompareEngine& engine = comparison_.config.engines[cell.engine];
    const std::optional<uint64_t> limit = comparison_.config.LimitBytes(comparison_.config.limits[cell.limit]);
    const StatusOr<std::unique_ptr<MemoryGroup>> made = MemoryGroup::Create(limit);
    const MemoryGroup* group = made.ok() ? made->get() : nullptr;
    if (group) {
      comparison_.groups = fmt::format("cgroup v{}", group->version());
    } else {
      comparison_.limits_unset = Message(made.status());
    }
    const std::string stayed = DropFromCache(engine.model);
    if (!stayed.empty()) comparison_.cache_note = stayed;
    for (const bool cold : {true, false}) {
      before(cold);
      CompareSample sample;
      sample.cold = cold;
      if (limit && !group) {
        sample.problem = "no memory limit can be set here";
      } else {
        EM_RETURN_IF_ERROR(Measure(engine, group, cell, sample));
      }
      cell.samples.push_back(std::move(sample));
    }
    return absl::OkStatus();
  }

 private:
  void RemoveReport() const {
    std::error_code error;
    fs::remove(report_, error);
  }
  std::chrono::seconds Timeout() const { return std::chrono::seconds(comparison_.config.timeout_seconds); }

  Status Measure(const CompareEngine& engine, const MemoryGroup* group, CompareCell& cell, CompareSample& sample) {
    RemoveReport();
    cell.argv = ArgumentsFor(comparison_.config, engine, cell.budget_bytes, report_);
    const uint64_t kills_before = group ? group->oom_kills() : 0;
    const ChildSpec spec{cell.argv, group ? group->folder() : "", Timeout(), &interrupted};
    const StatusOr<ChildResult> run = RunChild(spec);
    if (!run.ok()) {
      if (interrupted.load()) return run.status();
      sample.problem = Message(run.status());
      return absl::OkStatus();
    }
    sample.seconds = run->seconds;
    sample.read_bytes = run->read_bytes;
    sample.peak_bytes = group && group->peak_bytes() > 0 ? group->peak_bytes() : run->peak_resident_bytes;
    sample.problem = Problem(*run, group && group->oom_kills() > kills_before);
    if (sample.problem.empty()) {
      StatusOr<EngineFigures> figures =
          ReadFigures(comparison_.config, engine, *run, ReadTextFile(report_).value_or(""));
      if (figures.ok()) {
        sample.problem = WhatIsWrongWith(*figures, comparison_.config.generate).value_or("");
        if (sample.problem.empty()) sample.figures = *std::move(figures);
      } else {
        sample.problem = fmt::format("unreadable output: {}", Message(figures.status()));
      }
    }
    if (!sample.problem.empty()) sample.last_words = LastLines(run->err.empty() ? run->out : run->err, 5);
    return absl::OkStatus();
  }

  static std::string Problem(const ChildResult& run, bool oom_killed) {
    if (run.timed_out) return fmt::format("timed out after {:.0f} s", run.seconds);
    if (oom_killed) return "out of memory: killed";
    if (run.signal != 0) return fmt::format("ended by signal {}", run.signal);
    if (run.exit_code != 0) return fmt::format("exit code {}", run.exit_code);
    return "";
  }

  Comparison& comparison_;
  const std::string report_;
};

const std::string* FirstText(const Comparison& comparison) {
  for (const CompareCell& cell : comparison.cells) {
    if (cell.engine != 0) continue;
    for (const CompareSample& sample : cell.samples) {
      if (sample.figures) return &sample.figures->text;
    }
  }
  return nullptr;
}

// Greedy texts of one model agree until rounding parts them.
void CompareTexts(Comparison& comparison) {
  const std::string* first = FirstText(comparison);
  if (!first) return;
  for (CompareCell& cell : comparison.cells) {
    for (CompareSample& sample : cell.samples) {
      if (!sample.figures || &sample.figures->text == first) continue;
      const std::string& text = sample.figures->text;
      const size_t length = std::min(first->size(), text.size());
      sample.same_bytes =
          std::mismatch(first->begin(), first->begin() + static_cast<ptrdiff_t>(length), text.begin()).first -
          first->begin();
    }
  }
}

}  // namespace

StatusOr<Comparison> RunComparison(const CompareConfig& config,
                                   const std::function<void(const std::string&, size_t, size_t)>& progress,
                                   const std::function<Status(const Comparison&)>& checkpoint) {
  Comparison comparison;
  comparison.config = config;
  DescribeMachine(comparison);
  Runner runner(comparison);
  for (const CompareEngine& engine : config.engines) {
    progress("preparing " + engine.name, 0, 0);
    EngineFacts facts = FactsOf(engine);
    if (facts.absent.empty()) EM_RETURN_IF_ERROR(runner.Prepare(engine, facts));
    comparison.facts.push_back(std::move(facts));
  }
  for (size_t limit = 0; limit < config.limits.size(); ++limit) {
    for (size_t engine = 0; engine < config.engines.size(); ++engine) {
      CompareCell cell{engine, limit, {}, std::nullopt, {}};
      const std::optional<uint64_t> bytes = config.LimitBytes(config.limits[limit]);
      if (bytes && config.engines[engine].kind == EngineKind::kElasticMem) {
        cell.budget_bytes = *bytes > kProcessAllowance ? *bytes - kProcessAllowance : 0;
      }
      comparison.cells.push_back(std::move(cell));
    }
  }
  size_t done = 0;
  const auto absent = [&](const CompareCell& cell) { return !comparison.facts[cell.engine].absent.empty(); };
  const size_t cells = static_cast<size_t>(std::count_if(comparison.cells.begin(), comparison.cells.end(),
                                                         [&](const CompareCell& cell) { return !absent(cell); }));
  const size_t total = cells * 2 * config.repeat;
  for (uint32_t round = 0; round < config.repeat; ++round) {
    for (CompareCell& cell : comparison.cells) {
      if (absent(cell)) continue;
      EM_RETURN_IF_ERROR(runner.RunCell(cell, [&](bool cold) {
        progress(fmt::format("{}, limit {}, {}", config.engines[cell.engine].name, config.limits[cell.limit].label,
                             cold ? "cold" : "warm"),
                 done++, total);
      }));
      CompareTexts(comparison);
      EM_RETURN_IF_ERROR(checkpoint(comparison));
    }
  }
  return comparison;
}

}  // namespace elasticmem
