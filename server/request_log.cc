#include "server/request_log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "server/json_text.h"

namespace elasticmem {

using Json = nlohmann::ordered_json;

RequestLog::RequestLog(Format format) : format_(format) {
  if (format == Format::kOff) return;
  logger_ = std::make_shared<spdlog::logger>("requests", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  // Times are UTC. In JSON the message is the rest of the object.
  logger_->set_formatter(std::make_unique<spdlog::pattern_formatter>(
      format == Format::kJson ? R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ",%v)" : "%Y-%m-%dT%H:%M:%S.%eZ %v",
      spdlog::pattern_time_type::utc));
  // A log that cannot be written, on a full disk, stops nobody.
  logger_->set_error_handler([](const std::string&) {});
}

RequestLog::~RequestLog() = default;

void RequestLog::Write(const RequestRecord& r) {
  if (!logger_) return;
  const Json json = {{"request", r.id},
                     {"client", r.client},
                     {"method", r.method},
                     {"path", r.path},
                     {"status", r.status},
                     {"seconds", r.seconds},
                     {"queue_seconds", r.usage.queue_seconds},
                     {"prompt_tokens", r.usage.prompt_tokens},
                     {"cached_tokens", r.usage.cached_tokens},
                     {"generated_tokens", r.usage.generated_tokens}};
  if (format_ == Format::kJson) {
    logger_->info("{}", JsonText(json).substr(1));
    return;
  }
  std::string line;
  for (const auto& [key, value] : json.items()) {
    // What a client wrote cannot begin a line of its own: control characters are escaped as in JSON.
    const std::string text = JsonText(value);
    if (text == "\"\"" || (key.ends_with("_tokens") && value == 0) || (key == "queue_seconds" && value == 0)) continue;
    line += fmt::format("{}{}={}", line.empty() ? "" : " ", key,
                        value.is_number_float() ? fmt::format("{:.3f}", value.get<double>()) : text);
  }
  logger_->info("{}", line);
}

void RequestLog::Say(const std::string& text) {
  if (!logger_) return;
  logger_->info("{}", format_ == Format::kJson ? JsonText({{"message", text}}).substr(1) : text);
}

}  // namespace elasticmem
