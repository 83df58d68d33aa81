#include "device/host_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>

#include "base/status.h"

namespace elasticmem {

using Time = std::chrono::steady_clock::time_point;

class HostDevice::HostStream : public Stream {
 public:
  explicit HostStream(HostDevice* device) : device_(device) {}

  Event Copy(std::byte* to, std::span<const std::byte> from) override {
    Time ready = device_->now_();
    if (device_->copy_gbps_ > 0) {
      // GB/s are bytes a nanosecond.
      const std::chrono::nanoseconds nanos(
          static_cast<int64_t>(std::ceil(static_cast<double>(from.size()) / device_->copy_gbps_)));
      ready = std::max(ready, device_->link_free_) + nanos;
      device_->link_free_ = ready;
    }
    pending_.push_back({to, from, ready});
    return Event(done_ + pending_.size());
  }

  bool Done(Event event) override {
    EM_DCHECK(event.value() <= done_ + pending_.size());
    const Time now = device_->now_();
    for (; !pending_.empty() && pending_.front().ready <= now; pending_.pop_front(), ++done_) {
      std::memcpy(pending_.front().to, pending_.front().from.data(), pending_.front().from.size());
    }
    return event.value() <= done_;
  }

  void Wait(Event event) override {
    while (!Done(event)) {
      const Time ready = pending_[event.value() - done_ - 1].ready;
      const auto left = ready - device_->now_();
      // Sleeping takes some 50 microseconds more than asked for.
      if (left > std::chrono::microseconds(200)) {
        std::this_thread::sleep_for(left - std::chrono::microseconds(100));
      } else {
        std::this_thread::yield();
      }
    }
  }

 private:
  struct Pending {
    std::byte* to;
    std::span<const std::byte> from;
    Time ready;
  };

  HostDevice* const device_;
  std::deque<Pending> pending_;
  uint64_t done_ = 0;
};

HostDevice::HostDevice(double copy_gbps, Clock now) : copy_gbps_(copy_gbps), now_(std::move(now)) {}

std::unique_ptr<Stream> HostDevice::NewStream() { return std::make_unique<HostStream>(this); }

std::string HostDevice::Description() const {
  return copy_gbps_ > 0 ? fmt::format("host RAM, copies paced to {} GB/s", copy_gbps_) : "host RAM";
}

}  // namespace elasticmem
