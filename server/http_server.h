// HTTP/1.1 on Boost.Beast: one thread, one coroutine a connection. It knows requests and responses, and nothing of
// models.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace elasticmem {

using HttpRequest = boost::beast::http::request<boost::beast::http::string_body>;

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;  // 0: any that is free
  uint32_t max_connections = 1024;
  uint32_t max_header_bytes = 16 << 10;
  uint64_t max_body_bytes = 8 << 20;
  std::chrono::seconds read_time{30};   // for a whole request, from its first byte; and to take some of an answer
  std::chrono::seconds idle_time{120};  // between requests
  std::chrono::seconds linger_time{2};  // to go on reading from one whose request was refused, so that it sees why
};

struct HttpReply {
  unsigned status = 200;
  std::string content_type;
  std::string body;
};

// Answers one request: whole, or as a stream of server-sent events.
class HttpResponder {
 public:
  HttpResponder(boost::beast::tcp_stream& stream, const HttpRequest& request, const HttpServerOptions& options);

  // A header of whatever will be sent.
  void AddHeader(std::string name, std::string value) { headers_.emplace_back(std::move(name), std::move(value)); }
  // GCC 12 destroys twice what a braced list or a conditional makes inside a co_await expression: pass named objects.
  boost::asio::awaitable<void> Send(HttpReply reply);
  // The stream's head, then events until EndEvents.
  boost::asio::awaitable<void> BeginEvents();
  boost::asio::awaitable<void> SendEvents(std::string events);
  boost::asio::awaitable<void> EndEvents();
  // Completes when the client has gone; never where it sends more instead.
  boost::asio::awaitable<void> WaitForDisconnect();

  unsigned status() const { return status_; }  // that was sent; 0: none
  // Nothing more can be sent: the client has gone, or takes nothing.
  bool broken() const { return broken_; }
  bool keep_alive() const { return keep_alive_ && !broken_; }
  boost::asio::any_io_executor executor() { return stream_.get_executor(); }

 private:
  boost::beast::tcp_stream& stream_;
  const HttpServerOptions& options_;
  const unsigned version_;
  std::vector<std::pair<std::string, std::string>> headers_;
  const bool head_;  // the request is HEAD: its answer has no body
  bool keep_alive_;
  bool broken_ = false;
  unsigned status_ = 0;
};

class HttpServer {
 public:
  using Handler = std::function<boost::asio::awaitable<void>(const HttpRequest&, HttpResponder&)>;
  // What the client of a request that is none gets.
  using ErrorReply = std::function<HttpReply(unsigned status, const std::string& message)>;

  HttpServer(boost::asio::io_context& context, const HttpServerOptions& options, Handler handler, ErrorReply error_reply);

  // Binds and begins to accept. Errors name the address.
  Status Listen();
  uint16_t port() const { return port_; }
  // No new connections; those that are there go on.
  void StopAccepting();
  uint32_t connections() const { return connections_; }

 private:
  boost::asio::awaitable<void> Accept();
  boost::asio::awaitable<void> Serve(boost::asio::ip::tcp::socket socket);
  boost::asio::awaitable<void> Linger(boost::beast::tcp_stream& stream);

  boost::asio::io_context& context_;
  const HttpServerOptions options_;
  const Handler handler_;
  const ErrorReply error_reply_;
  boost::asio::ip::tcp::acceptor acceptor_;
  uint16_t port_ = 0;
  uint32_t connections_ = 0;
};

}  // namespace elasticmem
