#include "server/api.h"

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <chrono>
#include <ctime>
#include <random>

#include "base/stopwatch.h"
#include "server/api_error.h"
#include "server/json_text.h"

namespace elasticmem {
namespace {

namespace asio = boost::asio;
using Json = nlohmann::ordered_json;
using namespace asio::experimental::awaitable_operators;

constexpr auto kForever = std::chrono::hours(24);

std::string ServerSentEvent(const Json& json) { return "data: " + JsonText(json) + "\n\n"; }

uint64_t RandomSeed() {
  static std::random_device device;
  return uint64_t{device()} << 32 | device();
}

std::string NewId(bool chat) { return fmt::format("{}-{:016x}", chat ? "chatcmpl" : "cmpl", RandomSeed()); }

HttpReply JsonReply(std::string body) { return {.status = 200, .content_type = "application/json", .body = std::move(body)}; }

HttpReply ReplyOf(const ApiError& error) {
  HttpReply reply = JsonReply(JsonText(ToJson(error)));
  reply.status = static_cast<unsigned>(error.http_status);
  return reply;
}

ApiError SimpleError(unsigned status, std::string message, std::string type = "invalid_request_error") {
  ApiError error;
  error.http_status = static_cast<int>(status);
  error.message = std::move(message);
  error.type = std::move(type);
  return error;
}

}  // namespace

// A request whose answers are on their way. What has not ended is cancelled with it.
struct Api::Answering {
  explicit Answering(Generator& generator) : generator(generator) {}
  ~Answering() { Cancel(); }
  void Cancel() {
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (!ended[i]) generator.Cancel(jobs[i]);
    }
  }

  Generator& generator;
  CompletionRequest request;
  AnswerHead head;
  std::shared_ptr<EventQueue> events;
  std::vector<Generator::JobId> jobs;
  std::vector<bool> ended;
  std::vector<Answer> answers;
  size_t left = 0;  // answers that have not ended
  Status failed;    // the first failure of any
};

Api::Api(const Model& model, const Engine& engine, Generator& generator, const ApiOptions& options)
    : model_(model), engine_(engine), generator_(generator), options_(options), created_(std::time(nullptr)) {
  StatusOr<ChatPrompt> chat = ChatPrompt::Create(model.tokenizer(), model.chat_template());
  if (chat.ok()) chat_ = *std::move(chat);
}

HttpReply Api::ErrorReply(unsigned status, const std::string& message) {
  return ReplyOf(SimpleError(status, message));
}

asio::awaitable<void> Api::Handle(const HttpRequest& request, HttpResponder& responder) {
  const auto begin = std::chrono::steady_clock::now();
  const auto target = request.target();
  Exchange exchange;
  RequestRecord& record = exchange.record;
  record.id = fmt::format("{:016x}", RandomSeed());
  record.method = std::string(request.method_string());
  record.path = std::string(target.substr(0, target.find('?')));
  responder.AddHeader("X-Request-Id", record.id);
  const bool post = request.method() == boost::beast::http::verb::post;
  std::optional<HttpReply> refusal = Refusal(request, responder, exchange);
  if (refusal) {
    co_await responder.Send(*std::move(refusal));
  } else if (post && record.path == "/v1/completions") {
    co_await Complete(request, responder, ParseCompletion, exchange);
  } else if (post && record.path == "/v1/chat/completions") {
    co_await Complete(request, responder, ParseChatCompletion, exchange);
  } else {
    HttpReply reply = AnswerAtOnce(request, record.path);
    co_await responder.Send(std::move(reply));
  }
  record.status = responder.status();
  record.seconds = SecondsSince(begin);
  if (options_.on_answered) options_.on_answered(record);
}

