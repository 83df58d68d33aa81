// The device as far as memory travels there and back: streams of asynchronous copies over its link, and events that
// tell when a copy is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/strong_id.h"

namespace elasticmem {

// A point in a stream: every copy up to it. Events of one stream are done in order.
using Event = StrongId<struct EventTag, uint64_t>;

// Copies that run one after another beside the caller. Until a copy's event is done its bytes may be read and written
// at any moment: what it reads must not change for the result to be of use, and nobody may touch what it writes. Both
// ends outlive the stream. One thread.
class Stream {
 public:
  // Copies that are not done are waited for or given up.
  virtual ~Stream() = default;

  // Queues a copy between host and device memory, in either direction; `to` holds as many bytes. Never waits.
  virtual Event Copy(std::byte* to, std::span<const std::byte> from) = 0;
  // Never waits.
  virtual bool Done(Event event) = 0;
  virtual void Wait(Event event) = 0;
};

// Outlives its streams.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::unique_ptr<Stream> NewStream() = 0;
  // For reports: what it is, and whether anything about it is made up.
  virtual std::string Description() const = 0;
};

}  // namespace elasticmem
