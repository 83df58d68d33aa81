// JSON on one line. Bytes that are no UTF-8 become U+FFFD: what a client or a token brought must not fail here.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace elasticmem {

inline std::string JsonText(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace elasticmem
