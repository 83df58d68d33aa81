// Finds, for a newcomer to a tier, a neuron there that is clearly colder: looks at the next few in turn, whatever their
// blocks are used for.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "hybrid/planner.h"

namespace elasticmem {

class VictimSearch {
 public:
  explicit VictimSearch(Tier tier) : tier_(tier) {}

  // Nothing where none of those it looks at is colder by the hysteresis. Neurons that `is_protected` are passed over.
  std::optional<Resident> Find(const NeuronTable& table, const Heat& heat, NeuronId newcomer,
                               const std::function<bool(NeuronId)>& is_protected);
  // All heat was multiplied by `factor`; all heat is other than it was.
  void Scale(float factor) { usual_coldest_ *= factor; }
  void Forget() { usual_coldest_ = 0; }

 private:
  Tier tier_;
  uint32_t block_ = 0;  // where the search goes on
  uint32_t position_ = 0;
  float usual_coldest_ = 0;  // heat of the coldest neuron that those who look usually find
  uint32_t refused_unseen_ = 0;
};

}  // namespace elasticmem
