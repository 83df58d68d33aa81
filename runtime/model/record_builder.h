// Builds the records of a neuron store from a GGUF's FFN tensors, a layer at a time and within bounded memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"
#include "mem/read_queue.h"
#include "store/neuron_store.h"
#include "runtime/model/neuron_store_packer.h"

namespace elasticmem {

// How far converted weights are from what they were.
struct ConversionError {
  double error_squares = 0;   // sum of (converted - original)^2
  double weight_squares = 0;  // sum of original^2
  uint64_t weights = 0;
};

class RecordBuilder {
 public:
  // `source` must outlive the builder and fit `layout` (as PackedLayout checks). `scratch_bytes` bounds the buffers,
  // except that one row of each tensor, one record and one neuron's column always fit.
  static StatusOr<RecordBuilder> Open(const PackSource& source, const RecordLayout& layout, uint64_t scratch_bytes);

  // Passes the records of `neurons` (all or some of a layer's) on in that order, a chunk at a time: whole records, and
  // which neurons they are. Errors: what `emit` returns, reads that fail, weights that are NaN or infinite (tensor and
  // row named).
  using Emit = std::function<Status(std::span<const std::byte> records, std::span<const uint32_t> neurons)>;
  Status Build(uint32_t layer, std::span<const uint32_t> neurons, const Emit& emit);

  const ConversionError& conversion_error() const { return conversion_error_; }

 private:
  RecordBuilder(const PackSource& source, const RecordLayout& layout) : source_(source), layout_(layout) {}
  void DivideScratch(uint64_t scratch_bytes);
  bool KeepsDownBits(const FfnTensors& tensors) const;
  Status FillRecords(uint32_t layer, std::span<const uint32_t> neurons, size_t first_column);
  Status CopyRows(const GgufTensor& tensor, DType to, uint32_t layer, std::span<const uint32_t> neurons,
                  size_t record_offset);
  Status LoadColumns(uint32_t layer, std::span<const uint32_t> neurons);
  Status StoreColumns(uint32_t layer, std::span<const uint32_t> neurons, size_t first_column);
  Status Convert(const GgufTensor& tensor, DType to, uint32_t layer, std::span<const float> weights, std::byte* out);

  const PackSource& source_;
  const RecordLayout layout_;
  std::vector<ReadFile> files_;  // of source_.file->paths()
  size_t read_bytes_ = 0;        // of one read of rows, at most (one row at least)
  size_t group_rows_ = 0;        // rows of down that are transposed together
  size_t chunk_neurons_ = 0;     // records in records_
  size_t column_neurons_ = 0;    // columns in columns_
  std::vector<std::byte> read_;
  std::vector<float> floats_;       // rows being converted: [group_rows_, columns of the slab]
  std::vector<float> back_;         // [d_model]: a converted row as floats again
  std::vector<std::byte> columns_;  // [column_neurons_, d_model] of down's own type, or of floats
  std::vector<std::byte> records_;  // [chunk_neurons_, record_bytes]
  ConversionError conversion_error_;
};

}  // namespace elasticmem
