#include "runtime/engine/report.h"

#include <nlohmann/json.hpp>

#include "base/units.h"
#include "runtime/engine/system_memory.h"

namespace elasticmem {
namespace {

nlohmann::ordered_json ToJson(const Throughput& t) {
  return {{"tokens", t.tokens}, {"seconds", t.seconds}, {"tokens_per_second", t.tokens_per_second()}};
}

std::string Percent(double share) { return fmt::format("{:.1f} %", share * 100); }

}  // namespace

Report Report::FromEngine(const Engine& engine, int threads) {
  const Model& model = engine.model();
  const EngineStatistics s = engine.statistics();
  Report r;
  r.model_name = model.spec().name;
  r.architecture = model.spec().architecture;
  r.model_bytes = model.gguf().file_bytes();
  r.parameters = model.gguf().parameters();
  r.budget_bytes = engine.budget().total_bytes();
  r.peak_bytes = engine.budget().peak_bytes();
  const auto share = [&](uint64_t records) {
    return s.ffn.wanted > 0 ? static_cast<double>(records) / static_cast<double>(s.ffn.wanted) : 0;
  };
  r.device_work_fraction = s.ffn.wanted > 0 ? share(s.ffn.resident - s.ffn.on_host) : 1;
  r.tiers.push_back({"device", r.budget_bytes, r.peak_bytes, 0, r.device_work_fraction});
  if (const Budget* host = engine.host_budget()) {
    r.tiers.push_back({"host", host->total_bytes(), host->peak_bytes(), 0, share(s.ffn.on_host)});
    r.budget_bytes += host->total_bytes();
    r.peak_bytes += host->peak_bytes();
    r.device = engine.device()->Description();
  }
  r.peak_rss_bytes = PeakResidentBytes();
  r.mode = Name(engine.mode());
  r.policy = Name(engine.residency() ? engine.residency()->policy() : Policy::kElastic);
  r.io = engine.io_name();
  r.threads = threads;
  r.active_fraction = s.ffn.possible > 0 ? static_cast<double>(s.ffn.active) / s.ffn.possible : 1;
  r.memory_management_fraction = s.seconds > 0 ? s.management_seconds / s.seconds : 0;
  r.store_bytes_read = s.reads.bytes_read;
  r.store_reads = s.reads.reads;
  r.store_wait_seconds = s.reads.wait_micros * 1e-6;
  r.store_busy_seconds = s.reads.busy_micros * 1e-6;
  r.store_bytes_per_token = s.tokens > 0 ? static_cast<double>(s.reads.bytes_read) / s.tokens : 0;
  r.dense_resident_bytes = engine.plan().dense_resident_bytes;
  r.dense_streamed_bytes = engine.plan().dense_streamed_bytes;
  r.memory = engine.memory_use();
  r.pool_blocks = engine.pool().capacity();
  r.block_bytes = engine.pool().block_bytes();
  r.kv_bytes = engine.pool().blocks(BlockOwner::kKv) * engine.pool().block_bytes();
  r.neuron_bytes = engine.pool().blocks(BlockOwner::kNeuron) * engine.pool().block_bytes();
  r.neurons_total = uint64_t{model.spec().layers} * model.spec().ff;
  r.neurons_resident = r.neurons_total;
  if (const NeuronResidency* residency = engine.residency()) {
    r.neurons_resident = residency->resident();
    r.tiers[0].neurons = residency->resident(Tier::kDevice);
    if (r.tiers.size() > 1) r.tiers[1].neurons = residency->resident(Tier::kHost);
    r.copies_up = residency->statistics().moved_up;
    r.copies_down = residency->statistics().moved_down;
    r.copies_in_vain = residency->statistics().copies_in_vain;
    r.fragment_slots = residency->fragment_slots();
    r.fragment_slots_used = residency->fragment_slots_used();
  } else if (r.dense_streamed_bytes > 0) {
    uint64_t ffn = 0, resident = 0;
    for (const DenseItem& item : engine.plan().dense) {
      if (item.role < DenseItem::Role::kGate || item.role == DenseItem::Role::kOutput) continue;
      ffn += item.matrix.bytes();
      resident += item.resident_bytes();
    }
    r.neurons_resident = ffn > 0 ? static_cast<uint64_t>(static_cast<double>(resident) / ffn * r.neurons_total) : 0;
  }
  if (!engine.residency()) r.tiers[0].neurons = r.neurons_resident;
  r.resident_neuron_fraction = static_cast<double>(r.neurons_resident) / r.neurons_total;
  return r;
}

std::string Report::ToJson() const {
  nlohmann::ordered_json tier_list = nlohmann::ordered_json::array();
  for (const TierUse& tier : tiers) {
    tier_list.push_back({{"name", tier.name},
                         {"budget_bytes", tier.budget_bytes},
                         {"peak_bytes", tier.peak_bytes},
                         {"neurons", tier.neurons},
                         {"work_fraction", tier.work_fraction}});
  }
  nlohmann::ordered_json copies;  // null without a host tier
  if (!device.empty()) {
    copies = {{"device", device}, {"up", copies_up}, {"down", copies_down}, {"in_vain", copies_in_vain}};
  }
  nlohmann::ordered_json json = {
      {"model",
       {{"name", model_name}, {"arch", architecture}, {"file_bytes", model_bytes}, {"parameters", parameters}}},
      {"budget_bytes", budget_bytes},
      {"peak_bytes", peak_bytes},
      {"peak_rss_bytes", peak_rss_bytes},
      {"mode", mode},
      {"policy", policy},
      {"threads", threads},
      {"prefill", elasticmem::ToJson(prefill)},
      {"decode", elasticmem::ToJson(decode)},
      {"ttft_seconds", ttft_seconds},
      {"active_fraction", active_fraction},
      {"resident_neuron_fraction", resident_neuron_fraction},
      {"device_work_fraction", device_work_fraction},
      {"tiers", tier_list},
      {"copies", copies},
      {"memory_management_fraction", memory_management_fraction},
      {"predictor", nullptr},
      {"store",
       {{"io", io},
        {"bytes_read", store_bytes_read},
        {"reads", store_reads},
        {"wait_seconds", store_wait_seconds},
        {"busy_seconds", store_busy_seconds},
        {"bytes_per_token", store_bytes_per_token}}},
      {"fragments", {{"slots", fragment_slots}, {"used", fragment_slots_used}}},
      {"resident",
       {{"dense_bytes", dense_resident_bytes},
        {"streamed_bytes", dense_streamed_bytes},
        {"kv_bytes", kv_bytes},
        {"neuron_bytes", neuron_bytes}}},
      {"memory", MemoryUseJson(memory)},
      {"pool_blocks", pool_blocks},
      {"block_bytes", block_bytes},
      {"text", text},
      {"token_ids", token_ids},
      {"logits_hash", fmt::format("{:016x}", logits_hash)}};
  if (!series.empty()) json["series"] = SeriesJson(series);
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string Report::ToTable() const {
  std::string out;
  const auto line = [&](std::string_view what, const std::string& value) {
    out += fmt::format("  {:<22} {}\n", what, value);
  };
  line("model",
       fmt::format("{} ({}), {} parameters, {}", model_name, architecture, parameters, FormatBytes(model_bytes)));
  line("budget", fmt::format("{}, peak {} ({})", FormatBytes(budget_bytes), FormatBytes(peak_bytes),
                             Percent(static_cast<double>(peak_bytes) / budget_bytes)));
  for (const TierUse& tier : tiers) {
    if (device.empty()) break;
    line("  " + tier.name, fmt::format("{}, peak {}; {} neurons, {} of the work", FormatBytes(tier.budget_bytes),
                                       FormatBytes(tier.peak_bytes), tier.neurons, Percent(tier.work_fraction)));
  }
  if (!device.empty()) {
    line("  copies",
         fmt::format("{} up, {} down, {} in vain; device: {}", copies_up, copies_down, copies_in_vain, device));
  }
  line("dense weights", dense_streamed_bytes == 0
                            ? fmt::format("{} in memory", FormatBytes(dense_resident_bytes))
                            : fmt::format("{} in memory, {} streamed each step", FormatBytes(dense_resident_bytes),
                                          FormatBytes(dense_streamed_bytes)));
  line("neurons", fmt::format("{} of {} in memory ({}), the rest on disk", neurons_resident, neurons_total,
                              Percent(resident_neuron_fraction)));
  if (neuron_bytes + kv_bytes > 0) {
    line("pool", fmt::format("{} neurons, {} KV cache", FormatBytes(neuron_bytes), FormatBytes(kv_bytes)));
  }
  line("mode", fmt::format("{}, {} threads, {} of the neurons active", mode, threads, Percent(active_fraction)));
  line("prefill", fmt::format("{} tokens in {:.2f} s, {:.1f} tokens/s", prefill.tokens, prefill.seconds,
                              prefill.tokens_per_second()));
  line("decode", fmt::format("{} tokens in {:.2f} s, {:.1f} tokens/s", decode.tokens, decode.seconds,
                             decode.tokens_per_second()));
  line("read from the store",
       fmt::format("{} in {} reads ({}), {} a token, {:.2f} s waited", FormatBytes(store_bytes_read), store_reads, io,
                   FormatBytes(static_cast<uint64_t>(store_bytes_per_token)), store_wait_seconds));
  line("memory management", Percent(memory_management_fraction) + " of the time");
  return out;
}

}  // namespace elasticmem
