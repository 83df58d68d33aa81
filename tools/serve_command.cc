// `elasticmem serve`: the daemon.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <charconv>
#include <cstdio>
#include <filesystem>

#include "base/units.h"
#include "server/api.h"
#include "server/generator.h"
#include "server/http_server.h"
#include "tools/session.h"

namespace elasticmem {
namespace {

namespace asio = boost::asio;

constexpr auto kPoll = std::chrono::milliseconds(20);

// "HOST:PORT", "[::1]:PORT" or ":PORT".
Status ReadListen(const std::string& listen, HttpServerOptions& options) {
  const size_t colon = listen.rfind(':');
  unsigned port = 0;
  const char* const begin = listen.data() + std::min(listen.size(), colon + 1);
  const auto [end, error] = std::from_chars(begin, listen.data() + listen.size(), port);
  if (colon == std::string::npos || error != std::errc() || end != listen.data() + listen.size() || port > 65535) {
    return InvalidInput("--listen is \"{}\"; expected HOST:PORT, such as 127.0.0.1:8080", listen);
  }
  options.port = static_cast<uint16_t>(port);
  std::string host = listen.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (!host.empty()) options.host = host;
  return absl::OkStatus();
}

bool IsLoopback(const std::string& host) {
  if (host == "localhost") return true;
  boost::system::error_code error;
  const auto address = asio::ip::make_address(host, error);
  return !error && address.is_loopback();
}

// Whoever runs has some time to end; then the generator ends them.
asio::awaitable<void> Drain(Generator& generator, HttpServer& server, std::chrono::seconds grace, asio::io_context& context) {
  server.StopAccepting();
  generator.Refuse();
  const auto until = std::chrono::steady_clock::now() + grace;
  asio::steady_timer timer(context);
  const auto wait = [&]() -> asio::awaitable<void> {
    timer.expires_after(kPoll);
    co_await timer.async_wait(asio::use_awaitable);
  };
  while (generator.jobs() > 0 && std::chrono::steady_clock::now() < until) co_await wait();
  generator.Stop(Error(StatusCode::kUnavailable, "the server is stopping"));
  while (generator.jobs() > 0) co_await wait();
  co_await wait();  // what has been written last leaves
  context.stop();
}

// Keys that cannot be read change nothing.
void Reload(const Settings& settings, Api& api) {
  if (settings.keys.empty()) {
    std::fprintf(stderr, "SIGHUP: there is nothing to read again; everything but --keys wants a restart\n");
    return;
  }
  StatusOr<Keys> keys = Keys::Load(settings.keys);
  if (!keys.ok()) {
    std::fprintf(stderr, "SIGHUP: the old keys stay: %s\n", std::string(Message(keys.status())).c_str());
    return;
  }
  std::fprintf(stderr, "SIGHUP: read %zu keys; everything else wants a restart\n", keys->size());
  api.ReplaceKeys(*std::move(keys));
}

}  // namespace

Status ServeCommand(const Settings& settings) {
  HttpServerOptions http;
  EM_RETURN_IF_ERROR(ReadListen(settings.listen, http));
  ApiOptions api_options;
  if (!settings.keys.empty()) {
    if (settings.insecure) return InvalidInput("--keys and --without-keys contradict each other");
    EM_ASSIGN_OR_RETURN(api_options.keys, Keys::Load(settings.keys));
  } else if (!settings.insecure && !IsLoopback(http.host)) {
    return InvalidInput(
        "--listen is \"{}\", which others can reach, and there are no API keys: anyone could use the model. Give --keys, listen "
        "on 127.0.0.1, or say --without-keys",
        settings.listen);
  }
  EM_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, OpenModel(settings));
  const uint32_t clients = std::max<uint32_t>(1, settings.clients);
  const uint32_t context = settings.context > 0 ? settings.context : model->spec().context;
  Settings engine_settings = settings;
  engine_settings.prefix_cache = true;
  EM_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                      OpenEngine(engine_settings, *model, static_cast<uint32_t>(CeilDiv<uint64_t>(context, clients)),
                                 clients, clients));
  GeneratorOptions options;
  options.batcher.max_batch = clients;
  options.max_queued_jobs = settings.max_queue;
  Generator generator(engine.get(), options);

  asio::io_context io(1);
  api_options.model_name =
      settings.alias.empty() ? std::filesystem::path(settings.model).stem().string() : settings.alias;
  api_options.sampling = Sampling(settings);
  std::unique_ptr<HttpServer> server;
  api_options.connections = [&] { return server->connections(); };
  Api api(*model, *engine, generator, api_options);
  server = std::make_unique<HttpServer>(
      io, http, [&](const HttpRequest& request, HttpResponder& responder) { return api.Handle(request, responder); },
      Api::ErrorReply);
  EM_RETURN_IF_ERROR(server->Listen());
  const bool v6 = http.host.find(':') != std::string::npos;
  const std::string url = fmt::format("http://{}{}{}:{}", v6 ? "[" : "", http.host, v6 ? "]" : "", server->port());
  std::fprintf(stderr,
               "listening on %s; try\n  curl %s/v1/completions -d '{\"prompt\": \"Once upon a time\", \"max_tokens\": 32}'\n",
               url.c_str(), url.c_str());

  asio::signal_set signals(io, SIGINT, SIGTERM);
  signals.async_wait([&](const boost::system::error_code& error, int) {
    if (error) return;
    asio::co_spawn(io, Drain(generator, *server, std::chrono::seconds(settings.grace), io), asio::detached);
    signals.async_wait([&](const boost::system::error_code& again, int) {  // the second one means it
      if (!again) io.stop();
    });
  });
  asio::signal_set reloads(io, SIGHUP);
  std::function<void()> await_reload = [&] {
    reloads.async_wait([&](const boost::system::error_code& error, int) {
      if (error) return;
      Reload(settings, api);
      await_reload();
    });
  };
  await_reload();
  io.run();
  return absl::OkStatus();
}

}  // namespace elasticmem
