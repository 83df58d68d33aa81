// Reads neurons into memory outside of steps: at the start, and where they are placed anew.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "hybrid/residency.h"
#include "mem/read_ring.h"
#include "store/neuron_store.h"

namespace elasticmem {

// The same share of every layer, as the slots go, first the device's, in the order in which the store keeps them.
std::vector<Placement> EvenPlacement(const NeuronStore& store, const NeuronResidency& residency);

// Reads missing neurons, ordered by layer, into free slots of their tiers. `progress` is told of bytes done and in all,
// and can end it. Errors: its own, those of reads, and damaged records.
Status LoadNeurons(const NeuronStore& store, NeuronResidency& residency, ReadRing& ring, std::vector<Placement> neurons,
                   const std::function<Status(uint64_t done, uint64_t total)>& progress);

}  // namespace elasticmem
