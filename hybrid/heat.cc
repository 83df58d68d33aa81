#include "hybrid/heat.h"

#include <algorithm>
#include <cmath>

namespace elasticmem {

float Heat::Advance(uint32_t tokens) {
  float scale = 1;
  if (kind_ == Kind::kFrequency) {
    increment_ *= static_cast<float>(std::pow(1 / kDecay, tokens));
    if (increment_ >= 1e20f) scale = 1 / increment_;
    increment_ *= scale;
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
