#include "tools/session.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/units.h"
#include "device/cores.h"
#include "runtime/engine/system_memory.h"

namespace elasticmem {

std::atomic<bool> interrupted = false;

namespace {

// Left to the rest of the process and the machine where the user names no budget.
uint64_t Margin(uint64_t available) { return std::max<uint64_t>(256_MiB, available / 10); }

// What the user says of one tier; nothing where that is nothing.
StatusOr<std::optional<uint64_t>> TierBytes(std::string_view flag, const std::string& text, uint64_t file_bytes) {
  if (text.empty()) return std::optional<uint64_t>();
  const StatusOr<uint64_t> bytes = ParseBytes(text, file_bytes);
  if (!bytes.ok()) return WithContext(bytes.status(), flag);
  if (*bytes == 0) return InvalidInput("{} is \"{}\"; expected more than nothing", flag, text);
  return std::optional(*bytes);
}

// The device's budget. Without a GPU it is RAM, and without a host tier it is all there is.
StatusOr<uint64_t> BudgetBytes(const Settings& settings, uint64_t file_bytes) {
  if (!settings.memory.empty() && !settings.device_memory.empty()) {
    return InvalidInput("--memory and --device-memory both bound the device; pass one of them");
  }
  const bool memory = settings.device_memory.empty();
  EM_ASSIGN_OR_RETURN(const std::optional<uint64_t> budget,
                      TierBytes(memory ? "--memory" : "--device-memory",
                                memory ? settings.memory : settings.device_memory, file_bytes));
  if (budget) return *budget;
  const uint64_t available = AvailableMemoryBytes();
  if (available == 0) return InvalidInput("the system does not tell how much memory is free; pass --memory");
  const uint64_t chosen = available > 2 * Margin(available) ? available - Margin(available) : available / 2;
  if (settings.verbose) {
    std::fprintf(stderr, "memory: %s (%s are free; --memory sets another budget)\n", FormatBytes(chosen).c_str(),
                 FormatBytes(available).c_str());
  }
  return chosen;
}

Status ChooseHostTier(const Settings& settings, uint64_t file_bytes, EngineOptions& options) {
  EM_ASSIGN_OR_RETURN(const std::optional<uint64_t> host,
                      TierBytes("--host-memory", settings.host_memory, file_bytes));
  if (host && settings.memory.empty() && settings.device_memory.empty()) {
    return InvalidInput("--host-memory adds a tier beside the device; say with --device-memory how large that is");
  }
  options.host_budget_bytes = host.value_or(0);
  if (settings.copy_gbps == -1) return absl::OkStatus();
  if (!host) {
    return InvalidInput("--copy-gbps paces copies between device and host, and there is no host tier; pass --host-memory");
  }
  if (!(settings.copy_gbps > 0 && settings.copy_gbps <= 1e6)) {
    return InvalidInput("--copy-gbps is {}; expected more than 0, and 1000000 at most", settings.copy_gbps);
  }
  options.copy_gbps = settings.copy_gbps;
  return absl::OkStatus();
}

template <class T>
StatusOr<T> Choose(std::string_view flag, const std::string& text,
                   std::initializer_list<std::pair<std::string_view, T>> choices) {
  std::string names;
  for (const auto& [name, value] : choices) {
    if (name == text) return value;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  }
  return InvalidInput("{} is \"{}\"; expected one of {}", flag, text, names);
}

Status ChoosePolicy(const Settings& settings, EngineOptions& options) {
  EM_ASSIGN_OR_RETURN(options.policy, Choose<Policy>("--policy", settings.policy,
                                                     {{"elastic", Policy::kElastic},
                                                      {"static", Policy::kStatic},
                                                      {"lru", Policy::kLru}}));
  const bool has_slots = settings.slots != -1, has_share = settings.kv_share != -1;
  if ((has_slots || has_share) && options.policy != Policy::kStatic) {
    return InvalidInput("{} is for --policy static; the policy is {}", has_slots ? "--slots" : "--kv-share",
                        settings.policy);
  }
  if (has_slots && has_share) return InvalidInput("pass --slots or --kv-share, not both");
  if (has_slots) {
    if (settings.slots < 1 || settings.slots > 1024) {
      return InvalidInput("--slots is {}; expected 1 to 1024", settings.slots);
    }
    options.static_slots = static_cast<uint32_t>(settings.slots);
  }
  if (has_share) {
    if (!(settings.kv_share > 0 && settings.kv_share < 1)) {
      return InvalidInput("--kv-share is {}; expected more than 0 and less than 1", settings.kv_share);
    }
    options.static_kv_share = settings.kv_share;
  }
  return absl::OkStatus();
}

}  // namespace

SamplingOptions Sampling(const Settings& settings) {
  SamplingOptions options;
  options.temperature = static_cast<float>(settings.temperature);
  options.top_k = static_cast<int>(std::min<uint32_t>(settings.top_k, 1 << 30));
  options.top_p = static_cast<float>(settings.top_p);
  options.min_p = static_cast<float>(settings.min_p);
  options.repeat_penalty = static_cast<float>(settings.repeat_penalty);
  options.frequency_penalty = static_cast<float>(settings.frequency_penalty);
  options.presence_penalty = static_cast<float>(settings.presence_penalty);
  options.penalty_window = static_cast<int>(std::clamp<int64_t>(settings.repeat_last, -(1 << 30), 1 << 30));
  options.seed = settings.seed;
  return options;
}

int ThreadCount(const Settings& settings) {
  if (settings.threads > 0) return static_cast<int>(std::min<uint32_t>(settings.threads, 1024));
  return ClassifyCores(UsableCores()).fast;
}

std::string CacheDir() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache) return std::string(cache) + "/elasticmem";
  if (const char* home = std::getenv("HOME"); home && *home) return std::string(home) + "/.cache/elasticmem";
  return "";
}

