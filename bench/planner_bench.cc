// What managing memory costs a decode step, by part, at the neurons of the 1.36B measure model (24 x 5,632) and at ten
// times as many. A token activates as many neurons at both sizes, so what changes in a step is the same and only the
// tables grow. Slots are small here, as many to a block as there: a move copies 512 bytes, not 8 KiB.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "base/units.h"
#include "hybrid/residency.h"

namespace elasticmem {
namespace {

constexpr uint32_t kLayers = 24;
constexpr uint32_t kNeurons = 5632;  // a layer, of the measure model
constexpr uint32_t kActive = 620;    // of a layer, by a token: 11 %
constexpr uint32_t kPageTokens = 32;
constexpr uint64_t kSlotBytes = 512;
constexpr uint64_t kBlockBytes = 4096;  // 8 records, or a page
constexpr uint32_t kPages = 64;         // of KV, in every layer
constexpr uint32_t kWarmUpTokens = 400;

template <class Work>
double SecondsOf(Work&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// A pool of KV and of the hottest 60 % of the neurons, in steady state: a sequence grows by a token a step, another
// one lets go of its pages.
class Scene {
 public:
  explicit Scene(uint32_t neurons) : neurons_(neurons), budget_(4_GiB), drawn_(neurons) {
    const uint64_t records = kBlockBytes / kSlotBytes;
    const auto capacity =
        static_cast<uint32_t>(0.6 * kLayers * neurons / static_cast<double>(records)) + kPages * kLayers;
    pool_ = BlockPool::Create(budget_, capacity, kBlockBytes).value();
    residency_ =
        NeuronResidency::Create(budget_, pool_.get(), {Policy::kElastic, kLayers, neurons, kSlotBytes, kBlockBytes})
            .value();
    for (uint32_t page = 0; page < kPages; ++page) kv_.push_back(*pool_->TryAcquire(kLayers, BlockOwner::kKv));
    residency_->Grow();
    std::memset(pool_->base(), 1, capacity * kBlockBytes);  // or moves would pay for first touches
    for (uint32_t i = 0; i < kWarmUpTokens; ++i) Token();
  }

  // A token uses its neurons, those that are missing come where they are worth it. Returns the seconds that this took.
  double Token() {
    DrawToken();
    Touch();
    missing_.clear();
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      for (const uint32_t neuron : token_[layer]) {
        if (!residency_->Record({layer, neuron})) missing_.push_back({layer, neuron});
      }
    }
    const std::function<bool(NeuronId)> in_use = [&](NeuronId id) { return id.neuron == in_use_; };
    return SecondsOf([&] {
      for (const NeuronId id : missing_) benchmark::DoNotOptimize(residency_->Admit(id, in_use));
    });
  }
  size_t missing() const { return missing_.size(); }

  void Touch() {
    for (uint32_t layer = 0; layer < kLayers; ++layer) residency_->heat().Touch(layer, token_[layer]);
    residency_->Advance(1);
  }

  // As Engine::PrepareNext at the end of a step: the blocks of the next page are freed over the steps before it.
  double Plan() {
    const uint32_t left = kPageTokens - ++position_;  // tokens in the page
    const double seconds = SecondsOf([&] {
      std::array<uint32_t, 8> needed{};
      for (uint32_t s = left; s < needed.size(); ++s) needed[s] = kLayers;
      const uint32_t ready = BlocksToHaveReady(needed, pool_->free());
      residency_->MakeFree(ready);
      residency_->SetReserve(std::min(ready, needed.back()));
      residency_->Grow();
    });
    if (left == 0) {
      TakePage();
      LeavePage();
      position_ = 0;
    }
    return seconds;
  }

  void TakePage() { kv_.push_back(*pool_->TryAcquire(kLayers, BlockOwner::kKv)); }
  void LeavePage() { kv_.pop_front(); }

  NeuronResidency& residency() { return *residency_; }
  BlockPool& pool() { return *pool_; }

 private:
  // A third of the neurons make most of the activations.
  void DrawToken() {
    std::uniform_real_distribution<double> uniform;
    for (auto& active : token_) {
      active.clear();
      ++now_;
      while (active.size() < kActive) {
        const double u = uniform(random_);
        const auto rank = static_cast<uint64_t>(u * u * u * neurons_);
        const auto neuron = static_cast<uint32_t>(rank * 7919 % neurons_);
        if (std::exchange(drawn_[neuron], now_) != now_) active.push_back(neuron);
      }
      std::sort(active.begin(), active.end());
    }
  }

  const uint32_t neurons_;
  Budget budget_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<NeuronResidency> residency_;
  std::deque<std::vector<BlockLease>> kv_;
  std::mt19937 random_{1};
  std::vector<std::vector<uint32_t>> token_{kLayers};  // active neurons of the token, by layer
  std::vector<uint32_t> drawn_;                        // by neuron: when last
  uint32_t now_ = 0;
  std::vector<NeuronId> missing_;
  uint32_t position_ = 0;  // in the page
  uint32_t in_use_ = ~0u;
};

// Seconds of each step, and what to report of them.
class Steps {
 public:
  void Add(benchmark::State& state, double seconds) {
    state.SetIterationTime(seconds);
    seconds_.push_back(seconds);
  }
  void Report(benchmark::State& state) {
    std::sort(seconds_.begin(), seconds_.end());
    state.counters["p50_us"] = seconds_[seconds_.size() / 2] * 1e6;
    state.counters["p99_us"] = seconds_[seconds_.size() * 99 / 100] * 1e6;
    state.counters["max_us"] = seconds_.back() * 1e6;
  }

