#include "runtime/engine/batch_size.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/status.h"

namespace elasticmem {
namespace {

constexpr double kDecay = 1.0 / 8;  // weight of the latest step
// A step that waited for something once is not what a size costs.
constexpr double kMostOverUsual = 2;
// A smaller batch must be so much faster, a larger one so much; the gap between them keeps noise from moving the limit.
constexpr double kSmallerGain = 1.15, kLargerGain = 1.03;
// The usual step's time has changed so much, either way, that others are likely to have changed as well.
constexpr double kChange = 1.4;
// Time for trials is saved up to so many of the longest steps, so that calm hours are not followed by busy trying.
constexpr double kMostCredit = 4;

// Sizes that are worth trying: 1, 2, 3, 4, 6, 8, 12, 16, ..: neighbours differ by half at most.
bool IsRung(uint32_t batch) {
  while (batch >= 4 && batch % 2 == 0) batch /= 2;
  return batch <= 3;
}

}  // namespace

BatchSize::BatchSize(uint32_t most) : sizes_(most + 1), limit_(most) { EM_CHECK(most >= 1); }

bool BatchSize::Known(uint32_t batch) const {
  return sizes_[batch].samples >= kSamples && steps_ - sizes_[batch].last < kKnownSteps;
}

// Moves the limit where another size gives clearly more tokens a second than the usual one.
void BatchSize::Decide(uint32_t ready) {
  const uint32_t usual = std::min(ready, limit_);
  if (!Known(usual)) return;
  uint32_t best = usual;
  for (uint32_t batch = 1; batch <= ready; ++batch) {
    if (batch == usual || !Known(batch)) continue;
    const double gain = batch < usual ? kSmallerGain : kLargerGain;
    if (Rate(batch) > gain * Rate(usual) && (best == usual || Rate(batch) > Rate(best))) best = batch;
  }
  if (best != usual) limit_ = best == ready ? most() : best;
}

// What a step of it is likely to take. Of a size never seen: no more than in proportion, and a smaller one no more than
// the usual one.
double BatchSize::Expected(uint32_t batch, uint32_t usual) const {
  if (sizes_[batch].seconds > 0) return sizes_[batch].seconds;
  return sizes_[usual].seconds * std::max(1.0, static_cast<double>(batch) / usual);
}

// The size that should be tried next, the cheapest first, then the nearest to half the usual one; 0: all are known.
uint32_t BatchSize::NextTrial(uint32_t ready, uint32_t usual) const {
  const auto key = [&](uint32_t batch) {
    return std::pair(Expected(batch, usual), std::abs(int64_t{2} * batch - int64_t{usual}));
  };
  uint32_t next = 0;
  for (uint32_t batch = 1; batch <= ready; ++batch) {
    if (batch == usual || Known(batch) || (batch != ready && !IsRung(batch))) continue;
    if (next == 0 || key(batch) < key(next)) next = batch;
  }
  return next;
}

uint32_t BatchSize::Choose(uint32_t ready) {
  EM_CHECK(ready >= 1 && ready <= most());
  Decide(ready);
  const uint32_t usual = std::min(ready, limit_);
  trial_ = Known(usual) ? NextTrial(ready, usual) : 0;
  if (trial_ == 0) return usual;
  if (credit_seconds_ < Expected(trial_, usual)) trial_ = 0;
  return trial_ > 0 ? trial_ : usual;
}

void BatchSize::Measured(uint32_t batch, double seconds) {
  EM_CHECK(batch >= 1 && batch <= most());
  ++steps_;
  seconds_ += seconds;
  if (batch == trial_) {
    ++trials_;
    trial_seconds_ += seconds;
    credit_seconds_ -= seconds;
  } else {
    double longest = seconds;
    for (const Size& size : sizes_) longest = std::max(longest, size.seconds);
    credit_seconds_ = std::min(credit_seconds_ + kTrialShare * seconds, kMostCredit * longest);
  }
  trial_ = 0;

  Size& size = sizes_[batch];
  if (steps_ - size.last >= kKnownSteps) size.samples = 0;
  size.last = steps_;
  if (size.samples < kSamples) {
    size.first[size.samples++] = seconds;
    std::sort(size.first.begin(), size.first.begin() + size.samples);
    size.seconds = size.reference = size.first[size.samples / 2];
    return;
  }
  size.seconds += kDecay * (std::min(seconds, kMostOverUsual * size.seconds) - size.seconds);
  if (size.seconds > size.reference * kChange || size.seconds * kChange < size.reference) {
    // What was measured of other sizes was measured in another world.
    for (Size& other : sizes_) {
      if (&other != &size) other.samples = 0;
    }
    size.reference = size.seconds;
  }
}

}  // namespace elasticmem
