#include "runtime/engine/weights.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "base/units.h"
#include "tensor/dot.h"
#include "tensor/interleave.h"

namespace elasticmem {
namespace {

// Every vector of the model, in one order, so that sizes can be summed before memory is taken.
template <class Visit>
Status VisitVectors(const ModelSpec& spec, std::vector<LayerWeights>& layers, NormWeights& output_norm,
                    const float*& output_bias, Visit&& visit) {
  const auto norm = [&](const NormRef& ref, NormWeights& out) -> Status {
    EM_RETURN_IF_ERROR(visit(ref.weight, out.weight));
    return visit(ref.bias, out.bias);
  };
  EM_RETURN_IF_ERROR(norm(spec.output_norm, output_norm));
  EM_RETURN_IF_ERROR(visit(spec.output_bias, output_bias));
  for (uint32_t l = 0; l < spec.layers; ++l) {
    const LayerSpec& from = spec.layer[l];
    LayerWeights& to = layers[l];
    EM_RETURN_IF_ERROR(norm(from.attention_norm, to.attention_norm));
    EM_RETURN_IF_ERROR(norm(from.post_attention_norm, to.post_attention_norm));
    EM_RETURN_IF_ERROR(norm(from.ffn_norm, to.ffn_norm));
    EM_RETURN_IF_ERROR(norm(from.post_ffn_norm, to.post_ffn_norm));
    EM_RETURN_IF_ERROR(visit(from.q_bias, to.q_bias));
    EM_RETURN_IF_ERROR(visit(from.k_bias, to.k_bias));
    EM_RETURN_IF_ERROR(visit(from.v_bias, to.v_bias));
    EM_RETURN_IF_ERROR(visit(from.o_bias, to.o_bias));
    EM_RETURN_IF_ERROR(visit(from.q_norm, to.q_norm));
    EM_RETURN_IF_ERROR(visit(from.k_norm, to.k_norm));
    EM_RETURN_IF_ERROR(visit(from.up_bias, to.up_bias));
    EM_RETURN_IF_ERROR(visit(from.down_bias, to.down_bias));
  }
  return absl::OkStatus();
}

// Rows as they were read, from the first of a tile on, to their place: interleaved tiles, then what is left.
void CopyRows(const WeightRows& rows, std::span<const std::byte> from, std::byte* to) {
  const size_t tile = kInterleavedRows * rows.row_bytes;
  for (; rows.interleaved && from.size() >= tile; from = from.subspan(tile), to += tile) {
    InterleaveRows(rows.dtype, from.data(), rows.row_bytes, rows.cols, to);
  }
  std::memcpy(to, from.data(), from.size());
}

bool IsGate(const MemoryPlan& plan, const DenseItem& item) {
  return plan.ffn == FfnPath::kRecords && (item.role == DenseItem::Role::kGate || item.role == DenseItem::Role::kUp);
}

}  // namespace

StatusOr<std::unique_ptr<Weights>> Weights::Load(Budget& budget, const ModelSpec& spec, const MemoryPlan& plan,
                                                 std::span<const ReadFile> files, ReadRing* ring,
                                                 const std::function<void(uint64_t, uint64_t)>& progress,
                                                 const std::atomic<bool>* cancelled) {
  std::unique_ptr<Weights> weights(new Weights(spec, files));
  weights->layers_.resize(spec.layers);
  EM_RETURN_IF_ERROR(weights->LoadVectors(budget));
  EM_RETURN_IF_ERROR(weights->LoadMatrices(budget, plan, ring, progress, cancelled));
  return weights;
}

Status Weights::LoadVectors(Budget& budget) {
  uint64_t floats = 0;
  const auto count = [&](const VectorRef& ref, const float*&) {
    if (ref) floats += RoundUp<uint64_t>(ref.count, 16);
    return absl::OkStatus();
  };
  EM_RETURN_IF_ERROR(VisitVectors(spec_, layers_, output_norm_, output_bias_, count));
  EM_ASSIGN_OR_RETURN(vectors_, AlignedBuffer::Allocate(budget, MemoryCategory::kDenseWeights, floats * sizeof(float)));
  const auto load = [&](const VectorRef& ref, const float*& out) -> Status {
    if (!ref) return absl::OkStatus();
    EM_ASSIGN_OR_RETURN(out, LoadVector(ref));
    return absl::OkStatus();
  };
  EM_RETURN_IF_ERROR(VisitVectors(spec_, layers_, output_norm_, output_bias_, load));
  if (spec_.rope_factors) {
    const GgufTensor& tensor = *spec_.rope_factors.tensor;
    std::vector<std::byte> raw(tensor.bytes);
    EM_RETURN_IF_ERROR(files_[tensor.file].ReadAt(tensor.offset, raw));
    rope_factors_.resize(spec_.rope_factors.count);
    DequantizeRow(tensor.dtype, raw.data(), rope_factors_.size(), rope_factors_.data());
  }
  return absl::OkStatus();
}

StatusOr<const float*> Weights::LoadVector(const VectorRef& ref) {
  const GgufTensor& tensor = *ref.tensor;
  if (IsQuantized(tensor.dtype)) {
    return Unsupported("tensor \"{}\" is {}: norms and biases are expected in F32, F16 or BF16", tensor.name,
                       Traits(tensor.dtype).name);
  }
  std::vector<std::byte> raw(RowBytes(tensor.dtype, ref.count));
  const Status read = files_[tensor.file].ReadAt(tensor.offset + RowBytes(tensor.dtype, ref.begin), raw);
  if (!read.ok()) return WithContext(read, fmt::format("tensor \"{}\"", tensor.name));
  float* out = vectors_.As<float>().data() + vectors_used_;
  vectors_used_ += RoundUp<size_t>(ref.count, 16);
  DequantizeRow(tensor.dtype, raw.data(), ref.count, out);
  return out;
}

DenseMatrix& Weights::Slot(const DenseItem& item) {
  LayerWeights& layer = layers_[item.layer];
  switch (item.role) {
    case DenseItem::Role::kQ:
      return layer.q;
    case DenseItem::Role::kK:
      return layer.k;
    case DenseItem::Role::kV:
      return layer.v;
    case DenseItem::Role::kO:
      return layer.o;
    case DenseItem::Role::kGate:
      return layer.gate;
    case DenseItem::Role::kUp:
      return layer.up;
    case DenseItem::Role::kDown:
      return layer.down;
    case DenseItem::Role::kOutput:
      return output_;
  }
  EM_CHECK(false);
}

Status Weights::LoadMatrices(Budget& budget, const MemoryPlan& plan, ReadRing* ring,
                             const std::function<void(uint64_t, uint64_t)>& progress,
                             const std::atomic<bool>* cancelled) {
  uint64_t matrix_bytes = 0, gate_bytes = 0;
  for (const DenseItem& item : plan.dense) {
    (IsGate(plan, item) ? gate_bytes : matrix_bytes) += RoundUp<uint64_t>(item.resident_bytes(), 64);
  }
  EM_ASSIGN_OR_RETURN(matrices_, AlignedBuffer::Allocate(budget, MemoryCategory::kDenseWeights, matrix_bytes));
  EM_ASSIGN_OR_RETURN(gates_, AlignedBuffer::Allocate(budget, MemoryCategory::kGates, gate_bytes));

  struct Pending {
    ReadRing::Ticket ticket;
    std::byte* destination;
    const DenseItem* item;
  };
  std::deque<Pending> pending;
  uint64_t done = 0;
  const auto take_oldest = [&]() -> Status {
    const auto bytes = ring->Wait(pending.front().ticket);
    if (!bytes.ok()) {
      return WithContext(bytes.status(), fmt::format("tensor \"{}\"", pending.front().item->matrix.tensor->name));
    }
    CopyRows(Slot(*pending.front().item).rows, *bytes, pending.front().destination);
    done += bytes->size();
    ring->Release();
    pending.pop_front();
    if (progress) progress(done, matrix_bytes + gate_bytes);
    return absl::OkStatus();
  };

  std::byte* next_matrix = matrices_.data();
  std::byte* next_gate = gates_.data();
  for (const DenseItem& item : plan.dense) {
    const MatrixRef& m = item.matrix;
    DenseMatrix& out = Slot(item);
    out.rows = {m.tensor->dtype, nullptr, m.rows, m.cols(), m.row_bytes()};
    const ReadFile& file = files_[m.tensor->file];
    out.resident_rows = item.resident_rows;
    out.first_slice = slices_.size();
    out.rows_per_slice = std::max<uint64_t>(1, plan.slice_bytes / m.row_bytes());
    for (uint64_t row = item.resident_rows; row < m.rows; row += out.rows_per_slice) {
      const uint64_t rows = std::min<uint64_t>(out.rows_per_slice, m.rows - row);
      slices_.push_back({&file, m.offset() + row * m.row_bytes(), rows * m.row_bytes()});
    }
    std::byte*& next = IsGate(plan, item) ? next_gate : next_matrix;
    out.rows.data = next;
    uint64_t piece = std::max<uint64_t>(4096, ring->max_bytes(file) / 4);
    const uint64_t tile = kInterleavedRows * m.row_bytes();
    const bool by_row = item.role == DenseItem::Role::kDown && spec_.layer[item.layer].down_transposed;
    out.rows.interleaved = WantsInterleavedRows(out.rows.dtype) && !by_row && piece >= tile;
    if (out.rows.interleaved) piece -= piece % tile;
    for (uint64_t at = 0; at < item.resident_bytes(); at += piece) {
      if (cancelled && cancelled->load()) return Error(StatusCode::kCancelled, "interrupted while loading");
      const uint64_t bytes = std::min(piece, item.resident_bytes() - at);
      std::optional<ReadRing::Ticket> ticket;
      while (!(ticket = ring->Enqueue(file, m.offset() + at, bytes))) EM_RETURN_IF_ERROR(take_oldest());
      pending.push_back({*ticket, next + at, &item});
    }
    next += RoundUp<uint64_t>(item.resident_bytes(), 64);
  }
  while (!pending.empty()) EM_RETURN_IF_ERROR(take_oldest());
  return absl::OkStatus();
}

Status Weights::ReadRow(const MatrixRef& matrix, uint64_t row, float* out) const {
  EM_CHECK(row < matrix.rows);
  const DType dtype = matrix.tensor->dtype;
  if (matrix.tensor == spec_.output.tensor && row < output_.resident_rows) {
    const uint64_t in_tile = row % kInterleavedRows;
    if (output_.rows.interleaved && row - in_tile + kInterleavedRows <= output_.resident_rows) {
      std::vector<std::byte> raw(matrix.row_bytes());
      DeinterleaveRow(dtype, output_.rows.Row(row - in_tile), in_tile, matrix.cols(), raw.data());
      DequantizeRow(dtype, raw.data(), matrix.cols(), out);
    } else {
      DequantizeRow(dtype, output_.rows.Row(row), matrix.cols(), out);
    }
    return absl::OkStatus();
  }
  std::vector<std::byte> raw(matrix.row_bytes());
  EM_RETURN_IF_ERROR(files_[matrix.tensor->file].ReadAt(matrix.offset() + row * matrix.row_bytes(), raw));
  DequantizeRow(dtype, raw.data(), matrix.cols(), out);
  return absl::OkStatus();
}

uint64_t Weights::ReadOnce(Team& team) const {
  // In several streams at once, as the kernels read: one stream of a core does not fill the memory bus.
  constexpr size_t kChunkBytes = 256 << 10, kStreams = 4, kStreamBytes = kChunkBytes / kStreams;
  constexpr size_t kStep = 64, kAhead = 2048;  // beyond a chunk, too: the next one follows
  std::atomic<uint64_t> sink{0};
  for (const std::span<const std::byte> memory : {matrices_.span(), gates_.span()}) {
    team.ParallelFor(memory.size() / kChunkBytes, [&](size_t chunk) {
      const std::byte* part = memory.data() + chunk * kChunkBytes;
      uint64_t sums[kStep / sizeof(uint64_t)] = {};
      for (size_t i = 0; i < kStreamBytes; i += kStep) {
        for (size_t stream = 0; stream < kStreams; ++stream) {
          const std::byte* from = part + stream * kStreamBytes + i;
          __builtin_prefetch(from + kAhead);
          uint64_t words[std::size(sums)];
          std::memcpy(words, from, sizeof(words));
          for (size_t j = 0; j < std::size(sums); ++j) sums[j] ^= words[j];
        }
      }
      for (const uint64_t sum : sums) sink.fetch_xor(sum, std::memory_order_relaxed);
    });
  }
  return (matrices_.size() / kChunkBytes + gates_.size() / kChunkBytes) * kChunkBytes;
}

}  // namespace elasticmem
