// Writes small GGUF files in memory, right ones and wrong ones: for tests of the reader and of all that reads models.
//
//   GgufBuilder builder;
//   builder.Set("general.architecture", "llama").Set("llama.block_count", uint32_t{2});
//   builder.Set("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b"});
//   builder.AddTensor("output_norm.weight", {4}, std::vector<float>{1, 1, 1, 1});
//   GgufFile::Parse(builder.Build(), "test")   or   builder.Write(path)
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/status.h"
#include "runtime/gguf/gguf.h"
#include "tensor/dtype.h"

namespace elasticmem {

// Bytes that grow as little-endian numbers and GGUF strings are put behind them.
class ByteWriter {
 public:
  template <class T>
  requires std::is_arithmetic_v<T> ByteWriter& Number(T value) { return Bytes(std::as_bytes(std::span(&value, 1))); }
  ByteWriter& Bytes(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) bytes_.push_back(byte);  // GCC 12 warns of insert() wrongly
    return *this;
  }
  ByteWriter& Text(std::string_view text) { return Bytes(std::as_bytes(std::span(text))); }  // without its length
  ByteWriter& String(std::string_view text) { return Number<uint64_t>(text.size()).Text(text); }
  ByteWriter& PadTo(uint64_t multiple) {
    while (multiple != 0 && bytes_.size() % multiple != 0) bytes_.push_back({});
    return *this;
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

class GgufBuilder {
 public:
  // What the header says, where a test wants it to say something else.
  std::string magic = "GGUF";
  uint32_t version = 3;
  std::optional<uint64_t> tensor_count;
  std::optional<uint64_t> key_count;
  uint64_t alignment = 32;  // by which tensors are placed; written as general.alignment by SetAlignment only

  // A metadata value of the C++ type's GGUF type: integers of all widths, float, double, bool, text, and vectors of
  // them. Replaces what the key had.
  GgufBuilder& Set(std::string_view key, const char* text) { return Set(key, std::string(text)); }
  GgufBuilder& Set(std::string_view key, std::string_view text) { return Set(key, std::string(text)); }
  template <class T>
  GgufBuilder& Set(std::string_view key, const T& value) {
    ByteWriter writer;
    Put(writer, value);
    return SetRaw(key, TypeOf<T>(), writer.bytes());
  }
  template <class T>
  GgufBuilder& Set(std::string_view key, const std::vector<T>& values) {
    ByteWriter writer;
    writer.Number(static_cast<uint32_t>(TypeOf<T>())).template Number<uint64_t>(values.size());
    for (const auto& value : values) Put<T>(writer, value);
    return SetRaw(key, GgufType::kArray, writer.bytes());
  }
  // Any bytes as the value of `key`.
  GgufBuilder& SetRaw(std::string_view key, GgufType type, std::vector<std::byte> value) {
    Remove(key);
    return AppendRaw(key, type, std::move(value));
  }
  // The same, beside what the key has already.
  GgufBuilder& AppendRaw(std::string_view key, GgufType type, std::vector<std::byte> value) {
    keys_.push_back({std::string(key), static_cast<uint32_t>(type), std::move(value)});
    return *this;
  }
  GgufBuilder& Remove(std::string_view key) {
    std::erase_if(keys_, [key](const Key& k) { return k.name == key; });
    return *this;
  }
  GgufBuilder& SetAlignment(uint32_t bytes) {
    alignment = bytes;
    return Set("general.alignment", bytes);
  }

  struct Tensor {
    std::string name;
    uint32_t type = 0;  // GGUF's number
    std::vector<uint64_t> shape;
    std::vector<std::byte> data;
    std::optional<uint64_t> offset;  // in the tensor data; after the tensor before it, aligned, where not given
  };
  GgufBuilder& AddTensor(Tensor tensor) {
    tensors_.push_back(std::move(tensor));
    return *this;
  }
  GgufBuilder& AddTensor(std::string_view name, DType dtype, std::vector<uint64_t> shape, std::vector<std::byte> data) {
    return AddTensor({std::string(name), Traits(dtype).gguf_type, std::move(shape), std::move(data), {}});
  }
  // F32; shape[0] is contiguous.
  GgufBuilder& AddTensor(std::string_view name, std::vector<uint64_t> shape, std::span<const float> values) {
    const auto bytes = std::as_bytes(values);
    return AddTensor(name, DType::kF32, std::move(shape), {bytes.begin(), bytes.end()});
  }
  GgufBuilder& RemoveTensor(std::string_view name) {
    std::erase_if(tensors_, [name](const Tensor& t) { return t.name == name; });
    return *this;
  }
  // To change it in place; null if absent.
  Tensor* FindTensor(std::string_view name) {
    const auto found = std::ranges::find(tensors_, name, &Tensor::name);
    return found == tensors_.end() ? nullptr : &*found;
  }

  std::vector<std::byte> Build() const {
    ByteWriter file;
    file.Text(magic).Number(version);
    file.Number(tensor_count.value_or(tensors_.size())).Number(key_count.value_or(keys_.size()));
    for (const Key& key : keys_) file.String(key.name).Number(key.type).Bytes(key.value);
    ByteWriter data;
    for (const Tensor& tensor : tensors_) {
      data.PadTo(alignment);
      file.String(tensor.name).Number(static_cast<uint32_t>(tensor.shape.size()));
      for (const uint64_t n : tensor.shape) file.Number(n);
      file.Number(tensor.type).Number(tensor.offset.value_or(data.bytes().size()));
      data.Bytes(tensor.data);
    }
    if (!tensors_.empty()) file.PadTo(alignment);
    return file.Bytes(data.bytes()).bytes();
  }
  void Write(const std::string& path) const {
    const std::vector<std::byte> bytes = Build();
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    EM_CHECK(file.flush().good());
  }

 private:
  struct Key {
    std::string name;
    uint32_t type;
    std::vector<std::byte> value;
  };

  template <class T>
  static void Put(ByteWriter& writer, const T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      writer.String(value);
    } else {
      writer.Number(value);
    }
  }

  template <class T>
  static constexpr GgufType TypeOf() {
    if constexpr (std::is_same_v<T, uint8_t>) return GgufType::kUint8;
    if constexpr (std::is_same_v<T, int8_t>) return GgufType::kInt8;
    if constexpr (std::is_same_v<T, uint16_t>) return GgufType::kUint16;
    if constexpr (std::is_same_v<T, int16_t>) return GgufType::kInt16;
    if constexpr (std::is_same_v<T, uint32_t>) return GgufType::kUint32;
    if constexpr (std::is_same_v<T, int32_t>) return GgufType::kInt32;
    if constexpr (std::is_same_v<T, uint64_t>) return GgufType::kUint64;
    if constexpr (std::is_same_v<T, int64_t>) return GgufType::kInt64;
    if constexpr (std::is_same_v<T, float>) return GgufType::kFloat32;
    if constexpr (std::is_same_v<T, double>) return GgufType::kFloat64;
    if constexpr (std::is_same_v<T, bool>) return GgufType::kBool;
    if constexpr (std::is_same_v<T, std::string>) return GgufType::kString;
  }

  std::vector<Key> keys_;
  std::vector<Tensor> tensors_;
};

}  // namespace elasticmem
