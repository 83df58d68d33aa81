// A model file opened: its metadata, spec and tokenizer. Weights stay on disk until an Engine loads them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "runtime/gguf/gguf.h"
#include "runtime/model/model_spec.h"
#include "runtime/model/neuron_store_packer.h"
#include "runtime/text/tokenizer.h"

namespace elasticmem {

struct ModelOptions {
  std::string activation;     // "" = what the file says
  std::string pre_tokenizer;  // "" = what the file says
};

class Model {
 public:
  static StatusOr<std::unique_ptr<Model>> Open(const std::string& path, const ModelOptions& options);

  const std::string& path() const { return path_; }
  const GgufFile& gguf() const { return gguf_; }
  const ModelSpec& spec() const { return spec_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  const std::string& chat_template() const { return chat_template_; }  // "" where the file has none

  // What a neuron store is made of. Only for models with a sparse activation.
  PackSource pack_source() const;

  // Bytes of host memory that the tokenizer and metadata hold.
  uint64_t MemoryBytes() const;

  // Reads all weights and names the first tensor that holds NaN or infinity, with its row; OK if none does.
  Status CheckFinite() const;

 private:
  Model(std::string path, GgufFile gguf, Tokenizer tokenizer)
      : path_(std::move(path)), gguf_(std::move(gguf)), tokenizer_(std::move(tokenizer)) {}

  std::string path_;
  GgufFile gguf_;
  Tokenizer tokenizer_;
  ModelSpec spec_;  // points into gguf_
  std::string chat_template_;
};

}  // namespace elasticmem
