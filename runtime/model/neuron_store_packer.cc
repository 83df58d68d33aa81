#include "runtime/model/neuron_store_packer.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "runtime/model/model_hash.h"
#include "store/neuron_store_format.h"
#include "runtime/model/partial_file.h"
#include "runtime/model/record_builder.h"
#include "base/stream_hash.h"
#include "tensor/quantize.h"

namespace elasticmem {
namespace {

uint32_t RecordSum(std::span<const std::byte> bytes) { return static_cast<uint32_t>(HashOf(bytes)); }

// One of the three parts of an FFN, over all layers.
using Part = const GgufTensor* FfnTensors::*;

Status CheckShape(const GgufTensor* tensor, uint64_t cols, uint64_t rows, std::string_view part, size_t layer) {
  if (tensor == nullptr) return InvalidInput("layer {} has no {} tensor", layer, part);
  if (tensor->cols() == cols && tensor->rows() == rows) return absl::OkStatus();
  return InvalidInput("tensor {}: {} rows of {}, expected {} rows of {}", tensor->name, tensor->rows(), tensor->cols(),
                      rows, cols);
}

Status CheckSource(const PackSource& source) {
  if (source.layers.empty() || source.ff == 0 || source.d_model == 0) {
    return InvalidInput("nothing to pack: {} layers of {} neurons of {}", source.layers.size(), source.ff,
                        source.d_model);
  }
  const bool gated = source.layers[0].gate != nullptr;
  for (size_t layer = 0; layer < source.layers.size(); ++layer) {
    const FfnTensors& tensors = source.layers[layer];
    if (gated) EM_RETURN_IF_ERROR(CheckShape(tensors.gate, source.d_model, source.ff, "gate", layer));
    if (!gated && tensors.gate != nullptr) return InvalidInput("layer {} has a gate tensor, layer 0 has none", layer);
    EM_RETURN_IF_ERROR(CheckShape(tensors.up, source.d_model, source.ff, "up", layer));
    const bool transposed = tensors.down_transposed;
    EM_RETURN_IF_ERROR(CheckShape(tensors.down, transposed ? source.d_model : source.ff,
                                  transposed ? source.ff : source.d_model, "down", layer));
  }
  if (!source.order.empty() && source.order.size() != source.layers.size()) {
    return InvalidInput("an order of neurons for {} layers, the model has {}", source.order.size(),
                        source.layers.size());
  }
  for (size_t layer = 0; layer < source.order.size(); ++layer) {
    std::vector<uint32_t> sorted = source.order[layer];
    std::sort(sorted.begin(), sorted.end());
    bool whole = sorted.size() == source.ff;
    for (size_t i = 0; whole && i < sorted.size(); ++i) whole = sorted[i] == i;
    if (!whole) return InvalidInput("the order of layer {} is no permutation of its {} neurons", layer, source.ff);
  }
  return absl::OkStatus();
}

// The type that records hold `part` in when no type is asked for.
DType KeptType(const PackSource& source, Part part) {
  const DType first = (source.layers[0].*part)->dtype;
  bool same = true, floats = true, splits_blocks = false;
  for (const FfnTensors& tensors : source.layers) {
    const DType dtype = (tensors.*part)->dtype;
    same = same && dtype == first;
    floats = floats && !IsQuantized(dtype);
    splits_blocks = splits_blocks || (part == &FfnTensors::down && !tensors.down_transposed && IsQuantized(dtype));
  }
  if (same && !splits_blocks) return first;
  if (floats) return DType::kF32;
  return source.d_model % Traits(DType::kQ8_0).block_elements == 0 ? DType::kQ8_0 : DType::kF16;
}

// "down Q4_K, Q6_K -> Q8_0", for each part that changes type.
std::string DescribeConversions(const PackSource& source, const RecordLayout& layout) {
  std::string text;
  const auto describe = [&](Part part, std::string_view name, DType to) {
    std::vector<DType> from;
    bool changed = false;
    for (const FfnTensors& tensors : source.layers) {
      const DType dtype = (tensors.*part)->dtype;
      const bool splits = part == &FfnTensors::down && !tensors.down_transposed && IsQuantized(dtype);
      changed = changed || dtype != to || splits;
      if (std::find(from.begin(), from.end(), dtype) == from.end()) from.push_back(dtype);
    }
    if (!changed) return;
    text += text.empty() ? "" : "; ";
    text += name;
    for (size_t i = 0; i < from.size(); ++i) text += fmt::format("{} {}", i == 0 ? "" : ",", Traits(from[i]).name);
    text += fmt::format(" -> {}", Traits(to).name);
  };
  if (layout.gated) describe(&FfnTensors::gate, "gate", layout.gate);
  describe(&FfnTensors::up, "up", layout.up);
  describe(&FfnTensors::down, "down", layout.down);
  return text;
}

// Refuses to replace what is no store: a mistaken path must not cost the user a file.
Status CheckReplaceable(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return absl::OkStatus();
  if (!S_ISREG(info.st_mode)) return InvalidInput("cannot write a neuron store to {}: it is no regular file", path);
  EM_ASSIGN_OR_RETURN(const ReadFile file, ReadFile::Open(path, /*try_direct=*/false));
  char magic[sizeof(kStoreMagic)] = {};
  const size_t there = std::min<uint64_t>(sizeof(magic), file.bytes());
  EM_RETURN_IF_ERROR(file.ReadAt(0, std::as_writable_bytes(std::span(magic)).first(there)));
  if (std::memcmp(magic, kStoreMagic, there) == 0) return absl::OkStatus();
  return InvalidInput("{} exists and is not a neuron store: choose another path or delete it", path);
}

// Tells the file at `path` from one put there later; {0, 0} where there is none.
std::pair<uint64_t, int64_t> FileIdentity(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return {};
  return {info.st_ino, info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec};
}

bool Fits(const std::string& path, const StoreExpectation& expected) {
  return NeuronStore::Open(path, expected, {.try_direct = false}).ok();
}

// Writes one store into a locked partial.
class StoreWriter {
 public:
  StoreWriter(const PackSource& source, const RecordLayout& layout, const PackOptions& options, PartialFile& file)
      : source_(source),
        layout_(layout),
        options_(options),
        file_(file),
        geometry_(StoreGeometry::Of(layout.layers, layout.ff, layout.record_bytes)) {}

