// A small GGUF of nothing but FFN tensors with random weights of any type, its PackSource, and the weights as the file
// means them: for tests of the neuron store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/status.h"
#include "runtime/gguf/gguf.h"
#include "runtime/model/neuron_store_packer.h"
#include "tensor/dtype.h"
#include "tensor/quantize.h"
#include "tests/gguf/gguf_builder.h"

namespace elasticmem {

struct FfnShape {
  bool gated = true;
  bool down_transposed = false;
  uint32_t d_model = 256;
  uint32_t ff = 512;
  uint32_t layers = 2;
  DType gate = DType::kF16;
  DType up = DType::kF16;
  std::vector<DType> down = {DType::kF16};  // of each layer; the last one for the layers after it
};

// One row of `elements` random weights of `dtype`; of types we can't quantise to, random blocks with sane scales.
inline std::vector<std::byte> RandomRow(DType dtype, size_t elements, std::mt19937& random) {
  std::vector<std::byte> row(RowBytes(dtype, elements));
  if (CanQuantize(dtype)) {
    std::normal_distribution<float> normal(0, 0.05f);
    std::vector<float> weights(elements);
    for (float& weight : weights) weight = normal(random);
    EM_CHECK(QuantizeRow(dtype, weights, row.data()).ok());
    return row;
  }
  for (std::byte& byte : row) byte = static_cast<std::byte>(random());
  std::vector<size_t> scales;
  switch (dtype) {
    case DType::kQ5_0:
      scales = {0};
      break;
    case DType::kQ2_K:
      scales = {80, 82};
      break;
    case DType::kQ3_K:
      scales = {108};
      break;
    case DType::kQ6_K:
      scales = {208};
      break;
    default:
      scales = {0, 2};  // Q4_1, Q5_1, Q4_K, Q5_K
  }
  for (size_t block = 0; block < row.size(); block += Traits(dtype).block_bytes) {
    for (const size_t offset : scales) {
      const uint16_t scale = F32ToF16(0.001f * static_cast<float>(1 + random() % 8));
      std::memcpy(row.data() + block + offset, &scale, sizeof(scale));
    }
  }
  return row;
}

class FfnModel {
 public:
  // Writes the model to `path`.
  FfnModel(const std::string& path, const FfnShape& shape, uint32_t seed = 1) : path_(path), shape_(shape) {
    std::mt19937 random(seed);
    GgufBuilder builder;
    builder.Set("general.architecture", "llama");
    for (uint32_t layer = 0; layer < shape.layers; ++layer) {
      if (shape.gated) Add(builder, Name(layer, "gate"), shape.gate, shape.d_model, shape.ff, random);
      Add(builder, Name(layer, "up"), shape.up, shape.d_model, shape.ff, random);
      const DType down = shape.down[std::min<size_t>(layer, shape.down.size() - 1)];
      if (shape.down_transposed) Add(builder, Name(layer, "down"), down, shape.d_model, shape.ff, random);
      if (!shape.down_transposed) Add(builder, Name(layer, "down"), down, shape.ff, shape.d_model, random);
    }
    builder.Write(path);
    Reopen();
  }

  // Reads the file anew, after a test has changed it.
  void Reopen() {
    StatusOr<GgufFile> file = GgufFile::Open(path_);
    EM_CHECK(file.ok());
    file_ = std::make_unique<GgufFile>(*std::move(file));
    source_ = PackSource{.file = file_.get(), .layers = {}, .d_model = shape_.d_model, .ff = shape_.ff, .order = {}};
    for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
      source_.layers.push_back({.gate = file_->FindTensor(Name(layer, "gate")),
                                .up = file_->FindTensor(Name(layer, "up")),
                                .down = file_->FindTensor(Name(layer, "down")),
                                .down_transposed = shape_.down_transposed});
    }
  }

  const std::string& path() const { return path_; }
  const FfnShape& shape() const { return shape_; }
  const GgufFile& file() const { return *file_; }
  PackSource& source() { return source_; }

  // Row `row` of a tensor as floats, read from the file.
  std::vector<float> Row(const GgufTensor& tensor, uint64_t row) const {
    std::vector<std::byte> bytes(RowBytes(tensor.dtype, tensor.cols()));
    std::ifstream file(path_, std::ios::binary);
    file.seekg(static_cast<std::streamoff>(tensor.offset + row * bytes.size()));
    file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    EM_CHECK(file.good());
    std::vector<float> out(tensor.cols());
    DequantizeRow(tensor.dtype, bytes.data(), out.size(), out.data());
    return out;
  }

  // All of a layer's down columns: [ff][d_model].
  std::vector<std::vector<float>> DownColumns(uint32_t layer) const {
    const FfnTensors& tensors = source_.layers[layer];
    std::vector<std::vector<float>> columns(shape_.ff, std::vector<float>(shape_.d_model));
    for (uint64_t row = 0; row < tensors.down->rows(); ++row) {
      const std::vector<float> values = Row(*tensors.down, row);
      for (size_t i = 0; i < values.size(); ++i) {
        if (tensors.down_transposed) columns[row][i] = values[i];
        if (!tensors.down_transposed) columns[i][row] = values[i];
      }
    }
    return columns;
  }

 private:
  static std::string Name(uint32_t layer, std::string_view part) {
    return fmt::format("blk.{}.ffn_{}.weight", layer, part);
  }
  static void Add(GgufBuilder& builder, const std::string& name, DType dtype, uint64_t cols, uint64_t rows,
                  std::mt19937& random) {
    std::vector<std::byte> data;
    for (uint64_t row = 0; row < rows; ++row) {
      const std::vector<std::byte> bytes = RandomRow(dtype, cols, random);
      data.insert(data.end(), bytes.begin(), bytes.end());
    }
    builder.AddTensor(name, dtype, {cols, rows}, std::move(data));
  }

  std::string path_;
  FfnShape shape_;
  std::unique_ptr<GgufFile> file_;
  PackSource source_;
};

inline std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void WriteAll(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  EM_CHECK(file.flush().good());
}

}  // namespace elasticmem
