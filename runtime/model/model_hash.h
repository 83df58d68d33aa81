// Tells one model file from another: a quick hash at every start, a full one when a store is packed.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/status.h"
#include "runtime/gguf/gguf.h"
#include "store/neuron_store.h"

namespace elasticmem {

// XXH3 over every part's size and metadata (all bytes before its first tensor) and 64 samples of 4 KiB spread evenly
// over the parts: a few milliseconds. Parts that changed only between the samples are not told apart; the full hash
// does.
StatusOr<uint64_t> ModelQuickHash(const GgufFile& file);

// XXH3 over all bytes of all parts, in order. kCancelled once *cancelled (may be null) is true.
StatusOr<uint64_t> ModelFullHash(const GgufFile& file, const ByteProgress& progress,
                                 const std::atomic<bool>* cancelled);

}  // namespace elasticmem
