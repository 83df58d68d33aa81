#include "tools/bench_run.h"

#include <algorithm>
#include <chrono>

#include "base/stopwatch.h"
#include "runtime/engine/report.h"
#include "runtime/engine/sampler.h"
#include "tools/session.h"

namespace elasticmem {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<TokenId> RandomTokens(const Engine& engine, uint64_t seed, size_t count) {
  uint64_t state = seed + 1;
  std::vector<TokenId> ids(count);
  for (TokenId& id : ids) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    id = static_cast<TokenId>((state >> 33) % engine.model().spec().vocab);
  }
  return ids;
}

// What a step that reads each weight once takes of the model besides neuron records.
struct DenseWork {
  uint64_t bytes = 0, output_bytes = 0;                // of matrices; of these, the output's
  double multiply_adds = 0, output_multiply_adds = 0;  // of a token
};
DenseWork DenseWorkOf(const Engine& engine) {
  DenseWork work;
  for (const DenseItem& item : engine.plan().dense) {
    const double elements = static_cast<double>(item.matrix.rows) * static_cast<double>(item.matrix.cols());
    const bool output = item.role == DenseItem::Role::kOutput;
    work.bytes += item.matrix.bytes();
    work.multiply_adds += elements;
    if (!output) continue;
    work.output_bytes = item.matrix.bytes();
    work.output_multiply_adds = elements;
  }
  return work;
}

// KV that one token at `position` looks at, in all layers.
double KvBytes(const Engine& engine, uint32_t position) {
  const ModelSpec& spec = engine.model().spec();
  const DType type = engine.kv_type();
  const double token_bytes = 2.0 * static_cast<double>(RowBytes(type, size_t{spec.kv_heads} * spec.head_dim));
  double tokens = 0;
  for (const LayerSpec& layer : spec.layer) {
    tokens += layer.local && spec.window > 0 ? std::min(position + 1, spec.window) : position + 1;
  }
  return tokens * token_bytes;
}

// Adds up what steps did, from the engine's counters and the positions that they were at.
class Meter {
 public:
  explicit Meter(const Engine& engine) : engine_(engine), dense_(DenseWorkOf(engine)), begin_(engine.statistics()) {}

  void AddRow(uint32_t position, bool logits) {
    multiply_adds_ += dense_.multiply_adds - (logits ? 0 : dense_.output_multiply_adds);
    kv_bytes_ += KvBytes(engine_, position);
  }
  void AddStep(bool logits) { dense_bytes_ += dense_.bytes - (logits ? 0 : dense_.output_bytes); }
  BenchSample Sample(uint64_t tokens, double seconds) const {
    const EngineStatistics end = engine_.statistics();
    const ModelSpec& spec = engine_.model().spec();
    const double records =
        static_cast<double>(end.ffn.wanted - begin_.ffn.wanted) * static_cast<double>(end.record_bytes);
    const double rows_of_record = spec.gated ? 2 : 1;
    return {tokens, seconds, static_cast<double>(dense_bytes_) + kv_bytes_ + records,
            multiply_adds_ + static_cast<double>(end.ffn.active - begin_.ffn.active) * rows_of_record * spec.d_model,
            end.kernel_core_seconds - begin_.kernel_core_seconds};
  }

 private:
  const Engine& engine_;
  const DenseWork dense_;
  const EngineStatistics begin_;
  uint64_t dense_bytes_ = 0;
  double kv_bytes_ = 0, multiply_adds_ = 0;
};

class Runner {
 public:
  Runner(Engine& engine, const BenchTest& test, uint64_t seed) : engine_(engine), test_(test), seed_(seed) {
    for (uint32_t i = 0; i < test.sequences(); ++i) sequences_.push_back(engine.NewSequence());
  }
  ~Runner() {
    for (const SequenceId sequence : sequences_) engine_.EndSequence(sequence);
  }

  // Brings every sequence to its depth. A sequence that decodes has a token at least; one that is read may be empty.
  Status Fill() {
    for (uint32_t i = 0; i < sequences_.size(); ++i) {
      const uint32_t tokens = Reads(i) ? test_.depth : std::max(1u, test_.depth);
      if (engine_.tokens(sequences_[i]) > tokens) engine_.Truncate(sequences_[i], tokens);
      const std::vector<TokenId> ids = RandomTokens(engine_, seed_ + 77 * i, tokens);
      const std::span<const TokenId> missing = std::span(ids).subspan(engine_.tokens(sequences_[i]));
      if (!missing.empty()) EM_RETURN_IF_ERROR(engine_.Append(sequences_[i], missing).status());
    }
    return absl::OkStatus();
  }

