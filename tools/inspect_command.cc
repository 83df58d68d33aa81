// `elasticmem inspect`, `plan`, `pack` and `tokenize`: what is in a model, where its bytes would go, and its tokens.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/units.h"
#include "device/cores.h"
#include "runtime/model/model_hash.h"
#include "tools/session.h"

namespace elasticmem {
namespace {

using Json = nlohmann::ordered_json;

std::string Print(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace); }

constexpr size_t kShownElements = 4;

Json ToJson(const GgufValue& value, bool whole) {
  return std::visit(
      [&](const auto& v) -> Json {
        using T = std::decay_t<decltype(v)>;
        if constexpr (requires { v.begin(); } && !std::is_same_v<T, std::string>) {
          if (whole || v.size() <= kShownElements) return Json(v);
          return Json{{"length", v.size()}, {"first", T(v.begin(), v.begin() + kShownElements)}};
        } else {
          return Json(v);
        }
      },
      value.value);
}

std::string ShapeText(const GgufTensor& tensor) {
  std::string text;
  for (const uint64_t n : tensor.shape) text += fmt::format("{}{}", text.empty() ? "" : " x ", n);
  return text;
}

Json NeedsJson(const std::vector<MemoryNeed>& needs) {
  Json json = Json::array();
  for (const MemoryNeed& need : needs) json.push_back({{"what", need.what}, {"bytes", need.bytes}});
  return json;
}

Json PlanJson(const MemoryPlan& plan) {
  return {{"total_bytes", plan.TotalBytes()},
          {"mode", Name(plan.mode)},
          {"needs", NeedsJson(plan.needs)},
          {"dense_resident_bytes", plan.dense_resident_bytes},
          {"dense_streamed_bytes", plan.dense_streamed_bytes},
          {"prefill_chunk", plan.prefill_chunk},
          {"page_tokens", plan.geometry.page_tokens},
          {"block_bytes", plan.geometry.block_bytes},
          {"records_per_block", plan.geometry.records_per_block},
          {"block_waste", plan.geometry.waste},
          {"pool_blocks", plan.pool_blocks},
          {"kv_blocks", plan.kv_blocks}};
}

std::string PlanText(const ModelSpec& spec, const MemoryPlan& plan, const MemoryPlan& smallest, uint32_t clients,
                     uint32_t context) {
  std::string text = plan.Describe();
  text += fmt::format("\n  blocks of {} hold {} tokens of KV of one layer, or {} neurons ({:.1f} % waste)\n",
                      FormatBytes(plan.geometry.block_bytes), plan.geometry.page_tokens,
                      plan.geometry.records_per_block, plan.geometry.waste * 100);
  if (plan.ffn == FfnPath::kRecords) {
    const uint64_t neurons = uint64_t{spec.layers} * spec.ff;
    const uint64_t needed = CeilDiv<uint64_t>(neurons, plan.geometry.records_per_block);
    const uint64_t spare = plan.pool_blocks > needed ? plan.pool_blocks - needed : 0;
    text += fmt::format("  neurons begin to leave after {} tokens of KV\n",
                        spare / spec.layers * plan.geometry.page_tokens);
    const bool host = plan.host_slots > 0;
    std::vector<std::vector<std::string>> rows = {
        {"KV filled", "tokens", host ? "neurons on the device" : "neurons in memory"}};
    if (host) rows[0].push_back("on the host");
    const uint64_t all = uint64_t{clients} * context;
    for (const int percent : {0, 25, 50, 75, 100}) {
      const uint64_t tokens = all * percent / 100;
      rows.push_back(
          {fmt::format("{} %", percent), std::to_string(tokens),
           fmt::format("{:.1f} %", plan.ResidentShare(spec, clients, static_cast<uint32_t>(tokens / clients)) * 100)});
      const double share = plan.ResidentShare(spec, clients, static_cast<uint32_t>(tokens / clients));
      if (host) rows.back().push_back(fmt::format("{:.1f} %", std::min(1 - share, plan.HostShare(spec)) * 100));
    }
    text += "\n" + FormatTable(rows);
  }
  text += fmt::format("\n  smallest budget that works: {} ({} bytes)\n", FormatBytes(smallest.TotalBytes()),
                      smallest.TotalBytes());
  if (smallest.HostBytes() > 0) {
    text += fmt::format("  and on the host: {} ({} bytes)\n", FormatBytes(smallest.HostBytes()), smallest.HostBytes());
  }
  return text;
}

// Bytes by role, for `inspect`.
std::vector<std::pair<std::string, uint64_t>> BytesByRole(const GgufFile& gguf) {
  std::vector<std::pair<std::string, uint64_t>> roles = {
      {"embeddings and output", 0}, {"attention", 0}, {"feed-forward", 0}, {"norms and others", 0}};
  for (const GgufTensor& tensor : gguf.tensors()) {
    const std::string& n = tensor.name;
    const bool matrix = tensor.shape.size() > 1;
    const size_t role = n.rfind("token_embd", 0) == 0 || n.rfind("output.", 0) == 0 || n.rfind("position_embd", 0) == 0
                            ? 0
                        : matrix && n.find("attn") != std::string::npos ? 1
                        : matrix && n.find("ffn") != std::string::npos  ? 2
                                                                        : 3;
    roles[role].second += tensor.bytes;
  }
  return roles;
}

Json InspectJson(const GgufFile& gguf, const StatusOr<ModelSpec>& spec) {
  Json json = {{"file_bytes", gguf.file_bytes()},
               {"version", gguf.version()},
               {"powerinfer", gguf.is_powerinfer()},
               {"parameters", gguf.parameters()},
               {"parts", gguf.paths()}};
  for (const auto& [key, value] : gguf.metadata()) json["metadata"][key] = ToJson(value, false);
  json["tensors"] = Json::array();
  for (const GgufTensor& tensor : gguf.tensors()) {
    json["tensors"].push_back(
        {{"name", tensor.name}, {"type", Traits(tensor.dtype).name}, {"shape", tensor.shape}, {"bytes", tensor.bytes}});
  }
  for (const auto& [role, bytes] : BytesByRole(gguf)) json["bytes"][role] = bytes;
  if (spec.ok()) {
    json["model"] = {{"architecture", spec->architecture},
                     {"layers", spec->layers},
                     {"d_model", spec->d_model},
                     {"heads", spec->heads},
                     {"kv_heads", spec->kv_heads},
                     {"head_dim", spec->head_dim},
                     {"neurons_per_layer", spec->ff},
                     {"vocabulary", spec->vocab},
                     {"context", spec->context},
                     {"activation", ActivationName(spec->activation)},
                     {"sparse", spec->HasSparseActivation()}};
  } else {
    json["cannot_run"] = Message(spec.status());
  }
  return json;
}

// What budgets of several sizes would hold of the model.
std::string BudgetTable(const Settings& settings, const Model& model) {
  std::vector<std::vector<std::string>> rows = {{"budget", "bytes", "dense weights", "neurons", "prefill chunk"}};
  for (const int percent : {100, 80, 60, 40, 20}) {
    Settings at = settings;
    at.memory = fmt::format("{}%", percent);
    const uint32_t tokens = std::min<uint32_t>(model.spec().context, 512);
    const StatusOr<EngineOptions> options = MakeEngineOptions(at, model, tokens, 1);
    if (!options.ok()) continue;
    const StatusOr<MemoryPlan> plan = Engine::Plan(model, *options);
    if (!plan.ok()) {
      rows.push_back({at.memory, FormatBytes(options->budget_bytes), "does not fit"});
      continue;
    }
    const double all = static_cast<double>(plan->dense_resident_bytes + plan->dense_streamed_bytes);
    rows.push_back(
        {at.memory, FormatBytes(options->budget_bytes), fmt::format("{:.0f} %", plan->dense_resident_bytes / all * 100),
         plan->ffn == FfnPath::kRecords
             ? fmt::format("{:.0f} %", plan->ResidentShare(model.spec(), 1, static_cast<uint32_t>(tokens)) * 100)
             : "with the weights",
         std::to_string(plan->prefill_chunk)});
  }
  return FormatTable(rows);
}

std::string ThreadsText(int threads, const Cores& cores) {
  if (cores.slow == 0) return fmt::format("{} of {} cores compute", threads, cores.fast);
  return fmt::format("{} threads compute, on {} fast and {} slow cores{}", threads, cores.fast, cores.slow,
                     threads > cores.fast ? ": the slow ones will have the fast ones wait" : "");
}

}  // namespace

