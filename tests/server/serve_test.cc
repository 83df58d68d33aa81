// The daemon over real connections: the same text as without it, streams as clients expect them, bad requests and
// vanishing clients that harm nobody.
#include <gmock/gmock.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <cmath>
#include <thread>

#include "server/api.h"
#include "server/http_server.h"
#include "tests/engine/engine_testing.h"

namespace elasticmem {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using nlohmann::json;
using ::testing::HasSubstr;
using testing::OpenEngine;
using testing::OpenModel;
using testing::RoomyOptions;
using testing::SourcePath;

constexpr uint32_t kContext = 512, kBatch = 4, kMostJobs = 6;
constexpr const char* kPrompt = "Once upon a time there was a king who";

struct Reply {
  unsigned status = 0;
  std::string body;
  std::string retry_after, content_type;
  json Json() const { return json::parse(body); }
};

// A blocking connection.
class Client {
 public:
  explicit Client(uint16_t port) : socket_(context_) {
    socket_.connect({asio::ip::make_address("127.0.0.1"), port});
  }
  void Write(const std::string& bytes) { asio::write(socket_, asio::buffer(bytes)); }
  Reply Read() {
    http::response_parser<http::string_body> parser;
    parser.body_limit(64 << 20);
    http::read(socket_, buffer_, parser);
    const auto& response = parser.get();
    const auto field = [&](http::field name) { return std::string(response[name]); };
    return {response.result_int(), response.body(), field(http::field::retry_after), field(http::field::content_type)};
  }
  // Whatever comes until there are so many bytes.
  std::string ReadSome(size_t bytes) {
    std::string text(bytes, '\0');
    asio::read(socket_, asio::buffer(text));
    return text;
  }
  Reply Ask(http::verb method, const std::string& path, const std::string& body = "") {
    http::request<http::string_body> request(method, path, 11);
    request.set(http::field::host, "test");
    request.body() = body;
    request.prepare_payload();
    http::write(socket_, request);
    return Read();
  }
  // Whether there is nothing more; what there is is added to `all`.
  bool AtEnd(std::string* all = nullptr) {
    char byte;
    boost::system::error_code error;
    if (socket_.read_some(asio::buffer(&byte, 1), error) == 1 && all) *all += byte;
    return error == asio::error::eof || error == asio::error::connection_reset;
  }

 private:
  asio::io_context context_;
  asio::ip::tcp::socket socket_;
  boost::beast::flat_buffer buffer_;
};

// The JSON of a stream's events, and whether [DONE] came last.
std::vector<json> Events(const std::string& body, bool& done) {
  std::vector<json> events;
  done = false;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    EXPECT_NE(end, std::string::npos) << body.substr(at);
    const std::string event = body.substr(at, end - at);
    at = end + 2;
    EXPECT_FALSE(done) << event;
    if (event.starts_with(":")) continue;
    EXPECT_TRUE(event.starts_with("data: ")) << event;
    if (event == "data: [DONE]") {
      done = true;
    } else {
      events.push_back(json::parse(event.substr(6)));
    }
  }
  return events;
}

