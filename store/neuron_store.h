// The neuron store: a file with one record per FFN neuron, so that a neuron is one read. Made from a GGUF by
// PackNeuronStore, reused while the model is the same. The file's bytes are described in neuron_store_format.h.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "mem/read_queue.h"
#include "tensor/dtype.h"

namespace elasticmem {

// How a neuron's bytes lie together. A record is [head][tail]; every size is in bytes and follows from the shapes:
//   gated:   head = gate row             tail = up row, down row
//   ungated: head = up row               tail = down row
// A "down row" is the neuron's column of the down projection: d_model weights. Biases are not in the record.
struct RecordLayout {
  bool gated = true;
  uint32_t d_model = 0;
  uint32_t ff = 0;  // neurons a layer
  uint32_t layers = 0;
  DType gate = DType::kF32;  // kF32 where ungated
  DType up = DType::kF32;
  DType down = DType::kF32;

  uint32_t head_bytes = 0;    // a multiple of 64: where the tail starts in the record
  uint32_t tail_bytes = 0;    // exact: what is read of a neuron in exact mode
  uint32_t up_offset = 0;     // within the tail where gated; within the head (0) where ungated
  uint32_t down_offset = 0;   // within the tail; a multiple of 4
  uint32_t slot_bytes = 0;    // tail_bytes rounded up to 64
  uint32_t record_bytes = 0;  // head_bytes + tail_bytes rounded up to 64

  // d_model must be a multiple of each type's block. `gate` is ignored where ungated.
  static RecordLayout Make(bool gated, uint32_t d_model, uint32_t ff, uint32_t layers, DType gate, DType up,
                           DType down);
  // "gated, 24 layers of 5632 neurons of 2048, F16/F16/F16": for messages.
  std::string Describe() const;
  friend bool operator==(const RecordLayout&, const RecordLayout&) = default;
};

// What the caller is about to use a store for; a store made of anything else is stale.
struct StoreExpectation {
  uint64_t model_quick_hash = 0;  // ModelQuickHash
  RecordLayout layout;
};

// Told of progress: bytes done of the total. Called every few megabytes, from the calling thread.
using ByteProgress = std::function<void(uint64_t done, uint64_t total)>;

// A store open for reading. Const after opening; reads of records go through file() and a ReadQueue.
class NeuronStore {
 public:
  struct Options {
    bool try_direct = true;  // O_DIRECT where the file system takes it
    bool heads = false;      // keep the checksums of heads too (4 bytes a neuron): for VerifyHead
  };

  // Reads and checks the header and the tables. Errors by code:
  //   kNotFound            there is no file at `path`: make one
  //   kFailedPrecondition  stale: of another version, model or layout: make it anew (see IsStale)
  //   kDataLoss            truncated, altered or not a store; names the place and the numbers seen
  //   others               what the system said (no permission, a folder, ...)
  // Without an expectation any whole store of this version will do (for `inspect`).
  static StatusOr<NeuronStore> Open(const std::string& path, const std::optional<StoreExpectation>& expected,
                                    const Options& options);
  static StatusOr<NeuronStore> Open(const std::string& path, const std::optional<StoreExpectation>& expected) {
    return Open(path, expected, Options());
  }

  const RecordLayout& layout() const { return layout_; }
  const ReadFile& file() const { return file_; }
  uint64_t model_quick_hash() const { return model_quick_hash_; }
  uint64_t model_full_hash() const { return model_full_hash_; }
  uint64_t model_bytes() const { return model_bytes_; }

  // Where a neuron's record lies within its layer's extent; equal to `neuron` unless packed in another order.
  uint32_t Position(uint32_t layer, uint32_t neuron) const {
    return positions_.empty() ? neuron : positions_[Index(layer, neuron)];
  }
  // File offsets. The tail follows the head's head_bytes; extents and so records of position 0 are 4096-aligned.
  uint64_t LayerOffset(uint32_t layer) const { return data_offset_ + layer * extent_bytes_; }
  uint64_t extent_bytes() const { return extent_bytes_; }
  uint64_t HeadOffset(uint32_t layer, uint32_t neuron) const {
    return LayerOffset(layer) + static_cast<uint64_t>(Position(layer, neuron)) * layout_.record_bytes;
  }
  uint64_t TailOffset(uint32_t layer, uint32_t neuron) const { return HeadOffset(layer, neuron) + layout_.head_bytes; }

  // Whether bytes read from the file are what was packed: `tail` holds at least tail_bytes, `head` head_bytes.
  // The error (kDataLoss) names layer, neuron, file offset and both checksums. VerifyHead wants Options::heads.
  Status VerifyTail(uint32_t layer, uint32_t neuron, std::span<const std::byte> tail) const;
  Status VerifyHead(uint32_t layer, uint32_t neuron, std::span<const std::byte> head) const;

  // Bytes of host memory that the tables take.
  uint64_t MemoryBytes() const;

  // Reads the whole file and checks every extent; the error names the extent and, where it is in one, the record.
  // kCancelled once *cancelled (may be null) is true.
  Status VerifyAll(const ByteProgress& progress, const std::atomic<bool>* cancelled) const;

 private:
  explicit NeuronStore(ReadFile file) : file_(std::move(file)) {}
  Status ReadHeader(const std::optional<StoreExpectation>& expected);
  Status ReadTables(const Options& options);
  Status FindDamage(uint32_t layer, std::span<std::byte> scratch) const;
  size_t Index(uint32_t layer, uint32_t neuron) const { return static_cast<size_t>(layer) * layout_.ff + neuron; }

  ReadFile file_;
  RecordLayout layout_;
  uint64_t model_quick_hash_ = 0;
  uint64_t model_full_hash_ = 0;
  uint64_t model_bytes_ = 0;
  uint64_t data_offset_ = 0;
  uint64_t extent_bytes_ = 0;
  uint64_t tables_checksum_ = 0;
  std::vector<uint64_t> extent_sums_;  // [layers]
  std::vector<uint32_t> positions_;    // [layers][ff]; empty when every neuron lies at its own index
  std::vector<uint32_t> head_sums_;    // [layers][ff]; empty unless asked for
  std::vector<uint32_t> tail_sums_;    // [layers][ff]
};

// Whether opening failed only because the store was made of something else (or by another version): pack it anew.
inline bool IsStale(const Status& status) { return status.code() == StatusCode::kFailedPrecondition; }

// Where a model's store belongs.
struct StorePlace {
  std::string model_path = {};               // of the GGUF (of a split one: its first part)
  std::string store_dir = {};                // chosen by the user; empty: beside the model, else in cache_dir
  std::string cache_dir = {};                // created if need be; empty: there is none
  std::optional<DType> type = std::nullopt;  // as PackOptions::type
  uint64_t model_quick_hash = 0;             // keeps models of one name apart in store_dir and cache_dir
};

// The path to open or pack: `<model file>[.<type>].emstore` beside the model if that folder can be written (or already
// holds this model's store), else `<hash>-<that>` in the cache folder. Errors say which folders were tried and to pass
// --store-dir.
StatusOr<std::string> StorePath(const StorePlace& place);

}  // namespace elasticmem
