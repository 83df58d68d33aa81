// The host as a device: copies in order, each done when a link of the given speed would have passed its bytes, and not
// before; never moved earlier than it is done.
#include "device/host_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace elasticmem {
namespace {

using std::chrono::nanoseconds;

class HostDeviceTest : public ::testing::Test {
 protected:
  HostDevice Device(double gbps) {
    return HostDevice(gbps, [this] { return now_; });
  }
  static std::span<const std::byte> First(const std::vector<std::byte>& bytes, size_t count) {
    return std::span(bytes).first(count);
  }

  std::chrono::steady_clock::time_point now_{nanoseconds(1'000'000)};
  const std::vector<std::byte> from_ = std::vector<std::byte>(4096, std::byte{7});
  std::vector<std::byte> to_ = std::vector<std::byte>(4096);
};

TEST_F(HostDeviceTest, CopyIsDoneWhenItsBytesWouldBeThrough) {
  HostDevice device = Device(2);
  const auto stream = device.NewStream();
  const Event event = stream->Copy(to_.data(), First(from_, 4000));  // 2 bytes a nanosecond
  EXPECT_FALSE(stream->Done(event));
  now_ += nanoseconds(1999);
  EXPECT_FALSE(stream->Done(event));
  EXPECT_EQ(to_[0], std::byte{0});
  now_ += nanoseconds(1);
  EXPECT_TRUE(stream->Done(event));
  EXPECT_TRUE(std::all_of(to_.begin(), to_.begin() + 4000, [](std::byte b) { return b == std::byte{7}; }));
  EXPECT_EQ(to_[4000], std::byte{0});
}

TEST_F(HostDeviceTest, CopiesOfAllStreamsShareOneLinkInOrder) {
  HostDevice device = Device(1);
  const auto stream = device.NewStream(), other = device.NewStream();
  const Event first = stream->Copy(to_.data(), First(from_, 100));
  const Event second = other->Copy(to_.data() + 100, First(from_, 200));
  const Event third = stream->Copy(to_.data() + 300, First(from_, 50));
  now_ += nanoseconds(100);
  EXPECT_TRUE(stream->Done(first));
  now_ += nanoseconds(199);
  EXPECT_FALSE(other->Done(second));
  EXPECT_FALSE(stream->Done(third));
  now_ += nanoseconds(1);
  EXPECT_TRUE(other->Done(second));
  EXPECT_FALSE(stream->Done(third));
  now_ += nanoseconds(50);
  EXPECT_TRUE(stream->Done(third));
  EXPECT_TRUE(stream->Done(first));
  // The link rests meanwhile, and saves nothing up.
  now_ += nanoseconds(1000);
  const Event last = stream->Copy(to_.data(), First(from_, 10));
  now_ += nanoseconds(9);
  EXPECT_FALSE(stream->Done(last));
  now_ += nanoseconds(1);
  EXPECT_TRUE(stream->Done(last));
}

TEST_F(HostDeviceTest, CopiesWhatLiesThereWhenItIsDone) {
  HostDevice device = Device(1);
  const auto stream = device.NewStream();
  std::vector<std::byte> from = from_;
  const Event event = stream->Copy(to_.data(), First(from, 100));
  from[5] = std::byte{9};  // too early, and it shows
  now_ += nanoseconds(100);
  EXPECT_TRUE(stream->Done(event));
  EXPECT_EQ(to_[5], std::byte{9});
}

TEST_F(HostDeviceTest, UnpacedCopiesAreDoneAtOnce) {
  HostDevice device = Device(0);
  const auto stream = device.NewStream();
  EXPECT_TRUE(stream->Done(stream->Copy(to_.data(), First(from_, 4096))));
  EXPECT_EQ(to_, from_);
}

TEST_F(HostDeviceTest, WaitsAsLongAsTheLinkTakes) {
  HostDevice device(1);
  const auto stream = device.NewStream();
  const std::vector<std::byte> from(1 << 20);
  std::vector<std::byte> to(1 << 20, std::byte{1});
  const auto start = std::chrono::steady_clock::now();
  stream->Wait(stream->Copy(to.data(), from));
  EXPECT_GE(std::chrono::steady_clock::now() - start, nanoseconds(1 << 20));
  EXPECT_EQ(to, from);
}

TEST_F(HostDeviceTest, SaysThatItIsPaced) {
  EXPECT_EQ(Device(0).Description(), "host RAM");
  EXPECT_EQ(Device(4).Description(), "host RAM, copies paced to 4 GB/s");
  EXPECT_EQ(Device(0.5).Description(), "host RAM, copies paced to 0.5 GB/s");
}

}  // namespace
}  // namespace elasticmem
