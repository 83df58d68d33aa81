#include "tests/tools/tiny_model.h"

#include <fcntl.h>
#include <unistd.h>

#include <variant>

#include "tests/tools/program.h"

namespace elasticmem::testing {
namespace {

// A scalar as GGUF's `type`.
template <class T>
void PutAs(ByteWriter& writer, GgufType type, const T& value) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      writer.Number(static_cast<uint8_t>(value));
      break;
    case GgufType::kUint16:
    case GgufType::kInt16:
      writer.Number(static_cast<uint16_t>(value));
      break;
    case GgufType::kFloat32:
      writer.Number(static_cast<float>(value));
      break;
    case GgufType::kFloat64:
      writer.Number(static_cast<double>(value));
      break;
    case GgufType::kUint32:
    case GgufType::kInt32:
      writer.Number(static_cast<uint32_t>(value));
      break;
    default:
      writer.Number(static_cast<uint64_t>(value));
  }
}

std::vector<std::byte> Bytes(const GgufValue& value) {
  ByteWriter writer;
  if (value.type == GgufType::kArray) writer.Number(static_cast<uint32_t>(value.element_type));
  std::visit(
      [&](const auto& v) {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::string>) {
          writer.String(v);
        } else if constexpr (std::is_arithmetic_v<T>) {
          PutAs(writer, value.type, v);
        } else {
          writer.Number<uint64_t>(v.size());
          for (const auto& element : v) {
            if constexpr (std::is_same_v<T, std::vector<std::string>>) {
              writer.String(element);
            } else {
              PutAs(writer, value.element_type, element);
            }
          }
        }
      },
      value.value);
  return writer.bytes();
}

}  // namespace

GgufBuilder BuilderOf(const std::string& name) {
  const std::string path = SourcePath(name);
  const StatusOr<GgufFile> file = GgufFile::Open(path);
  EM_CHECK(file.ok());
  const std::string bytes = ReadFileBytes(path);
  GgufBuilder builder;
  for (const auto& [key, value] : file->metadata()) builder.SetRaw(key, value.type, Bytes(value));
  for (const GgufTensor& tensor : file->tensors()) {
    const auto data = std::as_bytes(std::span(bytes).subspan(tensor.offset, tensor.bytes));
    builder.AddTensor(tensor.name, tensor.dtype, tensor.shape, {data.begin(), data.end()});
  }
  return builder;
}

uint64_t OffsetOf(const std::string& path, std::string_view tensor) {
  const StatusOr<GgufFile> file = GgufFile::Open(path);
  EM_CHECK(file.ok());
  const GgufTensor* found = file->FindTensor(tensor);
  EM_CHECK(found != nullptr);
  return found->offset;
}

void Poke(const std::string& path, uint64_t offset, std::string_view bytes) {
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  EM_CHECK(descriptor >= 0);
  EM_CHECK(pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(offset)) ==
           static_cast<ssize_t>(bytes.size()));
  close(descriptor);
}

void FlipBit(const std::string& path, uint64_t offset) {
  std::string bytes = ReadFileBytes(path);
  EM_CHECK(offset < bytes.size());
  Poke(path, offset, std::string(1, static_cast<char>(bytes[offset] ^ 16)));
}

}  // namespace elasticmem::testing
