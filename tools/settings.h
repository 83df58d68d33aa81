// Everything a user can set, once: flags, config keys and their documentation come from the table in settings.cc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"

namespace elasticmem {

// A command of the program, as a bit of the sets that options belong to.
enum Command : uint32_t {
  kRun = 1 << 0,
  kInspect = 1 << 1,
  kPack = 1 << 2,
  kPlan = 1 << 3,
  kTokenize = 1 << 4,
  kLogits = 1 << 5,
  kPerplexity = 1 << 6,
  kBench = 1 << 7,
  kGrowth = 1 << 8,  // bench growth
  kCompare = 1 << 9,
  kServe = 1 << 10,
};

struct Settings {
  // What to work on.
  std::string model;
  std::string config;
  std::string prompt;
  std::string file;
  std::string system;
  std::string output;
  std::string tokens;
  // Memory.
  std::string memory, device_memory, host_memory;
  double copy_gbps = -1;  // unset
  std::string kv_type = "f16";
  uint32_t context = 0;
  int64_t prefill_chunk = -1;  // by the budget
  std::string store_dir;
  std::string store_type;
  std::string io = "auto";
  bool no_direct = false;
  bool prefix_cache = false;
  std::string swap;  // "": none
  uint32_t clients = 1;
  // The daemon.
  std::string listen = "127.0.0.1:8080", alias, keys, log = "text";
  uint32_t max_queue = 64, grace = 30;
  bool insecure = false, check = false;
  // How to compute.
  std::string mode = "auto";
  std::string policy = "elastic";
  int64_t slots = -1;    // of the static policy; -1: unset
  double kv_share = -1;  // -1: unset
  std::string activation;
  std::string pre_tokenizer;
  uint32_t threads = 0;
  // Generation.
  uint32_t generate = 256;
  double temperature = 0.8, top_p = 0.95, min_p = 0.05;
  double repeat_penalty = 1, frequency_penalty = 0, presence_penalty = 0;
  uint32_t top_k = 40;
  int64_t repeat_last = 64;
  uint64_t seed = 0;
  std::vector<std::string> stop;
  bool chat = false, ignore_eos = false, parse_special = false, no_bos = false;
  // Measuring.
  uint32_t repeat = 3, top = 10, windows = 0;
  // Of a bench. Empty lists: its defaults.
  std::vector<uint32_t> bench_prompts, bench_generates, bench_batches, bench_depths;
  bool bench_mixed = false;
  // The growth trace. Empty lists: its defaults.
  std::vector<std::string> policies;
  std::vector<uint32_t> growth_slots, phases;
  std::vector<double> kv_shares;
  uint64_t growth_generate = 3000;
  double scale = 1;
  uint32_t growth_repeat = 1;
  // Output.
  std::string report, svg;
  bool json = false, verbose = false, verify = false;
};

// One option: its flag, the config key (the flag without dashes, '_' for '-'), the commands that take it, where it is kept.
struct Option {
  std::string_view flags;  // CLI11's way: "-m,--model"
  std::string_view value;  // what its value is called in --help; "" for switches, "A,B,.." for lists in one argument
  std::string_view help;
  uint32_t commands;
  std::variant<std::string Settings::*, uint32_t Settings::*, uint64_t Settings::*, int64_t Settings::*,
               double Settings::*, bool Settings::*, std::vector<std::string> Settings::*,
               std::vector<uint32_t> Settings::*, std::vector<double> Settings::*>
      member;
  std::string_view group;

  std::string_view Key() const;  // "prefill-chunk"
};

const std::vector<Option>& Options();

// Sets what the TOML file `path` says for `command`; `given` are the keys that the command line has set already and keep.
// One file may serve several commands, so keys of others are passed over; but a growth comparison is a file of its own,
// and takes only what it uses. Errors name the file, the line and the key: unknown keys, values of another type.
Status ApplyConfig(const std::string& path, uint32_t command, const std::vector<std::string_view>& given,
                   Settings& settings);

}  // namespace elasticmem
