// From settings to a running engine: what every command that computes begins with.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "runtime/engine/engine.h"
#include "runtime/engine/sampler.h"
#include "runtime/model/model.h"
#include "tools/console.h"
#include "tools/settings.h"

namespace elasticmem {

// Set by SIGINT and SIGTERM; long work looks at it.
extern std::atomic<bool> interrupted;

StatusOr<std::unique_ptr<Model>> OpenModel(const Settings& settings);
// `status` with the model's path in front, unless its message names it already.
Status AboutModel(const Settings& settings, const Status& status);

// The options that the settings ask for. `kv_tokens`: what the KV cache must hold. Where the user gave no
// budget, with --verbose it says on stderr which one was chosen.
StatusOr<EngineOptions> MakeEngineOptions(const Settings& settings, const Model& model, uint32_t kv_tokens,
                                          uint32_t logits_rows);

// Engine::Open with progress on stderr. KV for `sequences`, each of `kv_tokens`.
StatusOr<std::unique_ptr<Engine>> OpenEngine(const Settings& settings, const Model& model, uint32_t kv_tokens,
                                             uint32_t logits_rows, uint32_t sequences = 1);

SamplingOptions Sampling(const Settings& settings);
int ThreadCount(const Settings& settings);
std::string CacheDir();

// The whole of a text file. Errors name the path.
StatusOr<std::string> ReadTextFile(const std::string& path);
Status WriteTextFile(const std::string& path, const std::string& text);

// Runs a command; the Status becomes the exit code in main.
Status RunCommand(const Settings& settings);
Status InspectCommand(const Settings& settings);
// Where every byte would go with these options: a table, or with --json an object.
Status PrintPlan(const Settings& settings, const Model& model, const EngineOptions& options);
Status PackCommand(const Settings& settings);
Status PlanCommand(const Settings& settings);
Status TokenizeCommand(const Settings& settings, const std::string& text);
Status LogitsCommand(const Settings& settings);
Status PerplexityCommand(const Settings& settings);
Status BenchCommand(const Settings& settings);
Status GrowthCommand(const Settings& settings);
Status ServeCommand(const Settings& settings);
Status CompareCommand(const Settings& settings);

}  // namespace elasticmem