StatusOr<std::unique_ptr<Model>> OpenModel(const Settings& settings) {
  StatusOr<std::unique_ptr<Model>> model = Model::Open(settings.model, {settings.activation, settings.pre_tokenizer});
  if (!model.ok()) return AboutModel(settings, model.status());
  return model;
}

Status AboutModel(const Settings& settings, const Status& status) {
  const bool named = Message(status).find(settings.model) != std::string_view::npos;
  return named ? status : WithContext(status, settings.model);
}

StatusOr<EngineOptions> MakeEngineOptions(const Settings& settings, const Model& model, uint32_t kv_tokens,
                                          uint32_t logits_rows) {
  EngineOptions options;
  EM_RETURN_IF_ERROR(ChooseHostTier(settings, model.gguf().file_bytes(), options));
  EM_ASSIGN_OR_RETURN(options.budget_bytes, BudgetBytes(settings, model.gguf().file_bytes()));
  if (settings.mode != "auto") {
    EM_ASSIGN_OR_RETURN(options.mode, Choose<Mode>("--mode", settings.mode, {{"exact", Mode::kExact}, {"dense", Mode::kDense}}));
  }
  EM_RETURN_IF_ERROR(ChoosePolicy(settings, options));
  EM_ASSIGN_OR_RETURN(options.kv_type,
                      Choose<DType>("--kv-type", settings.kv_type,
                                    {{"f32", DType::kF32}, {"f16", DType::kF16}, {"q8_0", DType::kQ8_0}}));
  EM_ASSIGN_OR_RETURN(options.io, Choose<ReadQueueKind>("--io", settings.io,
                                                        {{"auto", ReadQueueKind::kAuto},
                                                         {"uring", ReadQueueKind::kUring},
                                                         {"pread", ReadQueueKind::kPread}}));
  if (!settings.store_type.empty()) {
    const std::optional<DType> type = DTypeFromName(settings.store_type);
    if (!type) return InvalidInput("--type is \"{}\"; expected f32, f16, bf16, q8_0 or q4_0", settings.store_type);
    options.store_type = *type;
  }
  options.context = settings.context;
  options.kv_tokens = kv_tokens;
  options.threads = ThreadCount(settings);
  if (settings.prefill_chunk != -1) {
    if (settings.prefill_chunk < 1 || settings.prefill_chunk > 65536) {
      return InvalidInput("--prefill-chunk is {}; expected 1 to 65536", settings.prefill_chunk);
    }
    options.prefill_chunk = static_cast<uint32_t>(settings.prefill_chunk);
  }
  options.logits_rows = logits_rows;
  options.store_dir = settings.store_dir;
  options.cache_dir = CacheDir();
  options.direct_io = !settings.no_direct;
  options.prefix_cache = settings.prefix_cache;
  if (!settings.swap.empty()) {
    const StatusOr<uint64_t> bytes = ParseBytes(settings.swap, model.gguf().file_bytes());
    if (!bytes.ok()) return WithContext(bytes.status(), "--swap");
    options.swap_bytes = *bytes;
    options.swap_dir = settings.store_dir.empty() ? CacheDir() : settings.store_dir;
    std::error_code error;  // where it cannot be made, making the file there says why
    std::filesystem::create_directories(options.swap_dir, error);
  }
  options.cancelled = &interrupted;
  return options;
}

StatusOr<std::unique_ptr<Engine>> OpenEngine(const Settings& settings, const Model& model, uint32_t kv_tokens,
                                             uint32_t logits_rows, uint32_t sequences) {
  EM_ASSIGN_OR_RETURN(EngineOptions options, MakeEngineOptions(settings, model, kv_tokens, logits_rows));
  options.sequences = sequences;
  ProgressBar bar;
  options.progress = [&](std::string_view what, uint64_t done, uint64_t total) { bar.Update(what, done, total); };
  options.notice = [&](const std::string& text) {
    bar.Clear();
    std::fprintf(stderr, "%s\n", text.c_str());
  };
  StatusOr<std::unique_ptr<Engine>> engine = Engine::Open(model, options);
  if (!engine.ok() && engine.status().code() != StatusCode::kResourceExhausted) {
    return AboutModel(settings, engine.status());
  }
  return engine;
}

StatusOr<std::string> ReadTextFile(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return InvalidInput("{} is a folder, not a text file", path);
  std::ifstream file(path, std::ios::binary);
  if (!file) return SystemError(errno, path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Status WriteTextFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return SystemError(errno, fmt::format("cannot write {}", path));
  return absl::OkStatus();
}

}  // namespace elasticmem
