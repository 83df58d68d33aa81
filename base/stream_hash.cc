#include "base/stream_hash.h"

#include <xxhash.h>

#include "base/status.h"

namespace elasticmem {

void StreamHash::FreeState::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

StreamHash::StreamHash() : state_(XXH3_createState()) {
  EM_CHECK(state_ != nullptr);
  Reset();
}

void StreamHash::Reset() { XXH3_64bits_reset(state_.get()); }

void StreamHash::Add(std::span<const std::byte> bytes) { XXH3_64bits_update(state_.get(), bytes.data(), bytes.size()); }

uint64_t StreamHash::Digest() const { return XXH3_64bits_digest(state_.get()); }

uint64_t HashOf(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace elasticmem
