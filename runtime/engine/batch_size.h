// How many conversations one step should decode. Usually all: a step's cost grows slower than its batch. But a bigger
// batch widens the union of active neurons, and where many of them are missing it can give fewer tokens a second than a
// smaller one. Which it is, is measured.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace elasticmem {

// Keeps a decayed time of a step for each batch size, tries sizes that are not known well enough now and then, and
// prefers a smaller one only where that is clearly faster. Pure: it knows no clock. One thread.
//
// Bounds: trials take at most kTrialShare of the time of the other steps, plus one step. A size that is known is tried
// again when kKnownSteps have passed, or when the time of the usual size has changed clearly.
class BatchSize {
 public:
  static constexpr double kTrialShare = 0.03;
  static constexpr uint32_t kSamples = 5;  // until a size is known
  static constexpr uint64_t kKnownSteps = 1500;

  // Of up to `most` conversations.
  explicit BatchSize(uint32_t most);

  // How many of `ready` conversations the next step should take: 1 to ready. `ready` is 1 to most.
  uint32_t Choose(uint32_t ready);
  // A step that only decoded took so long.
  void Measured(uint32_t batch, double seconds);

  // What steps took at most so many conversations for, where that was faster; `most` while all are taken.
  uint32_t limit() const { return limit_; }
  // Steps, and their time, of sizes that were only tried.
  uint64_t trials() const { return trials_; }
  double trial_seconds() const { return trial_seconds_; }
  double seconds() const { return seconds_; }  // of all steps

 private:
  struct Size {
    double seconds = 0;                    // of a step: the median of the first samples, then decayed
    double reference = 0;                  // the same, when what is known of other sizes was last held to be true
    std::array<double, kSamples> first{};  // samples since it was last unknown
    uint32_t samples = 0;                  // of them, and since
    uint64_t last = 0;                     // step
  };

  uint32_t most() const { return static_cast<uint32_t>(sizes_.size() - 1); }
  bool Known(uint32_t batch) const;
  double Rate(uint32_t batch) const { return batch / sizes_[batch].seconds; }
  void Decide(uint32_t ready);
  double Expected(uint32_t batch, uint32_t usual) const;
  uint32_t NextTrial(uint32_t ready, uint32_t usual) const;

  std::vector<Size> sizes_;  // by batch; 0 is unused
  uint32_t limit_;
  uint32_t trial_ = 0;  // the size that Choose asked for only to learn; 0: none
  uint64_t steps_ = 0;
  double credit_seconds_ = 0;  // that trials may take
  double seconds_ = 0, trial_seconds_ = 0;
  uint64_t trials_ = 0;
};

}  // namespace elasticmem
