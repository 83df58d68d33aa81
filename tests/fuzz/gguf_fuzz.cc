// libFuzzer over the GGUF reader: any bytes give a file whose tensors lie within it, or a Status.
// Starts from small right files of its own, so it needs no corpus.
#include <cstdint>
#include <cstring>
#include <span>

#include "runtime/gguf/gguf.h"
#include "tests/gguf/gguf_builder.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace elasticmem {
namespace {

std::vector<std::byte> Seed(unsigned choice) {
  GgufBuilder builder;
  builder.magic = choice % 4 == 0 ? "PWRI" : "GGUF";
  builder.version = choice % 2 == 0 ? 2 : 3;
  builder.Set("general.architecture", "llama").SetAlignment(8u << choice % 4);
  builder.Set("u8", uint8_t{1}).Set("i64", int64_t{-1}).Set("f64", 1.0).Set("flag", true);
  builder.Set("tokens", std::vector<std::string>{"<unk>", "a"}).Set("scores", std::vector<float>{0, -1});
  builder.Set("ints", std::vector<int16_t>{-1, 2}).Set("flags", std::vector<bool>{true, false});
  builder.Set("split.no", uint16_t{0}).Set("split.count", uint16_t{1});
  const DTypeTraits& traits = kDTypes[choice % kDTypes.size()];
  builder.AddTensor("a", traits.dtype, {256, 2}, std::vector<std::byte>(RowBytes(traits.dtype, 256) * 2));
  builder.AddTensor("b", {8}, std::vector<float>(8));
  return builder.Build();
}

void ReadAll(const GgufFile& file, uint64_t bytes) {
  for (const GgufTensor& tensor : file.tensors()) {
    EM_CHECK(tensor.offset <= bytes && tensor.bytes <= bytes - tensor.offset);
    EM_CHECK(tensor.bytes == RowBytes(tensor.dtype, tensor.cols()) * tensor.rows());
    EM_CHECK(file.FindTensor(tensor.name) == &tensor);
  }
  for (const auto& [key, value] : file.metadata()) {
    const int fitting = file.Uint(key).ok() + file.Float(key).ok() + file.BoolOr(key, false).ok() +
                        file.String(key).ok() + file.Strings(key).ok() + file.Floats(key).ok() + file.Ints(key).ok();
    EM_CHECK(fitting <= 1);
  }
}

}  // namespace
}  // namespace elasticmem

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using elasticmem::GgufFile;
  elasticmem::StatusOr<GgufFile> file = GgufFile::Parse(std::as_bytes(std::span(data, size)), "fuzz");
  if (!file.ok()) {
    EM_CHECK(!elasticmem::Message(file.status()).empty());
    return 0;
  }
  elasticmem::ReadAll(*file, size);
  file->DropArrays();
  elasticmem::ReadAll(*file, size);
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  if (size < 24 || seed % 256 == 0) {
    const std::vector<std::byte> bytes = elasticmem::Seed(seed / 256);
    if (bytes.size() <= max_size) {
      std::memcpy(data, bytes.data(), bytes.size());
      size = bytes.size();
    }
  }
  return LLVMFuzzerMutate(data, size, max_size);
}
