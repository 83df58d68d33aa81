#include "hybrid/dense_stream.h"

namespace elasticmem {

StatusOr<const std::byte*> DenseStream::Acquire(size_t index) {
  EM_CHECK(index < slices_.size());
  while (next_ != index && !tickets_.empty()) PopOldest();
  next_ = index;
  ReadAhead();
  EM_CHECK(!tickets_.empty());
  StatusOr<std::span<const std::byte>> bytes = ring_->Wait(tickets_.front());
  if (!bytes.ok()) {
    ring_->Clear();
    tickets_.clear();
    return bytes.status();
  }
  return bytes->data();
}

void DenseStream::Release() {
  PopOldest();
  ReadAhead();
}

void DenseStream::PopOldest() {
  EM_CHECK(!tickets_.empty());
  ring_->Release();
  tickets_.erase(tickets_.begin());
  next_ = (next_ + 1) % slices_.size();
}

void DenseStream::ReadAhead() {
  while (tickets_.size() < slices_.size()) {
    const DenseSlice& slice = slices_[(next_ + tickets_.size()) % slices_.size()];
    const auto ticket = ring_->Enqueue(*slice.file, slice.offset, slice.bytes);
    if (!ticket) return;
    tickets_.push_back(*ticket);
  }
}

}  // namespace elasticmem
