// How things stood over a run: a series of bounded length, for reports and pictures.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "mem/block_pool.h"

namespace elasticmem {

class Engine;

struct SeriesPoint {
  double seconds = 0;                                // since the beginning
  uint64_t generated_tokens = 0, prompt_tokens = 0;  // since then
  std::array<uint32_t, kBlockOwners> blocks{};       // of the pool, by owner
  uint32_t resident_neurons = 0;
  uint64_t store_bytes = 0;  // read since then

  // How the engine stands; seconds and tokens are the caller's. `store_bytes_before`: what it had read at the
  // beginning.
  static SeriesPoint Of(const Engine& engine, uint64_t store_bytes_before);
};

// A series that never gets longer than kMost: where it would, every other point goes.
class TimeSeries {
 public:
  static constexpr size_t kMost = 600;

  void Add(const SeriesPoint& point);
  // Those that were kept, and the last one that was added.
  std::vector<SeriesPoint> points() const;

 private:
  std::vector<SeriesPoint> points_;
  SeriesPoint last_;
  uint64_t stride_ = 1, added_ = 0;
};

// An array for each number: seconds, generated_tokens, prompt_tokens, blocks{kv, cached, neurons, free},
// resident_neurons, store_bytes.
nlohmann::ordered_json SeriesJson(const std::vector<SeriesPoint>& series);
// The owner as JSON calls it: "kv", "cached", "neurons", "free".
const char* JsonKey(BlockOwner owner);

}  // namespace elasticmem
