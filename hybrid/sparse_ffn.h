// Runs one FFN layer over the neurons that are active: splits them by residency, reads the missing ones from the store
// while the resident ones are computed, and sums in an order that depends on neither.
//
// The sum's tree is fixed: neurons in model order within groups of kNeuronGroup, groups in order. Waves of whole groups
// run one after another; a wave's reads, and those of the waves after it as far as the ring holds them, are in flight
// while it runs.
#pragma once

#include <absl/functional/function_ref.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "device/team.h"
#include "ffn_ops/sparse_ffn.h"
#include "hybrid/faster_way.h"
#include "hybrid/residency.h"
#include "mem/read_ring.h"
#include "store/neuron_store.h"
#include "tensor/quantize.h"

namespace elasticmem {

struct SparseFfnStatistics {
  uint64_t active = 0;             // (token, neuron) pairs computed
  uint64_t possible = 0;           // tokens * neurons
  uint64_t wanted = 0;             // records that layers asked for (the union over a step's tokens)
  uint64_t resident = 0;           // of those, found in memory
  uint64_t on_host = 0;            // of these, on the host, beside the device
  uint64_t record_bytes_read = 0;  // of records asked from the store, before alignment and gaps
  uint64_t management_nanos = 0;   // spent on splitting by residency and on keeping late records
};

class SparseFfn {
 public:
  static constexpr uint32_t kNeuronGroup = kGroupRows;  // a word of marks
  // Tails this near to each other are read in one go: on NVMe a request costs about as much as reading 16 KiB more.
  static constexpr uint64_t kMaxGapBytes = 16 << 10;

  // One layer's rows. `gate` [tokens, ff] holds act(gate) (ungated: act(up + bias)); zero means inactive.
  struct Rows {
    uint32_t layer = 0;
    size_t tokens = 0;
    ActivationRows x;             // prepared for the up rows; unused where ungated
    const float* gate = nullptr;  // [tokens, ff]
    float* y = nullptr;           // [tokens, d]: overwritten with the FFN's output
  };

  // Everything outlives it. Scratch is taken from the budget; `max_tokens` is the longest step.
  static StatusOr<std::unique_ptr<SparseFfn>> Create(Budget& budget, Team* team, const NeuronStore* store,
                                                     NeuronResidency* residency, ReadRing* ring, Activation activation,
                                                     uint32_t max_tokens);
  // What Create will reserve, and the smallest ring that will do.
  static uint64_t ScratchBytes(const RecordLayout& layout, uint32_t max_tokens);
  static uint64_t MinRingBytes(const RecordLayout& layout, uint32_t file_alignment);

  // `all_neurons`: inactive ones too (dense mode from records).
  Status Run(const Rows& rows, bool all_neurons);

  const SparseFfnStatistics& statistics() const { return statistics_; }

 private:
  // Consecutive groups that are computed together, and the reads of their missing records.
  struct Wave {
    uint32_t group_begin = 0, group_end = 0;
    size_t read_begin = 0, read_end = 0;  // in reads_
  };
  struct Missing {
    uint64_t offset = 0;  // of the tail in the store
    uint32_t neuron = 0;
    uint32_t read = 0;  // in reads_
  };

  SparseFfn(Team* team, const NeuronStore* store, NeuronResidency* residency, ReadRing* ring, Activation activation,
            uint32_t max_tokens, AlignedBuffer scratch);
  void FindUnion(const Rows& rows, bool all_neurons);
  void PlanWaves(size_t tokens, uint32_t layer);
  uint64_t PlanGroup(uint32_t group, uint32_t layer, uint64_t half_ring, std::vector<MergedRead>& merged);
  void EnqueueReads();
  Status WaitForReads(const Wave& wave, uint32_t layer);
  void ListWave(const Rows& rows, const Wave& wave, bool all_neurons);
  void ComputeCoefficients(const Rows& rows, const Wave& wave, const uint64_t* marks);
  void GatherUps(const Rows& rows, const Wave& wave, const uint64_t* marks, uint32_t group);
  void MultiplyUps(const Rows& rows, const Wave& wave, const uint64_t* marks, uint32_t group);
  void Accumulate(const Rows& rows, const Wave& wave);
  void AccumulateByToken(const Rows& rows, const Wave& wave, size_t begin, size_t end);
  void AccumulateByGroup(const Rows& rows, const Wave& wave, size_t begin, size_t end);
  void AdmitAndRelease(const Wave& wave, uint32_t layer);
  void ForGroups(const Wave& wave, absl::FunctionRef<void(uint32_t group)> each);
  // A token's entries of the lists that are in this group of the wave.
  struct Entries {
    size_t begin = 0, end = 0;
  };
  Entries EntriesOf(const Wave& wave, size_t token, uint32_t group) const {
    const uint32_t* at = group_begin_.data() + token * (wave.group_end - wave.group_begin + 1);
    return {list_begin_[token] + at[group - wave.group_begin], list_begin_[token] + at[group - wave.group_begin + 1]};
  }
  float Coefficient(float gate, float up) const {  // written so that NaN passes
    return gate * (activation_ == Activation::kDRelu && up < 0 ? 0.0f : up);
  }

  Team* const team_;
  const NeuronStore* const store_;
  NeuronResidency* const residency_;
  ReadRing* const ring_;
  const Activation activation_;
  const RecordLayout& layout_;
  const uint32_t max_tokens_;
  const size_t list_capacity_;  // entries of the lists below, over all tokens of a wave
  const uint32_t groups_;       // of a layer

  AlignedBuffer scratch_;
  uint64_t* active_;           // [max_tokens, groups]: a bit a neuron, set where the token uses it
  uint64_t* union_;            // [groups]: those that any token uses
  uint64_t* resident_;         // [groups]: of these those in memory when the layer began
  uint64_t* late_;             // [groups]: and the others
  const std::byte** records_;  // [ff]: by neuron: its tail in memory, or null while missing
  uint32_t* neurons_;          // [list_capacity]: each token's neurons in the wave
  float* gates_;               // [list_capacity]
  float* coefficients_;        // [list_capacity]
  std::vector<Wave> waves_;
  std::vector<Missing> missing_;
  std::vector<ByteRange> ranges_;
  std::vector<MergedRead> reads_;
  std::vector<ReadRing::Ticket> tickets_;  // of reads_[0 .. enqueued)
  std::vector<size_t> list_begin_;         // [tokens + 1] into the lists
  std::vector<uint32_t> group_begin_;      // [tokens, groups of the wave + 1] within the token's list
  FasterWay up_ways_;    // of scattered rows for each token, and of the union's rows for all tokens
  FasterWay down_ways_;  // of rows for each token, and of groups that are converted once
  SparseFfnStatistics statistics_;
};

}  // namespace elasticmem
