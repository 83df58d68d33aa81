// Reads GGUF files (versions 2 and 3, PowerInfer's PWRI magic, splits): metadata and where each tensor's bytes lie.
// Weights are not read here. Every count, offset and length is checked against the file's size before memory is taken.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "tensor/dtype.h"

namespace elasticmem {

enum class GgufType : uint32_t {
  kUint8 = 0, kInt8 = 1, kUint16 = 2, kInt16 = 3, kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7,
  kString = 8, kArray = 9, kUint64 = 10, kInt64 = 11, kFloat64 = 12,
};

std::string_view GgufTypeName(GgufType type);  // "u32", "string"; "array" for kArray

// A metadata value. Integers of every width are held as 64 bits, with their declared type beside them.
struct GgufValue {
  GgufType type = GgufType::kUint32;          // of the value, or kArray
  GgufType element_type = GgufType::kUint32;  // of an array's elements
  std::variant<uint64_t, int64_t, double, bool, std::string, std::vector<uint64_t>, std::vector<int64_t>,
               std::vector<float>, std::vector<double>, std::vector<std::string>>
      value;  // bool arrays are vector<uint64_t>; f32 arrays vector<float>
};

struct GgufTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;  // shape[0] is contiguous
  uint32_t file = 0;            // index into GgufFile::paths()
  uint64_t offset = 0;          // of its first byte in that file
  uint64_t bytes = 0;

  uint64_t cols() const { return shape.empty() ? 1 : shape[0]; }
  uint64_t rows() const {
    uint64_t n = 1;
    for (size_t i = 1; i < shape.size(); ++i) n *= shape[i];
    return n;
  }
};

class GgufFile {
 public:
  // Opens `path` and, if its metadata says it is the first of several, the other parts beside it.
  static StatusOr<GgufFile> Open(const std::string& path);
  // Parses one part from memory (for fuzzing and tests); `name` is used in messages. Other parts are not looked for.
  static StatusOr<GgufFile> Parse(std::span<const std::byte> bytes, std::string_view name);

  bool is_powerinfer() const { return powerinfer_; }  // PWRI magic
  uint32_t version() const { return version_; }
  uint64_t file_bytes() const { return file_bytes_; }  // all parts
  uint64_t parameters() const;                         // elements over all tensors
  const std::vector<std::string>& paths() const { return paths_; }
  const std::map<std::string, GgufValue, std::less<>>& metadata() const { return metadata_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in file order

  const GgufTensor* FindTensor(std::string_view name) const;  // null if absent
  const GgufValue* Find(std::string_view key) const;          // null if absent

  // Typed look-ups. Absent: the fallback, or an error that names the key for the ones without a fallback.
  // Present with another type: an error that names the key and both types. Any integer type that holds the value will do.
  StatusOr<uint64_t> Uint(std::string_view key) const;
  StatusOr<uint64_t> UintOr(std::string_view key, uint64_t fallback) const;
  StatusOr<double> Float(std::string_view key) const;  // f32, f64
  StatusOr<double> FloatOr(std::string_view key, double fallback) const;
  StatusOr<bool> BoolOr(std::string_view key, bool fallback) const;
  StatusOr<std::string> String(std::string_view key) const;
  StatusOr<std::string> StringOr(std::string_view key, std::string_view fallback) const;
  // Arrays; null where absent.
  StatusOr<const std::vector<std::string>*> Strings(std::string_view key) const;
  StatusOr<const std::vector<float>*> Floats(std::string_view key) const;
  StatusOr<std::optional<std::vector<int64_t>>> Ints(std::string_view key) const;  // any integer or bool array

  // Frees arrays of more than 1,024 elements (the vocabulary) once the tokenizer has been built from them: they are
  // absent from then on.
  void DropArrays();

 private:
  friend class GgufParser;
  bool powerinfer_ = false;
  uint32_t version_ = 3;
  uint64_t file_bytes_ = 0;
  std::vector<std::string> paths_;
  std::map<std::string, GgufValue, std::less<>> metadata_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, size_t, std::less<>> tensor_index_;
};

}  // namespace elasticmem
