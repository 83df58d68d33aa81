#include "runtime/gguf/gguf_parser.h"

#include <algorithm>
#include <array>
#include <bit>
#include <new>
#include <utility>

#include "runtime/gguf/quoted.h"

namespace elasticmem {
namespace {

// What an entry takes in memory beside its text and values (map nodes, vectors), roughly.
constexpr uint64_t kEntryBytes = 256;
// What an entry takes in the file at least: the length of its name, then type and value, or dims, type and offset.
constexpr uint64_t kMinKeyBytes = 8 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 4 + 4 + 8;

// Types of ggml that we do not read, for messages.
constexpr std::pair<uint32_t, std::string_view> kUnreadTypes[] = {
    {4, "Q4_2"},        {5, "Q4_3"},        {9, "Q8_1"},      {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},
    {18, "IQ3_XXS"},    {19, "IQ1_S"},      {20, "IQ4_NL"},   {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"},
    {24, "I8"},         {25, "I16"},        {26, "I32"},      {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},
    {31, "Q4_0_4_4"},   {32, "Q4_0_4_8"},   {33, "Q4_0_8_8"}, {34, "TQ1_0"}, {35, "TQ2_0"},   {36, "IQ4_NL_4_4"},
    {37, "IQ4_NL_4_8"}, {38, "IQ4_NL_8_8"}, {39, "MXFP4"},
};
// PowerInfer left ggml before the IQ types: these numbers were integers then.
constexpr std::pair<uint32_t, std::string_view> kUnreadPowerInferTypes[] = {
    {4, "Q4_2"}, {5, "Q4_3"}, {9, "Q8_1"}, {15, "Q8_K"}, {16, "I8"}, {17, "I16"}, {18, "I32"},
};

std::string UnreadTypeName(uint32_t type, bool powerinfer) {
  const auto name_in = [type](std::span<const std::pair<uint32_t, std::string_view>> names) {
    for (const auto& [number, name] : names) {
      if (number == type) return fmt::format("{} (number {})", name, type);
    }
    return fmt::format("number {}", type);
  };
  return powerinfer ? name_in(kUnreadPowerInferTypes) : name_in(kUnreadTypes);
}

std::string ReadableTypes() {
  std::string names;
  for (const DTypeTraits& traits : kDTypes) names += fmt::format("{}{}", names.empty() ? "" : ", ", traits.name);
  return names;
}

std::string ShapeText(const std::vector<uint64_t>& shape) {
  std::string text;
  for (const uint64_t n : shape) text += fmt::format("{}{}", text.empty() ? "" : " x ", n);
  return text;
}

}  // namespace

StatusOr<GgufFile> GgufParser::Parse(ByteReader& reader, std::string_view name) {
  try {
    GgufParser parser(reader);
    parser.file_.paths_ = {std::string(name)};
    parser.file_.file_bytes_ = reader.size();
    EM_RETURN_IF_ERROR(WithContext(parser.ParsePart(), name));
    return std::move(parser.file_);
  } catch (const std::bad_alloc&) {
    return Exhausted("{}: no memory for its metadata", name);
  }
}

Status GgufParser::ParsePart() {
  EM_RETURN_IF_ERROR(ParseMagic());
  EM_RETURN_IF_ERROR(WithContext(ParseVersion(), "header"));
  const StatusOr<uint64_t> tensors = reader_.Number<uint64_t>();
  EM_RETURN_IF_ERROR(WithContext(tensors.status(), "header, number of tensors"));
  const StatusOr<uint64_t> keys = reader_.Number<uint64_t>();
  EM_RETURN_IF_ERROR(WithContext(keys.status(), "header, number of metadata keys"));
  EM_RETURN_IF_ERROR(ParseMetadata(*keys));
  EM_RETURN_IF_ERROR(ParseTensors(*tensors));
  EM_RETURN_IF_ERROR(PlaceTensors());
  return CheckOverlaps();
}

Status GgufParser::ParseMagic() {
  if (reader_.size() == 0) return Corrupt("the file is empty");
  std::array<char, 4> bytes;
  const size_t count = std::min<uint64_t>(bytes.size(), reader_.size());
  EM_RETURN_IF_ERROR(reader_.Read(std::as_writable_bytes(std::span(bytes).first(count))));
  const std::string_view magic(bytes.data(), count);
  if (magic == "FUGG" || magic == "IRWP") {
    return Unsupported("a big-endian GGUF file (it begins with {}): only little-endian ones are read", Quoted(magic));
  }
  if (magic != "GGUF" && magic != "PWRI") {
    return InvalidInput("not a GGUF file: it begins with {}, not with \"GGUF\" or \"PWRI\"", Quoted(magic));
  }
  file_.powerinfer_ = magic == "PWRI";
  return {};
}

Status GgufParser::ParseVersion() {
  EM_ASSIGN_OR_RETURN(const uint32_t version, reader_.Number<uint32_t>());
  if (version != 0 && (version & 0xffff) == 0) {
    return Unsupported("the version reads {:#010x}: a big-endian file of version {}; only little-endian ones are read",
                       version, __builtin_bswap32(version));
  }
  if (version != 2 && version != 3) return Unsupported("GGUF version {} is not read, only 2 and 3 are", version);
  file_.version_ = version;
  return {};
}

Status GgufParser::ParseMetadata(uint64_t count) {
  EM_RETURN_IF_ERROR(TakeRoom(count, kMinKeyBytes, kEntryBytes, "metadata keys"));
  for (uint64_t i = 0; i < count; ++i) {
    StatusOr<std::string> key = ReadString();
    EM_RETURN_IF_ERROR(WithContext(key.status(), fmt::format("name of metadata key {} of {}", i + 1, count)));
    if (file_.metadata_.contains(*key)) return InvalidInput("key {} appears twice", Quoted(*key));
    StatusOr<GgufValue> value = ReadValue();
    EM_RETURN_IF_ERROR(WithContext(value.status(), fmt::format("key {}", Quoted(*key))));
    file_.metadata_.emplace(*std::move(key), *std::move(value));
  }
  return {};
}

Status GgufParser::ParseTensors(uint64_t count) {
  EM_RETURN_IF_ERROR(TakeRoom(count, kMinTensorBytes, kEntryBytes, "tensors"));
  for (uint64_t i = 0; i < count; ++i) EM_RETURN_IF_ERROR(ParseTensor(i));
  return {};
}

Status GgufParser::ParseTensor(uint64_t number) {
  GgufTensor tensor;
  StatusOr<std::string> name = ReadString();
  EM_RETURN_IF_ERROR(WithContext(name.status(), fmt::format("name of tensor {}", number + 1)));
  tensor.name = *std::move(name);
  const std::string context = fmt::format("tensor {}", Quoted(tensor.name));
  if (!file_.tensor_index_.emplace(tensor.name, file_.tensors_.size()).second) {
    return InvalidInput("{} appears twice", context);
  }
  EM_RETURN_IF_ERROR(WithContext(ParseShape(tensor), context));
  EM_RETURN_IF_ERROR(WithContext(ParseDType(tensor), context));
  const StatusOr<uint64_t> offset = reader_.Number<uint64_t>();
  EM_RETURN_IF_ERROR(WithContext(offset.status(), context));
  tensor.offset = *offset;  // within the tensor data, until PlaceTensors
  file_.tensors_.push_back(std::move(tensor));
  return {};
}

Status GgufParser::ParseShape(GgufTensor& tensor) {
  EM_ASSIGN_OR_RETURN(const uint32_t dims, reader_.Number<uint32_t>());
  if (dims > kMaxDims) return InvalidInput("it has {} dimensions, at most {} are read", dims, kMaxDims);
  tensor.shape.resize(dims);
  for (uint64_t& n : tensor.shape) {
    EM_ASSIGN_OR_RETURN(n, reader_.Number<uint64_t>());
  }
  uint64_t elements = 1;
  for (const uint64_t n : tensor.shape) {
    if (n == 0) return InvalidInput("its shape {} holds a dimension of 0", ShapeText(tensor.shape));
    if (__builtin_mul_overflow(elements, n, &elements) || elements > INT64_MAX) {
      return InvalidInput("its shape {} has more than 2^63 - 1 elements", ShapeText(tensor.shape));
    }
  }
  return {};
}

Status GgufParser::ParseDType(GgufTensor& tensor) {
  EM_ASSIGN_OR_RETURN(const uint32_t type, reader_.Number<uint32_t>());
  const std::optional<DType> dtype = DTypeFromGguf(type);
  if (!dtype) {
    return Unsupported("its type, {}, is not read; these are: {}", UnreadTypeName(type, file_.powerinfer_),
                       ReadableTypes());
  }
  tensor.dtype = *dtype;
  const DTypeTraits& traits = Traits(*dtype);
  if (tensor.cols() % traits.block_elements != 0) {
    return InvalidInput("its rows of {} elements are no multiple of {}'s block of {}", tensor.cols(), traits.name,
                        traits.block_elements);
  }
  if (__builtin_mul_overflow(tensor.cols() / traits.block_elements * tensor.rows(), traits.block_bytes,
                             &tensor.bytes)) {
    return InvalidInput("its shape {} of {} takes more than 2^64 bytes", ShapeText(tensor.shape), traits.name);
  }
  return {};
}

StatusOr<uint64_t> GgufParser::Alignment() const {
  constexpr uint64_t kDefaultAlignment = 32;
  EM_ASSIGN_OR_RETURN(const uint64_t alignment, file_.UintOr("general.alignment", kDefaultAlignment));
  if (!std::has_single_bit(alignment)) {
    return InvalidInput("general.alignment is {}, it must be a power of two", alignment);
  }
  if (alignment > kMaxAlignment) {
    return InvalidInput("general.alignment is {}, at most {} is read", alignment, kMaxAlignment);
  }
  return alignment;
}

Status GgufParser::PlaceTensors() {
  EM_ASSIGN_OR_RETURN(const uint64_t alignment, Alignment());
  const uint64_t data_start = RoundUp(reader_.position(), alignment);
  for (GgufTensor& tensor : file_.tensors_) {
    if (tensor.offset % alignment != 0) {
      return InvalidInput("tensor {} is at offset {}, no multiple of general.alignment, {}", Quoted(tensor.name),
                          tensor.offset, alignment);
    }
    const auto end = static_cast<unsigned __int128>(data_start) + tensor.offset + tensor.bytes;
    if (end > reader_.size()) {
      return Corrupt("tensor {} ends at byte {}, the file has {}", Quoted(tensor.name), end, reader_.size());
    }
    tensor.offset += data_start;
  }
  return {};
}

Status GgufParser::CheckOverlaps() const {
  std::vector<const GgufTensor*> in_order;
  for (const GgufTensor& tensor : file_.tensors_) in_order.push_back(&tensor);
  std::ranges::sort(in_order, {}, &GgufTensor::offset);
  for (size_t i = 1; i < in_order.size(); ++i) {
    const GgufTensor& before = *in_order[i - 1];
    const GgufTensor& tensor = *in_order[i];
    if (tensor.offset < before.offset + before.bytes) {
      return InvalidInput("tensors {} (bytes {} to {}) and {} (from byte {}) overlap", Quoted(before.name),
                          before.offset, before.offset + before.bytes, Quoted(tensor.name), tensor.offset);
    }
  }
  return {};
}

Status GgufParser::TakeRoom(uint64_t count, uint64_t stored_bytes, uint64_t held_bytes, std::string_view what) {
  if (count > reader_.remaining() / stored_bytes) {
    return Corrupt("{} {} need {} bytes each at least, but only {} bytes are left in the file", count, what,
                   stored_bytes, reader_.remaining());
  }
  if (count > (kMaxMetadataBytes - held_bytes_) / held_bytes) {
    return Exhausted("{} {} here make more metadata than the {} that are read", count, what,
                     FormatBytes(kMaxMetadataBytes));
  }
  held_bytes_ += count * held_bytes;
  return {};
}

}  // namespace elasticmem
