// From the step thread to a connection's coroutine: events of a request's answers, bounded in bytes.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "server/generator.h"

namespace elasticmem {

class EventQueue : public std::enable_shared_from_this<EventQueue> {
 public:
  // More text than this that nobody has taken: the client reads too slowly.
  static constexpr size_t kMostBytes = 1 << 20;
  struct Indexed {
    uint32_t answer;
    GenerationEvent event;
  };

  explicit EventQueue(const boost::asio::any_io_executor& executor)
      : executor_(executor), wake_(executor, boost::asio::steady_timer::time_point::max()) {}

  // What answer `index` tells comes here. Called on any thread; it may be called as long as it lives.
  std::function<void(GenerationEvent)> Sink(uint32_t index);
  // Called once, on the executor, when there is too much.
  std::function<void()> on_overflow;

  // All that there is, once there is something; nothing after `wait` without any.
  boost::asio::awaitable<std::vector<Indexed>> Next(std::chrono::steady_clock::duration wait);

 private:
  void Push(uint32_t index, GenerationEvent event);

  boost::asio::any_io_executor executor_;
  boost::asio::steady_timer wake_;
  std::vector<Indexed> events_;
  size_t bytes_ = 0;
};

}  // namespace elasticmem
