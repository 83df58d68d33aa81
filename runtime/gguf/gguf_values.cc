// The part of GgufParser that reads metadata values.
#include <algorithm>
#include <array>
#include <utility>

#include "runtime/gguf/gguf_parser.h"

namespace elasticmem {

StatusOr<std::string> GgufParser::ReadString() {
  EM_ASSIGN_OR_RETURN(const uint64_t bytes, reader_.Number<uint64_t>());
  if (bytes > reader_.remaining()) {
    return Corrupt("a string claims {} bytes, but only {} are left in the file", bytes, reader_.remaining());
  }
  EM_RETURN_IF_ERROR(TakeRoom(bytes, 1, 1, "characters"));
  std::string text(bytes, '\0');
  EM_RETURN_IF_ERROR(reader_.Read(std::as_writable_bytes(std::span(text))));
  return text;
}

StatusOr<bool> GgufParser::ReadBool() {
  EM_ASSIGN_OR_RETURN(const uint8_t byte, reader_.Number<uint8_t>());
  if (byte > 1) return InvalidInput("a bool is {}, it must be 0 or 1", byte);
  return byte == 1;
}

StatusOr<GgufValue> GgufParser::ReadValue() {
  EM_ASSIGN_OR_RETURN(const uint32_t type, reader_.Number<uint32_t>());
  GgufValue value;
  value.type = static_cast<GgufType>(type);
  EM_RETURN_IF_ERROR(value.type == GgufType::kArray ? ReadArray(value) : ReadScalar(value));
  return value;
}

template <class Stored, class Held>
Status GgufParser::ReadNumber(GgufValue& value) {
  EM_ASSIGN_OR_RETURN(const Stored number, reader_.Number<Stored>());
  value.value = static_cast<Held>(number);
  return {};
}

Status GgufParser::ReadScalar(GgufValue& value) {
  switch (value.type) {
    case GgufType::kUint8:
      return ReadNumber<uint8_t, uint64_t>(value);
    case GgufType::kUint16:
      return ReadNumber<uint16_t, uint64_t>(value);
    case GgufType::kUint32:
      return ReadNumber<uint32_t, uint64_t>(value);
    case GgufType::kUint64:
      return ReadNumber<uint64_t, uint64_t>(value);
    case GgufType::kInt8:
      return ReadNumber<int8_t, int64_t>(value);
    case GgufType::kInt16:
      return ReadNumber<int16_t, int64_t>(value);
    case GgufType::kInt32:
      return ReadNumber<int32_t, int64_t>(value);
    case GgufType::kInt64:
      return ReadNumber<int64_t, int64_t>(value);
    case GgufType::kFloat32:
      return ReadNumber<float, double>(value);
    case GgufType::kFloat64:
      return ReadNumber<double, double>(value);
    case GgufType::kBool: {
      EM_ASSIGN_OR_RETURN(value.value, ReadBool());
      return {};
    }
    case GgufType::kString: {
      EM_ASSIGN_OR_RETURN(value.value, ReadString());
      return {};
    }
    case GgufType::kArray:
      break;
  }
  return InvalidInput("its type is {}, GGUF's are 0 to 12", static_cast<uint32_t>(value.type));
}

Status GgufParser::ReadArray(GgufValue& value) {
  EM_ASSIGN_OR_RETURN(const uint32_t type, reader_.Number<uint32_t>());
  value.element_type = static_cast<GgufType>(type);
  EM_ASSIGN_OR_RETURN(const uint64_t count, reader_.Number<uint64_t>());
  return ReadElements(value, count);
}

template <class Stored, class Held>
Status GgufParser::ReadNumbers(GgufValue& value, uint64_t count) {
  EM_RETURN_IF_ERROR(TakeRoom(count, sizeof(Stored), sizeof(Held), "array elements"));
  std::vector<Held> numbers(count);
  std::array<Stored, 512> some;
  for (size_t done = 0; done < count;) {
    const std::span<Stored> chunk = std::span(some).first(std::min<size_t>(some.size(), count - done));
    EM_RETURN_IF_ERROR(reader_.Read(std::as_writable_bytes(chunk)));
    std::ranges::copy(chunk, numbers.begin() + static_cast<ptrdiff_t>(done));
    done += chunk.size();
  }
  value.value = std::move(numbers);
  return {};
}

Status GgufParser::ReadBools(GgufValue& value, uint64_t count) {
  EM_RETURN_IF_ERROR(TakeRoom(count, 1, sizeof(uint64_t), "array elements"));
  std::vector<uint64_t> bools(count);
  for (uint64_t& element : bools) {
    EM_ASSIGN_OR_RETURN(element, ReadBool());
  }
  value.value = std::move(bools);
  return {};
}

Status GgufParser::ReadStrings(GgufValue& value, uint64_t count) {
  EM_RETURN_IF_ERROR(TakeRoom(count, sizeof(uint64_t), sizeof(std::string), "array elements"));
  std::vector<std::string> strings(count);
  for (std::string& element : strings) {
    EM_ASSIGN_OR_RETURN(element, ReadString());
  }
  value.value = std::move(strings);
  return {};
}

Status GgufParser::ReadElements(GgufValue& value, uint64_t count) {
  switch (value.element_type) {
    case GgufType::kUint8:
      return ReadNumbers<uint8_t, uint64_t>(value, count);
    case GgufType::kUint16:
      return ReadNumbers<uint16_t, uint64_t>(value, count);
    case GgufType::kUint32:
      return ReadNumbers<uint32_t, uint64_t>(value, count);
    case GgufType::kUint64:
      return ReadNumbers<uint64_t, uint64_t>(value, count);
    case GgufType::kInt8:
      return ReadNumbers<int8_t, int64_t>(value, count);
    case GgufType::kInt16:
      return ReadNumbers<int16_t, int64_t>(value, count);
    case GgufType::kInt32:
      return ReadNumbers<int32_t, int64_t>(value, count);
    case GgufType::kInt64:
      return ReadNumbers<int64_t, int64_t>(value, count);
    case GgufType::kFloat32:
      return ReadNumbers<float, float>(value, count);
    case GgufType::kFloat64:
      return ReadNumbers<double, double>(value, count);
    case GgufType::kBool:
      return ReadBools(value, count);
    case GgufType::kString:
      return ReadStrings(value, count);
    case GgufType::kArray:
      return Unsupported("it is an array of arrays, which is not read");
  }
  return InvalidInput("its element type is {}, GGUF's are 0 to 12", static_cast<uint32_t>(value.element_type));
}

}  // namespace elasticmem
