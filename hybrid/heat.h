// What each neuron is worth keeping for: how often, or how lately, it has been active.
//
// Counts fade by a fixed factor every token. Nothing is decayed for that; instead each token's increment is larger than
// the last by 1/decay, and all is rescaled long before floats overflow. So a token costs one addition per active
// neuron, and a value never falls between two rescalings.
#pragma once

#include <cstdint>
#include <optional>
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

  enum class Kind : uint8_t {
    kFrequency,  // a count that fades
    kLastUse,    // the time of the last use
    kGiven,      // what Assign said, whatever happens
  };

  // 4 bytes a neuron, and as many again to count activations.
  static StatusOr<Heat> Create(Budget& budget, uint32_t layers, uint32_t neurons_per_layer, Kind kind,
                               bool count = false) {
    const uint64_t neurons = uint64_t{layers} * neurons_per_layer;
    EM_ASSIGN_OR_RETURN(AlignedBuffer memory,
                        AlignedBuffer::Allocate(budget, MemoryCategory::kTables, neurons * (count ? 8 : 4)));
    return Heat(std::move(memory), neurons, neurons_per_layer, kind);
  }

  // One token used these neurons of `layer`.
  void Touch(uint32_t layer, std::span<const uint32_t> active) {
    float* heat = values_.data() + size_t{layer} * neurons_;
    switch (kind_) {
      case Kind::kFrequency:
        for (uint32_t neuron : active) heat[neuron] += increment_;
        break;
      case Kind::kLastUse:
        for (uint32_t neuron : active) heat[neuron] = clock_;
        break;
      case Kind::kGiven:
        break;
    }
    if (counts_.empty()) return;
    for (uint32_t neuron : active) ++counts_[size_t{layer} * neurons_ + neuron];
  }
  // `tokens` tokens have passed. Where all values were rescaled: the factor; else 1.
  float Advance(uint32_t tokens);
  // Replaces all values: [layers, neurons].
  void Assign(std::span<const float> values);

  // Comparable between neurons at one moment; not between moments.
  float value(NeuronId id) const { return values_[size_t{id.layer} * neurons_ + id.neuron]; }
  std::span<const float> values() const { return values_; }
  Kind kind() const { return kind_; }
  // How often each neuron was active since the start [layers, neurons]; empty where nothing is counted.
  std::span<const uint32_t> counts() const { return counts_; }
  // About how many of its uses a token makes of something with this much heat; nothing where heat is not a frequency.
  std::optional<float> Probability(float heat) const {
    if (kind_ != Kind::kFrequency) return std::nullopt;
    return heat / increment_ * static_cast<float>(1 - kDecay);
  }
  // What a newcomer must be hotter by, or two neurons of like heat would take turns. By last use there is no likeness.
  float hysteresis() const { return kind_ == Kind::kFrequency ? 1.25f : 1.0f; }

 private:
  Heat(AlignedBuffer memory, uint64_t neurons, uint32_t neurons_per_layer, Kind kind)
      : memory_(std::move(memory)),
        values_(memory_.As<float>().first(neurons)),
        counts_(memory_.As<uint32_t>().subspan(neurons)),
        neurons_(neurons_per_layer),
        kind_(kind) {}

  AlignedBuffer memory_;
  std::span<float> values_;     // [layers, neurons]
  std::span<uint32_t> counts_;  // the same, or empty
  uint32_t neurons_;
  Kind kind_;
  float increment_ = 1;
  float clock_ = 1;  // steps; exact up to 2^24 of them, then rescaled
};

}  // namespace elasticmem
