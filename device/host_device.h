// The host as the device: its memory is RAM, its copies are memcpy. They can be paced, so that what a link's speed does
// can be seen and tested where there is no link.
#pragma once

#include <chrono>
#include <functional>

#include "device/device.h"

namespace elasticmem {

class HostDevice : public Device {
 public:
  using Clock = std::function<std::chrono::steady_clock::time_point()>;

  // Copies of all streams share one link of `copy_gbps` GB/s (0: as fast as RAM): a copy is done when its bytes, after
  // all those before them, would have passed it. The bytes themselves move as late as that, when an event is next asked
  // for, so who touches either end too early goes as wrong here as on a real device.
  explicit HostDevice(double copy_gbps = 0, Clock now = std::chrono::steady_clock::now);

  std::unique_ptr<Stream> NewStream() override;
  std::string Description() const override;

 private:
  class HostStream;

  const double copy_gbps_;
  const Clock now_;
  std::chrono::steady_clock::time_point link_free_;  // when the copies queued so far are through
};

}  // namespace elasticmem
