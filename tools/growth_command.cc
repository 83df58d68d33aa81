// `elasticmem bench growth`: replays one growth trace under several policies and compares them.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/units.h"
#include "runtime/engine/system_memory.h"
#include "tools/growth_report.h"
#include "tools/growth_run.h"
#include "tools/growth_trace.h"
#include "tools/session.h"

namespace elasticmem {
namespace {

// How often each neuron was active [layers, neurons]: in each phase and in all.
struct Frequencies {
  std::vector<std::vector<float>> by_phase;
  std::vector<float> whole;
};

std::string FirstLine(const Status& status) {
  const std::string text(Message(status));
  std::string line = text.substr(0, text.find('\n'));
  if (line.ends_with(':')) line.pop_back();
  return line;
}

// The policy cannot do this work in this budget: a result like any other.
bool IsResult(const Status& status) {
  return status.code() == StatusCode::kResourceExhausted || status.code() == StatusCode::kInvalidArgument;
}

StatusOr<std::vector<GrowthRow>> RowsOf(const Settings& settings, uint32_t clients) {
  std::vector<GrowthRow> rows;
  std::vector<std::string> policies = settings.policies;
  if (policies.empty()) policies = {"elastic", "static", "lru", "oracle"};
  std::vector<uint32_t> slots = settings.growth_slots;
  if (slots.empty() && settings.kv_shares.empty()) slots = {clients};
  for (const uint32_t n : slots) {
    if (n == 0 || n > 1024) return InvalidInput("slots has {}; expected 1 to 1024", n);
  }
  for (const double share : settings.kv_shares) {
    if (!(share > 0 && share < 1)) return InvalidInput("kv-shares has {}; expected more than 0 and less than 1", share);
  }
  for (const std::string& policy : policies) {
    if (std::count(policies.begin(), policies.end(), policy) > 1) {
      return InvalidInput("policies has \"{}\" more than once", policy);
    }
    if (policy == "static") {
      for (const uint32_t n : slots) rows.push_back({policy, n, std::nullopt, std::nullopt, {}, ""});
      for (const double share : settings.kv_shares) rows.push_back({policy, std::nullopt, share, std::nullopt, {}, ""});
    } else if (policy == "elastic" || policy == "lru" || policy == "oracle") {
      rows.push_back({policy, std::nullopt, std::nullopt, std::nullopt, {}, ""});
    } else {
      return InvalidInput("policies has \"{}\"; expected elastic, static, lru or oracle", policy);
    }
  }
  return rows;
}

class Comparison {
 public:
  Comparison(const Settings& settings, const Model& model, const GrowthTrace& trace, EngineOptions options,
             GrowthReport& report)
      : settings_(settings), model_(model), trace_(trace), options_(std::move(options)), report_(report) {
    options_.progress = [this](std::string_view what, uint64_t done, uint64_t total) {
      if (what.starts_with("packing")) bar_.Update(what, done, total);
    };
    options_.notice = [this](const std::string& text) {
      if (std::find(said_.begin(), said_.end(), text) != said_.end()) return;
      said_.push_back(text);
      bar_.Clear();
      std::fprintf(stderr, "%s\n", text.c_str());
    };
  }

