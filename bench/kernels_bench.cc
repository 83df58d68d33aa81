// Speed of the CPU kernels on the shapes of real models: GB/s of weights read for decode, GFLOP/s for batches.
// Matrices of decode are repeated in memory until they no longer fit in a cache. One thread, so rates are per CPU time.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "base/units.h"
#include "dense_ops/matmul.h"
#include "dense_ops/transformer_ops.h"
#include "device/team.h"
#include "ffn_ops/sparse_ffn.h"

namespace elasticmem {
namespace {

constexpr size_t kColdBytes = 256_MiB;  // what a decode benchmark walks through before it sees a row again

constexpr std::align_val_t kAlignment{2_MiB};

struct AlignedDelete {
  void operator()(std::byte* p) const { ::operator delete[](p, kAlignment); }
};
using Buffer = std::unique_ptr<std::byte[], AlignedDelete>;
Buffer Allocate(size_t bytes) {
  Buffer buffer(new (kAlignment) std::byte[bytes]);
  madvise(buffer.get(), bytes, MADV_HUGEPAGE);  // scattered rows are otherwise bound by page walks
  return buffer;
}

// `rows` rows of blocks with random quants and small scales.
Buffer RandomRows(DType dtype, size_t rows, size_t cols) {
  const size_t bytes = rows * RowBytes(dtype, cols);
  Buffer buffer = Allocate(bytes);
  std::mt19937_64 rng(1);
  std::vector<uint64_t> words(8192 + 13);
  for (uint64_t& w : words) w = rng() & 0x3b3b3b3b3b3b3b3bull;  // exponents that are no NaN as halves or floats
  for (size_t i = 0; i < bytes; i += words.size() * 8) {
    std::memcpy(buffer.get() + i, words.data(), std::min(words.size() * 8, bytes - i));
  }
  return buffer;
}

struct Activations {
  Activations(DType weights, size_t tokens, size_t cols) {
    const ActivationFormat format = FormatFor(weights);
    const size_t stride = ActivationStride(format, cols);
    buffer = Allocate(tokens * stride);
    std::mt19937 rng(2);
    std::normal_distribution<float> normal;
    std::vector<float> x(cols);
    for (size_t t = 0; t < tokens; ++t) {
      for (float& v : x) v = normal(rng);
      PrepareActivations(format, x.data(), cols, buffer.get() + t * stride);
    }
    view = {format, buffer.get(), tokens, stride};
  }
  Buffer buffer;
  ActivationRows view;
};

void ReadBandwidth(benchmark::State& state) {
  const Buffer buffer = Allocate(kColdBytes);
  std::memset(buffer.get(), 1, kColdBytes);
  const auto* words = reinterpret_cast<const uint64_t*>(buffer.get());
  for (auto _ : state) {
    uint64_t sums[16] = {};
    for (size_t i = 0; i < kColdBytes / 8; i += 16) {
      __builtin_prefetch(words + i + 512);
      __builtin_prefetch(words + i + 520);
      for (size_t j = 0; j < 16; ++j) sums[j] += words[i + j];
    }
    benchmark::DoNotOptimize(sums);
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kColdBytes));
}

void MatMul(benchmark::State& state, DType dtype, size_t rows, size_t cols, size_t tokens) {
  const size_t matrix_bytes = rows * RowBytes(dtype, cols);
  const size_t copies = tokens > 1 ? 1 : std::max<size_t>(1, kColdBytes / matrix_bytes);
  const Buffer weights = RandomRows(dtype, rows * copies, cols);
  const WeightRows w{dtype, weights.get(), rows * copies, cols, RowBytes(dtype, cols)};
  const Activations x(dtype, tokens, cols);
  std::vector<float> y(tokens * rows * copies);
  size_t copy = 0;
  for (auto _ : state) {
    MatMulRows(w, copy * rows, (copy + 1) * rows, x.view, y.data(), rows * copies);
    copy = (copy + 1) % copies;
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(matrix_bytes));
  state.counters["GFLOP/s"] = benchmark::Counter(2e-9 * static_cast<double>(rows * cols * tokens),
                                                 benchmark::Counter::kIsIterationInvariantRate);
}

// 11 % of the rows of a matrix, a new choice for each step.
struct ScatteredRows {
  ScatteredRows(DType dtype, size_t rows, size_t cols) {
    const size_t row_bytes = RowBytes(dtype, cols);
    const size_t copies = std::max<size_t>(1, kColdBytes / (rows * row_bytes));
    weights = RandomRows(dtype, rows * copies, cols);
    std::mt19937 rng(3);
    std::bernoulli_distribution active(0.11);
    for (size_t c = 0; c < copies; ++c) {
      steps.emplace_back();
      for (size_t r = 0; r < rows; ++r) {
        if (active(rng)) steps.back().push_back(weights.get() + (c * rows + r) * row_bytes);
      }
      total += steps.back().size();
    }
    bytes_per_step = static_cast<double>(total * row_bytes) / static_cast<double>(copies);
  }
  Buffer weights;
  std::vector<std::vector<const std::byte*>> steps;
  size_t total = 0;
  double bytes_per_step = 0;
};

void Gather(benchmark::State& state, DType dtype, size_t rows, size_t cols) {
  const ScatteredRows scattered(dtype, rows, cols);
  const Activations x(dtype, 1, cols);
  std::vector<float> out(rows);
  size_t step = 0;
  for (auto _ : state) {
    const auto& list = scattered.steps[step++ % scattered.steps.size()];
    GatherDot(dtype, list, cols, x.view, out.data(), list.size());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(static_cast<double>(state.iterations()) * scattered.bytes_per_step));
}

void Accumulate(benchmark::State& state, DType dtype, size_t rows, size_t cols) {
  const ScatteredRows scattered(dtype, rows, cols);
  const std::vector<float> coefficients(rows, 1e-3f);
  std::vector<float> y(cols);
  size_t step = 0;
  for (auto _ : state) {
    const auto& list = scattered.steps[step++ % scattered.steps.size()];
    AccumulateRows(dtype, list, coefficients.data(), 0, cols, y.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(static_cast<double>(state.iterations()) * scattered.bytes_per_step));
}

// A layer's FFN work for one token on `density` of its records [up row, down row], which lie one after another: as
// SparseFfn does it, and at 100 % what the same rows would cost as dense ones.
void Records(benchmark::State& state, DType dtype, size_t d, double density) {
  const size_t row_bytes = RowBytes(dtype, d), record_bytes = 2 * row_bytes;
  const size_t records = kColdBytes / record_bytes;
  const Buffer memory = RandomRows(dtype, 2 * records, d);
  std::mt19937 rng(3);
  std::bernoulli_distribution active(density);
  std::vector<const std::byte*> up, down;
  for (size_t r = 0; r < records; ++r) {
    if (density < 1 && !active(rng)) continue;
    up.push_back(memory.get() + r * record_bytes);
    down.push_back(up.back() + row_bytes);
  }
  constexpr size_t kGroup = 64, kGroups = 8;
  const Activations x(dtype, 1, d);
  std::vector<float> coefficients(kGroup * kGroups), y(d);
  size_t at = 0;
  const std::span<const std::byte*const> all_up(up), all_down(down);
  for (auto _ : state) {
    if (at + kGroup * kGroups > up.size()) at = 0;
    GatherDot(dtype, all_up.subspan(at, kGroup * kGroups), d, x.view, coefficients.data(), coefficients.size());
    for (size_t g = 0; g < kGroups; ++g) {
      const auto rows = all_down.subspan(at + g * kGroup, kGroup);
      const auto ahead = g + 1 < kGroups ? all_down.subspan(at + (g + 1) * kGroup, kGroup) : rows.first(0);
      AccumulateGroup(dtype, rows, coefficients.data() + g * kGroup, 0, d, y.data(), ahead);
    }
    at += kGroup * kGroups;
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kGroup * kGroups * record_bytes));
  state.counters["ns/record"] = benchmark::Counter(
      1e-9 * kGroup * kGroups, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void Compact(benchmark::State& state, size_t ff) {
  std::vector<float> gate(ff);
  std::mt19937 rng(3);
  for (float& g : gate) g = rng() % 10 == 0 ? 1.f : 0.f;
  std::vector<uint32_t> indices(ff);
  std::vector<float> values(ff);
  for (auto _ : state) benchmark::DoNotOptimize(CompactNonZero(gate, 0, indices.data(), values.data()));
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(ff));
}

void Norm(benchmark::State& state, size_t d) {
  const std::vector<float> x(d, 0.5f), weight(d, 1.f);
  std::vector<float> out(d);
  for (auto _ : state) {
    RmsNorm(x, weight.data(), 1e-5f, out.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(d * sizeof(float)));
}

void Rope(benchmark::State& state, RopeKind kind, size_t heads, size_t head_dim) {
  const std::vector<float> frequencies(head_dim / 2, 0.1f);
  std::vector<float> angles(head_dim), x(heads * head_dim, 0.5f);
  RopeAngles(100, frequencies, angles.data());
  for (auto _ : state) {
    ApplyRope(kind, angles.data(), head_dim / 2, heads, head_dim, x.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(x.size()));
}

void StoreKv(benchmark::State& state, DType type) {
  const KvPageLayout layout{.type = type, .page_tokens = 32, .kv_heads = 8, .head_dim = 128};
  const Buffer page = Allocate(layout.page_bytes());
  const std::vector<float> k(1024, 0.5f);
  for (auto _ : state) {
    WriteKv(layout, page.get(), 3, k.data(), k.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * 2048);
}

// What it costs to give work to all of a team and to wait for it.
void Join(benchmark::State& state, int threads) {
  Team team(threads);
  const Team::Session session(team);
  for (auto _ : state) team.ParallelFor(static_cast<size_t>(threads), [](size_t) {});
}

// A layer's attention of the last `rows` of `positions`, 4 KV heads of 128, each for 4 query heads.
void Attention(benchmark::State& state, DType type, uint32_t positions, uint32_t rows) {
  const KvPageLayout layout{.type = type, .page_tokens = 32, .kv_heads = 4, .head_dim = 128};
  constexpr uint32_t kGroup = 4;
  const uint32_t page_count = positions / layout.page_tokens;
  const Buffer pages = RandomRows(DType::kF16, page_count * layout.page_bytes() / 256, 128);
  std::vector<const std::byte*> list;
  for (uint32_t p = 0; p < page_count; ++p) list.push_back(pages.get() + p * layout.page_bytes());
  const size_t stride = kGroup * layout.head_dim;
  const std::vector<float> q(rows * stride, 0.01f);
  std::vector<float> out(q.size());
  const Buffer scratch = Allocate(AttendScratchFloats(layout, rows, kGroup) * sizeof(float));
  for (auto _ : state) {
    for (uint32_t head = 0; head < layout.kv_heads; ++head) {
      Attend(layout, list, {0, positions - rows + 1, rows}, head, q.data(), stride, kGroup, 0.1f,
             reinterpret_cast<float*>(scratch.get()), out.data());
    }
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(page_count * layout.page_bytes()));
  state.SetItemsProcessed(state.iterations() * rows);
}

void Prepare(benchmark::State& state, size_t cols) {
  const std::vector<float> x(cols, 0.5f);
  std::vector<std::byte> out(ActivationRowBytes(ActivationFormat::kQ16, cols));
  for (auto _ : state) {
    PrepareActivations(ActivationFormat::kQ16, x.data(), cols, out.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(cols * sizeof(float)));
}

void Activate(benchmark::State& state, Activation activation) {
  std::vector<float> x(5632);
  for (auto _ : state) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = 1e-3f * (static_cast<float>(i) - 2816);
    ApplyActivation(activation, x);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(x.size()));
}

// Shapes of models of 135M, 1.36B and 7B parameters.
struct ModelShape {
  const char* name;
  size_t d, ff, vocab, heads, head_dim;
};
constexpr ModelShape kModels[] = {
    {"135M", 576, 1536, 49152, 9, 64}, {"1.36B", 2048, 5632, 32000, 32, 64}, {"7B", 4096, 11008, 32000, 32, 128}};

void RegisterModel(const ModelShape& model, DType dtype) {
  if (model.d % Traits(dtype).block_elements != 0) return;
  const std::string type(Traits(dtype).name), of = fmt::format("{}/{}", model.name, type);
  const std::pair<const char*, size_t> matrices[] = {{"q", model.d}, {"gate", model.ff}, {"output", model.vocab}};
  for (const auto& [matrix, rows] : matrices) {
    for (const size_t tokens : {1, 2, 4, 8, 64}) {
      if (rows == model.vocab && tokens > 1) continue;
      benchmark::RegisterBenchmark(fmt::format("MatMul/{}/{}/tokens:{}", of, matrix, tokens).c_str(), MatMul, dtype,
                                   rows, model.d, tokens);
    }
  }
  benchmark::RegisterBenchmark(("GatherDot/" + of + "/11%").c_str(), Gather, dtype, model.ff, model.d);
  benchmark::RegisterBenchmark(("AccumulateRows/" + of + "/11%").c_str(), Accumulate, dtype, model.ff, model.d);
}

void RegisterAll() {
  benchmark::RegisterBenchmark("ReadBandwidth", ReadBandwidth);
  for (const ModelShape& model : kModels) {
    for (const DType dtype :
         {DType::kF32, DType::kF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ4_K, DType::kQ6_K}) {
      RegisterModel(model, dtype);
    }
    benchmark::RegisterBenchmark(fmt::format("RmsNorm/{}", model.name).c_str(), Norm, model.d);
    benchmark::RegisterBenchmark(fmt::format("PrepareActivations/{}", model.name).c_str(), Prepare, model.d);
    benchmark::RegisterBenchmark(fmt::format("CompactNonZero/{}", model.name).c_str(), Compact, model.ff);
    for (const auto& [kind, name] :
         {std::pair(RopeKind::kAdjacent, "adjacent"), std::pair(RopeKind::kHalves, "halves")}) {
      benchmark::RegisterBenchmark(fmt::format("Rope/{}/{}", model.name, name).c_str(), Rope, kind, model.heads,
                                   model.head_dim);
    }
  }
  // Records of 4, 8, 16 and 24 KiB in F16.
  for (const size_t d : {1024, 2048, 4096, 6144}) {
    for (const DType dtype : {DType::kF16, DType::kQ4_0}) {
      for (const int percent : {100, 10}) {
        const std::string name =
            fmt::format("Records/{}/{}KiB/density:{}%", Traits(dtype).name, 2 * RowBytes(dtype, d) / 1024.0, percent);
        benchmark::RegisterBenchmark(name.c_str(), Records, dtype, d, percent / 100.0);
      }
    }
  }
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kQ8_0}) {
    const std::string type(Traits(dtype).name);
    for (const uint32_t positions : {512u, 2048u, 4096u}) {
      for (const uint32_t rows : {1u, 16u}) {
        benchmark::RegisterBenchmark(fmt::format("Attention/{}/{}/rows:{}", type, positions, rows).c_str(), Attention,
                                     dtype, positions, rows);
      }
    }
    benchmark::RegisterBenchmark(("WriteKv/" + type).c_str(), StoreKv, dtype);
  }
  benchmark::RegisterBenchmark("Activation/silu", Activate, Activation::kSilu);
  benchmark::RegisterBenchmark("Activation/gelu", Activate, Activation::kGelu);
  benchmark::RegisterBenchmark("Activation/gelu_tanh", Activate, Activation::kGeluTanh);
  for (const int threads : {1, 2}) {
    benchmark::RegisterBenchmark(fmt::format("TeamJoin/threads:{}", threads).c_str(), Join, threads)->UseRealTime();
  }
}

}  // namespace
}  // namespace elasticmem

int main(int argc, char** argv) {
  elasticmem::RegisterAll();
  benchmark::Initialize(&argc, argv);
  benchmark::AddCustomContext("kernels", elasticmem::KernelTargetName());
  benchmark::RunSpecifiedBenchmarks();
}
