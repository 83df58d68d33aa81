// Finds NaN and infinity in rows of weights before they turn into garbage text.
#pragma once

#include <cstddef>

#include "tensor/dtype.h"

namespace elasticmem {

// Whether every element of the row is finite: of quantised types, whether every scale and offset is.
bool AllFinite(DType dtype, const std::byte* row, size_t elements);

}  // namespace elasticmem