  // `hash`: of what is decoded, where it is wanted.
  StatusOr<BenchSample> Run(LogitsHash* hash) {
    const std::vector<TokenId> prompt = RandomTokens(engine_, seed_ + 1, test_.prompt);
    std::vector<TokenId> next = RandomTokens(engine_, seed_ + 2, test_.batch);
    const uint32_t decoding = test_.kind == BenchTest::Kind::kPrefill ? 0 : test_.batch;
    const uint32_t rows = engine_.max_step_tokens();
    Meter meter(engine_);
    uint64_t tokens = 0;
    size_t read = 0;
    const Clock::time_point begin = Clock::now();
    for (uint32_t step = 0; test_.prompt > 0 ? read < prompt.size() : step < test_.generate; ++step) {
      if (interrupted.load()) return Error(StatusCode::kCancelled, "interrupted");
      std::vector<StepSlice> slices;
      for (uint32_t i = 0; i < decoding; ++i) {
        meter.AddRow(engine_.tokens(sequences_[i]), true);
        slices.push_back({sequences_[i], {&next[i], 1}, true});
      }
      const size_t chunk = std::min<size_t>(rows - decoding, prompt.size() - read);
      const bool last = read + chunk == prompt.size();
      if (chunk > 0) {
        const SequenceId sequence = sequences_.back();
        for (size_t t = 0; t < chunk; ++t) {
          meter.AddRow(engine_.tokens(sequence) + static_cast<uint32_t>(t), last && t + 1 == chunk);
        }
        slices.push_back({sequence, std::span(prompt).subspan(read, chunk), last});
        read += chunk;
      }
      EM_ASSIGN_OR_RETURN(const std::span<const float> logits, engine_.Step(slices));
      meter.AddStep(!logits.empty());
      tokens += decoding + chunk;
      const size_t vocab = engine_.model().spec().vocab;
      for (uint32_t i = 0; i < decoding; ++i) next[i] = ArgMax(logits.subspan(i * vocab, vocab));
      if (hash && decoding > 0) hash->Add(logits.first(decoding * vocab));
    }
    return meter.Sample(tokens, SecondsSince(begin));
  }

 private:
  bool Reads(uint32_t sequence) const {
    return test_.kind == BenchTest::Kind::kPrefill ||
           (test_.kind == BenchTest::Kind::kMixed && sequence == test_.batch);
  }

  Engine& engine_;
  const BenchTest& test_;
  const uint64_t seed_;
  std::vector<SequenceId> sequences_;
};

}  // namespace

std::string BenchTest::Name() const {
  switch (kind) {
    case Kind::kPrefill:
      return fmt::format("prefill {}", prompt);
    case Kind::kDecode:
      return fmt::format("decode {}", generate);
    case Kind::kMixed:
      return fmt::format("prefill {} + decode", prompt);
  }
  EM_CHECK(false);
}

uint64_t BenchTest::longest() const {
  // While a prompt is read the others grow by a token a step, of which there are no more than its tokens.
  return uint64_t{std::max(1u, depth)} + (kind == Kind::kDecode ? generate : prompt);
}

Spread SpreadOf(const BenchResult& result, double (BenchSample::*of)() const) {
  std::vector<double> values;
  for (const BenchSample& sample : result.samples) values.push_back((sample.*of)());
  return SpreadOf(std::move(values));
}

StatusOr<BenchResult> RunBenchTest(Engine& engine, const BenchTest& test, uint32_t repeat, uint64_t seed,
                                   const std::function<void()>& progress) {
  EM_CHECK(test.sequences() <= engine.max_step_tokens());
  BenchResult result{test, {}, {}, {}, 0};
  Runner runner(engine, test, seed);
  for (uint32_t r = 0; r <= repeat; ++r) {
    EM_RETURN_IF_ERROR(runner.Fill());
    if (r > 0) {
      const Clock::time_point begin = Clock::now();
      const uint64_t bytes = engine.ReadWeightsOnce();
      if (bytes > 0) result.read_rates.push_back(static_cast<double>(bytes) / SecondsSince(begin));
      if (test.prompt > 0) result.multiply_rates.push_back(engine.HotMultiplyAdds());
    }
    LogitsHash hash;
    EM_ASSIGN_OR_RETURN(const BenchSample sample, runner.Run(r == 0 ? &hash : nullptr));
    if (r == 0) {
      result.logits_hash = hash.value();
    } else {
      result.samples.push_back(sample);
    }
    progress();
  }
  return result;
}

double BoundShare(const BenchResult& result) {
  const bool decode = result.test.kind == BenchTest::Kind::kDecode;
  const double limit = SpreadOf(decode ? result.read_rates : result.multiply_rates).median;
  if (limit <= 0) return 0;
  const auto of = decode ? &BenchSample::bytes_per_second : &BenchSample::multiply_adds_per_second;
  return SpreadOf(result, of).median / limit;
}

double OutsideKernels(const BenchResult& result, int threads) {
  double busy = 0, seconds = 0;
  for (const BenchSample& sample : result.samples) {
    busy += sample.kernel_core_seconds;
    seconds += sample.seconds;
  }
  return seconds > 0 ? std::max(0.0, 1 - busy / (seconds * threads)) : 0;
}

}  // namespace elasticmem
