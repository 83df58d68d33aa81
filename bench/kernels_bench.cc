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

void RegisterAll() {
  benchmark::RegisterBenchmark("ReadBandwidth", ReadBandwidth);
  const std::pair<size_t, size_t> shapes[] = {{2048, 2048}, {5632, 2048}, {32000, 2048}};
  for (const DType dtype :
       {DType::kF32, DType::kF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ4_K, DType::kQ6_K}) {
    const std::string type(Traits(dtype).name);
    for (const auto& [rows, cols] : shapes) {
      for (const size_t tokens : {1, 8, 64}) {
        const std::string name = fmt::format("MatMul/{}/{}x{}/tokens:{}", type, rows, cols, tokens);
        benchmark::RegisterBenchmark(name.c_str(), MatMul, dtype, rows, cols, tokens);
      }
    }
    benchmark::RegisterBenchmark(("GatherDot/" + type + "/11%of5632x2048").c_str(), Gather, dtype, 5632, 2048);
    benchmark::RegisterBenchmark(("AccumulateRows/" + type + "/11%of5632x2048").c_str(), Accumulate, dtype, 5632, 2048);
  }
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kQ8_0}) {
    for (const uint32_t rows : {1u, 16u}) {
      benchmark::RegisterBenchmark(fmt::format("Attention/{}/2048/rows:{}", Traits(dtype).name, rows).c_str(),
                                   Attention, dtype, 2048, rows);
    }
  }
  benchmark::RegisterBenchmark("PrepareActivations/Q8/2048", Prepare, 2048);
  benchmark::RegisterBenchmark("Activation/silu", Activate, Activation::kSilu);
  benchmark::RegisterBenchmark("Activation/gelu", Activate, Activation::kGelu);
  benchmark::RegisterBenchmark("Activation/gelu_tanh", Activate, Activation::kGeluTanh);
}

}  // namespace
}  // namespace elasticmem

int main(int argc, char** argv) {
  elasticmem::RegisterAll();
  benchmark::Initialize(&argc, argv);
  benchmark::AddCustomContext("kernels", elasticmem::KernelTargetName());
  benchmark::RunSpecifiedBenchmarks();
}
