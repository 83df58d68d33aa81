// A line for each request that has been answered, for people or for machines. Neither keys nor prompts are in it.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "server/generator.h"

namespace spdlog {
class logger;
}

namespace elasticmem {

struct RequestRecord {
  std::string id;      // as in the answer's X-Request-Id
  std::string client;  // whose key it was; "": there are no keys
  std::string method, path;
  unsigned status = 0;  // 0: the client had gone
  double seconds = 0;
  GenerationUsage usage;  // of all answers together; zeros where nothing was generated
};

class RequestLog {
 public:
  enum class Format { kText, kJson, kOff };
  // On stderr.
  explicit RequestLog(Format format);
  ~RequestLog();

  void Write(const RequestRecord& record);
  // Something that is not about a request.
  void Say(const std::string& text);

 private:
  const Format format_;
  std::shared_ptr<spdlog::logger> logger_;  // null: off
};

}  // namespace elasticmem
