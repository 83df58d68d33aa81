// Dense matrices that do not stay in memory: read in slices of rows, in the order in which a step uses them, over and
// over. While one slice is being multiplied with, the next ones are in flight.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "mem/read_ring.h"
#include "tensor/dtype.h"

namespace elasticmem {

// A run of whole rows of one matrix, read at once.
struct DenseSlice {
  const ReadFile* file = nullptr;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// One thread. At most one slice is held at a time.
class DenseStream {
 public:
  // `slices` in order of use; after the last comes the first again. The ring holds the longest slice at least.
  DenseStream(ReadRing* ring, std::vector<DenseSlice> slices) : ring_(ring), slices_(std::move(slices)) {}

  // Waits for slice `index`; its bytes are valid until Release(). Slices between the last one and this one are skipped,
  // at the price of what was already read of them.
  StatusOr<const std::byte*> Acquire(size_t index);
  // Done with the slice; starts reads of what follows.
  void Release();

  size_t size() const { return slices_.size(); }

 private:
  void ReadAhead();
  void PopOldest();

  ReadRing* ring_;
  std::vector<DenseSlice> slices_;
  size_t next_ = 0;                        // the slice that the oldest entry of the ring holds
  std::vector<ReadRing::Ticket> tickets_;  // of slices next_, next_ + 1, ... (cyclically)
};

// A dense matrix of the model: its first rows in memory, and the slices of a stream that bring the others.
struct DenseMatrix {
  WeightRows rows;  // all of them; data holds the resident ones
  size_t resident_rows = 0;
  size_t first_slice = 0;  // in the stream, of the row after the resident ones
  size_t rows_per_slice = 1;

  size_t slices() const { return (rows.rows - resident_rows + rows_per_slice - 1) / rows_per_slice; }
};

}  // namespace elasticmem