  Status Run() {
    const bool needs_profile = std::any_of(report_.rows.begin(), report_.rows.end(), [](const GrowthRow& row) {
      return row.policy == "static" || row.policy == "oracle";
    });
    passes_ = report_.rows.size() * report_.repeat + needs_profile;
    Status recorded;
    if (needs_profile) {
      recorded = RecordFrequencies();
      if (!recorded.ok() && !IsResult(recorded)) return recorded;
    }
    std::vector<std::vector<GrowthResult>> results(report_.rows.size());
    // Round by round, so that what changes about the machine meanwhile touches all.
    for (uint32_t round = 0; round < report_.repeat; ++round) {
      for (size_t i = 0; i < report_.rows.size(); ++i) {
        GrowthRow& row = report_.rows[i];
        if (!row.error.empty()) continue;
        const bool blind = !recorded.ok() && (row.policy == "static" || row.policy == "oracle");
        StatusOr<GrowthResult> result = blind ? StatusOr<GrowthResult>(recorded) : RunRow(row);
        if (!result.ok() && !IsResult(result.status())) return result.status();
        if (!result.ok()) {
          row.error = FirstLine(result.status());
          row.result.reset();
          row.makespans.clear();
          continue;
        }
        row.makespans.push_back(result->makespan_seconds);
        results[i].push_back(*std::move(result));
        std::sort(results[i].begin(), results[i].end(),
                  [](const GrowthResult& a, const GrowthResult& b) { return a.makespan_seconds < b.makespan_seconds; });
        row.result = results[i][(results[i].size() - 1) / 2];
        report_.peak_rss_bytes = PeakResidentBytes();
        EM_RETURN_IF_ERROR(WriteFiles());
      }
    }
    return WriteFiles();
  }

 private:
  // What is known so far: hours of measuring are not lost to what ends the last of it.
  Status WriteFiles() const {
    if (!settings_.report.empty()) EM_RETURN_IF_ERROR(WriteTextFile(settings_.report, report_.ToJson() + "\n"));
    if (!settings_.svg.empty()) EM_RETURN_IF_ERROR(WriteTextFile(settings_.svg, RenderSvg(report_.ToPlot())));
    return absl::OkStatus();
  }

  StatusOr<std::unique_ptr<Engine>> Open(const EngineOptions& options) const {
    StatusOr<std::unique_ptr<Engine>> engine = Engine::Open(model_, options);
    if (!engine.ok() && engine.status().code() != StatusCode::kResourceExhausted) {
      return AboutModel(settings_, engine.status());
    }
    return engine;
  }

  StatusOr<GrowthResult> Replay(Engine& engine, GrowthReplay replay, const std::string& label) {
    const std::string what = fmt::format("{} ({} of {})", label, ++pass_, passes_);
    bar_.Update(what, 0, trace_.generated_tokens, "tokens");
    replay.progress = [&](uint64_t tokens) { bar_.Update(what, tokens, trace_.generated_tokens, "tokens"); };
    replay.batcher.max_batch = std::min(replay.batcher.max_batch, engine.max_step_tokens());
    replay.cancelled = &interrupted;
    StatusOr<GrowthResult> result = RunGrowthTrace(engine, trace_, replay);
    bar_.Clear();
    return result;
  }

  // One pass under the elastic policy that counts. It is not measured: counting costs a little.
  Status RecordFrequencies() {
    EngineOptions options = options_;
    options.count_activations = true;
    EM_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Open(options));
    GrowthReplay replay;
    replay.batcher.max_batch = trace_.most_clients;
    frequencies_ = {};
    frequencies_.whole.assign(engine->activation_counts().size(), 0);
    replay.after = [&](size_t) {
      const std::span<const uint32_t> counts = engine->activation_counts();
      std::vector<float>& phase = frequencies_.by_phase.emplace_back(counts.size());
      for (size_t i = 0; i < counts.size(); ++i) {
        phase[i] = static_cast<float>(counts[i]) - frequencies_.whole[i];
        frequencies_.whole[i] = static_cast<float>(counts[i]);
      }
      return absl::OkStatus();
    };
    return Replay(*engine, std::move(replay), "recording").status();
  }

