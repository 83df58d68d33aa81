// What a client is told when its request cannot be served: an HTTP status, and OpenAI's error object.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/status.h"

namespace elasticmem {

struct ApiError {
  int http_status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;  // the field that is wrong; "": none is
  std::string code;   // "": none
  // More that a program may want, such as n_ctx; null: nothing.
  nlohmann::ordered_json details;
};

// A wrong field.
inline ApiError BadField(std::string param, std::string message) {
  return {.message = std::move(message), .param = std::move(param), .code = {}, .details = {}};
}
// What a Status means to a client.
ApiError ToApiError(const Status& status);
// {"error": {message, type, param, code, ...}}
nlohmann::ordered_json ToJson(const ApiError& error);

// The error, or a value.
template <class T>
class OrApiError {
 public:
  OrApiError(T value) : value_(std::move(value)) {}
  OrApiError(ApiError error) : error_(std::move(error)), ok_(false) {}
  bool ok() const { return ok_; }
  T& operator*() { return value_; }
  T* operator->() { return &value_; }
  const ApiError& error() const { return error_; }

 private:
  T value_{};
  ApiError error_;
  bool ok_ = true;
};

}  // namespace elasticmem
