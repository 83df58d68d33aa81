#include "server/http_server.h"

#include <sys/socket.h>

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

namespace elasticmem {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;

constexpr auto kNoThrow = asio::as_tuple(asio::use_awaitable);
constexpr auto kTakeABreath = std::chrono::milliseconds(100);  // where there are no more descriptors

// The HTTP status of a request that could not be read; 0: nobody is there to be told.
unsigned StatusOf(const boost::system::error_code& error) {
  if (error == http::error::body_limit) return 413;
  if (error == http::error::header_limit || error == http::error::buffer_overflow) return 431;
  if (error == beast::error::timeout) return 408;
  if (error == http::error::end_of_stream || error == http::error::partial_message) return 0;
  return error.category() == make_error_code(http::error::bad_method).category() ? 400 : 0;
}

// Two lengths, or a length and chunks, are how requests are smuggled past proxies.
bool IsAmbiguous(const HttpRequest& request) {
  const auto lengths = request.equal_range(http::field::content_length);
  const bool chunked = request.find(http::field::transfer_encoding) != request.end();
  const auto count = std::distance(lengths.first, lengths.second);
  return count > 1 || (count == 1 && chunked);
}

}  // namespace

HttpResponder::HttpResponder(beast::tcp_stream& stream, const HttpRequest& request, const HttpServerOptions& options)
    : stream_(stream), options_(options), version_(request.version()), head_(request.method() == http::verb::head), keep_alive_(request.keep_alive()) {}

asio::awaitable<void> HttpResponder::Send(HttpReply reply) {
  http::response<http::string_body> response(static_cast<http::status>(reply.status), version_);
  response.set(http::field::content_type, reply.content_type);
  for (const auto& [name, value] : headers_) response.set(name, value);
  response.keep_alive(keep_alive_);
  response.body() = std::move(reply.body);
  response.prepare_payload();
  if (head_) response.body().clear();  // its length is told all the same
  stream_.expires_after(options_.read_time);
  const auto [error, bytes] = co_await http::async_write(stream_, response, kNoThrow);
  broken_ |= static_cast<bool>(error);
  if (!error) status_ = reply.status;
}

asio::awaitable<void> HttpResponder::BeginEvents() {
  http::response<http::empty_body> response(http::status::ok, version_);
  response.set(http::field::content_type, "text/event-stream");
  response.set(http::field::cache_control, "no-cache");
  response.set("X-Accel-Buffering", "no");
  for (const auto& [name, value] : headers_) response.set(name, value);
  response.keep_alive(keep_alive_);
  response.chunked(version_ >= 11);
  if (version_ < 11) keep_alive_ = false;  // its end is that of the connection
  http::response_serializer<http::empty_body> serializer(response);
  stream_.expires_after(options_.read_time);
  const auto [error, bytes] = co_await http::async_write_header(stream_, serializer, kNoThrow);
  broken_ |= static_cast<bool>(error);
  if (!error) status_ = response.result_int();
}

asio::awaitable<void> HttpResponder::SendEvents(std::string events) {
  if (broken_) co_return;
  stream_.expires_after(options_.read_time);
  boost::system::error_code error;
  size_t bytes;
  if (version_ >= 11) {
    std::tie(error, bytes) = co_await asio::async_write(stream_, http::make_chunk(asio::buffer(events)), kNoThrow);
  } else {
    std::tie(error, bytes) = co_await asio::async_write(stream_, asio::buffer(events), kNoThrow);
  }
  broken_ |= static_cast<bool>(error);
}

asio::awaitable<void> HttpResponder::EndEvents() {
  if (broken_ || version_ < 11) co_return;
  const auto [error, bytes] = co_await asio::async_write(stream_, http::make_chunk_last(), kNoThrow);
  broken_ |= static_cast<bool>(error);
}