// Where there are keys: who has none is told so, and browsers are told that pages of any origin may ask with one. Without
// keys pages of other origins get nothing, or any website could use a server on its visitor's machine.
std::optional<HttpReply> Api::Refusal(const HttpRequest& request, HttpResponder& responder, Exchange& exchange) const {
  if (!options_.keys) return std::nullopt;
  responder.AddHeader("Access-Control-Allow-Origin", "*");
  if (request.method() == boost::beast::http::verb::options) {
    responder.AddHeader("Access-Control-Allow-Methods", "GET, POST");
    responder.AddHeader("Access-Control-Allow-Headers", "Authorization, Content-Type");
    responder.AddHeader("Access-Control-Max-Age", "86400");
    HttpReply reply = JsonReply("");
    reply.status = 204;
    return reply;
  }
  if (exchange.record.path == "/health") return std::nullopt;
  const auto header = request[boost::beast::http::field::authorization];
  const std::optional<Keys::Client> client = options_.keys->Find({header.data(), header.size()});
  if (!client) {
    responder.AddHeader("WWW-Authenticate", "Bearer");
    ApiError error = SimpleError(401, header.empty() ? "this server wants an API key: \"Authorization: Bearer KEY\""
                                                     : "this API key is not known here",
                                 "authentication_error");
    error.code = "invalid_api_key";
    return ReplyOf(error);
  }
  exchange.tenant = client->tenant;
  exchange.record.client = client->name;
  return std::nullopt;
}

// Everything that needs no step.
HttpReply Api::AnswerAtOnce(const HttpRequest& request, std::string_view path) {
  using boost::beast::http::verb;
  const bool for_get = path == "/health" || path == "/metrics" || path == "/v1/models" || path == "/v1/memory";
  const bool for_post =
      path == "/v1/completions" || path == "/v1/chat/completions" || path == "/tokenize" || path == "/detokenize";
  if (!for_get && !for_post) {
    return ReplyOf(SimpleError(404, fmt::format("there is no \"{}\" here", path), "not_found_error"));
  }
  const verb method = request.method() == verb::head ? verb::get : request.method();
  if (method != (for_get ? verb::get : verb::post)) {
    return ReplyOf(SimpleError(405, fmt::format("\"{}\" takes {} only", path, for_get ? "GET" : "POST")));
  }
  if (path == "/health") return JsonReply(Health());
  if (path == "/v1/models") return JsonReply(Models());
  if (path == "/v1/memory") return JsonReply(Memory());
  if (path == "/metrics") {
    const uint32_t connections = options_.connections ? options_.connections() : 0;
    HttpReply reply = JsonReply(metrics_.Text(generator_.snapshot(), connections));
    reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
    return reply;
  }
  OrApiError<std::string> body = path == "/tokenize" ? Tokenize(request.body()) : Detokenize(request.body());
  return body.ok() ? JsonReply(*body) : ReplyOf(body.error());
}

OrApiError<CompletionRequest> Api::Parse(std::string_view body, Reader read) const {
  OrApiError<nlohmann::json> json = ParseBody(body);
  if (!json.ok()) return json.error();
  return read(*json, {&model_.tokenizer(), chat_ ? &*chat_ : nullptr, options_.sampling});
}

asio::awaitable<void> Api::Complete(const HttpRequest& request, HttpResponder& responder, Reader read,
                                   Exchange& exchange) {
  OrApiError<CompletionRequest> parsed = Parse(request.body(), read);
  OrApiError<std::shared_ptr<Answering>> begun = parsed.error();
  if (parsed.ok()) begun = Begin(std::move(*parsed), exchange.tenant, responder.executor());
  if (!begun.ok()) {
    if (begun.error().http_status == 429) responder.AddHeader("Retry-After", "1");
    HttpReply reply = ReplyOf(begun.error());
    co_await responder.Send(std::move(reply));
    co_return;
  }
  const std::shared_ptr<Answering> answering = *begun;
  if (answering->request.stream) {
    co_await (StreamAnswers(*answering, responder) || responder.WaitForDisconnect());
  } else {
    co_await (CollectAnswers(*answering, responder) || responder.WaitForDisconnect());
  }
  for (const Answer& answer : answering->answers) {
    const GenerationUsage& usage = answer.end.usage;
    GenerationUsage& sum = exchange.record.usage;
    sum.prompt_tokens = std::max(sum.prompt_tokens, usage.prompt_tokens);
    sum.cached_tokens = std::max(sum.cached_tokens, usage.cached_tokens);
    sum.queue_seconds = std::max(sum.queue_seconds, usage.queue_seconds);
    sum.generated_tokens += usage.generated_tokens;
  }
}

