#include "runtime/gguf/gguf.h"

#include <algorithm>
#include <utility>

#include "runtime/gguf/byte_reader.h"
#include "runtime/gguf/gguf_parser.h"
#include "runtime/gguf/quoted.h"

namespace elasticmem {
namespace {

std::string TypeOf(const GgufValue& value) {
  if (value.type != GgufType::kArray) return std::string(GgufTypeName(value.type));
  return fmt::format("array of {}", GgufTypeName(value.element_type));
}

Status Missing(std::string_view key) { return Error(StatusCode::kNotFound, "key {} is missing", Quoted(key)); }

Status WrongType(std::string_view key, const GgufValue& value, std::string_view wanted) {
  return InvalidInput("key {} is of type {}, {} is needed", Quoted(key), TypeOf(value), wanted);
}

// The scalar or array of type T in `value`, which is at `key`; null where `value` is.
template <class T>
StatusOr<const T*> As(std::string_view key, const GgufValue* value, std::string_view wanted) {
  if (value == nullptr) return nullptr;
  const T* held = std::get_if<T>(&value->value);
  if (held == nullptr) return WrongType(key, *value, wanted);
  return held;
}

StatusOr<std::optional<uint64_t>> AsUint(std::string_view key, const GgufValue* value) {
  if (value == nullptr) return std::nullopt;
  if (const auto* number = std::get_if<uint64_t>(&value->value)) return *number;
  const auto* number = std::get_if<int64_t>(&value->value);
  if (number == nullptr) return WrongType(key, *value, "an integer");
  if (*number < 0) return InvalidInput("key {} is {}, it may not be negative", Quoted(key), *number);
  return static_cast<uint64_t>(*number);
}

bool IsLongArray(const GgufValue& value) {
  constexpr size_t kLong = 1024;  // arrays with a value per layer are shorter
  if (value.type != GgufType::kArray) return false;
  return std::visit(
      [](const auto& held) {
        if constexpr (requires { held.size(); }) return held.size() > kLong;
        return false;
      },
      value.value);
}

}  // namespace

std::string_view GgufTypeName(GgufType type) {
  constexpr std::string_view kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                         "bool", "string", "array", "u64", "i64", "f64"};
  const auto number = static_cast<uint32_t>(type);
  return number < std::size(kNames) ? kNames[number] : "unknown";
}

StatusOr<GgufFile> GgufFile::Parse(std::span<const std::byte> bytes, std::string_view name) {
  ByteReader reader(bytes);
  return GgufParser::Parse(reader, name);
}

uint64_t GgufFile::parameters() const {
  uint64_t elements = 0;
  for (const GgufTensor& tensor : tensors_) elements += tensor.cols() * tensor.rows();
  return elements;
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

const GgufValue* GgufFile::Find(std::string_view key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

StatusOr<uint64_t> GgufFile::Uint(std::string_view key) const {
  EM_ASSIGN_OR_RETURN(const std::optional<uint64_t> number, AsUint(key, Find(key)));
  if (!number) return Missing(key);
  return *number;
}

StatusOr<uint64_t> GgufFile::UintOr(std::string_view key, uint64_t fallback) const {
  EM_ASSIGN_OR_RETURN(const std::optional<uint64_t> number, AsUint(key, Find(key)));
  return number.value_or(fallback);
}

StatusOr<double> GgufFile::Float(std::string_view key) const {
  EM_ASSIGN_OR_RETURN(const double* number, As<double>(key, Find(key), "f32 or f64"));
  if (number == nullptr) return Missing(key);
  return *number;
}

StatusOr<double> GgufFile::FloatOr(std::string_view key, double fallback) const {
  EM_ASSIGN_OR_RETURN(const double* number, As<double>(key, Find(key), "f32 or f64"));
  return number == nullptr ? fallback : *number;
}

StatusOr<bool> GgufFile::BoolOr(std::string_view key, bool fallback) const {
  EM_ASSIGN_OR_RETURN(const bool* held, As<bool>(key, Find(key), "bool"));
  return held == nullptr ? fallback : *held;
}

StatusOr<std::string> GgufFile::String(std::string_view key) const {
  EM_ASSIGN_OR_RETURN(const std::string* text, As<std::string>(key, Find(key), "string"));
  if (text == nullptr) return Missing(key);
  return *text;
}

StatusOr<std::string> GgufFile::StringOr(std::string_view key, std::string_view fallback) const {
  EM_ASSIGN_OR_RETURN(const std::string* text, As<std::string>(key, Find(key), "string"));
  return text == nullptr ? std::string(fallback) : *text;
}

StatusOr<const std::vector<std::string>*> GgufFile::Strings(std::string_view key) const {
  return As<std::vector<std::string>>(key, Find(key), "array of string");
}

StatusOr<const std::vector<float>*> GgufFile::Floats(std::string_view key) const {
  return As<std::vector<float>>(key, Find(key), "array of f32");
}

StatusOr<std::optional<std::vector<int64_t>>> GgufFile::Ints(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* numbers = std::get_if<std::vector<int64_t>>(&value->value)) return *numbers;
  const auto* numbers = std::get_if<std::vector<uint64_t>>(&value->value);
  if (numbers == nullptr) return WrongType(key, *value, "array of integers");
  const auto too_large = std::ranges::find_if(*numbers, [](uint64_t n) { return n > INT64_MAX; });
  if (too_large != numbers->end()) {
    return InvalidInput("key {}: element {} is {}, which is larger than 2^63 - 1", Quoted(key),
                        too_large - numbers->begin(), *too_large);
  }
  return std::vector<int64_t>(numbers->begin(), numbers->end());
}

void GgufFile::DropArrays() {
  std::erase_if(metadata_, [](const auto& entry) { return IsLongArray(entry.second); });
}

}  // namespace elasticmem