Status InspectCommand(const Settings& settings) {
  EM_ASSIGN_OR_RETURN(const GgufFile gguf, GgufFile::Open(settings.model));
  const StatusOr<ModelSpec> spec = ReadModelSpec(gguf, settings.activation);
  if (settings.json) {
    std::printf("%s\n", Print(InspectJson(gguf, spec)).c_str());
    return absl::OkStatus();
  }
  std::printf("%s: %s version %u, %s, %llu parameters, %zu tensors%s\n", settings.model.c_str(),
              gguf.is_powerinfer() ? "PowerInfer GGUF" : "GGUF", gguf.version(), FormatBytes(gguf.file_bytes()).c_str(),
              static_cast<unsigned long long>(gguf.parameters()), gguf.tensors().size(),
              gguf.paths().size() > 1 ? fmt::format(" in {} parts", gguf.paths().size()).c_str() : "");
  std::vector<std::vector<std::string>> rows;
  for (const auto& [key, value] : gguf.metadata()) {
    std::string text = ToJson(value, false).dump(-1, ' ', false, Json::error_handler_t::replace);
    if (!settings.verbose && text.size() > 72) text = text.substr(0, 69) + "...";
    std::printf("  %-44s %s\n", key.c_str(), text.c_str());
  }
  if (settings.verbose) {
    rows = {{"tensor", "type", "shape", "bytes"}};
    for (const GgufTensor& tensor : gguf.tensors()) {
      rows.push_back(
          {tensor.name, std::string(Traits(tensor.dtype).name), ShapeText(tensor), std::to_string(tensor.bytes)});
    }
    std::printf("\n%s", FormatTable(rows).c_str());
  }
  rows = {{"part", "bytes"}};
  for (const auto& [role, bytes] : BytesByRole(gguf)) rows.push_back({role, FormatBytes(bytes)});
  std::printf("\n%s", FormatTable(rows).c_str());
  if (!spec.ok()) {
    std::printf("\nthis program cannot run it: %s\n", std::string(Message(spec.status())).c_str());
    return absl::OkStatus();
  }
  std::printf("\n%u layers of %u neurons, activation %s%s; %u heads over %u KV heads of %u; context %u\n", spec->layers,
              spec->ff, std::string(ActivationName(spec->activation)).c_str(),
              spec->HasSparseActivation() ? " (sparse: exact mode skips inactive neurons)" : "", spec->heads,
              spec->kv_heads, spec->head_dim, spec->context);
  const StatusOr<std::unique_ptr<Model>> model = OpenModel(settings);
  if (model.ok()) std::printf("\n%s", BudgetTable(settings, **model).c_str());
  return absl::OkStatus();
}

