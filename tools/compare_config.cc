#include "tools/compare_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>
#include <filesystem>
#include <limits>

#include "device/cores.h"
#include "tools/session.h"
#include "tools/toml_file.h"

namespace elasticmem {
namespace {

namespace fs = std::filesystem;

struct KindName {
  EngineKind kind;
  std::string_view name;
};
constexpr KindName kKinds[] = {{EngineKind::kElasticMem, "elasticmem"},
                               {EngineKind::kLlamaCpp, "llama.cpp"},
                               {EngineKind::kIkLlamaCpp, "ik_llama.cpp"},
                               {EngineKind::kPowerInfer, "powerinfer"}};

// Takes the keys of one table; what is left at the end nobody asked for.
class TableReader {
 public:
  TableReader(const std::string& path, const toml::table& table) : path_(path), table_(table) {}

  Status At(const toml::node& node, const std::string& message) const {
    return InvalidInput("{}:{}:{}: {}", path_, node.source().begin.line, node.source().begin.column, message);
  }

  Status Read(std::string_view key, std::string& value) {
    const toml::node* node = Take(key);
    if (!node) return absl::OkStatus();
    const auto text = node->value_exact<std::string>();
    if (!text) return At(*node, fmt::format("\"{}\" is not a text", key));
    value = *text;
    return absl::OkStatus();
  }
  template <std::unsigned_integral T>
  Status Read(std::string_view key, T& value, uint64_t least, uint64_t most) {
    const toml::node* node = Take(key);
    if (!node) return absl::OkStatus();
    const auto number = node->value_exact<int64_t>();
    if (!number || *number < 0 || static_cast<uint64_t>(*number) < least || static_cast<uint64_t>(*number) > most) {
      return At(*node, fmt::format("\"{}\" is {}; expected a whole number from {} to {}", key,
                                   number ? std::to_string(*number) : "no whole number", least, most));
    }
    value = static_cast<T>(*number);
    return absl::OkStatus();
  }
  Status Read(std::string_view key, std::vector<std::string>& values) {
    const toml::node* node = Take(key);
    if (!node) return absl::OkStatus();
    const toml::array* array = node->as_array();
    if (!array) return At(*node, fmt::format("\"{}\" is not a list of texts", key));
    for (const toml::node& element : *array) {
      const auto text = element.value_exact<std::string>();
      if (!text) return At(element, fmt::format("\"{}\" holds something that is not a text", key));
      values.push_back(*text);
    }
    return absl::OkStatus();
  }
  const toml::node* Take(std::string_view key) {
    taken_.emplace_back(key);
    return table_.get(key);
  }
  Status RefuseOthers() const {
    for (const auto& [key, node] : table_) {
      if (std::find(taken_.begin(), taken_.end(), key.str()) != taken_.end()) continue;
      std::string known;
      for (const std::string& name : taken_) known += (known.empty() ? "" : ", ") + name;
      return At(node, fmt::format("there is no \"{}\" here; known are {}", key.str(), known));
    }
    return absl::OkStatus();
  }

 private:
  const std::string& path_;
  const toml::table& table_;
  std::vector<std::string> taken_;
};

StatusOr<CompareLimit> LimitOf(const std::string& text) {
  if (text == "none") return CompareLimit{text, std::nullopt};
  double percent = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), percent);
  if (error != std::errc() || std::string_view(end, text.data() + text.size()) != "%" || !(percent > 0) ||
      percent > 1000) {
    return InvalidInput("\"{}\" is no limit; expected \"none\" or a share of the plain file such as \"60%\"", text);
  }
  return CompareLimit{text, percent};
}

StatusOr<CompareEngine> EngineOf(const std::string& path, const toml::table& table, const std::string& plain,
                                 const auto& resolve) {
  TableReader reader(path, table);
  CompareEngine engine;
  std::string kind;
  EM_RETURN_IF_ERROR(reader.Read("name", engine.name));
  EM_RETURN_IF_ERROR(reader.Read("kind", kind));
  EM_RETURN_IF_ERROR(reader.Read("binary", engine.binary));
  EM_RETURN_IF_ERROR(reader.Read("model", engine.model));
  EM_RETURN_IF_ERROR(reader.Read("conversion", engine.conversion));
  EM_RETURN_IF_ERROR(reader.Read("mode", engine.mode));
  EM_RETURN_IF_ERROR(reader.Read("args", engine.args));
  EM_RETURN_IF_ERROR(reader.RefuseOthers());
  const auto found =
      std::find_if(std::begin(kKinds), std::end(kKinds), [&](const KindName& k) { return k.name == kind; });
  if (found == std::end(kKinds)) {
    return reader.At(table,
                     fmt::format("kind is \"{}\"; expected elasticmem, llama.cpp, ik_llama.cpp or powerinfer", kind));
  }
  engine.kind = found->kind;
  if (engine.name.empty()) engine.name = kind;
  const bool own = engine.kind == EngineKind::kElasticMem;
  if (engine.binary.empty() && !own) return reader.At(table, fmt::format("engine \"{}\" has no binary", engine.name));
  if (!engine.mode.empty() && !own) return reader.At(table, "mode is for kind \"elasticmem\"; use args");
  engine.binary = engine.binary.empty() ? fs::read_symlink("/proc/self/exe").string() : resolve(engine.binary);
  engine.model = engine.model.empty() ? plain : resolve(engine.model);
  if (engine.model != plain && engine.conversion.empty()) {
    return reader.At(table,
                     fmt::format("engine \"{}\" has a model of its own: say in \"conversion\" how it was made of the "
                                 "plain file",
                                 engine.name));
  }
  return engine;
}

}  // namespace