asio::awaitable<void> HttpResponder::WaitForDisconnect() {
  const auto [error] = co_await stream_.socket().async_wait(tcp::socket::wait_read, kNoThrow);
  char byte;
  const bool gone =
      error || ::recv(stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0;
  if (gone) {
    broken_ |= error != asio::error::operation_aborted;  // else the wait was given up
    co_return;
  }
  // The next request is here already; a disconnect behind it shows when we write.
  asio::steady_timer never(co_await asio::this_coro::executor, asio::steady_timer::time_point::max());
  co_await never.async_wait(kNoThrow);
}

HttpServer::HttpServer(asio::io_context& context, const HttpServerOptions& options, Handler handler,
                       ErrorReply error_reply)
    : context_(context),
      options_(options),
      handler_(std::move(handler)),
      error_reply_(std::move(error_reply)),
      acceptor_(context) {}

Status HttpServer::Listen() {
  boost::system::error_code error;
  const auto address = asio::ip::make_address(options_.host == "localhost" ? "127.0.0.1" : options_.host, error);
  if (error) return InvalidInput("\"{}\" is no IP address to listen on", options_.host);
  const tcp::endpoint endpoint(address, options_.port);
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return Error(StatusCode::kUnavailable, "cannot listen on {}:{}: {}", options_.host, options_.port, error.message());
  }
  port_ = acceptor_.local_endpoint(error).port();
  asio::co_spawn(context_, Accept(), asio::detached);
  return absl::OkStatus();
}

void HttpServer::StopAccepting() {
  boost::system::error_code ignored;
  acceptor_.close(ignored);
}

asio::awaitable<void> HttpServer::Accept() {
  while (acceptor_.is_open()) {
    auto [error, socket] = co_await acceptor_.async_accept(kNoThrow);
    if (error == asio::error::operation_aborted) co_return;
    if (error) {
      asio::steady_timer pause(context_, kTakeABreath);
      co_await pause.async_wait(kNoThrow);
      continue;
    }
    if (connections_ >= options_.max_connections) continue;  // which closes it
    ++connections_;
    asio::co_spawn(context_, Serve(std::move(socket)), [this](std::exception_ptr) { --connections_; });
  }
}

// Closing with bytes unread would reset the connection, and the reply with it.
asio::awaitable<void> HttpServer::Linger(beast::tcp_stream& stream) {
  boost::system::error_code error;
  stream.socket().shutdown(tcp::socket::shutdown_send, error);
  stream.expires_after(options_.linger_time);
  for (std::array<char, 4096> dropped; !error;) {
    size_t bytes;
    std::tie(error, bytes) = co_await stream.async_read_some(asio::buffer(dropped), kNoThrow);
  }
}

asio::awaitable<void> HttpServer::Serve(tcp::socket socket) {
  boost::system::error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  beast::tcp_stream stream(std::move(socket));
  beast::flat_buffer buffer(options_.max_header_bytes + (64 << 10));
  for (bool keep_alive = true; keep_alive;) {
    if (buffer.size() == 0) {
      stream.expires_after(options_.idle_time);
      const auto [error, bytes] = co_await stream.async_read_some(buffer.prepare(4096), kNoThrow);
      if (error) break;
      buffer.commit(bytes);
    }
    http::request_parser<http::string_body> parser;
    parser.header_limit(options_.max_header_bytes);
    parser.body_limit(options_.max_body_bytes);
    stream.expires_after(options_.read_time);
    auto [error, bytes] = co_await http::async_read_header(stream, buffer, parser, kNoThrow);
    if (!error && beast::iequals(parser.get()[http::field::expect], "100-continue")) {
      http::response<http::empty_body> go_on(http::status::continue_, parser.get().version());
      co_await http::async_write(stream, go_on, kNoThrow);
    }
    if (!error) std::tie(error, bytes) = co_await http::async_read(stream, buffer, parser, kNoThrow);
    if (error || IsAmbiguous(parser.get())) {
      const unsigned status = error ? StatusOf(error) : 400;
      if (status == 0) break;
      HttpRequest unread;
      unread.version(11);
      unread.keep_alive(false);
      HttpResponder responder(stream, unread, options_);
      const std::string why = error ? error.message() : "more than one length";
      HttpReply reply = error_reply_(status, "the request cannot be read: " + why);
      co_await responder.Send(std::move(reply));
      co_await Linger(stream);
      break;
    }
    const HttpRequest request = parser.release();
    HttpResponder responder(stream, request, options_);
    co_await handler_(request, responder);
    keep_alive = responder.keep_alive();
  }
  stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
}

}  // namespace elasticmem