 private:
  std::vector<double> seconds_;
};

void PoolAcquireRelease(benchmark::State& state) {
  Budget budget(8_MiB);
  const auto pool = BlockPool::Create(budget, 1024, 4096).value();
  for (auto _ : state) benchmark::DoNotOptimize(pool->TryAcquire(BlockOwner::kKv));
}

// Making blocks ready and giving them back, for one page of all layers every 32 steps.
void PageCrossing(benchmark::State& state, Scene& scene) {
  Steps steps;
  const ResidencyStatistics before = scene.residency().statistics();
  for (auto _ : state) {
    scene.Token();
    steps.Add(state, scene.Plan());
  }
  steps.Report(state);
  const ResidencyStatistics& after = scene.residency().statistics();
  const auto a_step = [&](uint64_t count) {
    return benchmark::Counter(static_cast<double>(count), benchmark::Counter::kAvgIterations);
  };
  state.counters["evicted_blocks"] = a_step(after.evicted_blocks - before.evicted_blocks);
  state.counters["relocated"] = a_step(after.relocated - before.relocated);
}

void ColdestBlock(benchmark::State& state, Scene& scene) {
  Steps steps;
  for (auto _ : state) {
    scene.Token();
    steps.Add(state, SecondsOf([&] { benchmark::DoNotOptimize(scene.residency().ColdestBlockActivity()); }));
  }
  steps.Report(state);
}

// All the missing neurons of a token ask for a place, and none is free.
void AdmitWhenFull(benchmark::State& state, Scene& scene) {
  Steps steps;
  size_t asked = 0;
  double seconds = 0;
  const uint64_t before = scene.residency().statistics().promoted;
  for (auto _ : state) {
    const double step = scene.Token();
    steps.Add(state, step);
    seconds += step;
    asked += scene.missing();
  }
  steps.Report(state);
  const auto asked_for = static_cast<double>(asked);
  state.counters["asked"] = benchmark::Counter(asked_for, benchmark::Counter::kAvgIterations);
  state.counters["came"] = static_cast<double>(scene.residency().statistics().promoted - before) / asked_for;
  state.counters["ns_each"] = seconds * 1e9 / asked_for;
}

// A page of all layers has just been freed: 192 slots, filled in bursts of 64 as the promoter does.
void NextPromotions(benchmark::State& state, Scene& scene) {
  Steps steps;
  NeuronResidency& residency = scene.residency();
  std::vector<NeuronId> come;
  size_t found = 0;
  for (auto _ : state) {
    if (residency.free_slots() == 0) {  // the last ones are full: the next page leaves
      residency.SetReserve(0);
      residency.MakeFree(kLayers);
      scene.TakePage();
      scene.LeavePage();
      residency.Grow();
    }
    come.clear();
    steps.Add(state, SecondsOf([&] {
                for (int i = 0; i < 64; ++i) {
                  if (const auto id = residency.NextPromotion()) come.push_back(*id);
                }
              }));
    found += come.size();
    for (const NeuronId id : come) residency.AdmitIfFree(id);
    scene.Touch();
  }
  steps.Report(state);
  state.counters["found"] = benchmark::Counter(static_cast<double>(found), benchmark::Counter::kAvgIterations);
}

// Heat of a token's active neurons in all layers; not part of planning.
void HeatOfAToken(benchmark::State& state, Scene& scene) {
  for (auto _ : state) scene.Touch();
}

// What all sizes share: each part is measured on the scene as the one before left it.
void Register(uint32_t neurons) {
  const auto scene = std::make_shared<std::unique_ptr<Scene>>();  // made when first used
  const auto add = [&](const char* name, void (*run)(benchmark::State&, Scene&)) {
    return benchmark::RegisterBenchmark(fmt::format("{}/{}x{}", name, kLayers, neurons).c_str(),
                                        [scene, run, neurons](benchmark::State& state) {
                                          if (!*scene) *scene = std::make_unique<Scene>(neurons);
                                          run(state, **scene);
                                        })
        ->Unit(benchmark::kMicrosecond);
  };
  add("PageCrossing", PageCrossing)->UseManualTime()->Iterations(100 * kPageTokens);
  add("ColdestBlock", ColdestBlock)->UseManualTime()->Iterations(1000);
  add("AdmitWhenFull", AdmitWhenFull)->UseManualTime()->Iterations(1000);
  add("NextPromotions", NextPromotions)->UseManualTime()->Iterations(1000);
  add("HeatOfAToken", HeatOfAToken);
}

}  // namespace
}  // namespace elasticmem

int main(int argc, char** argv) {
  benchmark::RegisterBenchmark("PoolAcquireRelease", elasticmem::PoolAcquireRelease);
  elasticmem::Register(elasticmem::kNeurons);
  elasticmem::Register(10 * elasticmem::kNeurons);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