class Serve : public ::testing::Test {
 protected:
  Serve() : model_(OpenModel(SourcePath("models/tales-q8_0.gguf"))) {
    EngineOptions options = RoomyOptions(folder_.path());
    options.context = kContext;
    options.kv_tokens = kContext;
    options.sequences = kBatch;
    options.logits_rows = kBatch;
    options.prefix_cache = true;
    engine_ = OpenEngine(*model_, options);
    GeneratorOptions generating;
    generating.batcher.max_batch = kBatch;
    generating.max_queued_jobs = kMostJobs;
    generator_ = std::make_unique<Generator>(engine_.get(), generating);
    ApiOptions api;
    api.model_name = "tales";
    api_ = std::make_unique<Api>(*model_, *engine_, *generator_, api);
    http_.port = 0;
    http_.max_body_bytes = 1 << 20;
    http_.read_time = std::chrono::seconds(2);
    server_ = std::make_unique<HttpServer>(
        io_, http_, [this](const HttpRequest& request, HttpResponder& responder) { return api_->Handle(request, responder); },
        Api::ErrorReply);
    EXPECT_TRUE(server_->Listen().ok());
    thread_ = std::thread([this] { io_.run(); });
  }
  ~Serve() override {
    generator_.reset();
    io_.stop();
    thread_.join();
    engine_->CheckInvariants();
  }
  Reply Post(const std::string& path, const json& body) { return Client(server_->port()).Ask(http::verb::post, path, body.dump()); }
  Reply Get(const std::string& path) { return Client(server_->port()).Ask(http::verb::get, path); }
  json Greedy(uint32_t tokens) const { return {{"prompt", kPrompt}, {"temperature", 0}, {"max_tokens", tokens}}; }
  // Waits until nothing runs.
  void ExpectIdle() {
    for (int i = 0; i < 500 && generator_->jobs() > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(generator_->jobs(), 0u);
  }

  ScratchFolder folder_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Generator> generator_;
  std::unique_ptr<Api> api_;
  HttpServerOptions http_;
  asio::io_context io_;
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
};

TEST_F(Serve, CompletesAsGoldenTextSays) {
  const Reply reply = Post("/v1/completions", Greedy(24));
  ASSERT_EQ(reply.status, 200u) << reply.body;
  const json body = reply.Json();
  const std::string text = body["choices"][0]["text"];
  EXPECT_THAT(text, ::testing::StartsWith(" had a daughter"));
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["model"], "tales");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["usage"]["completion_tokens"], 24);
  EXPECT_EQ(body["usage"]["prompt_tokens"], model_->tokenizer().Encode(kPrompt, {}).size());
  EXPECT_EQ(body["timings"]["predicted_n"], 24);
  // Again, with the prompt's pages in the cache, and echoed: the same text.
  json again = Greedy(24);
  again["echo"] = true;
  EXPECT_EQ(Post("/v1/completions", again).Json()["choices"][0]["text"], kPrompt + text);
}

TEST_F(Serve, AStreamSaysTheSame) {
  const std::string text = Post("/v1/completions", Greedy(40)).Json()["choices"][0]["text"];
  json request = Greedy(40);
  request["stream"] = true;
  request["stream_options"] = {{"include_usage", true}};
  const Reply reply = Post("/v1/completions", request);
  EXPECT_EQ(reply.content_type, "text/event-stream");
  bool done;
  const std::vector<json> events = Events(reply.body, done);
  EXPECT_TRUE(done);
  ASSERT_GE(events.size(), 3u);
  std::string streamed;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    streamed += events[i]["choices"][0]["text"];
    EXPECT_EQ(events[i]["choices"][0]["finish_reason"].is_null(), i + 2 < events.size());
  }
  EXPECT_EQ(streamed, text);
  EXPECT_EQ(events[events.size() - 2]["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(events.back()["choices"].empty());
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 40);
}

