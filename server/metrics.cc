#include "server/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <vector>

namespace elasticmem {
namespace {

using prometheus::Histogram;
using prometheus::MetricFamily;
using prometheus::MetricType;

Histogram* MakeHistogram(prometheus::Registry& registry, const char* name, const char* help,
                         const Histogram::BucketBoundaries& bounds) {
  return &prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, bounds);
}

// Values of one metric, each with the value of its only label ("": it has none).
class FamilyBuilder {
 public:
  FamilyBuilder(std::vector<MetricFamily>& out, MetricType type) : out_(out), type_(type) {}

  void Add(const char* name, const char* help, double value) { AddLabelled(name, help, "", {{"", value}}); }
  void AddLabelled(const char* name, const char* help, const char* label,
                   std::initializer_list<std::pair<const char*, double>> values) {
    MetricFamily family{name, help, type_, {}};
    for (const auto& [label_value, value] : values) {
      prometheus::ClientMetric metric;
      if (*label) metric.label.push_back({label, label_value});
      (type_ == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
      family.metric.push_back(std::move(metric));
    }
    out_.push_back(std::move(family));
  }

 private:
  std::vector<MetricFamily>& out_;
  const MetricType type_;
};

double AsDouble(uint64_t value) { return static_cast<double>(value); }

}  // namespace

Metrics::Metrics() : registry_(std::make_unique<prometheus::Registry>()) {
  const Histogram::BucketBoundaries seconds = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250};
  queue_ = MakeHistogram(*registry_, "elasticmem_queue_seconds", "Time from a request to its first step", seconds);
  first_token_ = MakeHistogram(*registry_, "elasticmem_time_to_first_token_seconds",
                               "Time from a request to its first token", seconds);
  per_token_ = MakeHistogram(*registry_, "elasticmem_time_per_token_seconds",
                             "Mean time of a request's tokens behind the first",
                             {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10});
}

void Metrics::Observe(const GenerationUsage& usage) {
  queue_->Observe(usage.queue_seconds);
  if (usage.generated_tokens == 0) return;
  first_token_->Observe(usage.queue_seconds + usage.prefill_seconds);
  if (usage.generated_tokens > 1) per_token_->Observe(usage.decode_seconds / (usage.generated_tokens - 1));
}

std::string Metrics::Text(const GeneratorSnapshot& s, uint32_t connections) const {
  std::vector<MetricFamily> families = registry_->Collect();
  FamilyBuilder gauges(families, MetricType::Gauge), counters(families, MetricType::Counter);
  gauges.AddLabelled("elasticmem_requests", "Requests that run or wait", "state",
                     {{"running", s.running}, {"waiting", s.waiting}});
  gauges.Add("elasticmem_connections", "Open connections", connections);
  gauges.Add("elasticmem_budget_bytes", "The memory budget", AsDouble(s.budget_bytes));
  gauges.Add("elasticmem_budget_used_bytes", "Of the budget, reserved now", AsDouble(s.used_bytes));
  gauges.Add("elasticmem_budget_peak_bytes", "Of the budget, reserved at most so far", AsDouble(s.peak_bytes));
  const MemoryUse& m = s.memory;
  gauges.AddLabelled("elasticmem_memory_bytes", "The budget's bytes by what has them", "owner",
                     {{"weights", AsDouble(m.weights_bytes)},
                      {"kv", AsDouble(m.kv_bytes)},
                      {"neurons", AsDouble(m.neuron_bytes)},
                      {"scratch", AsDouble(m.scratch_bytes)},
                      {"staging", AsDouble(m.staging_bytes)},
                      {"tables", AsDouble(m.table_bytes)},
                      {"tokenizer", AsDouble(m.tokenizer_bytes)},
                      {"reserve", AsDouble(m.reserve_bytes())},
                      {"idle", AsDouble(m.idle_bytes())}});
  counters.AddLabelled("elasticmem_requests_total", "Requests by how they ended", "end",
                       {{"finished", AsDouble(s.finished)},
                        {"cancelled", AsDouble(s.cancelled)},
                        {"failed", AsDouble(s.failed)},
                        {"refused", AsDouble(s.refused)}});
  counters.AddLabelled("elasticmem_tokens_total", "Tokens by what was done with them", "kind",
                       {{"prompt", AsDouble(s.batcher.prompt_tokens)},
                        {"generated", AsDouble(s.batcher.generated_tokens)},
                        {"cached", AsDouble(s.batcher.cached_tokens)},
                        {"recomputed", AsDouble(s.batcher.recomputed_tokens)}});
  counters.Add("elasticmem_steps_total", "Forward passes", AsDouble(s.batcher.steps));
  counters.Add("elasticmem_preemptions_total", "Requests whose KV was taken for others",
               AsDouble(s.batcher.preemptions));
  counters.Add("elasticmem_step_seconds_total", "Time in steps", s.engine.seconds);
  counters.Add("elasticmem_management_seconds_total", "Of that, planning and moving neurons",
               s.engine.management_seconds);
  counters.Add("elasticmem_store_read_bytes_total", "Bytes read from the neuron store and the model file",
               AsDouble(s.engine.reads.bytes_read));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace elasticmem
