// What the planner decided: moves of neuron records, as a value. It is applied in one place, in the order of the
// members, so that slots which are emptied by a drop or a relocation may be filled by a later move.
#pragma once

#include <vector>

#include "mapping/neuron_table.h"
#include "mapping/slot_grid.h"

namespace elasticmem {

struct Plan {
  struct Promotion {
    NeuronId neuron;
    SlotId slot;
  };
  struct Relocation {
    NeuronId neuron;
    SlotId from;
    SlotId to;
  };

  std::vector<NeuronId> drop;        // leave their slots; home copies are in the store
  std::vector<Relocation> relocate;  // copied from slot to slot of the same pool
  std::vector<Promotion> promote;    // read from the store into a slot

  bool empty() const { return drop.empty() && relocate.empty() && promote.empty(); }
};

}  // namespace elasticmem
