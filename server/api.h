// The daemon's endpoints: what each path answers, from a model and its generator.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/model/model.h"
#include "server/api_request.h"
#include "server/api_response.h"
#include "server/event_queue.h"
#include "server/generator.h"
#include "server/http_server.h"
#include "server/keys.h"
#include "server/metrics.h"
#include "server/request_log.h"

namespace elasticmem {

struct ApiOptions {
  std::string model_name;                     // what clients call it
  SamplingOptions sampling;                   // where a request says nothing
  std::chrono::milliseconds ping{5000};       // how often a stream that has nothing to tell shows that it lives
  std::function<uint32_t()> connections;      // how many there are, for the metrics
  std::optional<Keys> keys;                   // nothing: anyone may ask anything
  std::function<void(const RequestRecord&)> on_answered;  // for a log
};

// Lives on the I/O thread.
class Api {
 public:
  // All outlive it.
  Api(const Model& model, const Engine& engine, Generator& generator, const ApiOptions& options);

  // From now on these keys count.
  void ReplaceKeys(Keys keys) { options_.keys = std::move(keys); }

  boost::asio::awaitable<void> Handle(const HttpRequest& request, HttpResponder& responder);
  // The body of an answer to what is no request.
  static HttpReply ErrorReply(unsigned status, const std::string& message);

 private:
  struct Answering;
  // A request on its way.
  struct Exchange {
    RequestRecord record;
    uint64_t tenant = 0;
  };
  using Reader = OrApiError<CompletionRequest> (*)(const nlohmann::json&, const RequestContext&);

  HttpReply AnswerAtOnce(const HttpRequest& request, std::string_view path);
  std::optional<HttpReply> Refusal(const HttpRequest& request, HttpResponder& responder, Exchange& exchange) const;
  boost::asio::awaitable<void> Complete(const HttpRequest& request, HttpResponder& responder, Reader read,
                                        Exchange& exchange);
  OrApiError<CompletionRequest> Parse(std::string_view body, Reader read) const;
  OrApiError<std::shared_ptr<Answering>> Begin(CompletionRequest request, uint64_t tenant,
                                               const boost::asio::any_io_executor& executor);
  boost::asio::awaitable<void> StreamAnswers(Answering& answering, HttpResponder& responder);
  boost::asio::awaitable<void> CollectAnswers(Answering& answering, HttpResponder& responder);
  void Take(Answering& answering, EventQueue::Indexed& event);
  std::string Health() const;
  std::string Models() const;
  std::string Memory() const;
  OrApiError<std::string> Tokenize(std::string_view body) const;
  OrApiError<std::string> Detokenize(std::string_view body) const;

  const Model& model_;
  const Engine& engine_;
  Generator& generator_;
  ApiOptions options_;
  std::optional<ChatPrompt> chat_;  // without messages; nothing where the model has no template
  Metrics metrics_;
  const int64_t created_;
};

}  // namespace elasticmem
