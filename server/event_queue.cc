#include "server/event_queue.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace elasticmem {

namespace asio = boost::asio;

std::function<void(GenerationEvent)> EventQueue::Sink(uint32_t index) {
  return [self = shared_from_this(), index](GenerationEvent event) {
    asio::post(self->executor_, [self, index, event = std::move(event)]() mutable { self->Push(index, std::move(event)); });
  };
}

void EventQueue::Push(uint32_t index, GenerationEvent event) {
  bytes_ += event.text.size();
  events_.push_back({index, std::move(event)});
  wake_.cancel();
  if (bytes_ > kMostBytes && on_overflow) std::exchange(on_overflow, nullptr)();
}

asio::awaitable<std::vector<EventQueue::Indexed>> EventQueue::Next(std::chrono::steady_clock::duration wait) {
  if (events_.empty()) {
    wake_.expires_after(wait);
    co_await wake_.async_wait(asio::as_tuple(asio::use_awaitable));
  }
  bytes_ = 0;
  co_return std::exchange(events_, {});
}

}  // namespace elasticmem