  uint64_t file_bytes() const { return geometry_.file_bytes; }
  const ConversionError& conversion_error() const { return conversion_error_; }

  Status Write(uint64_t model_quick_hash) {
    EM_RETURN_IF_ERROR(file_.Reserve(geometry_.file_bytes));
    EM_ASSIGN_OR_RETURN(const uint64_t full_hash,
                        ModelFullHash(
                            *source_.file, [this](uint64_t done, uint64_t) { Report(done); }, options_.cancelled));
    extents_.resize(layout_.layers);
    const size_t neurons = static_cast<size_t>(layout_.layers) * layout_.ff;
    for (auto* table : {&positions_, &head_sums_, &tail_sums_}) table->resize(neurons);

    EM_ASSIGN_OR_RETURN(RecordBuilder builder, RecordBuilder::Open(source_, layout_, options_.scratch_bytes));
    for (uint32_t layer = 0; layer < layout_.layers; ++layer) EM_RETURN_IF_ERROR(WriteLayer(layer, builder));
    conversion_error_ = builder.conversion_error();
    EM_RETURN_IF_ERROR(WriteTables());
    EM_RETURN_IF_ERROR(WriteHeader(model_quick_hash, full_hash));
    EM_RETURN_IF_ERROR(CheckCancelled());
    return file_.Commit();
  }

 private:
  Status CheckCancelled() const {
    if (options_.cancelled == nullptr || !options_.cancelled->load(std::memory_order_relaxed)) return absl::OkStatus();
    return Error(StatusCode::kCancelled, "packing was cancelled; nothing was left behind");
  }

  // `done` counts the model's bytes hashed, then the store's bytes written.
  void Report(uint64_t done) const {
    if (options_.progress) options_.progress(done, source_.file->file_bytes() + geometry_.file_bytes);
  }

