// The id of a token: an index into a model's vocabulary.
#pragma once

#include <cstdint>

namespace elasticmem {

using TokenId = int32_t;
inline constexpr TokenId kNoToken = -1;

}  // namespace elasticmem
