#include "runtime/model/record_builder.h"

#include <algorithm>
#include <cstring>

#include "base/units.h"
#include "runtime/model/finite.h"
#include "tensor/quantize.h"

namespace elasticmem {
namespace {

constexpr size_t kMaxReadBytes = 1_MiB;
constexpr size_t kMaxGroupRows = 32;  // of two bytes: a cache line of each column

Status NotFinite(const GgufTensor& tensor, uint64_t row, uint32_t layer) {
  return InvalidInput("tensor {} (layer {}): row {} holds a weight that is NaN or infinite", tensor.name, layer, row);
}

// columns[i][first_row + g] = rows[g][index[i] - base], `d` elements to a column. The group's rows stay in the cache
// while each column gets its few consecutive elements.
template <class T>
void Transpose(std::span<const std::byte* const> rows, std::span<const uint32_t> index, uint32_t base, size_t d,
               size_t first_row, std::byte* columns) {
  for (size_t i = 0; i < index.size(); ++i) {
    std::byte* out = columns + (i * d + first_row) * sizeof(T);
    const size_t offset = (index[i] - base) * sizeof(T);
    for (size_t g = 0; g < rows.size(); ++g) std::memcpy(out + g * sizeof(T), rows[g] + offset, sizeof(T));
  }
}

}  // namespace

StatusOr<RecordBuilder> RecordBuilder::Open(const PackSource& source, const RecordLayout& layout,
                                            uint64_t scratch_bytes) {
  RecordBuilder builder(source, layout);
  for (const std::string& path : source.file->paths()) {
    EM_ASSIGN_OR_RETURN(ReadFile file, ReadFile::Open(path, /*try_direct=*/false));
    builder.files_.push_back(std::move(file));
  }
  builder.DivideScratch(scratch_bytes);
  return builder;
}

// A down that is neither converted nor made of blocks is transposed as it is.
bool RecordBuilder::KeepsDownBits(const FfnTensors& tensors) const {
  return tensors.down->dtype == layout_.down && !IsQuantized(layout_.down);
}

// An eighth of the scratch each for reads, rows being converted and records; the rest for columns of down.
void RecordBuilder::DivideScratch(uint64_t scratch_bytes) {
  const size_t part = scratch_bytes / 8;
  const size_t d = layout_.d_model, ff = layout_.ff;
  size_t row_bytes = 0, column_element = 0;
  bool converts = false;
  for (const FfnTensors& tensors : source_.layers) {
    for (const GgufTensor* tensor : {tensors.gate, tensors.up, tensors.down}) {
      if (tensor != nullptr) row_bytes = std::max(row_bytes, RowBytes(tensor->dtype, tensor->cols()));
    }
    if (tensors.down_transposed) continue;
    const bool keeps = KeepsDownBits(tensors);
    converts = converts || !keeps;
    column_element = std::max<size_t>(column_element, keeps ? Traits(layout_.down).block_bytes : sizeof(float));
  }
  read_bytes_ = std::max(row_bytes, std::min(part, kMaxReadBytes));
  group_rows_ = converts ? std::clamp<size_t>(part / (ff * sizeof(float)), 1, kMaxGroupRows) : kMaxGroupRows;
  chunk_neurons_ = std::clamp<size_t>(part / layout_.record_bytes, 1, ff);
  read_.resize(read_bytes_);
  floats_.resize(std::max(d, converts ? group_rows_ * ff : 0));
  back_.resize(d);
  records_.resize(chunk_neurons_ * layout_.record_bytes);
  column_neurons_ = ff;
  if (column_element > 0) {
    const size_t used = read_.size() + floats_.size() * sizeof(float) + records_.size();
    const size_t left = scratch_bytes > used ? scratch_bytes - used : 0;
    column_neurons_ = std::clamp<size_t>(left / (d * column_element), 1, ff);
    columns_.resize(column_neurons_ * d * column_element);
  }
}

Status RecordBuilder::Build(uint32_t layer, std::span<const uint32_t> neurons, const Emit& emit) {
  const FfnTensors& tensors = source_.layers[layer];
  for (size_t begin = 0; begin < neurons.size(); begin += column_neurons_) {
    const auto slab = neurons.subspan(begin, std::min(column_neurons_, neurons.size() - begin));
    if (!tensors.down_transposed) EM_RETURN_IF_ERROR(LoadColumns(layer, slab));
    for (size_t first = 0; first < slab.size(); first += chunk_neurons_) {
      const auto chunk = slab.subspan(first, std::min(chunk_neurons_, slab.size() - first));
      EM_RETURN_IF_ERROR(FillRecords(layer, chunk, first));
      EM_RETURN_IF_ERROR(emit(std::span(records_).first(chunk.size() * layout_.record_bytes), chunk));
    }
  }
  return absl::OkStatus();
}

// The records of `neurons`, whose columns are in columns_ from first_column on.
Status RecordBuilder::FillRecords(uint32_t layer, std::span<const uint32_t> neurons, size_t first_column) {
  const FfnTensors& tensors = source_.layers[layer];
  std::fill(records_.begin(), records_.end(), std::byte{0});
  if (layout_.gated) EM_RETURN_IF_ERROR(CopyRows(*tensors.gate, layout_.gate, layer, neurons, 0));
  const size_t up_offset = layout_.gated ? layout_.head_bytes + layout_.up_offset : layout_.up_offset;
  EM_RETURN_IF_ERROR(CopyRows(*tensors.up, layout_.up, layer, neurons, up_offset));
  if (!tensors.down_transposed) return StoreColumns(layer, neurons, first_column);
  return CopyRows(*tensors.down, layout_.down, layer, neurons, layout_.head_bytes + layout_.down_offset);
}

// Row i of `tensor` for each neuron i, as type `to`, to record_offset of its record. Consecutive rows are read
// together.
Status RecordBuilder::CopyRows(const GgufTensor& tensor, DType to, uint32_t layer, std::span<const uint32_t> neurons,
                               size_t record_offset) {
  const size_t row_bytes = RowBytes(tensor.dtype, layout_.d_model);
  const size_t most = read_bytes_ / row_bytes;
  for (size_t i = 0; i < neurons.size();) {
    size_t rows = 1;
    while (rows < most && i + rows < neurons.size() && neurons[i + rows] == neurons[i] + rows) ++rows;
    const std::span<std::byte> bytes = std::span(read_).first(rows * row_bytes);
    EM_RETURN_IF_ERROR(files_[tensor.file].ReadAt(tensor.offset + neurons[i] * row_bytes, bytes));
    for (size_t r = 0; r < rows; ++r, ++i) {
      const std::byte* row = bytes.data() + r * row_bytes;
      std::byte* out = records_.data() + i * layout_.record_bytes + record_offset;
      if (!AllFinite(tensor.dtype, row, layout_.d_model)) return NotFinite(tensor, neurons[i], layer);
      if (tensor.dtype == to) {
        std::memcpy(out, row, row_bytes);
        continue;
      }
      const std::span<float> weights = std::span(floats_).first(layout_.d_model);
      DequantizeRow(tensor.dtype, row, weights.size(), weights.data());
      EM_RETURN_IF_ERROR(Convert(tensor, to, layer, weights, out));
    }
  }
  return absl::OkStatus();
}

// columns_[i] = column neurons[i] of the layer's down [d_model, ff], in its own type or as floats. Reads the whole
// tensor in order: its rows are short beside what a disk reads at once, so picking out pieces would be slower.
Status RecordBuilder::LoadColumns(uint32_t layer, std::span<const uint32_t> neurons) {
  const GgufTensor& down = *source_.layers[layer].down;
  const bool raw = KeepsDownBits(source_.layers[layer]);
  const size_t d = layout_.d_model, block = Traits(down.dtype).block_elements;
  const size_t row_bytes = RowBytes(down.dtype, layout_.ff);
  // The columns [base, base + count) of each row, in whole blocks, hold all that is wanted.
  const auto [lowest, highest] = std::ranges::minmax(neurons);
  const uint32_t base = RoundDown<size_t>(lowest, block);
  const size_t count = RoundUp<size_t>(highest + 1, block) - base;
  const size_t base_bytes = RowBytes(down.dtype, base);
  const size_t rows_per_read = read_bytes_ / row_bytes;
  const std::byte* rows[kMaxGroupRows];
  for (size_t first = 0; first < d; first += rows_per_read) {
    const size_t read_rows = std::min(rows_per_read, d - first);
    EM_RETURN_IF_ERROR(
        files_[down.file].ReadAt(down.offset + first * row_bytes, std::span(read_).first(read_rows * row_bytes)));
    for (size_t group = 0; group < read_rows; group += group_rows_) {
      const size_t group_rows = std::min(group_rows_, read_rows - group);
      for (size_t g = 0; g < group_rows; ++g) {
        rows[g] = read_.data() + (group + g) * row_bytes + base_bytes;
        if (!AllFinite(down.dtype, rows[g], count)) return NotFinite(down, first + group + g, layer);
        if (raw) continue;
        float* floats = floats_.data() + g * count;
        DequantizeRow(down.dtype, rows[g], count, floats);
        rows[g] = reinterpret_cast<const std::byte*>(floats);
      }
      const auto transpose = raw && Traits(down.dtype).block_bytes == 2 ? Transpose<uint16_t> : Transpose<uint32_t>;
      transpose(std::span(rows, group_rows), neurons, base, d, first + group, columns_.data());
    }
  }
  return absl::OkStatus();
}

Status RecordBuilder::StoreColumns(uint32_t layer, std::span<const uint32_t> neurons, size_t first_column) {
  const bool raw = KeepsDownBits(source_.layers[layer]);
  const size_t d = layout_.d_model;
  const size_t column_bytes = raw ? RowBytes(layout_.down, d) : d * sizeof(float);
  for (size_t i = 0; i < neurons.size(); ++i) {
    const std::byte* column = columns_.data() + (first_column + i) * column_bytes;
    std::byte* out = records_.data() + i * layout_.record_bytes + layout_.head_bytes + layout_.down_offset;
    if (raw) {
      std::memcpy(out, column, column_bytes);
      continue;
    }
    std::memcpy(floats_.data(), column, column_bytes);
    EM_RETURN_IF_ERROR(Convert(*source_.layers[layer].down, layout_.down, layer, std::span(floats_).first(d), out));
  }
  return absl::OkStatus();
}

// Writes `weights` (a neuron's, of `tensor`) as a row of `to` and counts how far it is off.
Status RecordBuilder::Convert(const GgufTensor& tensor, DType to, uint32_t layer, std::span<const float> weights,
                              std::byte* out) {
  EM_RETURN_IF_ERROR(QuantizeRow(to, weights, out));
  if (!AllFinite(to, out, weights.size())) {
    return InvalidInput("tensor {} (layer {}): a weight is too large for {}; choose another --type", tensor.name, layer,
                        Traits(to).name);
  }
  DequantizeRow(to, out, weights.size(), back_.data());
  double error = 0, total = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double weight = weights[i], off = back_[i] - weight;
    error += off * off;
    total += weight * weight;
  }
  conversion_error_.error_squares += error;
  conversion_error_.weight_squares += total;
  conversion_error_.weights += weights.size();
  return absl::OkStatus();
}

}  // namespace elasticmem
