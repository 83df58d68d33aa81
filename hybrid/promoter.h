// Brings missing neurons back ahead of need, while the disk has nothing better to do: after a layer's own reads are
// done and before those of the next layer begin, it reads a few of the hottest missing neurons into free slots.
#pragma once

#include <cstdint>
#include <deque>

#include "hybrid/residency.h"
#include "mem/read_ring.h"
#include "store/neuron_store.h"

namespace elasticmem {

// One thread. Everything outlives it.
class Promoter {
 public:
  Promoter(const NeuronStore* store, NeuronResidency* residency, Reader* reader, ReadRing* ring)
      : store_(store), residency_(residency), reader_(reader), ring_(ring) {}

  // Takes in what has been read, and where the disk is idle and slots are free starts the next reads. Never waits.
  // Errors: those of reads, and damaged records.
  Status Pump();

  uint64_t bytes_read() const { return bytes_read_; }

 private:
  struct Pending {
    ReadRing::Ticket ticket;
    NeuronId id;
  };
  Status TakeIn(const Pending& read);

  const NeuronStore* const store_;
  NeuronResidency* const residency_;
  Reader* const reader_;
  ReadRing* const ring_;
  std::deque<Pending> pending_;
  uint32_t burst_ = kLeastBurst;  // reads started at once: more while they are done in time, fewer when not
  uint64_t bytes_read_ = 0;

  static constexpr uint32_t kLeastBurst = 2;
  static constexpr uint32_t kMostBurst = 64;
};

}  // namespace elasticmem