TEST_F(Serve, StopTextsAreCutInBothWays) {
  const std::string text = Post("/v1/completions", Greedy(40)).Json()["choices"][0]["text"];
  const std::string stop = text.substr(20, 7);
  json request = Greedy(40);
  request["stop"] = {stop, "never"};
  const json body = Post("/v1/completions", request).Json();
  EXPECT_EQ(body["choices"][0]["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  request["stream"] = true;
  bool done;
  std::string streamed;
  for (const json& event : Events(Post("/v1/completions", request).body, done)) streamed += event["choices"][0]["text"];
  EXPECT_EQ(streamed, text.substr(0, text.find(stop)));
}

TEST_F(Serve, SeveralAnswersHaveTheirOwnSeeds) {
  json request = {{"prompt", kPrompt}, {"temperature", 1}, {"seed", 5}, {"max_tokens", 12}, {"n", 3}};
  const json body = Post("/v1/completions", request).Json();
  ASSERT_EQ(body["choices"].size(), 3u);
  EXPECT_NE(body["choices"][0]["text"], body["choices"][1]["text"]);
  EXPECT_EQ(body["usage"]["completion_tokens"], 36);
  // Each is what a request with its seed gives.
  request["n"] = 1;
  request["seed"] = 7;
  EXPECT_EQ(Post("/v1/completions", request).Json()["choices"][0]["text"], body["choices"][2]["text"]);
}

TEST_F(Serve, LogprobsAreThoseOfTheTokensDrawn) {
  json request = Greedy(5);
  request["logprobs"] = 3;
  const json logprobs = Post("/v1/completions", request).Json()["choices"][0]["logprobs"];
  ASSERT_EQ(logprobs["tokens"].size(), 5u);
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(logprobs["top_logprobs"][i].size(), 3u);
    double sum = 0, best = -1e9;
    for (const auto& [token, logprob] : logprobs["top_logprobs"][i].items()) {
      sum += std::exp(logprob.get<double>());
      best = std::max(best, logprob.get<double>());
    }
    EXPECT_LE(sum, 1.0001);
    EXPECT_EQ(logprobs["token_logprobs"][i], best);  // greedy
  }
  // Streamed, the same ones.
  request["stream"] = true;
  bool done;
  std::vector<json> streamed;
  for (const json& event : Events(Post("/v1/completions", request).body, done)) {
    const json& some = event["choices"][0]["logprobs"];
    if (!some.is_null()) streamed.insert(streamed.end(), some["token_logprobs"].begin(), some["token_logprobs"].end());
  }
  EXPECT_EQ(json(streamed), logprobs["token_logprobs"]);
}

TEST_F(Serve, ABiasChangesWhatIsDrawn) {
  json request = Greedy(1);
  const std::string first = Post("/v1/completions", request).Json()["choices"][0]["text"];
  const TokenId likeliest = model_->tokenizer().Encode("x" + first, {.add_special = false}).back();
  request["logit_bias"] = {{std::to_string(likeliest), -100}};
  EXPECT_NE(Post("/v1/completions", request).Json()["choices"][0]["text"], first);
  const TokenId king = model_->tokenizer().Encode("x king", {.add_special = false}).back();
  request["logit_bias"] = {{std::to_string(king), 100}};
  request["max_tokens"] = 2;
  EXPECT_EQ(Post("/v1/completions", request).Json()["choices"][0]["text"], " king king");
}

TEST_F(Serve, ManyClientsGetTheTextTheyGetAlone) {
  std::vector<std::string> alone, together(kMostJobs);
  for (uint32_t i = 0; i < kMostJobs; ++i) {
    json request = Greedy(20 + i);
    request["prompt"] = std::string("The story of number ") + std::to_string(i) + " begins";
    alone.push_back(Post("/v1/completions", request).Json()["choices"][0]["text"]);
  }
  std::vector<std::thread> clients;
  for (uint32_t i = 0; i < kMostJobs; ++i) {
    clients.emplace_back([&, i] {
      json request = Greedy(20 + i);
      request["prompt"] = std::string("The story of number ") + std::to_string(i) + " begins";
      together[i] = Post("/v1/completions", request).Json()["choices"][0]["text"];
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(together, alone);
}

TEST_F(Serve, WhoGoesIsCancelled) {
  for (const bool stream : {false, true}) {
    {
      Client client(server_->port());
      json request = Greedy(400);
      request["ignore_eos"] = true;
      request["stream"] = stream;
      const std::string body = request.dump();
      client.Write("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
      if (stream) {
        client.ReadSome(400);
      } else {
        while (generator_->snapshot().running == 0) std::this_thread::yield();
      }
    }
    ExpectIdle();
  }
  const GeneratorSnapshot snapshot = generator_->snapshot();
  EXPECT_EQ(snapshot.cancelled, 2u);
  EXPECT_EQ(snapshot.running, 0u);
}

TEST_F(Serve, AFullQueueSaysSoAtOnce) {
  json request = Greedy(400);
  request["ignore_eos"] = true;
  request["n"] = kMostJobs + 1;
  const Reply reply = Post("/v1/completions", request);
  EXPECT_EQ(reply.status, 429u) << reply.body;
  EXPECT_FALSE(reply.retry_after.empty());
  EXPECT_EQ(reply.Json()["error"]["code"], "queue_full");
  ExpectIdle();  // those that had been taken are cancelled
  EXPECT_EQ(Post("/v1/completions", Greedy(2)).status, 200u);
}

TEST_F(Serve, AConnectionServesManyRequests) {
  Client client(server_->port());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(client.Ask(http::verb::get, "/health").status, 200u);
    EXPECT_EQ(client.Ask(http::verb::post, "/v1/completions", "{:").status, 400u);
    EXPECT_EQ(client.Ask(http::verb::post, "/v1/completions", Greedy(3).dump()).status, 200u);
    json stream = Greedy(3);
    stream["stream"] = true;
    EXPECT_EQ(client.Ask(http::verb::post, "/v1/completions", stream.dump()).status, 200u);
  }
}

TEST_F(Serve, AHeadRequestGetsNoBody) {
  Client client(server_->port());
  client.Write("HEAD /health HTTP/1.1\r\nHost: x\r\n\r\nGET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  std::string all;
  while (!client.AtEnd(&all)) {
  }
  const size_t second = all.find("HTTP/1.1", 1);
  ASSERT_NE(second, std::string::npos) << all;
  EXPECT_THAT(all.substr(0, second), ::testing::EndsWith("\r\n\r\n"));
  EXPECT_THAT(all.substr(second), ::testing::EndsWith("{\"status\":\"ok\"}"));
}

TEST_F(Serve, PromptsBeyondTheContextAreRefusedWithBothNumbers) {
  json request = Greedy(5);
  std::vector<int> ids(kContext + 3, 100);
  request["prompt"] = ids;
  request["stream"] = true;
  const Reply reply = Post("/v1/completions", request);
  EXPECT_EQ(reply.status, 400u);
  const json error = reply.Json()["error"];
  EXPECT_EQ(error["n_prompt_tokens"], kContext + 3);
  EXPECT_EQ(error["n_ctx"], kContext);
  EXPECT_EQ(error["param"], "prompt");
  // One that fits may fill the context, no more.
  ids.resize(kContext - 4);
  request = {{"prompt", ids}, {"max_tokens", 1000}, {"ignore_eos", true}};
  EXPECT_EQ(Post("/v1/completions", request).Json()["usage"]["completion_tokens"], 4);
}

TEST_F(Serve, WrongRequestsAreToldWhatIsWrong) {
  EXPECT_EQ(Get("/nowhere").status, 404u);
  EXPECT_EQ(Get("/v1/completions").status, 405u);
  EXPECT_EQ(Client(server_->port()).Ask(http::verb::delete_, "/health").status, 405u);
  const Reply chat = Post("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "hi"}}}}});
  EXPECT_EQ(chat.status, 400u);  // this model has no template
  EXPECT_EQ(Client(server_->port()).Ask(http::verb::post, "/v1/completions", std::string(2 << 20, ' ')).status, 413u);
  const auto raw = [&](const std::string& bytes) {
    Client client(server_->port());
    client.Write(bytes);
    return client.Read().status;
  };
  std::string many = "GET /health HTTP/1.1\r\n";
  for (int i = 0; i < 2000; ++i) many += "X-Header-" + std::to_string(i) + ": value\r\n";
  EXPECT_EQ(raw(many + "\r\n"), 431u);
  EXPECT_EQ(raw("nonsense\r\n\r\n"), 400u);
  EXPECT_EQ(raw("POST /v1/completions HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400u);
  EXPECT_EQ(raw("POST /v1/completions HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}"), 400u);
  EXPECT_EQ(Get("/health").status, 200u);
}

TEST_F(Serve, WhoSendsTooSlowlyIsCutOff) {
  Client client(server_->port());
  client.Write("POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{");
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(Get("/health").status, 200u);
  while (!client.AtEnd()) {
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST_F(Serve, TellsOfItself) {
  Post("/v1/completions", Greedy(4));
  const json models = Get("/v1/models").Json();
  EXPECT_EQ(models["data"][0]["id"], "tales");
  EXPECT_EQ(models["data"][0]["meta"]["n_ctx"], kContext);
  const json memory = Get("/v1/memory").Json();
  uint64_t parts = 0;
  for (const json& some : {memory["memory"], memory["memory"]["reserve"], memory["memory"]["idle"]}) {
    for (const auto& [name, value] : some.items()) {
      if (name.ends_with("_bytes")) parts += value.get<uint64_t>();
    }
  }
  EXPECT_EQ(parts, memory["budget_bytes"]);
  EXPECT_LE(memory["peak_bytes"], memory["budget_bytes"]);
  const std::string metrics = Get("/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("elasticmem_tokens_total{kind=\"generated\"} 4\n"));
  EXPECT_THAT(metrics, HasSubstr("elasticmem_time_to_first_token_seconds_count 1\n"));
  const json tokens = Post("/tokenize", {{"content", kPrompt}, {"add_special", true}}).Json()["tokens"];
  EXPECT_EQ(tokens, model_->tokenizer().Encode(kPrompt, {}));
  EXPECT_EQ(Post("/detokenize", {{"tokens", tokens}}).Json()["content"], kPrompt);
}

TEST_F(Serve, StoppingEndsWhatRunsWithAnError) {
  Client client(server_->port());
  json request = Greedy(400);
  request["ignore_eos"] = true;
  request["stream"] = true;
  const std::string body = request.dump();
  client.Write("POST /v1/completions HTTP/1.1\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  while (generator_->snapshot().running == 0) std::this_thread::yield();
  generator_->Stop(Error(StatusCode::kUnavailable, "the server is stopping"));
  EXPECT_THAT(client.Read().body, HasSubstr("\"message\":\"the server is stopping\""));
  EXPECT_EQ(Post("/v1/completions", Greedy(2)).status, 429u);
}

}  // namespace
}  // namespace elasticmem
