// Turns the bytes of one GGUF part into a GgufFile. A count or length is compared with the bytes that are left in the
// file before memory is taken for it, and all that is taken is bounded by kMaxMetadataBytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/units.h"
#include "runtime/gguf/byte_reader.h"
#include "runtime/gguf/gguf.h"

namespace elasticmem {

class GgufParser {
 public:
  static constexpr uint64_t kMaxMetadataBytes = 512_MiB;  // in memory; a vocabulary of 262,144 words takes about 30 MiB
  static constexpr uint64_t kMaxAlignment = 1_MiB;
  static constexpr uint32_t kMaxDims = 4;

  // `name` goes into paths() and in front of every error.
  static StatusOr<GgufFile> Parse(ByteReader& reader, std::string_view name);

 private:
  explicit GgufParser(ByteReader& reader) : reader_(reader) {}

  Status ParsePart();
  Status ParseMagic();
  Status ParseVersion();
  Status ParseMetadata(uint64_t count);
  Status ParseTensors(uint64_t count);
  Status ParseTensor(uint64_t number);
  Status ParseShape(GgufTensor& tensor);
  Status ParseDType(GgufTensor& tensor);
  Status PlaceTensors();
  Status CheckOverlaps() const;
  StatusOr<uint64_t> Alignment() const;

  StatusOr<std::string> ReadString();
  StatusOr<bool> ReadBool();
  StatusOr<GgufValue> ReadValue();
  Status ReadScalar(GgufValue& value);
  Status ReadArray(GgufValue& value);
  Status ReadElements(GgufValue& value, uint64_t count);
  template <class Stored, class Held>
  Status ReadNumber(GgufValue& value);
  template <class Stored, class Held>
  Status ReadNumbers(GgufValue& value, uint64_t count);
  Status ReadBools(GgufValue& value, uint64_t count);
  Status ReadStrings(GgufValue& value, uint64_t count);

  // Refuses `count` things that take at least `stored_bytes` each in the file and `held_bytes` each in memory, where
  // the file or the memory for metadata has no room for them.
  Status TakeRoom(uint64_t count, uint64_t stored_bytes, uint64_t held_bytes, std::string_view what);

  ByteReader& reader_;
  GgufFile file_;
  uint64_t held_bytes_ = 0;  // <= kMaxMetadataBytes
};

}  // namespace elasticmem
