#include "hybrid/promoter.h"

#include <algorithm>
#include <cstring>

namespace elasticmem {

Status Promoter::TakeIn(const Pending& read) {
  EM_ASSIGN_OR_RETURN(const std::span<const std::byte> tail, ring_->Wait(read.ticket));
  EM_RETURN_IF_ERROR(store_->VerifyTail(read.id.layer, read.id.neuron, tail));
  // It may have come another way meanwhile, or the slots may be gone.
  if (residency_->table().Lookup(read.id).tier() != Tier::kStore) return absl::OkStatus();
  if (std::byte* slot = residency_->AdmitIfFree(read.id)) std::memcpy(slot, tail.data(), tail.size());
  return absl::OkStatus();
}

Status Promoter::Pump() {
  if (!pending_.empty()) {
    reader_->Poll();
    while (!pending_.empty() && ring_->Ready(pending_.front().ticket)) {
      const Status status = TakeIn(pending_.front());
      ring_->Release();
      pending_.pop_front();
      EM_RETURN_IF_ERROR(status);
    }
    burst_ = pending_.empty() ? std::min(burst_ * 2, kMostBurst) : std::max(burst_ / 2, kLeastBurst);
  }
  if (!pending_.empty() || residency_->free_slots() == 0 || reader_->outstanding() > 0) return absl::OkStatus();
  while (pending_.size() < std::min(burst_, residency_->free_slots())) {
    const std::optional<NeuronId> id = residency_->NextPromotion();
    if (!id) break;
    const auto ticket =
        ring_->Enqueue(store_->file(), store_->TailOffset(id->layer, id->neuron), store_->layout().tail_bytes);
    if (!ticket) break;
    pending_.push_back({*ticket, *id});
    bytes_read_ += store_->layout().tail_bytes;
  }
  return absl::OkStatus();
}

}  // namespace elasticmem
