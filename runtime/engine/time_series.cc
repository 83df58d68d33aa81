#include "runtime/engine/time_series.h"

#include <nlohmann/json.hpp>

#include "runtime/engine/engine.h"

namespace elasticmem {

SeriesPoint SeriesPoint::Of(const Engine& engine, uint64_t store_bytes_before) {
  SeriesPoint point;
  for (size_t o = 0; o < kBlockOwners; ++o) point.blocks[o] = engine.pool().blocks(static_cast<BlockOwner>(o));
  if (engine.residency()) point.resident_neurons = engine.residency()->resident();
  point.store_bytes = engine.statistics().reads.bytes_read - store_bytes_before;
  return point;
}

void TimeSeries::Add(const SeriesPoint& point) {
  last_ = point;
  if (added_++ % stride_ != 0) return;
  if (points_.size() + 1 == kMost) {
    for (size_t i = 0; 2 * i < points_.size(); ++i) points_[i] = points_[2 * i];
    points_.resize((points_.size() + 1) / 2);
    stride_ *= 2;
    if ((added_ - 1) % stride_ != 0) return;
  }
  points_.push_back(point);
}

std::vector<SeriesPoint> TimeSeries::points() const {
  std::vector<SeriesPoint> all = points_;
  if (!all.empty() && last_.seconds > all.back().seconds) all.push_back(last_);
  return all;
}

const char* JsonKey(BlockOwner owner) {
  switch (owner) {
    case BlockOwner::kFree:
      return "free";
    case BlockOwner::kKv:
      return "kv";
    case BlockOwner::kNeuron:
      return "neurons";
    case BlockOwner::kCached:
      return "cached";
  }
  return "?";
}

nlohmann::ordered_json SeriesJson(const std::vector<SeriesPoint>& series) {
  using Json = nlohmann::ordered_json;
  Json seconds = Json::array(), generated = Json::array(), prompts = Json::array(), resident = Json::array(),
       store = Json::array(), blocks = Json::object();
  for (const BlockOwner owner : {BlockOwner::kKv, BlockOwner::kCached, BlockOwner::kNeuron, BlockOwner::kFree}) {
    blocks[JsonKey(owner)] = Json::array();
  }
  for (const SeriesPoint& point : series) {
    seconds.push_back(point.seconds);
    generated.push_back(point.generated_tokens);
    prompts.push_back(point.prompt_tokens);
    resident.push_back(point.resident_neurons);
    store.push_back(point.store_bytes);
    for (size_t o = 0; o < kBlockOwners; ++o) blocks[JsonKey(static_cast<BlockOwner>(o))].push_back(point.blocks[o]);
  }
  return {{"seconds", seconds}, {"generated_tokens", generated}, {"prompt_tokens", prompts},
          {"blocks", blocks},   {"resident_neurons", resident},  {"store_bytes", store}};
}

}  // namespace elasticmem
