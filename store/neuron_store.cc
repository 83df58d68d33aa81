#include "store/neuron_store.h"

#include <algorithm>
#include <cstring>

#include "base/units.h"
#include "store/neuron_store_format.h"
#include "base/stream_hash.h"

namespace elasticmem {
namespace {

constexpr uint64_t kChunkBytes = 4_MiB;
constexpr uint32_t kMaxLayers = 1u << 16, kMaxNeurons = 1u << 24, kMaxModel = 1u << 18;
constexpr uint32_t kPrefixBytes = offsetof(StoreHeader, file_bytes);  // what every version has
constexpr uint32_t kMaxHeaderBytes = 64_KiB;

uint32_t RecordSum(std::span<const std::byte> bytes) { return static_cast<uint32_t>(HashOf(bytes)); }

template <class T>
std::span<std::byte> BytesOf(std::vector<T>& values) {
  return std::as_writable_bytes(std::span<T>(values));
}

bool BlocksDivide(DType dtype, uint32_t d_model) { return d_model % Traits(dtype).block_elements == 0; }

// The first bytes of a store: its own kind, and whole? `bytes` is the whole header as its prefix tells its size.
Status CheckHeaderBytes(std::span<std::byte> bytes, const std::string& path) {
  StoreHeader prefix{};
  std::memcpy(&prefix, bytes.data(), kPrefixBytes);
  const uint64_t expected = prefix.header_checksum;
  std::memset(bytes.data() + offsetof(StoreHeader, header_checksum), 0, sizeof(uint64_t));
  const uint64_t actual = HashOf(bytes);
  if (actual != expected) {
    return Corrupt(
        "neuron store {}: the header (bytes 0 to {}) is damaged: its checksum is {:016x}, it says {:016x}; delete "
        "the file or pack it again",
        path, bytes.size(), actual, expected);
  }
  return absl::OkStatus();
}

StatusOr<RecordLayout> LayoutOf(const StoreHeader& header, const std::string& path) {
  const auto gate = DTypeFromGguf(header.gate_type);
  const auto up = DTypeFromGguf(header.up_type);
  const auto down = DTypeFromGguf(header.down_type);
  if (!gate || !up || !down) {
    return Corrupt("neuron store {}: unknown weight types {}, {}, {} in the header", path, header.gate_type,
                   header.up_type, header.down_type);
  }
  if (header.layers == 0 || header.layers > kMaxLayers || header.ff == 0 || header.ff > kMaxNeurons ||
      header.d_model == 0 || header.d_model > kMaxModel || !BlocksDivide(*gate, header.d_model) ||
      !BlocksDivide(*up, header.d_model) || !BlocksDivide(*down, header.d_model)) {
    return Corrupt("neuron store {}: impossible shapes in the header: {} layers of {} neurons of {}", path,
                   header.layers, header.ff, header.d_model);
  }
  const RecordLayout layout =
      RecordLayout::Make(header.gated != 0, header.d_model, header.ff, header.layers, *gate, *up, *down);
  if (layout.head_bytes != header.head_bytes || layout.tail_bytes != header.tail_bytes ||
      layout.slot_bytes != header.slot_bytes || layout.record_bytes != header.record_bytes ||
      layout.up_offset != header.up_offset || layout.down_offset != header.down_offset) {
    return Corrupt("neuron store {}: records of {} bytes in the header, {} follow from its shapes", path,
                   header.record_bytes, layout.record_bytes);
  }
  return layout;
}

// Whether the file is as long as its header says; if not, which extent it breaks off in.
Status CheckFileBytes(const StoreHeader& header, const StoreGeometry& geometry, const ReadFile& file) {
  if (header.file_bytes != geometry.file_bytes || header.data_offset != geometry.data_offset ||
      header.extent_bytes != geometry.extent_bytes) {
    return Corrupt("neuron store {}: {} bytes in the header, {} follow from its shapes", file.path(), header.file_bytes,
                   geometry.file_bytes);
  }
  if (file.bytes() == header.file_bytes) return absl::OkStatus();
  if (file.bytes() > header.file_bytes) {
    return Corrupt("neuron store {}: has {} bytes, its header says {}; delete the file or pack it again", file.path(),
                   file.bytes(), header.file_bytes);
  }
  if (file.bytes() < header.data_offset) {
    return Corrupt(
        "neuron store {} is truncated: its tables end at byte {}, the file has {}; delete it or pack it again",
        file.path(), header.data_offset, file.bytes());
  }
  const uint64_t layer = (file.bytes() - header.data_offset) / header.extent_bytes;
  return Corrupt(
      "neuron store {} is truncated: the extent of layer {} ends at byte {}, the file has {}; delete it or pack "
      "it again",
      file.path(), layer, header.data_offset + (layer + 1) * header.extent_bytes, file.bytes());
}

}  // namespace

RecordLayout RecordLayout::Make(bool gated, uint32_t d_model, uint32_t ff, uint32_t layers, DType gate, DType up,
                                DType down) {
  EM_CHECK(BlocksDivide(up, d_model) && BlocksDivide(down, d_model) && (!gated || BlocksDivide(gate, d_model)));
  const auto row = [&](DType dtype) { return static_cast<uint32_t>(RowBytes(dtype, d_model)); };
  RecordLayout layout;
  layout.gated = gated;
  layout.d_model = d_model;
  layout.ff = ff;
  layout.layers = layers;
  layout.gate = gated ? gate : DType::kF32;
  layout.up = up;
  layout.down = down;
  layout.head_bytes = RoundUp(row(gated ? gate : up), 64u);
  layout.down_offset = gated ? RoundUp(row(up), 4u) : 0;  // so that float rows may be read as floats
  layout.tail_bytes = layout.down_offset + row(down);
  layout.slot_bytes = RoundUp(layout.tail_bytes, 64u);
  layout.record_bytes = layout.head_bytes + layout.slot_bytes;
  return layout;
}

std::string RecordLayout::Describe() const {
  const std::string types = gated ? fmt::format("{}/{}/{}", Traits(gate).name, Traits(up).name, Traits(down).name)
                                  : fmt::format("{}/{}", Traits(up).name, Traits(down).name);
  return fmt::format("{}, {} layers of {} neurons of {}, {}", gated ? "gated" : "ungated", layers, ff, d_model, types);
}

StatusOr<NeuronStore> NeuronStore::Open(const std::string& path, const std::optional<StoreExpectation>& expected,
                                        const Options& options) {
  EM_ASSIGN_OR_RETURN(ReadFile file, ReadFile::Open(path, options.try_direct));
  NeuronStore store(std::move(file));
  EM_RETURN_IF_ERROR(store.ReadHeader(expected));
  EM_RETURN_IF_ERROR(store.ReadTables(options));
  return store;
}

Status NeuronStore::ReadHeader(const std::optional<StoreExpectation>& expected) {
  const std::string& path = file_.path();
  if (file_.bytes() < kPrefixBytes) {
    return Corrupt(
        "neuron store {} is truncated: its header ends at byte {}, the file has {}; delete it or pack it again", path,
        sizeof(StoreHeader), file_.bytes());
  }
  StoreHeader header{};
  EM_RETURN_IF_ERROR(file_.ReadAt(0, std::as_writable_bytes(std::span(&header, 1)).first(kPrefixBytes)));
  if (std::memcmp(header.magic, kStoreMagic, sizeof(kStoreMagic)) != 0) {
    return Corrupt("{} is not a neuron store: it does not begin with EMSTORE", path);
  }
  if (header.header_bytes < kPrefixBytes || header.header_bytes > kMaxHeaderBytes) {
    return Corrupt("neuron store {}: the header says it has {} bytes; delete the file or pack it again", path,
                   header.header_bytes);
  }
  if (header.header_bytes > file_.bytes()) {
    return Corrupt(
        "neuron store {} is truncated: its header ends at byte {}, the file has {}; delete it or pack it again", path,
        header.header_bytes, file_.bytes());
  }
  std::vector<std::byte> bytes(header.header_bytes);
  EM_RETURN_IF_ERROR(file_.ReadAt(0, bytes));
  EM_RETURN_IF_ERROR(CheckHeaderBytes(bytes, path));
  if (header.version != kStoreVersion) {
    return Error(StatusCode::kFailedPrecondition, "neuron store {} is of version {}, this program reads {}", path,
                 header.version, kStoreVersion);
  }
  if (header.header_bytes != sizeof(StoreHeader)) {
    return Corrupt("neuron store {}: a header of {} bytes, version {} has {}", path, header.header_bytes, kStoreVersion,
                   sizeof(StoreHeader));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  EM_ASSIGN_OR_RETURN(layout_, LayoutOf(header, path));
  const StoreGeometry geometry = StoreGeometry::Of(layout_.layers, layout_.ff, layout_.record_bytes);
  if (expected && expected->model_quick_hash != header.model_quick_hash) {
    return Error(StatusCode::kFailedPrecondition,
                 "neuron store {} was made from another model: hash {:016x}, now {:016x}", path,
                 header.model_quick_hash, expected->model_quick_hash);
  }
  if (expected && expected->layout != layout_) {
    return Error(StatusCode::kFailedPrecondition, "neuron store {} has other records ({}), wanted: {}", path,
                 layout_.Describe(), expected->layout.Describe());
  }
  EM_RETURN_IF_ERROR(CheckFileBytes(header, geometry, file_));
  model_quick_hash_ = header.model_quick_hash;
  model_full_hash_ = header.model_full_hash;
  model_bytes_ = header.model_bytes;
  data_offset_ = header.data_offset;
  extent_bytes_ = header.extent_bytes;
  tables_checksum_ = header.tables_checksum;
  return absl::OkStatus();
}

Status NeuronStore::ReadTables(const Options& options) {
  const StoreGeometry geometry = StoreGeometry::Of(layout_.layers, layout_.ff, layout_.record_bytes);
  const size_t neurons = static_cast<size_t>(layout_.layers) * layout_.ff;
  std::vector<StoreExtent> extents(layout_.layers);
  std::vector<std::byte> padding(geometry.data_offset - geometry.tables_end);
  positions_.resize(neurons);
  head_sums_.resize(neurons);
  tail_sums_.resize(neurons);

  StreamHash hash;
  uint64_t offset = sizeof(StoreHeader);
  for (const std::span<std::byte> table :
       {BytesOf(extents), BytesOf(positions_), BytesOf(head_sums_), BytesOf(tail_sums_), BytesOf(padding)}) {
    EM_RETURN_IF_ERROR(file_.ReadAt(offset, table));
    hash.Add(table);
    offset += table.size();
  }
  if (const uint64_t sum = hash.Digest(); sum != tables_checksum_) {
    return Corrupt(
        "neuron store {}: the tables (bytes {} to {}) are damaged: their checksum is {:016x}, the header says "
        "{:016x}; delete the file or pack it again",
        file_.path(), sizeof(StoreHeader), offset, sum, tables_checksum_);
  }

  bool identity = true;
  std::vector<bool> taken(layout_.ff);
  for (uint32_t layer = 0; layer < layout_.layers; ++layer) {
    if (extents[layer].offset != LayerOffset(layer)) {
      return Corrupt("neuron store {}: the extent of layer {} is said to begin at byte {}, not {}", file_.path(), layer,
                     extents[layer].offset, LayerOffset(layer));
    }
    extent_sums_.push_back(extents[layer].checksum);
    taken.assign(layout_.ff, false);
    for (uint32_t neuron = 0; neuron < layout_.ff; ++neuron) {
      const uint32_t position = positions_[Index(layer, neuron)];
      if (position >= layout_.ff || taken[position]) {
        return Corrupt("neuron store {}: layer {} neuron {} is said to lie at place {} of {}, taken or out of range",
                       file_.path(), layer, neuron, position, layout_.ff);
      }
      taken[position] = true;
      identity = identity && position == neuron;
    }
  }
  if (identity) std::vector<uint32_t>().swap(positions_);
  if (!options.heads) std::vector<uint32_t>().swap(head_sums_);
  return absl::OkStatus();
}

Status NeuronStore::VerifyTail(uint32_t layer, uint32_t neuron, std::span<const std::byte> tail) const {
  EM_DCHECK(tail.size() >= layout_.tail_bytes);
  const uint32_t expected = tail_sums_[Index(layer, neuron)];
  const uint32_t actual = RecordSum(tail.first(layout_.tail_bytes));
  if (actual == expected) [[likely]]
    return absl::OkStatus();
  return Corrupt(
      "neuron store {}: the record of layer {} neuron {} is damaged: the checksum of its tail ({} bytes at {}) is "
      "{:08x}, packed was {:08x}",
      file_.path(), layer, neuron, layout_.tail_bytes, TailOffset(layer, neuron), actual, expected);
}

Status NeuronStore::VerifyHead(uint32_t layer, uint32_t neuron, std::span<const std::byte> head) const {
  EM_CHECK(!head_sums_.empty());
  EM_DCHECK(head.size() >= layout_.head_bytes);
  const uint32_t expected = head_sums_[Index(layer, neuron)];
  const uint32_t actual = RecordSum(head.first(layout_.head_bytes));
  if (actual == expected) [[likely]]
    return absl::OkStatus();
  return Corrupt(
      "neuron store {}: the record of layer {} neuron {} is damaged: the checksum of its head ({} bytes at {}) is "
      "{:08x}, packed was {:08x}",
      file_.path(), layer, neuron, layout_.head_bytes, HeadOffset(layer, neuron), actual, expected);
}

uint64_t NeuronStore::MemoryBytes() const {
  return sizeof(*this) + extent_sums_.capacity() * sizeof(uint64_t) +
         (positions_.capacity() + head_sums_.capacity() + tail_sums_.capacity()) * sizeof(uint32_t);
}

Status NeuronStore::VerifyAll(const ByteProgress& progress, const std::atomic<bool>* cancelled) const {
  std::vector<std::byte> buffer(std::min(kChunkBytes, extent_bytes_));
  StreamHash hash;
  for (uint32_t layer = 0; layer < layout_.layers; ++layer) {
    hash.Reset();
    for (uint64_t at = 0; at < extent_bytes_; at += buffer.size()) {
      if (cancelled != nullptr && cancelled->load(std::memory_order_relaxed)) {
        return Error(StatusCode::kCancelled, "checking {} was cancelled", file_.path());
      }
      const std::span<std::byte> chunk(buffer.data(), std::min<uint64_t>(buffer.size(), extent_bytes_ - at));
      EM_RETURN_IF_ERROR(file_.ReadAt(LayerOffset(layer) + at, chunk));
      hash.Add(chunk);
      if (progress) progress(LayerOffset(layer) + at + chunk.size(), file_.bytes());
    }
    if (const uint64_t sum = hash.Digest(); sum != extent_sums_[layer]) {
      EM_RETURN_IF_ERROR(FindDamage(layer, buffer));
      return Corrupt(
          "neuron store {}: the extent of layer {} (bytes {} to {}) is damaged: its checksum is {:016x}, packed "
          "was {:016x}",
          file_.path(), layer, LayerOffset(layer), LayerOffset(layer) + extent_bytes_, sum, extent_sums_[layer]);
    }
  }
  return absl::OkStatus();
}

// The first record of the layer whose tail (or head, where those checksums are kept) does not verify.
Status NeuronStore::FindDamage(uint32_t layer, std::span<std::byte> scratch) const {
  for (uint32_t neuron = 0; neuron < layout_.ff; ++neuron) {
    if (!head_sums_.empty()) {
      const std::span<std::byte> head = scratch.first(layout_.head_bytes);
      EM_RETURN_IF_ERROR(file_.ReadAt(HeadOffset(layer, neuron), head));
      EM_RETURN_IF_ERROR(VerifyHead(layer, neuron, head));
    }
    const std::span<std::byte> tail = scratch.first(layout_.tail_bytes);
    EM_RETURN_IF_ERROR(file_.ReadAt(TailOffset(layer, neuron), tail));
    EM_RETURN_IF_ERROR(VerifyTail(layer, neuron, tail));
  }
  return absl::OkStatus();
}

}  // namespace elasticmem