  Status WriteLayer(uint32_t layer, RecordBuilder& builder) {
    std::vector<uint32_t> order(layout_.ff);
    std::iota(order.begin(), order.end(), 0u);
    if (!source_.order.empty()) order = source_.order[layer];
    const size_t table = static_cast<size_t>(layer) * layout_.ff;
    for (uint32_t position = 0; position < layout_.ff; ++position) positions_[table + order[position]] = position;

    StreamHash hash;
    const uint64_t begin = geometry_.data_offset + layer * geometry_.extent_bytes;
    uint64_t at = begin;
    const auto append = [&](std::span<const std::byte> bytes) {
      hash.Add(bytes);
      const Status status = file_.Write(at, bytes);
      at += bytes.size();
      return status;
    };
    const auto emit = [&](std::span<const std::byte> records, std::span<const uint32_t> neurons) {
      EM_RETURN_IF_ERROR(CheckCancelled());
      for (size_t i = 0; i < neurons.size(); ++i) {
        const auto record = records.subspan(i * layout_.record_bytes, layout_.record_bytes);
        head_sums_[table + neurons[i]] = RecordSum(record.first(layout_.head_bytes));
        tail_sums_[table + neurons[i]] = RecordSum(record.subspan(layout_.head_bytes, layout_.tail_bytes));
      }
      EM_RETURN_IF_ERROR(append(records));
      Report(source_.file->file_bytes() + at);
      return absl::OkStatus();
    };
    EM_RETURN_IF_ERROR(builder.Build(layer, order, emit));
    EM_RETURN_IF_ERROR(append(std::vector<std::byte>(begin + geometry_.extent_bytes - at)));
    extents_[layer] = {begin, hash.Digest()};
    return absl::OkStatus();
  }

  Status WriteTables() {
    const std::vector<std::byte> padding(geometry_.data_offset - geometry_.tables_end);
    StreamHash hash;
    uint64_t at = sizeof(StoreHeader);
    for (const std::span<const std::byte> table :
         {std::as_bytes(std::span(extents_)), std::as_bytes(std::span(positions_)),
          std::as_bytes(std::span(head_sums_)), std::as_bytes(std::span(tail_sums_)),
          std::span<const std::byte>(padding)}) {
      hash.Add(table);
      EM_RETURN_IF_ERROR(file_.Write(at, table));
      at += table.size();
    }
    tables_checksum_ = hash.Digest();
    return absl::OkStatus();
  }

  Status WriteHeader(uint64_t quick_hash, uint64_t full_hash) {
    StoreHeader header{};
    std::memcpy(header.magic, kStoreMagic, sizeof(header.magic));
    header.version = kStoreVersion;
    header.header_bytes = sizeof(header);
    header.file_bytes = geometry_.file_bytes;
    header.data_offset = geometry_.data_offset;
    header.tables_checksum = tables_checksum_;
    header.model_quick_hash = quick_hash;
    header.model_full_hash = full_hash;
    header.model_bytes = source_.file->file_bytes();
    header.layers = layout_.layers;
    header.ff = layout_.ff;
    header.d_model = layout_.d_model;
    header.gated = layout_.gated ? 1 : 0;
    header.gate_type = Traits(layout_.gate).gguf_type;
    header.up_type = Traits(layout_.up).gguf_type;
    header.down_type = Traits(layout_.down).gguf_type;
    header.head_bytes = layout_.head_bytes;
    header.tail_bytes = layout_.tail_bytes;
    header.slot_bytes = layout_.slot_bytes;
    header.record_bytes = layout_.record_bytes;
    header.up_offset = layout_.up_offset;
    header.down_offset = layout_.down_offset;
    header.extent_bytes = geometry_.extent_bytes;
    header.header_checksum = HashOf(std::as_bytes(std::span(&header, 1)));
    return file_.Write(0, std::as_bytes(std::span(&header, 1)));
  }

