// Makes a neuron store from a GGUF: each neuron's gate row, up row and down column side by side in one record.
// The store appears at its path whole or not at all, whatever happens to the process that packs it.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "runtime/gguf/gguf.h"
#include "store/neuron_store.h"
#include "tensor/dtype.h"

namespace elasticmem {

// One layer's FFN weights in the GGUF.
struct FfnTensors {
  const GgufTensor* gate = nullptr;  // [ff rows, d_model]; null where ungated
  const GgufTensor* up = nullptr;    // [ff rows, d_model]
  const GgufTensor* down =
      nullptr;  // [d_model rows, ff], or [ff rows, d_model] if down_transposed (PowerInfer's files)
  bool down_transposed = false;
};

struct PackSource {
  const GgufFile* file = nullptr;
  std::vector<FfnTensors> layers;
  uint32_t d_model = 0;
  uint32_t ff = 0;
  // order[layer][position] is the neuron whose record lies there: a permutation of [0, ff). Empty: by index.
  std::vector<std::vector<uint32_t>> order;
};

struct PackOptions {
  std::optional<DType> type = std::nullopt;  // F32, F16, BF16, Q8_0 or Q4_0: all parts are requantised to it
  uint64_t scratch_bytes = 32_MiB;  // bound on working memory; below what one pass needs at least, that is taken
  bool replace = false;             // pack even where a store that fits is already there
  ByteProgress progress = nullptr;
  const std::atomic<bool>* cancelled = nullptr;  // polled; may be null
};

struct PackResult {
  std::string path;
  uint64_t bytes = 0;        // of the store
  uint64_t model_bytes = 0;  // of the model it was made of
  double seconds = 0;
  bool reused = false;        // a store that fits was there, or another process finished it meanwhile
  std::string requantised;    // "down Q4_K, Q6_K -> Q8_0": parts that changed type; empty if every bit was kept
  double relative_error = 0;  // of the requantised weights: sqrt(sum (q - w)^2 / sum w^2)
  double rms_error = 0;       // sqrt(mean (q - w)^2)
};

// The layout that packing `source` with `type` gives. Without `type` rows keep their type, except: a part whose type
// differs between layers, and a quantised down that is not stored transposed, become Q8_0 (F16 where d_model is no
// multiple of 32); a mix of float types becomes F32. Errors name the tensor whose shape or the type that does not fit.
StatusOr<RecordLayout> PackedLayout(const PackSource& source, std::optional<DType> type);

// Writes the store to `<path>.partial`, under a lock that makes a second packer wait and then use what the first one
// made, and renames it to `path`. A partial left behind by a killed process is taken over. Errors: kCancelled;
// kResourceExhausted for a full disk, with the bytes needed and there; kInvalidArgument for NaN or infinite weights
// (names tensor and row), a path that holds something other than a store, or types that cannot be made. After any of
// them no partial is left.
StatusOr<PackResult> PackNeuronStore(const PackSource& source, const std::string& path, const PackOptions& options);

// Opens the store at `path` if it fits `source`, packs it first where it is absent or stale. A damaged one is an error.
struct OpenedStore {
  NeuronStore store;
  std::optional<PackResult> packed;  // when it was made now
};
StatusOr<OpenedStore> OpenOrPackNeuronStore(const PackSource& source, const std::string& path,
                                            const PackOptions& options, const NeuronStore::Options& open_options);

}  // namespace elasticmem
