// The tests of `elasticmem bench`: what each does, and what it measures.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "tools/spread.h"

namespace elasticmem {

struct BenchTest {
  enum class Kind { kPrefill, kDecode, kMixed };
  Kind kind = Kind::kPrefill;
  uint32_t prompt = 0;    // tokens: prefill, mixed
  uint32_t generate = 0;  // tokens of each sequence: decode
  uint32_t batch = 1;     // sequences that decode
  uint32_t depth = 0;     // tokens in the context of each sequence before

  std::string Name() const;  // "prefill 512"
  // Tokens that its sequences have at the most, and how many there are.
  uint64_t longest() const;
  uint32_t sequences() const { return batch + (kind == Kind::kMixed ? 1 : 0); }
};

// One repetition of a test.
struct BenchSample {
  uint64_t tokens = 0;  // prompt and generated
  double seconds = 0;
  // What has to move through memory at least: weights in use and KV, once a step. The multiply-adds of weights.
  double bytes = 0, multiply_adds = 0;
  double kernel_core_seconds = 0;
  double tokens_per_second() const { return static_cast<double>(tokens) / seconds; }
  double bytes_per_second() const { return bytes / seconds; }
  double multiply_adds_per_second() const { return multiply_adds / seconds; }
};

struct BenchResult {
  BenchTest test;
  std::vector<BenchSample> samples;
  std::vector<double> read_rates;      // bytes/s of reading the dense weights, before each repetition
  std::vector<double> multiply_rates;  // multiply-adds/s of a product from the cache, likewise
  uint64_t logits_hash = 0;            // of what it decoded: the same in every repetition
};

// Of what `of` says of each repetition: SpreadOf(result, &BenchSample::tokens_per_second).
Spread SpreadOf(const BenchResult& result, double (BenchSample::*of)() const);

// Runs `test` `repeat` times after one that warms up and does not count. A step has rows for all its
// sequences. Errors: the engine's; interrupted. `progress` is told of each repetition that is done.
StatusOr<BenchResult> RunBenchTest(Engine& engine, const BenchTest& test, uint32_t repeat, uint64_t seed,
                                   const std::function<void()>& progress);

// The shares of the limit that the medians reach. Decode: of the time that the same bytes take to read. Prefill and
// mixed: of the products' speed from the cache. 0 where there is nothing to compare to.
double BoundShare(const BenchResult& result);
// The share of the cores' time that passes outside kernels.
double OutsideKernels(const BenchResult& result, int threads);

}  // namespace elasticmem
