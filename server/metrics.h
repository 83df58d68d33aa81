// What /metrics tells: the snapshot's counts and gauges, and histograms of what requests waited for.
#pragma once

#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <memory>
#include <string>

#include "server/generator.h"

namespace elasticmem {

class Metrics {
 public:
  Metrics();
  // A request has ended.
  void Observe(const GenerationUsage& usage);
  // In Prometheus' text format.
  std::string Text(const GeneratorSnapshot& snapshot, uint32_t connections) const;

 private:
  std::unique_ptr<prometheus::Registry> registry_;
  prometheus::Histogram* queue_;
  prometheus::Histogram* first_token_;
  prometheus::Histogram* per_token_;
};

}  // namespace elasticmem