Status PlanCommand(const Settings& settings) {
  EM_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, OpenModel(settings));
  const uint32_t context = settings.context > 0 ? settings.context : model->spec().context;
  EM_ASSIGN_OR_RETURN(EngineOptions options, MakeEngineOptions(settings, *model, context, 1));
  options.sequences = std::max<uint32_t>(1, settings.clients);
  return PrintPlan(settings, *model, options);
}

Status PrintPlan(const Settings& settings, const Model& model, const EngineOptions& options) {
  EM_ASSIGN_OR_RETURN(const MemoryPlan plan, Engine::Plan(model, options));
  EM_ASSIGN_OR_RETURN(const MemoryPlan smallest, Engine::Plan(model, options, /*smallest=*/true));
  const Cores cores = ClassifyCores(UsableCores());
  if (!settings.json) {
    std::printf("%s\n  %s\n", PlanText(model.spec(), plan, smallest, options.sequences, options.kv_tokens).c_str(),
                ThreadsText(options.threads, cores).c_str());
    return absl::OkStatus();
  }
  Json json = PlanJson(plan);
  json["budget_bytes"] = options.budget_bytes;
  json["smallest_bytes"] = smallest.TotalBytes();
  json["threads"] = options.threads;
  json["cores"] = {{"fast", cores.fast}, {"slow", cores.slow}};
  if (options.host_budget_bytes > 0) {
    json["host"] = {{"budget_bytes", options.host_budget_bytes},
                    {"total_bytes", plan.HostBytes()},
                    {"smallest_bytes", smallest.HostBytes()},
                    {"slots", plan.host_slots},
                    {"needs", NeedsJson(plan.host_needs)}};
  }
  std::printf("%s\n", Print(json).c_str());
  return absl::OkStatus();
}

