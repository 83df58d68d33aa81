// What a model is, as data: shapes, norms, RoPE, biases, activation, gating, windows, scales, and where each tensor
// lies. One forward pass runs every architecture from this; an architecture is a row of facts here, not a copy of the
// pass.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dense_ops/transformer_ops.h"
#include "ffn_ops/sparse_ffn.h"
#include "runtime/gguf/gguf.h"

namespace elasticmem {

enum class NormKind : uint8_t { kRms, kLayer };

// `rows` rows of a weight matrix from `row_begin` on (a fused QKV tensor is three of them).
struct MatrixRef {
  const GgufTensor* tensor = nullptr;
  uint64_t row_begin = 0;
  uint64_t rows = 0;

  explicit operator bool() const { return tensor != nullptr; }
  uint64_t cols() const { return tensor->cols(); }
  uint64_t row_bytes() const { return RowBytes(tensor->dtype, tensor->cols()); }
  uint64_t bytes() const { return rows * row_bytes(); }
  uint64_t offset() const { return tensor->offset + row_begin * row_bytes(); }
};

// Elements [begin, begin + count) of a vector tensor (a bias of a fused QKV is three of them).
struct VectorRef {
  const GgufTensor* tensor = nullptr;
  uint64_t begin = 0;
  uint64_t count = 0;

  explicit operator bool() const { return tensor != nullptr; }
};

struct NormRef {
  VectorRef weight;
  VectorRef bias;
};

// Absent parts are null.
struct LayerSpec {
  NormRef attention_norm;  // before attention
  MatrixRef q, k, v, o;    // [heads * head_dim, d], [kv_heads * head_dim, d] twice, [d, heads * head_dim]
  VectorRef q_bias, k_bias, v_bias, o_bias;
  VectorRef q_norm, k_norm;     // RMS over head_dim
  NormRef post_attention_norm;  // gemma3: on the attention's output
  NormRef ffn_norm;             // before the FFN; parallel models: on the layer's input
  MatrixRef gate, up;           // [ff, d]; gate is null in ungated models, where up is the gate
  MatrixRef down;               // [d, ff], or [ff, d] where down_transposed
  bool down_transposed = false;
  VectorRef up_bias, down_bias;
  NormRef post_ffn_norm;
  bool local = false;  // attends within the sliding window, with the local RoPE base
};

struct ModelSpec {
  std::string name;
  std::string architecture;
  uint32_t layers = 0;
  uint32_t d_model = 0;
  uint32_t ff = 0;
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t vocab = 0;
  uint32_t context = 0;  // trained for

  NormKind norm = NormKind::kRms;
  float norm_epsilon = 1e-5f;
  RopeKind rope = RopeKind::kAdjacent;
  std::vector<float> inverse_frequency;        // [rotated pairs] of global layers
  std::vector<float> local_inverse_frequency;  // of local layers; empty: the same
  VectorRef rope_factors;                      // divides inverse_frequency, element by element (Llama 3); or null
  float attention_scale = 0;
  float embedding_scale = 1;
  uint32_t window = 0;           // of local layers, in tokens; 0: none
  bool parallel_ffn = false;     // FFN reads the layer's input, beside attention (falcon)
  uint32_t position_offset = 0;  // added to positions before the learned table (OPT: 2)

  bool gated = true;
  Activation activation = Activation::kSilu;

  MatrixRef embedding;           // [vocab, d]
  MatrixRef position_embedding;  // [positions, d] or null
  NormRef output_norm;
  MatrixRef output;  // [vocab, d]; the embedding where tied
  VectorRef output_bias;
  std::vector<LayerSpec> layer;

  uint32_t kv_dim() const { return kv_heads * head_dim; }
  uint32_t q_dim() const { return heads * head_dim; }
  bool tied() const { return output.tensor == embedding.tensor; }
  // A zero gate makes a neuron's whole contribution zero, so exact mode can skip it.
  bool HasSparseActivation() const {
    return activation == Activation::kRelu || activation == Activation::kRelu2 || activation == Activation::kDRelu;
  }
};

// The names that --activation and llama.ffn_activation understand: relu, relu2, drelu, silu, gelu, gelu_tanh.
std::optional<Activation> ActivationFromName(std::string_view name);
std::string_view ActivationName(Activation activation);

// Reads and checks `gguf`'s metadata and tensors. `activation` overrides what the file says ("" = the file's rule: the
// key llama.ffn_activation, else ReLU for PowerInfer's magic, else the architecture's). Errors name the key or tensor,
// what was expected and what was found. The spec points into `gguf`, which must outlive it.
StatusOr<ModelSpec> ReadModelSpec(const GgufFile& gguf, std::string_view activation = "");

}  // namespace elasticmem
