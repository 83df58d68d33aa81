#include "tools/settings.h"

#include <algorithm>

#include "tools/toml_file.h"

namespace elasticmem {
namespace {

constexpr uint32_t kEngine = kRun | kLogits | kPerplexity | kBench | kGrowth | kServe;
constexpr uint32_t kSampling = kRun | kServe;
constexpr uint32_t kSized = kEngine | kPlan;
constexpr uint32_t kAll = kSized | kInspect | kPack | kTokenize;

}  // namespace

const std::vector<Option>& Options() {
  using S = Settings;
  static const std::vector<Option> kOptions = {
      {"-m,--model", "FILE", "the GGUF file (of a split model: its first part)", kAll, &S::model, "Model"},
      {"--activation", "A", "relu, relu2, drelu, silu, gelu or gelu_tanh, where the file does not say or is wrong",
       kAll & ~kTokenize, &S::activation, "Model"},
      {"--pre-tokenizer", "NAME", "split text this way before byte-level BPE, whatever the file says", kAll,
       &S::pre_tokenizer, "Model"},
      {"--config", "FILE", "read options from a TOML file; what is given here wins", kAll & ~kGrowth, &S::config, "Model"},

      {"-p,--prompt", "TEXT", "the prompt", kRun, &S::prompt, "Input"},
      {"-f,--file", "FILE", "read the text from a file", kRun | kPerplexity, &S::file, "Input"},
      {"--chat", "", "treat the prompt as a user's message; without one, talk in turns", kRun, &S::chat, "Input"},
      {"--system", "TEXT", "the system message of a chat", kRun, &S::system, "Input"},
      {"--parse-special", "", "let text such as <|im_end|> be its control token", kRun | kTokenize, &S::parse_special,
       "Input"},
      {"--no-bos", "", "do not begin with the model's BOS token", kRun | kTokenize, &S::no_bos, "Input"},
      {"--tokens", "IDS", "token ids, separated by commas", kLogits, &S::tokens, "Input"},
      {"-o,--output", "FILE", "where the neuron store goes", kPack, &S::output, "Input"},
      {"-o,--output", "PREFIX", "write PREFIX.json, PREFIX.md and PREFIX.svg, whatever the file says", kCompare, &S::output, "Output"},

      {"-n,--generate", "N", "tokens to generate at most", kRun, &S::generate, "Generation"},
      {"--temp", "T", "temperature; 0 picks the likeliest token", kSampling, &S::temperature, "Generation"},
      {"--top-k", "K", "sample from the K likeliest; 0: all", kSampling, &S::top_k, "Generation"},
      {"--top-p", "P", "sample from the likeliest that make up P; 1: all", kSampling, &S::top_p, "Generation"},
      {"--min-p", "P", "drop tokens less likely than P times the likeliest; 0: none", kSampling, &S::min_p, "Generation"},
      {"--repeat-penalty", "R", "divide the logits of recent tokens by R; 1: off", kSampling, &S::repeat_penalty, "Generation"},
      {"--frequency-penalty", "F", "subtract F for each recent occurrence; 0: off", kSampling, &S::frequency_penalty,
       "Generation"},
      {"--presence-penalty", "F", "subtract F if it occurred recently; 0: off", kSampling, &S::presence_penalty, "Generation"},
      {"--repeat-last-n", "N", "how many tokens are recent; -1: all", kSampling, &S::repeat_last, "Generation"},
      {"--seed", "N", "of the sampler, or of a bench's tokens", kRun | kBench | kGrowth, &S::seed, "Generation"},
      {"--stop", "TEXT", "end when this text appears (may be given again)", kRun, &S::stop, "Generation"},
      {"--ignore-eos", "", "go on after the end-of-text token", kRun, &S::ignore_eos, "Generation"},

      {"--memory", "SIZE", "all memory of the model: weights, KV cache, neurons, scratch, staging. B, KiB, MiB, GiB, KB, "
       "MB, GB, or % of the model's file. Default: what is free, less a margin", kSized | kInspect, &S::memory, "Memory"},
      {"--device-memory", "SIZE", "--memory's other name where there is a host tier beside the device; without a GPU the "
       "device is RAM too", kSized, &S::device_memory, "Memory"},
      {"--host-memory", "SIZE", "a second tier, in RAM, for neurons that find no place on the device: all that it may take",
       kSized & ~kGrowth, &S::host_memory, "Memory"},
      {"--copy-gbps", "X", "pace copies between the two to X GB/s, where the device is RAM and they would be faster",
       kEngine & ~kGrowth, &S::copy_gbps, "Memory"},
      {"-c,--context", "N", "tokens of a sequence at most; default: what the model was trained for", kSized, &S::context,
       "Memory"},
      {"--kv-type", "T", "f32, f16 or q8_0", kSized, &S::kv_type, "Memory"},
      {"--prefill-chunk", "N", "tokens of a prompt per step; default: by the budget", kSized, &S::prefill_chunk, "Memory"},
      {"--clients", "N", "sequences at once", kPlan | kServe, &S::clients, "Memory"},
      {"--store-dir", "DIR", "folder of the neuron store; default: beside the model, else the cache folder",
       kEngine | kPack, &S::store_dir, "Memory"},
      {"--type", "T", "requantise the neuron store: f32, f16, bf16, q8_0 or q4_0", kEngine | kPack | kPlan, &S::store_type,
       "Memory"},
      {"--io", "KIND", "auto, uring or pread", kEngine, &S::io, "Memory"},
      {"--no-direct", "", "read through the page cache", kEngine, &S::no_direct, "Memory"},
      {"--prefix-cache", "", "keep the KV of texts that have ended or were interrupted as long as nobody needs its memory: "
       "who begins with the same tokens does not read them again", kGrowth, &S::prefix_cache, "Memory"},
      {"--swap", "SIZE", "so much of the disk (in --store-dir, else the cache folder) for KV of paused conversations, where "
       "that is faster than reading their tokens again; default: none", kGrowth, &S::swap, "Memory"},

      {"--listen", "HOST:PORT", "where to listen; port 0: any that is free", kServe, &S::listen, "Serving"},
      {"--keys", "FILE", "clients' API keys: lines of a name and the key's SHA-256 sum (printf %s KEY | sha256sum); SIGHUP reads it "
       "again", kServe, &S::keys, "Serving"},
      {"--without-keys", "", "listen where others can reach it though there are no API keys", kServe, &S::insecure, "Serving"},
      {"--alias", "NAME", "what clients call the model; default: its file's name", kServe, &S::alias, "Serving"},
      {"--check", "", "check everything that is set and print the plan, without starting", kServe, &S::check, "Serving"},
      {"--log", "FORMAT", "a line for each request on stderr: text, json or off", kServe, &S::log, "Serving"},
      {"--max-queue", "N", "requests that run or wait at once; beyond it clients are told to come back", kServe,
       &S::max_queue, "Serving"},
      {"--grace", "SECONDS", "how long requests may go on after SIGTERM", kServe, &S::grace, "Serving"},

      {"--mode", "M", "exact (only active neurons), dense (all), or auto", kSized, &S::mode, "Compute"},
      {"--policy", "P", "elastic (KV cache and neurons share memory as they need it), static (fixed shares and a fixed set "
       "of neurons) or lru (elastic, keeping the latest used neurons)", kSized & ~kGrowth, &S::policy, "Compute"},
      {"--slots", "N", "static policy: KV for so many whole contexts, neurons get the rest; default: 1",
       kSized & ~kGrowth, &S::slots, "Compute"},
      {"--kv-share", "X", "static policy: this share of the pool for KV instead, 0 to 1", kSized & ~kGrowth, &S::kv_share,
       "Compute"},
      {"-t,--threads", "N", "cores to use; default: all, or where some are much slower than others the fast ones", kSized, &S::threads, "Compute"},

      {"--prompt", "N,N,..", "prefill: prompts of so many tokens; 0: none; default: 128. Its bound is the speed of a product "
       "whose weights stay in the cache", kBench, &S::bench_prompts, "Measuring"},
      {"-n,--generate", "N,N,..", "decode: so many tokens of each sequence; 0: none; default: 64. Its bound is the time that "
       "reading the same bytes takes, measured by reading the dense weights in between", kBench, &S::bench_generates,
       "Measuring"},
      {"--batch", "N,N,..", "decode so many sequences at once; default: 1", kBench, &S::bench_batches, "Measuring"},
      {"--depth", "N,N,..", "tokens that are in the context of each sequence before; default: 0", kBench, &S::bench_depths,
       "Measuring"},
      {"--mixed", "", "also decode while a prompt is read: each batch with each prompt", kBench, &S::bench_mixed,
       "Measuring"},
      {"-r,--repeat", "R", "how often", kBench, &S::repeat, "Measuring"},
      {"--top", "K", "how many of the largest logits to show", kLogits, &S::top, "Measuring"},
      {"--windows", "N", "stop after so many windows of the context's length; 0: all", kPerplexity, &S::windows,
       "Measuring"},

      {"--policies", "A,B,..", "what to compare: elastic, static, lru, oracle; default: all. Static and oracle are told the "
       "true frequencies of neurons, which a first pass records; that pass is not measured", kGrowth, &S::policies,
       "Growth trace"},
      {"--slots", "N,N,..", "static: each of these numbers of whole contexts; default: the most clients", kGrowth,
       &S::growth_slots, "Growth trace"},
      {"--kv-shares", "X,X,..", "static: each of these shares of the pool for KV, in pages", kGrowth, &S::kv_shares,
       "Growth trace"},
      {"--phases", "N,N,..", "active clients in each phase; default: 1,2,4,8,8,4,2,1", kGrowth, &S::phases,
       "Growth trace"},
      {"-n,--generate", "N", "tokens to generate in all; default: 3000", kGrowth, &S::growth_generate, "Growth trace"},
      {"--scale", "S", "multiplies them, and with them the turns of each client; default: 1", kGrowth, &S::scale,
       "Growth trace"},
      {"-r,--repeat", "R", "passes of each policy, of which the median counts; default: 1", kGrowth, &S::growth_repeat,
       "Growth trace"},

      {"--report", "FILE", "write a JSON report", kRun | kPerplexity | kBench | kGrowth, &S::report, "Output"},
      {"--svg", "FILE", "draw the comparison", kGrowth, &S::svg, "Output"},
      {"--json", "", "print JSON for programs", kAll | kCompare, &S::json, "Output"},
      {"--verify", "", "read the whole store and check every byte", kPack, &S::verify, "Output"},
      {"-v,--verbose", "", "say more", kAll, &S::verbose, "Output"},
  };
  return kOptions;
}

std::string_view Option::Key() const {
  const size_t dashes = flags.rfind("--");
  return flags.substr(dashes + 2);
}

namespace {

// One TOML value as a T: the very type, and in its range.
template <class T>
std::optional<T> ValueOf(const toml::node& node) {
  if constexpr (std::is_same_v<T, std::string>) {
    return node.is_string() ? node.value<std::string>() : std::nullopt;
  } else if constexpr (std::is_same_v<T, bool>) {
    return node.is_boolean() ? node.value<bool>() : std::nullopt;
  } else if constexpr (std::is_same_v<T, double>) {
    return node.is_number() ? node.value<double>() : std::nullopt;
  } else {
    const auto value = node.is_integer() ? node.value<int64_t>() : std::nullopt;
    if (!value || (std::is_unsigned_v<T> && *value < 0) || static_cast<int64_t>(static_cast<T>(*value)) != *value) {
      return std::nullopt;
    }
    return static_cast<T>(*value);
  }
}

template <class T>
bool Store(const toml::node& node, T& target) {
  const std::optional<T> value = ValueOf<T>(node);
  if (value) target = *value;
  return value.has_value();
}

template <class T>
bool Store(const toml::node& node, std::vector<T>& target) {
  const toml::array* array = node.as_array();
  if (!array) {  // a list of one
    const std::optional<T> value = ValueOf<T>(node);
    if (value) target.push_back(*value);
    return value.has_value();
  }
  for (const toml::node& element : *array) {
    const std::optional<T> value = ValueOf<T>(element);
    if (!value) return false;
    target.push_back(*value);
  }
  return true;
}

// Assigns one TOML value to the member of an option; false if its type does not fit.
bool Assign(const toml::node& node, const Option& option, Settings& settings) {
  return std::visit([&](auto member) { return Store(node, settings.*member); }, option.member);
}

}  // namespace

Status ApplyConfig(const std::string& path, uint32_t command, const std::vector<std::string_view>& given,
                   Settings& settings) {
  EM_ASSIGN_OR_RETURN(const toml::table table, ReadTomlFile(path));
  for (const auto& [toml_key, node] : table) {
    std::string key(toml_key.str());
    std::replace(key.begin(), key.end(), '_', '-');
    const auto option = std::find_if(Options().begin(), Options().end(), [&](const Option& o) {
      return o.Key() == key && (o.commands & command);
    });
    if (option == Options().end()) {
      const bool elsewhere = std::any_of(Options().begin(), Options().end(), [&](const Option& o) { return o.Key() == key; });
      if (elsewhere && command != kGrowth) continue;
      if (elsewhere) {
        return InvalidInput("{}:{}: \"{}\" is not an option of bench growth; see bench growth --help", path,
                            node.source().begin.line, toml_key.str());
      }
      return InvalidInput("{}:{}: there is no option \"{}\"", path, node.source().begin.line, toml_key.str());
    }
    // Checked even where the command line has the last word.
    const bool overruled = std::find(given.begin(), given.end(), option->Key()) != given.end();
    Settings unused;
    if (!Assign(node, *option, overruled ? unused : settings)) {
      return InvalidInput("{}:{}: the value of \"{}\" is not of the type that --{} takes ({})", path,
                          node.source().begin.line, toml_key.str(), option->Key(),
                          option->value.empty() ? "true or false" : option->value);
    }
  }
  return absl::OkStatus();
}

}  // namespace elasticmem
