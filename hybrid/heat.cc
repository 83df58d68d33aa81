#include "hybrid/heat.h"

#include <algorithm>
#include <cmath>

namespace elasticmem {

float Heat::Advance(uint32_t tokens) {
  float scale = 1;
  if (kind_ == Kind::kFrequency) {
    const double increment = increment_ * std::pow(1 / kDecay, tokens);  // 9,000 tokens at once may pass a float
    if (increment >= 1e20) scale = static_cast<float>(1 / increment);
    increment_ = scale == 1 ? static_cast<float>(increment) : 1;
  } else if (kind_ == Kind::kLastUse) {
    clock_ += 1;
    if (clock_ >= 0x1p24f) scale = 0.5f;  // the oldest halves of time fall together
    clock_ *= scale;
  }
  if (scale != 1) {
    for (float& value : values_) value *= scale;
  }
  return scale;
}

void Heat::Assign(std::span<const float> values) {
  EM_CHECK(values.size() == values_.size());
  std::copy(values.begin(), values.end(), values_.begin());
}

}  // namespace elasticmem
