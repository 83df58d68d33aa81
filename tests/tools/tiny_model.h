// Small valid models that tests then break: the tiny ones of tests/golden as a GgufBuilder or as bytes on disk.
#pragma once

#include <string>
#include <string_view>

#include "runtime/gguf/gguf.h"
#include "tests/gguf/gguf_builder.h"

namespace elasticmem::testing {

inline constexpr const char* kTinyRelu = "tests/golden/tiny/llama-relu.gguf";  // SentencePiece, F16, one layer
inline constexpr const char* kTales = "models/tales-q8_0.gguf";

// All keys and tensors of a GGUF of the source tree.
GgufBuilder BuilderOf(const std::string& name);

// Where the weights of `tensor` begin in the file at `path`.
uint64_t OffsetOf(const std::string& path, std::string_view tensor);

// Overwrites bytes of a file in place.
void Poke(const std::string& path, uint64_t offset, std::string_view bytes);
void FlipBit(const std::string& path, uint64_t offset);

}  // namespace elasticmem::testing
