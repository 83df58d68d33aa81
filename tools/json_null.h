// What may be absent, as JSON: itself or null.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace elasticmem {

template <class T>
nlohmann::ordered_json OrNull(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}
inline nlohmann::ordered_json OrNull(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
}

}  // namespace elasticmem
