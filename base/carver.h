// Cuts one buffer into consecutive 64-byte aligned arrays. With a null base it only counts, so that one function both sizes
// a buffer and lays it out.
#pragma once

#include <cstddef>

#include "base/units.h"

namespace elasticmem {

class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}

  template <class T>
  T* Take(size_t count) {
    std::byte* out = base_ ? base_ + used_ : nullptr;
    used_ += RoundUp<size_t>(count * sizeof(T), 64);
    return reinterpret_cast<T*>(out);
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

}  // namespace elasticmem
