// The median of repeated measurements, and between what they lie.
#pragma once

#include <algorithm>
#include <vector>

namespace elasticmem {

struct Spread {
  double median = 0, low = 0, high = 0;
};

// Zeros of no values.
inline Spread SpreadOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return {n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2, values.front(), values.back()};
}

}  // namespace elasticmem