// Submits a job for each answer, or none.
OrApiError<std::shared_ptr<Api::Answering>> Api::Begin(CompletionRequest request, uint64_t tenant,
                                                      const asio::any_io_executor& executor) {
  const uint32_t n_prompt = static_cast<uint32_t>(request.prompt.size()), n_ctx = engine_.context();
  if (n_prompt >= n_ctx) {
    ApiError error = BadField(request.chat ? "messages" : "prompt",
                              fmt::format("the prompt has {} tokens, and the context is {} with the answer", n_prompt,
                                          n_ctx));
    error.code = "context_length_exceeded";
    error.details = {{"n_prompt_tokens", n_prompt}, {"n_ctx", n_ctx}};
    return error;
  }
  Request job;
  job.prompt = request.prompt;
  job.max_tokens = std::min(request.max_tokens.value_or(n_ctx), n_ctx - n_prompt);
  job.sampling = request.sampling;
  job.ignore_eos = request.ignore_eos;
  job.sampling.seed = request.seed.value_or(RandomSeed());
  if (const Status possible = generator_.Check(job); !possible.ok()) return ToApiError(possible);

  auto answering = std::make_shared<Answering>(generator_);
  answering->head = {request.chat, NewId(request.chat), std::time(nullptr), options_.model_name, &model_.tokenizer()};
  answering->events = std::make_shared<EventQueue>(executor);
  answering->events->on_overflow = [weak = std::weak_ptr(answering)] {
    if (const auto alive = weak.lock()) alive->Cancel();
  };
  for (uint32_t i = 0; i < request.n; ++i) {
    const auto id = generator_.Submit({job, tenant, request.stops, /*begins_text=*/request.chat, request.logprobs,
                                       answering->events->Sink(i)});
    if (!id) {
      return ApiError{.http_status = 429, .message = "the server is busy: its queue is full; try again later",
                      .type = "rate_limit_error", .param = {}, .code = "queue_full", .details = {}};
    }
    answering->jobs.push_back(*id);
    answering->ended.push_back(false);
    ++job.sampling.seed;
  }
  answering->answers.resize(request.n);
  answering->left = request.n;
  answering->request = std::move(request);
  return answering;
}

// Books an event.
void Api::Take(Answering& answering, EventQueue::Indexed& event) {
  Answer& answer = answering.answers[event.answer];
  answer.text += event.event.text;
  std::vector<TokenLogprobs>& logprobs = event.event.logprobs;
  answer.logprobs.insert(answer.logprobs.end(), std::make_move_iterator(logprobs.begin()), std::make_move_iterator(logprobs.end()));
  if (!event.event.end) return;
  answer.end = std::move(*event.event.end);
  answering.ended[event.answer] = true;
  --answering.left;
  metrics_.Observe(answer.end.usage);
  if (answering.failed.ok()) answering.failed = answer.end.status;
}

asio::awaitable<void> Api::StreamAnswers(Answering& answering, HttpResponder& responder) {
  const AnswerHead& head = answering.head;
  co_await responder.BeginEvents();
  std::string out;
  for (uint32_t i = 0; i < answering.request.n; ++i) {
    if (head.chat) out += ServerSentEvent(RoleChunk(head, i));
    if (answering.request.echo) out += ServerSentEvent(TextChunk(head, i, answering.request.prompt_text));
  }
  while (answering.left > 0 && !responder.broken()) {
    if (!out.empty()) {
      std::string events = std::exchange(out, "");
      co_await responder.SendEvents(std::move(events));
    }
    std::vector<EventQueue::Indexed> events = co_await answering.events->Next(options_.ping);
    if (events.empty()) out = ": still here\n\n";
    for (EventQueue::Indexed& event : events) {
      const uint32_t index = event.answer;
      if (!event.event.text.empty() || !event.event.logprobs.empty()) {
        out += ServerSentEvent(TextChunk(head, index, event.event.text, event.event.logprobs));
      }
      Take(answering, event);
      answering.answers[index].text.clear();
      answering.answers[index].logprobs.clear();
      if (!answering.ended[index] || !answering.answers[index].end.status.ok()) continue;
      out += ServerSentEvent(EndChunk(head, index, answering.answers[index].end));
    }
    if (!answering.failed.ok()) break;
  }
  if (!answering.failed.ok()) {
    out += ServerSentEvent(ToJson(ToApiError(answering.failed)));
  } else {
    if (answering.request.include_usage) out += ServerSentEvent(UsageChunk(head, answering.answers));
    out += "data: [DONE]\n\n";
  }
  co_await responder.SendEvents(std::move(out));
  co_await responder.EndEvents();
}

