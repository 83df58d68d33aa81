#include "hybrid/neuron_loader.h"

#include <algorithm>
#include <deque>
#include <optional>

#include "base/units.h"
#include "hybrid/sparse_ffn.h"

namespace elasticmem {
namespace {

constexpr uint64_t kLongestRead = 512_KiB;

class Loader {
 public:
  Loader(const NeuronStore& store, NeuronResidency& residency, ReadRing& ring, std::vector<Placement> neurons,
         const std::function<Status(uint64_t, uint64_t)>& progress)
      : store_(store), residency_(residency), ring_(ring), neurons_(std::move(neurons)), progress_(progress) {}

  Status Run() {
    for (size_t begin = 0, end = 0; begin < neurons_.size(); begin = end) {
      while (end < neurons_.size() && neurons_[end].neuron.layer == neurons_[begin].neuron.layer) ++end;
      EM_RETURN_IF_ERROR(ReadLayer(begin, end));
    }
    while (!pending_.empty()) EM_RETURN_IF_ERROR(TakeOldest());
    return absl::OkStatus();
  }

 private:
  struct Pending {
    ReadRing::Ticket ticket;
    uint64_t offset;      // in the store
    size_t first, count;  // in neurons_
  };

  uint64_t Offset(const Placement& p) const { return store_.TailOffset(p.neuron.layer, p.neuron.neuron); }

  // neurons_[begin, end), in the order in which they lie in the store.
  Status ReadLayer(size_t begin, size_t end) {
    std::sort(neurons_.begin() + static_cast<long>(begin), neurons_.begin() + static_cast<long>(end),
              [&](const Placement& a, const Placement& b) { return Offset(a) < Offset(b); });
    std::vector<ByteRange> ranges;
    for (size_t i = begin; i < end; ++i) ranges.push_back({Offset(neurons_[i]), store_.layout().tail_bytes});
    const uint64_t longest = std::min<uint64_t>(ring_.max_bytes(store_.file()) / 4, kLongestRead);
    for (const MergedRead& read : MergeReads(ranges, SparseFfn::kMaxGapBytes, longest)) {
      std::optional<ReadRing::Ticket> ticket;
      while (!(ticket = ring_.Enqueue(store_.file(), read.offset, read.bytes))) EM_RETURN_IF_ERROR(TakeOldest());
      pending_.push_back({*ticket, read.offset, begin + read.first, read.count});
    }
    return absl::OkStatus();
  }

  Status TakeOldest() {
    const Pending oldest = pending_.front();
    pending_.pop_front();
    EM_ASSIGN_OR_RETURN(const auto bytes, ring_.Wait(oldest.ticket));
    for (size_t i = oldest.first; i < oldest.first + oldest.count; ++i) {
      const Placement& placement = neurons_[i];
      const auto tail = bytes.subspan(Offset(placement) - oldest.offset, store_.layout().tail_bytes);
      EM_RETURN_IF_ERROR(store_.VerifyTail(placement.neuron.layer, placement.neuron.neuron, tail));
      residency_.Load(placement, tail);
    }
    ring_.Release();
    done_ += oldest.count;
    return progress_(done_ * store_.layout().record_bytes, neurons_.size() * store_.layout().record_bytes);
  }

  const NeuronStore& store_;
  NeuronResidency& residency_;
  ReadRing& ring_;
  std::vector<Placement> neurons_;
  const std::function<Status(uint64_t, uint64_t)>& progress_;
  std::deque<Pending> pending_;
  uint64_t done_ = 0;
};

}  // namespace

std::vector<Placement> EvenPlacement(const NeuronStore& store, const NeuronResidency& residency) {
  const RecordLayout& layout = store.layout();
  const uint32_t on_device = std::min(layout.ff, residency.slots() / layout.layers);
  const uint32_t in_memory = std::min(layout.ff, on_device + residency.host_slots() / layout.layers);
  std::vector<Placement> neurons;
  neurons.reserve(uint64_t{in_memory} * layout.layers);
  for (uint32_t layer = 0; layer < layout.layers; ++layer) {
    for (uint32_t neuron = 0; neuron < layout.ff; ++neuron) {
      const uint32_t position = store.Position(layer, neuron);
      if (position >= in_memory) continue;
      neurons.push_back({{layer, neuron}, position < on_device ? Tier::kDevice : Tier::kHost});
    }
  }
  return neurons;
}

Status LoadNeurons(const NeuronStore& store, NeuronResidency& residency, ReadRing& ring, std::vector<Placement> neurons,
                   const std::function<Status(uint64_t done, uint64_t total)>& progress) {
  const Status status = Loader(store, residency, ring, std::move(neurons), progress).Run();
  if (!status.ok()) ring.Clear();
  return status;
}

}  // namespace elasticmem