std::string_view NameOf(EngineKind kind) {
  return std::find_if(std::begin(kKinds), std::end(kKinds), [&](const KindName& k) { return k.kind == kind; })->name;
}

std::optional<uint64_t> CompareConfig::LimitBytes(const CompareLimit& limit) const {
  if (!limit.percent) return std::nullopt;
  return static_cast<uint64_t>(std::llround(static_cast<double>(plain_bytes) * *limit.percent / 100));
}

StatusOr<CompareConfig> ReadCompareConfig(const std::string& path) {
  EM_ASSIGN_OR_RETURN(const toml::table table, ReadTomlFile(path));
  const auto resolve = [&](const std::string& name) {
    return (fs::path(path).parent_path() / name).lexically_normal().string();
  };
  CompareConfig config;
  config.threads = static_cast<uint32_t>(ClassifyCores(UsableCores()).fast);
  TableReader reader(path, table);
  std::string prompt_file;
  std::vector<std::string> limits;
  constexpr uint64_t kMost = 1 << 20;
  EM_RETURN_IF_ERROR(reader.Read("plain", config.plain));
  EM_RETURN_IF_ERROR(reader.Read("prompt", config.prompt));
  EM_RETURN_IF_ERROR(reader.Read("prompt_file", prompt_file));
  EM_RETURN_IF_ERROR(reader.Read("threads", config.threads, 1, 1024));
  EM_RETURN_IF_ERROR(reader.Read("context", config.context, 8, kMost));
  EM_RETURN_IF_ERROR(reader.Read("generate", config.generate, 2, kMost));
  EM_RETURN_IF_ERROR(reader.Read("repeat", config.repeat, 1, 1000));
  EM_RETURN_IF_ERROR(reader.Read("timeout_seconds", config.timeout_seconds, 1, 1'000'000));
  EM_RETURN_IF_ERROR(reader.Read("seed", config.seed, 0, std::numeric_limits<int32_t>::max()));
  EM_RETURN_IF_ERROR(reader.Read("limits", limits));
  EM_RETURN_IF_ERROR(reader.Read("output", config.output));
  const toml::node* engines = reader.Take("engine");
  EM_RETURN_IF_ERROR(reader.RefuseOthers());

  if (config.plain.empty()) return InvalidInput("{}: no \"plain\": the model file that limits are shares of", path);
  config.plain = resolve(config.plain);
  std::error_code error;
  config.plain_bytes = fs::file_size(config.plain, error);
  if (error) return SystemError(error.value(), "plain: " + config.plain);
  if (!prompt_file.empty()) {
    if (!config.prompt.empty()) return reader.At(*table.get("prompt_file"), "there is a \"prompt\" already");
    EM_ASSIGN_OR_RETURN(config.prompt, ReadTextFile(resolve(prompt_file)));
  }
  if (config.prompt.empty()) return InvalidInput("{}: no \"prompt\" or \"prompt_file\"", path);
  if (config.generate >= config.context) {
    return InvalidInput("{}: \"generate\" is {}; it does not fit a \"context\" of {}", path, config.generate,
                        config.context);
  }
  for (const std::string& text : limits.empty() ? std::vector<std::string>{"none"} : limits) {
    StatusOr<CompareLimit> limit = LimitOf(text);
    if (!limit.ok()) return reader.At(*table.get("limits"), std::string(Message(limit.status())));
    if (std::any_of(config.limits.begin(), config.limits.end(),
                    [&](const CompareLimit& l) { return l.label == text; })) {
      return reader.At(*table.get("limits"), fmt::format("\"{}\" is there twice", text));
    }
    config.limits.push_back(*std::move(limit));
  }
  const toml::array* list = engines ? engines->as_array() : nullptr;
  if (!list || list->empty()) return InvalidInput("{}: no [[engine]]", path);
  for (const toml::node& node : *list) {
    if (!node.is_table()) return reader.At(node, "an engine is a table: [[engine]]");
    EM_ASSIGN_OR_RETURN(CompareEngine engine, EngineOf(path, *node.as_table(), config.plain, resolve));
    const auto same = [&](const CompareEngine& other) { return other.name == engine.name; };
    if (std::any_of(config.engines.begin(), config.engines.end(), same)) {
      return reader.At(node, fmt::format("there are two engines \"{}\"; give them names", engine.name));
    }
    config.engines.push_back(std::move(engine));
  }
  return config;
}

}  // namespace elasticmem
