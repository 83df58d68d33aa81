#include "server/api_error.h"

namespace elasticmem {

ApiError ToApiError(const Status& status) {
  ApiError error;
  error.message = std::string(Message(status));
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kUnimplemented:
    case StatusCode::kResourceExhausted:
      break;
    case StatusCode::kUnavailable:
      error.http_status = 503;
      error.type = "unavailable_error";
      break;
    default:
      error.http_status = 500;
      error.type = "server_error";
  }
  return error;
}

nlohmann::ordered_json ToJson(const ApiError& error) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
  };
  nlohmann::ordered_json body = {{"message", error.message},
                                 {"type", error.type},
                                 {"param", or_null(error.param)},
                                 {"code", or_null(error.code)}};
  if (error.details.is_object()) body.update(error.details);
  return {{"error", std::move(body)}};
}

}  // namespace elasticmem