  const PackSource& source_;
  const RecordLayout& layout_;
  const PackOptions& options_;
  PartialFile& file_;
  const StoreGeometry geometry_;
  std::vector<StoreExtent> extents_;                         // [layers]
  std::vector<uint32_t> positions_, head_sums_, tail_sums_;  // [layers][ff], as in the file
  uint64_t tables_checksum_ = 0;
  ConversionError conversion_error_;
};

}  // namespace

StatusOr<RecordLayout> PackedLayout(const PackSource& source, std::optional<DType> type) {
  EM_RETURN_IF_ERROR(CheckSource(source));
  if (type && !CanQuantize(*type)) {
    return Unsupported("cannot pack as {}: F32, F16, BF16, Q8_0 and Q4_0 can be made", Traits(*type).name);
  }
  if (type && source.d_model % Traits(*type).block_elements != 0) {
    return InvalidInput("cannot pack as {}: its blocks of {} do not divide the model's rows of {}", Traits(*type).name,
                        Traits(*type).block_elements, source.d_model);
  }
  const bool gated = source.layers[0].gate != nullptr;
  const auto choose = [&](Part part) { return type ? *type : KeptType(source, part); };
  const DType gate = gated ? choose(&FfnTensors::gate) : DType::kF32;
  return RecordLayout::Make(gated, source.d_model, source.ff, static_cast<uint32_t>(source.layers.size()), gate,
                            choose(&FfnTensors::up), choose(&FfnTensors::down));
}

StatusOr<PackResult> PackNeuronStore(const PackSource& source, const std::string& path, const PackOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  EM_ASSIGN_OR_RETURN(const RecordLayout layout, PackedLayout(source, options.type));
  EM_RETURN_IF_ERROR(CheckReplaceable(path));
  StoreExpectation expected{.layout = layout};
  EM_ASSIGN_OR_RETURN(expected.model_quick_hash, ModelQuickHash(*source.file));
  PackResult result;
  result.path = path;
  result.bytes = StoreGeometry::Of(layout.layers, layout.ff, layout.record_bytes).file_bytes;
  result.model_bytes = source.file->file_bytes();
  result.requantised = DescribeConversions(source, layout);
  result.reused = !options.replace && Fits(path, expected);
  if (result.reused) {
    PartialFile::RemoveAbandoned(path);
    return result;
  }

  const auto before = FileIdentity(path);
  EM_ASSIGN_OR_RETURN(PartialFile partial, PartialFile::Lock(path, options.cancelled));
  // Whoever held the lock before us may have made the store meanwhile.
  result.reused = (!options.replace || FileIdentity(path) != before) && Fits(path, expected);
  if (result.reused) return result;
  StoreWriter writer(source, layout, options, partial);
  EM_RETURN_IF_ERROR(writer.Write(expected.model_quick_hash));
  const ConversionError& error = writer.conversion_error();
  if (error.weight_squares > 0) result.relative_error = std::sqrt(error.error_squares / error.weight_squares);
  if (error.weights > 0) result.rms_error = std::sqrt(error.error_squares / static_cast<double>(error.weights));
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

StatusOr<OpenedStore> OpenOrPackNeuronStore(const PackSource& source, const std::string& path,
                                            const PackOptions& options, const NeuronStore::Options& open_options) {
  StoreExpectation expected;
  EM_ASSIGN_OR_RETURN(expected.layout, PackedLayout(source, options.type));
  EM_ASSIGN_OR_RETURN(expected.model_quick_hash, ModelQuickHash(*source.file));
  StatusOr<NeuronStore> store = NeuronStore::Open(path, expected, open_options);
  if (store.ok()) {
    PartialFile::RemoveAbandoned(path);
    return OpenedStore{.store = *std::move(store), .packed = std::nullopt};
  }
  if (!IsStale(store.status()) && store.status().code() != StatusCode::kNotFound) return store.status();
  EM_ASSIGN_OR_RETURN(PackResult packed, PackNeuronStore(source, path, options));
  EM_ASSIGN_OR_RETURN(NeuronStore made, NeuronStore::Open(path, expected, open_options));
  return OpenedStore{.store = std::move(made), .packed = std::move(packed)};
}

}  // namespace elasticmem
