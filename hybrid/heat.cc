#include "hybrid/heat.h"

#include <cmath>

namespace elasticmem {

void Heat::Advance(uint32_t tokens) {
  increment_ *= static_cast<float>(std::pow(1 / kDecay, tokens));
  if (increment_ < 1e20f) return;
  const float scale = 1 / increment_;
  for (float& value : values_) value *= scale;
  increment_ = 1;
}

}  // namespace elasticmem