asio::awaitable<void> Api::CollectAnswers(Answering& answering, HttpResponder& responder) {
  while (answering.left > 0 && answering.failed.ok()) {
    std::vector<EventQueue::Indexed> events = co_await answering.events->Next(kForever);
    for (EventQueue::Indexed& event : events) Take(answering, event);
  }
  if (answering.request.echo) {
    for (Answer& answer : answering.answers) answer.text.insert(0, answering.request.prompt_text);
  }
  HttpReply reply;
  if (answering.failed.ok()) {
    reply = JsonReply(JsonText(WholeAnswer(answering.head, answering.answers)));
  } else {
    reply = ReplyOf(ToApiError(answering.failed));
  }
  co_await responder.Send(std::move(reply));
}

std::string Api::Health() const { return R"({"status":"ok"})"; }

std::string Api::Models() const {
  const Json model = {{"id", options_.model_name},
                      {"object", "model"},
                      {"created", created_},
                      {"owned_by", "elasticmem"},
                      {"meta",
                       {{"n_ctx", engine_.context()},
                        {"n_ctx_train", model_.spec().context},
                        {"n_vocab", model_.spec().vocab},
                        {"n_params", model_.gguf().parameters()},
                        {"size", model_.gguf().file_bytes()}}}};
  return JsonText({{"object", "list"}, {"data", Json::array({model})}});
}

std::string Api::Memory() const {
  const GeneratorSnapshot s = generator_.snapshot();
  const uint64_t records = s.engine.ffn.wanted;
  return JsonText({{"budget_bytes", s.budget_bytes},
               {"peak_bytes", s.peak_bytes},
               {"memory", MemoryUseJson(s.memory)},
               {"requests", {{"running", s.running}, {"waiting", s.waiting}}},
               {"resident_work_fraction", records > 0 ? static_cast<double>(s.engine.ffn.resident) / static_cast<double>(records) : 1.0},
               {"store_bytes_read", s.engine.reads.bytes_read}});
}

OrApiError<std::string> Api::Tokenize(std::string_view body) const {
  OrApiError<nlohmann::json> json = ParseBody(body);
  if (!json.ok()) return json.error();
  OrApiError<TokenizeRequest> request = ParseTokenize(*json);
  if (!request.ok()) return request.error();
  const Tokenizer& tokenizer = model_.tokenizer();
  const std::vector<TokenId> ids =
      tokenizer.Encode(request->content, {.add_special = request->add_special, .parse_special = request->parse_special});
  Json tokens = Json::array();
  for (const TokenId id : ids) {
    if (request->with_pieces) {
      tokens.push_back({{"id", id}, {"piece", std::string(tokenizer.Piece(id))}});
    } else {
      tokens.push_back(id);
    }
  }
  return JsonText({{"tokens", std::move(tokens)}});
}

OrApiError<std::string> Api::Detokenize(std::string_view body) const {
  OrApiError<nlohmann::json> json = ParseBody(body);
  if (!json.ok()) return json.error();
  OrApiError<std::vector<TokenId>> ids = ParseDetokenize(*json, model_.tokenizer().vocab_size());
  if (!ids.ok()) return ids.error();
  return JsonText({{"content", model_.tokenizer().Decode(*ids)}});
}

}  // namespace elasticmem
