// XXH3 of bytes that come in pieces, and of bytes that lie together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

struct XXH3_state_s;

namespace elasticmem {

class StreamHash {
 public:
  StreamHash();
  void Reset();
  void Add(std::span<const std::byte> bytes);
  uint64_t Digest() const;  // of what was added since the last Reset

 private:
  struct FreeState {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, FreeState> state_;
};

// Equal to a StreamHash's digest of the same bytes.
uint64_t HashOf(std::span<const std::byte> bytes);

}  // namespace elasticmem
