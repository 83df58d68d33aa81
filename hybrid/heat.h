// How often each neuron has been active lately: a count that fades by a fixed factor every token.
//
// Nothing is decayed; instead each token's increment is larger than the last by 1/decay, and all is rescaled long before
// floats overflow. So a token costs one addition per active neuron.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "mapping/neuron_table.h"
#include "mem/budget.h"

namespace elasticmem {

class Heat {
 public:
  // Weight of a token ago; half is forgotten after about 140 tokens.
  static constexpr double kDecay = 0.995;

  static StatusOr<Heat> Create(Budget& budget, uint32_t layers, uint32_t neurons_per_layer) {
    EM_ASSIGN_OR_RETURN(AlignedBuffer memory, AlignedBuffer::Allocate(budget, MemoryCategory::kTables,
                                                                      uint64_t{layers} * neurons_per_layer * 4));
    return Heat(std::move(memory), neurons_per_layer);
  }

  // One token used these neurons of `layer`.
  void Touch(uint32_t layer, std::span<const uint32_t> active) {
    float* heat = values_.data() + size_t{layer} * neurons_;
    for (uint32_t neuron : active) heat[neuron] += increment_;
  }
  // `tokens` tokens have passed.
  void Advance(uint32_t tokens);

  // Comparable between neurons at one moment; not between moments.
  float value(NeuronId id) const { return values_[size_t{id.layer} * neurons_ + id.neuron]; }
  // What being active once, now, is worth.
  float increment() const { return increment_; }

 private:
  Heat(AlignedBuffer memory, uint32_t neurons)
      : memory_(std::move(memory)), values_(memory_.As<float>()), neurons_(neurons) {}

  AlignedBuffer memory_;
  std::span<float> values_;  // [layers, neurons]
  uint32_t neurons_;
  float increment_ = 1;
};

}  // namespace elasticmem