Status PackCommand(const Settings& settings) {
  EM_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, OpenModel(settings));
  if (!model->spec().HasSparseActivation()) {
    return InvalidInput(
        "{}: the activation is {}, which leaves no neuron out; such models run from their own file and need no "
        "neuron store",
        settings.model, ActivationName(model->spec().activation));
  }
  std::optional<DType> type;
  if (!settings.store_type.empty()) {
    type = DTypeFromName(settings.store_type);
    if (!type) return InvalidInput("--type is \"{}\"; expected f32, f16, bf16, q8_0 or q4_0", settings.store_type);
  }
  std::string path = settings.output;
  if (path.empty()) {
    EM_ASSIGN_OR_RETURN(const uint64_t hash, ModelQuickHash(model->gguf()));
    EM_ASSIGN_OR_RETURN(path, StorePath({model->path(), settings.store_dir, CacheDir(), type, hash}));
  }
  ProgressBar bar;
  PackOptions options;
  options.type = type;
  options.cancelled = &interrupted;
  options.progress = [&](uint64_t done, uint64_t total) { bar.Update("packing the neuron store", done, total); };
  const PackSource source = model->pack_source();
  const StatusOr<PackResult> packed = PackNeuronStore(source, path, options);
  if (!packed.ok()) return AboutModel(settings, packed.status());
  const PackResult& result = *packed;
  bar.Clear();
  if (settings.verify) {
    EM_ASSIGN_OR_RETURN(const NeuronStore store,
                        NeuronStore::Open(path, std::nullopt, {.try_direct = true, .heads = true}));
    EM_RETURN_IF_ERROR(
        store.VerifyAll([&](uint64_t done, uint64_t total) { bar.Update("verifying", done, total); }, &interrupted));
    bar.Clear();
  }
  if (settings.json) {
    const Json json = {{"path", result.path},
                       {"bytes", result.bytes},
                       {"seconds", result.seconds},
                       {"reused", result.reused},
                       {"requantised", result.requantised},
                       {"relative_error", result.relative_error}};
    std::printf("%s\n", Print(json).c_str());
    return absl::OkStatus();
  }
  if (result.reused) {
    std::printf("%s is there already and fits (%s)\n", result.path.c_str(), FormatBytes(result.bytes).c_str());
  } else {
    std::printf("%s: %s in %.1f s\n", result.path.c_str(), FormatBytes(result.bytes).c_str(), result.seconds);
  }
  if (!result.requantised.empty()) {
    std::printf("requantised %s, relative error %.5f\n", result.requantised.c_str(), result.relative_error);
  }
  return absl::OkStatus();
}

Status TokenizeCommand(const Settings& settings, const std::string& text) {
  EM_ASSIGN_OR_RETURN(const GgufFile gguf, GgufFile::Open(settings.model));
  const StatusOr<Tokenizer> opened = Tokenizer::FromGguf(gguf, settings.pre_tokenizer);
  if (!opened.ok()) return AboutModel(settings, opened.status());
  const Tokenizer& tokenizer = *opened;
  const std::vector<TokenId> ids = tokenizer.Encode(text, {!settings.no_bos, settings.parse_special});
  if (settings.json) {
    Json json = {{"ids", ids}, {"pieces", Json::array()}};
    for (const TokenId id : ids) json["pieces"].push_back(std::string(tokenizer.Piece(id)));
    std::printf("%s\n", Print(json).c_str());
    return absl::OkStatus();
  }
  for (size_t i = 0; i < ids.size(); ++i) std::printf("%s%d", i ? " " : "", ids[i]);
  std::printf("\n");
  if (settings.verbose) {
    for (const TokenId id : ids) std::printf("%8d  %s\n", id, std::string(tokenizer.Piece(id)).c_str());
  }
  return absl::OkStatus();
}

}  // namespace elasticmem
