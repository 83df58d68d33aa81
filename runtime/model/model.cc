#include "runtime/model/model.h"

#include <algorithm>

#include "base/units.h"
#include "mem/read_queue.h"
#include "runtime/model/finite.h"

namespace elasticmem {

StatusOr<std::unique_ptr<Model>> Model::Open(const std::string& path, const ModelOptions& options) {
  EM_ASSIGN_OR_RETURN(GgufFile gguf, GgufFile::Open(path));
  EM_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::FromGguf(gguf, options.pre_tokenizer));
  EM_ASSIGN_OR_RETURN(std::string chat_template, gguf.StringOr("tokenizer.chat_template", ""));
  std::unique_ptr<Model> model(new Model(path, std::move(gguf), std::move(tokenizer)));
  model->gguf_.DropArrays();
  model->chat_template_ = std::move(chat_template);
  EM_ASSIGN_OR_RETURN(model->spec_, ReadModelSpec(model->gguf_, options.activation));
  const size_t vocabulary = model->tokenizer_.vocab_size();
  if (vocabulary > model->spec_.vocab) {
    return InvalidInput("{}: the tokenizer has {} tokens, but tensor \"token_embd.weight\" has {} rows", path,
                        vocabulary, model->spec_.vocab);
  }
  return model;
}

PackSource Model::pack_source() const {
  PackSource source;
  source.file = &gguf_;
  source.d_model = spec_.d_model;
  source.ff = spec_.ff;
  for (const LayerSpec& layer : spec_.layer) {
    source.layers.push_back({layer.gate.tensor, layer.up.tensor, layer.down.tensor, layer.down_transposed});
  }
  return source;
}

uint64_t Model::MemoryBytes() const {
  uint64_t bytes = tokenizer_.MemoryBytes() + chat_template_.capacity();
  for (const GgufTensor& tensor : gguf_.tensors()) bytes += sizeof(tensor) + 2 * tensor.name.capacity() + 64;
  return bytes + spec_.layer.size() * sizeof(LayerSpec);
}

Status Model::CheckFinite() const {
  std::vector<ReadFile> files;
  for (const std::string& path : gguf_.paths()) {
    EM_ASSIGN_OR_RETURN(ReadFile file, ReadFile::Open(path, false));
    files.push_back(std::move(file));
  }
  std::vector<std::byte> buffer;
  for (const GgufTensor& tensor : gguf_.tensors()) {
    const uint64_t row_bytes = RowBytes(tensor.dtype, tensor.cols());
    const uint64_t rows_per_read = std::max<uint64_t>(1, (1_MiB) / std::max<uint64_t>(1, row_bytes));
    for (uint64_t row = 0; row < tensor.rows(); row += rows_per_read) {
      const uint64_t rows = std::min(rows_per_read, tensor.rows() - row);
      buffer.resize(rows * row_bytes);
      EM_RETURN_IF_ERROR(files[tensor.file].ReadAt(tensor.offset + row * row_bytes, buffer));
      for (uint64_t r = 0; r < rows; ++r) {
        if (AllFinite(tensor.dtype, buffer.data() + r * row_bytes, tensor.cols())) continue;
        return Corrupt("{}: tensor \"{}\" has a NaN or infinite weight in row {}", gguf_.paths()[tensor.file], tensor.name,
                       row + r);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace elasticmem
