// Copies of records between tiers that are under way. A neuron is where the table says until its copy is done; then, if
// nothing has happened to it meanwhile, the table is changed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "device/device.h"
#include "mapping/neuron_table.h"

namespace elasticmem {

// Invariant: a slot is written by one copy at most. One thread.
class RecordCopies {
 public:
  // At once: enough to hide what starting one costs, few enough that a page of KV never waits long for them.
  static constexpr size_t kMost = 16;

  struct Copy {
    NeuronId neuron;
    Tier to = Tier::kStore;
    SlotId slot;  // of that tier
    Event event;
    bool cancelled = false;   // its bytes are of no use
    bool slot_taken = false;  // the slot went back to its block's owner; it is still being written
  };

  explicit RecordCopies(std::unique_ptr<Stream> stream) : stream_(std::move(stream)) { copies_.reserve(kMost); }

  size_t size() const { return copies_.size(); }
  bool full() const { return copies_.size() >= kMost; }
  const std::vector<Copy>& all() const { return copies_; }  // oldest first

  void Start(NeuronId neuron, Tier to, SlotId slot, std::byte* address, std::span<const std::byte> record) {
    EM_CHECK(!full() && !IsMoving(neuron) && !IsWritten(to, slot));
    copies_.push_back({neuron, to, slot, stream_->Copy(address, record)});
  }
  // The oldest, if it is done.
  std::optional<Copy> TakeDone() {
    if (copies_.empty() || !stream_->Done(copies_.front().event)) return std::nullopt;
    const Copy copy = copies_.front();
    copies_.erase(copies_.begin());
    return copy;
  }
  void Wait() {
    if (!copies_.empty()) stream_->Wait(copies_.back().event);
  }
  // For one record outside the queue.
  void CopyNow(std::byte* to, std::span<const std::byte> record) { stream_->Wait(stream_->Copy(to, record)); }

  // The neuron leaves where it was.
  void Cancel(NeuronId neuron) {
    for (Copy& copy : copies_) copy.cancelled |= copy.neuron == neuron;
  }
  // The slots of `tier` that `wants(slot)` are no longer ours.
  template <class Wants>
  void TakeSlots(Tier tier, Wants&& wants) {
    for (Copy& copy : copies_) {
      if (copy.to == tier && wants(copy.slot)) copy.cancelled = copy.slot_taken = true;
    }
  }
  bool IsMoving(NeuronId neuron) const {
    return std::any_of(copies_.begin(), copies_.end(),
                       [&](const Copy& copy) { return !copy.cancelled && copy.neuron == neuron; });
  }
  bool IsWritten(Tier tier, SlotId slot) const {
    return std::any_of(copies_.begin(), copies_.end(),
                       [&](const Copy& copy) { return copy.to == tier && copy.slot == slot; });
  }
  // Slots that are lent for records on their way to `tier`.
  uint32_t lent(Tier tier) const {
    return static_cast<uint32_t>(std::count_if(copies_.begin(), copies_.end(),
                                               [&](const Copy& copy) { return copy.to == tier && !copy.slot_taken; }));
  }

 private:
  std::unique_ptr<Stream> stream_;
  std::vector<Copy> copies_;
};

}  // namespace elasticmem
