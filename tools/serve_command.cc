// `elasticmem serve`: the daemon.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <thread>

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

// The I/O thread, from before the model is loaded to after the last answer. Until there is an Api everyone is told to come
// back.
class Daemon {
 public:
  Daemon(const Settings& settings, const HttpServerOptions& http, RequestLog& log) : settings_(settings), log_(log) {
    const auto handle = [this](const HttpRequest& request, HttpResponder& responder) { return Handle(request, responder); };
    network_ = std::make_unique<Network>(http, handle);
  }
  ~Daemon() {
    if (!thread_.joinable()) return;
    network_->io.stop();
    thread_.join();
  }

  Status Listen() {
    EM_RETURN_IF_ERROR(network_->server.Listen());
    thread_ = std::thread([this] { network_->io.run(); });
    return absl::OkStatus();
  }
  uint16_t port() const { return network_->server.port(); }
  uint32_t connections() const { return network_->server.connections(); }

  // Answers until a signal says that it is enough.
  void Run(Api& api, Generator& generator) {
    asio::post(network_->io, [&] {
      api_ = &api;
      network_->reloads.add(SIGHUP);
      AwaitReload();
      network_->stops.add(SIGINT);
      network_->stops.add(SIGTERM);
      network_->stops.async_wait([&](const boost::system::error_code& error, int) {
        if (error) return;
        log_.Say(fmt::format("stopping: requests have {} s to end", settings_.grace));
        asio::co_spawn(network_->io, Drain(generator), asio::detached);
        network_->stops.async_wait([&](const boost::system::error_code& again, int) {  // the second one means it
          if (!again) network_->io.stop();
        });
      });
    });
    thread_.join();
    // What is left would tell a thread that is not there any more; and connections that are left still know both.
    generator.Join(Stopping());
    network_.reset();
  }

 private:
  struct Network {
    Network(const HttpServerOptions& http, HttpServer::Handler handler)
        : server(io, http, std::move(handler), Api::ErrorReply) {}
    asio::io_context io{1};
    HttpServer server;
    asio::signal_set stops{io};
    asio::signal_set reloads{io};
  };
  static Status Stopping() { return Error(StatusCode::kUnavailable, "the server is stopping"); }

  asio::awaitable<void> Handle(const HttpRequest& request, HttpResponder& responder) {
    if (api_) {
      co_await api_->Handle(request, responder);
      co_return;
    }
    responder.AddHeader("Retry-After", "1");
    HttpReply reply = Api::ErrorReply(503, "the model is being loaded");
    co_await responder.Send(std::move(reply));
  }

  // Whoever runs has some time to end; then the generator ends them.
  asio::awaitable<void> Drain(Generator& generator) {
    network_->server.StopAccepting();
    generator.Refuse();
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(settings_.grace);
    while (generator.jobs() > 0 && std::chrono::steady_clock::now() < until) co_await Wait();
    generator.Stop(Stopping());
    while (generator.jobs() > 0) co_await Wait();
    co_await Wait();  // what has been written last leaves
    network_->io.stop();
  }
  asio::awaitable<void> Wait() {
    asio::steady_timer timer(network_->io, kPoll);
    co_await timer.async_wait(asio::use_awaitable);
  }

  void AwaitReload() {
    network_->reloads.async_wait([this](const boost::system::error_code& error, int) {
      if (error) return;
      Reload();
      AwaitReload();
    });
  }
  // Keys that cannot be read change nothing.
  void Reload() {
    if (settings_.keys.empty()) return log_.Say("SIGHUP: there are no keys to read; everything else wants a restart");
    StatusOr<Keys> keys = Keys::Load(settings_.keys);
    if (!keys.ok()) return log_.Say(fmt::format("SIGHUP: the old keys stay: {}", Message(keys.status())));
    log_.Say(fmt::format("SIGHUP: {} keys read; everything else wants a restart", keys->size()));
    api_->ReplaceKeys(*std::move(keys));
  }

  const Settings& settings_;
  RequestLog& log_;
  std::unique_ptr<Network> network_;
  Api* api_ = nullptr;
  std::thread thread_;
};

StatusOr<RequestLog::Format> LogFormat(const std::string& name) {
  if (name == "text") return RequestLog::Format::kText;
  if (name == "json") return RequestLog::Format::kJson;
  if (name == "off") return RequestLog::Format::kOff;
  return InvalidInput("--log is \"{}\"; expected text, json or off", name);
}

std::string Url(const std::string& host, uint16_t port) {
  const bool v6 = host.find(':') != std::string::npos;
  return fmt::format("http://{}{}{}:{}", v6 ? "[" : "", host, v6 ? "]" : "", port);
}

}  // namespace

Status ServeCommand(const Settings& settings) {
  HttpServerOptions http;
  EM_RETURN_IF_ERROR(ReadListen(settings.listen, http));
  EM_ASSIGN_OR_RETURN(const RequestLog::Format format, LogFormat(settings.log));
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
  // Room for one whole context at least, however many share it.
  const auto kv_tokens = static_cast<uint32_t>(CeilDiv<uint64_t>(context, clients));
  Settings engine_settings = settings;
  engine_settings.prefix_cache = true;
  if (settings.check) {
    EM_ASSIGN_OR_RETURN(EngineOptions plan, MakeEngineOptions(engine_settings, *model, kv_tokens, clients));
    plan.sequences = clients;
    return PrintPlan(settings, *model, plan);
  }
  RequestLog log(format);
  Daemon daemon(settings, http, log);
  EM_RETURN_IF_ERROR(daemon.Listen());
  EM_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                      OpenEngine(engine_settings, *model, kv_tokens, clients, clients));
  GeneratorOptions options;
  options.batcher.max_batch = clients;
  options.max_queued_jobs = settings.max_queue;
  Generator generator(engine.get(), options);
  api_options.model_name =
      settings.alias.empty() ? std::filesystem::path(settings.model).stem().string() : settings.alias;
  api_options.sampling = Sampling(settings);
  api_options.connections = [&] { return daemon.connections(); };
  api_options.on_answered = [&](const RequestRecord& record) { log.Write(record); };
  Api api(*model, *engine, generator, api_options);
  const std::string url = Url(http.host, daemon.port());
  std::fprintf(stderr,
               "listening on %s; try\n  curl %s/v1/completions -d '{\"prompt\": \"Once upon a time\", \"max_tokens\": 32}'\n",
               url.c_str(), url.c_str());
  daemon.Run(api, generator);
  return absl::OkStatus();
}

}  // namespace elasticmem