  StatusOr<GrowthResult> RunRow(const GrowthRow& row) {
    EngineOptions options = options_;
    GrowthReplay replay;
    replay.batcher.max_batch = trace_.most_clients;
    if (row.policy == "static") {
      options.policy = Policy::kStatic;
      options.profile = frequencies_.whole;
      options.static_kv_share = row.kv_share;
      if (row.slots) {
        options.static_slots = *row.slots;
        options.logits_rows = *row.slots;
        replay.batcher.max_batch = replay.batcher.max_kept = *row.slots;
      }
    } else if (row.policy == "lru") {
      options.policy = Policy::kLru;
    } else if (row.policy == "oracle") {
      if (frequencies_.whole.empty()) {
        return InvalidInput("every neuron of this model is active, so there is none to place");
      }
      options.policy = Policy::kOracle;
      options.profile = frequencies_.by_phase[0];
    }
    EM_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Open(options));
    if (row.policy == "oracle") {
      replay.before = [&](size_t phase) { return engine->PlaceNeurons(frequencies_.by_phase[phase]); };
    }
    return Replay(*engine, std::move(replay), row.Label());
  }

  const Settings& settings_;
  const Model& model_;
  const GrowthTrace& trace_;
  EngineOptions options_;
  GrowthReport& report_;
  Frequencies frequencies_;
  ProgressBar bar_;
  std::vector<std::string> said_;
  size_t pass_ = 0, passes_ = 0;
};

StatusOr<GrowthTrace> TraceOf(const Settings& settings, const Model& model) {
  const uint32_t context = settings.context > 0 ? settings.context : model.spec().context;
  GrowthSpec spec = GrowthSpec::ForContext(context);
  spec.seed = settings.seed;
  spec.vocab = model.spec().vocab;
  if (!settings.phases.empty()) spec.phases = settings.phases;
  if (!(settings.scale > 0 && settings.scale <= 1000)) {
    return InvalidInput("scale is {}; expected more than 0, and 1000 at most", settings.scale);
  }
  spec.generated_tokens = static_cast<uint64_t>(std::llround(settings.growth_generate * settings.scale));
  return MakeGrowthTrace(spec);
}

// Where the budget can hold the KV of all conversations at once, with no neuron left, it must; else that of the
// longest.
StatusOr<EngineOptions> OptionsFor(const Settings& settings, const Model& model, const GrowthTrace& trace) {
  constexpr uint32_t kRoomToGrow = 64;  // last pages are not full
  const uint32_t clients = trace.most_clients;
  const uint32_t all = static_cast<uint32_t>(CeilDiv<uint64_t>(trace.peak_kv_tokens, clients)) + kRoomToGrow;
  EM_ASSIGN_OR_RETURN(EngineOptions options, MakeEngineOptions(settings, model, all, clients));
  options.sequences = clients;
  if (Engine::Plan(model, options).status().code() == StatusCode::kResourceExhausted) {
    options.kv_tokens = CeilDiv(trace.longest_tokens, clients);
  }
  return options;
}

}  // namespace

Status GrowthCommand(const Settings& settings) {
  if (settings.growth_repeat == 0 || settings.growth_repeat > 1000) {
    return InvalidInput("repeat is {}; expected 1 to 1000", settings.growth_repeat);
  }
  EM_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, OpenModel(settings));
  EM_ASSIGN_OR_RETURN(const GrowthTrace trace, TraceOf(settings, *model));
  GrowthReport report;
  EM_ASSIGN_OR_RETURN(report.rows, RowsOf(settings, trace.most_clients));
  EM_ASSIGN_OR_RETURN(EngineOptions options, OptionsFor(settings, *model, trace));
  report.model_name = model->spec().name;
  report.model_bytes = model->gguf().file_bytes();
  report.budget_bytes = options.budget_bytes;
  report.threads = options.threads;
  report.context = settings.context > 0 ? settings.context : model->spec().context;
  report.seed = settings.seed;
  report.repeat = settings.growth_repeat;
  report.trace = &trace;
  EM_RETURN_IF_ERROR(Comparison(settings, *model, trace, std::move(options), report).Run());
  std::printf("%s", settings.json ? (report.ToJson() + "\n").c_str() : report.ToTable().c_str());
  if (!settings.svg.empty()) std::fprintf(stderr, "picture: %s\n", settings.svg.c_str());
  return absl::OkStatus();
}

}  // namespace elasticmem
