#include "runtime/model/model_spec.h"

#include <array>
#include <cmath>

namespace elasticmem {
namespace {

// What differs between architectures beyond the tensors that a file has.
struct ArchitectureFacts {
  std::string_view name;
  NormKind norm;
  RopeKind rope;
  Activation activation;
  bool gated;
  bool parallel_ffn;
  bool learned_positions;
};
constexpr std::array<ArchitectureFacts, 8> kArchitectures = {{
    {"llama", NormKind::kRms, RopeKind::kAdjacent, Activation::kSilu, true, false, false},
    {"mistral", NormKind::kRms, RopeKind::kAdjacent, Activation::kSilu, true, false, false},
    {"bamboo", NormKind::kRms, RopeKind::kAdjacent, Activation::kDRelu, true, false, false},
    {"qwen2", NormKind::kRms, RopeKind::kHalves, Activation::kSilu, true, false, false},
    {"qwen3", NormKind::kRms, RopeKind::kHalves, Activation::kSilu, true, false, false},
    {"gemma3", NormKind::kRms, RopeKind::kHalves, Activation::kGeluTanh, true, false, false},
    {"opt", NormKind::kLayer, RopeKind::kNone, Activation::kRelu, false, false, true},
    {"falcon", NormKind::kLayer, RopeKind::kHalves, Activation::kGelu, false, true, false},
}};

struct ActivationEntry {
  std::string_view name;
  Activation activation;
};
constexpr std::array<ActivationEntry, 6> kActivations = {{{"relu", Activation::kRelu},
                                                          {"relu2", Activation::kRelu2},
                                                          {"drelu", Activation::kDRelu},
                                                          {"silu", Activation::kSilu},
                                                          {"gelu", Activation::kGelu},
                                                          {"gelu_tanh", Activation::kGeluTanh}}};

std::string Shape(const GgufTensor& tensor) {
  std::string text = "{";
  for (size_t i = 0; i < tensor.shape.size(); ++i) text += fmt::format("{}{}", i ? ", " : "", tensor.shape[i]);
  return text + "}";
}

std::string JoinNames() {
  std::string names;
  for (const ArchitectureFacts& a : kArchitectures) names += fmt::format("{}{}", names.empty() ? "" : ", ", a.name);
  return names;
}

// Reads one file's spec; each step fills a part of spec_.
class SpecReader {
 public:
  SpecReader(const GgufFile& gguf, std::string_view activation) : gguf_(gguf), activation_(activation) {}

  StatusOr<ModelSpec> Read() {
    EM_RETURN_IF_ERROR(ReadArchitecture());
    EM_RETURN_IF_ERROR(ReadShapes());
    EM_RETURN_IF_ERROR(ReadActivation());
    EM_RETURN_IF_ERROR(ReadRope());
    EM_RETURN_IF_ERROR(ReadOuterTensors());
    for (uint32_t l = 0; l < spec_.layers; ++l) EM_RETURN_IF_ERROR(ReadLayer(l));
    // Down rows are summed in pieces of 32.
    if (spec_.d_model % 32 != 0 && (spec_.HasSparseActivation() || spec_.layer[0].down_transposed)) {
      return Unsupported("{} is {}: models with a sparse activation need a multiple of 32", Key("embedding_length"),
                         spec_.d_model);
    }
    return std::move(spec_);
  }

 private:
  std::string Key(std::string_view name) const { return fmt::format("{}.{}", spec_.architecture, name); }

  Status ReadArchitecture() {
    EM_ASSIGN_OR_RETURN(spec_.architecture, gguf_.String("general.architecture"));
    for (const ArchitectureFacts& a : kArchitectures) {
      if (a.name == spec_.architecture) facts_ = &a;
    }
    if (!facts_) {
      return Unsupported("general.architecture is \"{}\"; this program runs {}", spec_.architecture, JoinNames());
    }
    EM_ASSIGN_OR_RETURN(spec_.name, gguf_.StringOr("general.name", ""));
    spec_.norm = facts_->norm;
    spec_.rope = facts_->rope;
    spec_.gated = facts_->gated;
    spec_.parallel_ffn = facts_->parallel_ffn;
    return absl::OkStatus();
  }

  // A count from the metadata, between 1 and `most`.
  Status ReadCount(std::string_view name, uint64_t most, uint32_t& out, std::optional<uint64_t> fallback = {}) {
    const std::string key = Key(name);
    uint64_t value = 0;
    if (fallback) {
      EM_ASSIGN_OR_RETURN(value, gguf_.UintOr(key, *fallback));
    } else {
      EM_ASSIGN_OR_RETURN(value, gguf_.Uint(key));
    }
    if (value < 1 || value > most) return InvalidInput("{} is {}; expected 1 to {}", key, value, most);
    out = static_cast<uint32_t>(value);
    return absl::OkStatus();
  }

  Status ReadShapes() {
    EM_RETURN_IF_ERROR(ReadCount("block_count", 4096, spec_.layers));
    EM_RETURN_IF_ERROR(ReadCount("embedding_length", 1 << 20, spec_.d_model));
    EM_RETURN_IF_ERROR(ReadCount("feed_forward_length", 1 << 24, spec_.ff));
    EM_RETURN_IF_ERROR(ReadCount("attention.head_count", 65536, spec_.heads));
    EM_RETURN_IF_ERROR(ReadCount("attention.head_count_kv", 65536, spec_.kv_heads, spec_.heads));
    EM_RETURN_IF_ERROR(ReadCount("context_length", uint64_t{1} << 31, spec_.context, 2048));
    if (spec_.heads % spec_.kv_heads != 0) {
      return InvalidInput("{} query heads are not a multiple of {} KV heads ({}, {})", spec_.heads, spec_.kv_heads,
                          Key("attention.head_count"), Key("attention.head_count_kv"));
    }
    const bool has_head_dim = gguf_.Find(Key("attention.key_length")) != nullptr;
    if (!has_head_dim && spec_.d_model % spec_.heads != 0) {
      return InvalidInput("{} = {} does not divide by {} = {}", Key("embedding_length"), spec_.d_model,
                          Key("attention.head_count"), spec_.heads);
    }
    EM_RETURN_IF_ERROR(ReadCount("attention.key_length", 65536, spec_.head_dim, spec_.d_model / spec_.heads));
    uint32_t value_dim = 0;
    EM_RETURN_IF_ERROR(ReadCount("attention.value_length", 65536, value_dim, spec_.head_dim));
    if (value_dim != spec_.head_dim) {
      return Unsupported("{} is {} but {} is {}: heads with different key and value sizes are not supported",
                         Key("attention.value_length"), value_dim, Key("attention.key_length"), spec_.head_dim);
    }
    const char* epsilon_key =
        spec_.norm == NormKind::kRms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon";
    EM_ASSIGN_OR_RETURN(const double epsilon, gguf_.FloatOr(Key(epsilon_key), 1e-5));
    if (!(epsilon >= 0 && epsilon < 1)) return InvalidInput("{} is {}", Key(epsilon_key), epsilon);
    spec_.norm_epsilon = static_cast<float>(epsilon);
    spec_.attention_scale = 1.0f / std::sqrt(static_cast<float>(spec_.head_dim));
    if (spec_.architecture == "gemma3") {
      spec_.embedding_scale = std::sqrt(static_cast<float>(spec_.d_model));
      // The 27B model alone scales queries by d / heads rather than by the head's size.
      if (spec_.layers == 62) {
        spec_.attention_scale = 1.0f / std::sqrt(static_cast<float>(spec_.d_model) / spec_.heads);
      }
    }
    EM_ASSIGN_OR_RETURN(const uint64_t window, gguf_.UintOr(Key("attention.sliding_window"), 0));
    spec_.window = window < spec_.context ? static_cast<uint32_t>(window) : 0;
    return absl::OkStatus();
  }

  Status ReadActivation() {
    spec_.activation = facts_->activation;
    if (gguf_.is_powerinfer() && spec_.activation != Activation::kDRelu) spec_.activation = Activation::kRelu;
    EM_ASSIGN_OR_RETURN(std::string name, gguf_.StringOr(Key("ffn_activation"), ""));
    std::string source = Key("ffn_activation");
    if (!activation_.empty()) {
      name = activation_;
      source = "--activation";
    }
    if (name.empty()) return absl::OkStatus();
    const std::optional<Activation> activation = ActivationFromName(name);
    if (!activation) {
      return InvalidInput("{} is \"{}\"; expected relu, relu2, drelu, silu, gelu or gelu_tanh", source, name);
    }
    if (*activation == Activation::kDRelu && !spec_.gated) {
      return InvalidInput("{} is drelu, but {} models have no gate", source, spec_.architecture);
    }
    spec_.activation = *activation;
    return absl::OkStatus();
  }

  Status ReadRope() {
    if (spec_.rope == RopeKind::kNone) return absl::OkStatus();
    uint32_t dims = 0;
    EM_RETURN_IF_ERROR(ReadCount("rope.dimension_count", 65536, dims, spec_.head_dim));
    if (dims > spec_.head_dim || dims % 2 != 0) {
      return InvalidInput("{} is {}; expected an even number up to the head size {}", Key("rope.dimension_count"), dims,
                          spec_.head_dim);
    }
    const double default_base = spec_.architecture == "gemma3" ? 1e6 : 1e4;
    EM_ASSIGN_OR_RETURN(const double base, gguf_.FloatOr(Key("rope.freq_base"), default_base));
    if (!(base > 0) || !std::isfinite(base)) return InvalidInput("{} is {}", Key("rope.freq_base"), base);
    EM_ASSIGN_OR_RETURN(const std::string scaling, gguf_.StringOr(Key("rope.scaling.type"), "none"));
    double factor = 1;
    if (scaling == "linear") {
      EM_ASSIGN_OR_RETURN(factor, gguf_.FloatOr(Key("rope.scaling.factor"), 1));
      if (!(factor > 0) || !std::isfinite(factor)) return InvalidInput("{} is {}", Key("rope.scaling.factor"), factor);
    } else if (scaling != "none") {
      return Unsupported("{} is \"{}\"; this program knows none and linear", Key("rope.scaling.type"), scaling);
    }
    const auto frequencies = [&](double b, double f) {
      std::vector<float> inverse(dims / 2);
      for (uint32_t i = 0; i < dims / 2; ++i) inverse[i] = static_cast<float>(std::pow(b, -2.0 * i / dims) / f);
      return inverse;
    };
    spec_.inverse_frequency = frequencies(base, factor);
    if (spec_.architecture == "gemma3") {
      EM_ASSIGN_OR_RETURN(const double local_base, gguf_.FloatOr(Key("rope.freq_base_swa"), 1e4));
      if (!(local_base > 0)) return InvalidInput("{} is {}", Key("rope.freq_base_swa"), local_base);
      spec_.local_inverse_frequency = frequencies(local_base, 1);
    }
    return absl::OkStatus();
  }

  // A tensor of exactly `shape`; null if absent and `required` is false.
  StatusOr<const GgufTensor*> Tensor(const std::string& name, std::initializer_list<uint64_t> shape, bool required) {
    const GgufTensor* tensor = gguf_.FindTensor(name);
    if (!tensor) {
      if (!required) return nullptr;
      return InvalidInput("the file has no tensor \"{}\", which {} models need", name, spec_.architecture);
    }
    std::vector<uint64_t> seen = tensor->shape;
    while (seen.size() > shape.size() && seen.back() == 1) seen.pop_back();
    if (!std::equal(seen.begin(), seen.end(), shape.begin(), shape.end())) {
      GgufTensor expected;
      expected.shape = shape;
      return InvalidInput("tensor \"{}\" has shape {}, but the metadata asks for {}", name, Shape(*tensor),
                          Shape(expected));
    }
    return tensor;
  }

  Status ReadMatrix(const std::string& name, uint64_t cols, uint64_t rows, MatrixRef& out, bool required = true) {
    EM_ASSIGN_OR_RETURN(const GgufTensor* tensor, Tensor(name, {cols, rows}, required));
    if (tensor) out = {tensor, 0, rows};
    return absl::OkStatus();
  }

  Status ReadVector(const std::string& name, uint64_t count, VectorRef& out, bool required) {
    EM_ASSIGN_OR_RETURN(const GgufTensor* tensor, Tensor(name, {count}, required));
    if (tensor) out = {tensor, 0, count};
    return absl::OkStatus();
  }

  Status ReadNorm(const std::string& name, NormRef& out, bool required = true) {
    EM_RETURN_IF_ERROR(ReadVector(name + ".weight", spec_.d_model, out.weight, required));
    if (!out.weight) return absl::OkStatus();
    return ReadVector(name + ".bias", spec_.d_model, out.bias, false);
  }

  Status ReadOuterTensors() {
    const GgufTensor* embedding = gguf_.FindTensor("token_embd.weight");
    if (!embedding) return InvalidInput("the file has no tensor \"token_embd.weight\"");
    if (embedding->shape.size() != 2 || embedding->cols() != spec_.d_model || embedding->rows() > (1 << 26)) {
      return InvalidInput("tensor \"token_embd.weight\" has shape {}, but {} is {}", Shape(*embedding),
                          Key("embedding_length"), spec_.d_model);
    }
    spec_.vocab = static_cast<uint32_t>(embedding->rows());
    spec_.embedding = {embedding, 0, spec_.vocab};
    EM_RETURN_IF_ERROR(ReadMatrix("output.weight", spec_.d_model, spec_.vocab, spec_.output, false));
    if (!spec_.output) spec_.output = spec_.embedding;
    EM_RETURN_IF_ERROR(ReadVector("output.bias", spec_.vocab, spec_.output_bias, false));
    EM_RETURN_IF_ERROR(ReadNorm("output_norm", spec_.output_norm));
    if (facts_->learned_positions) {
      const GgufTensor* positions = gguf_.FindTensor("position_embd.weight");
      if (!positions) return InvalidInput("the file has no tensor \"position_embd.weight\", which opt models need");
      if (positions->shape.size() != 2 || positions->cols() != spec_.d_model || positions->rows() <= 2) {
        return InvalidInput("tensor \"position_embd.weight\" has shape {}, but {} is {}", Shape(*positions),
                            Key("embedding_length"), spec_.d_model);
      }
      spec_.position_embedding = {positions, 0, positions->rows()};
      spec_.position_offset = 2;
      spec_.context = static_cast<uint32_t>(std::min<uint64_t>(spec_.context, positions->rows() - 2));
    }
    return ReadRopeFactors();
  }

  // Llama 3 files carry the scaling of each frequency as a tensor; its values are read with the other vectors.
  Status ReadRopeFactors() {
    if (spec_.inverse_frequency.empty()) return absl::OkStatus();
    return ReadVector("rope_freqs.weight", spec_.inverse_frequency.size(), spec_.rope_factors, false);
  }

  Status ReadAttention(const std::string& prefix, LayerSpec& layer) {
    const uint64_t d = spec_.d_model, q = spec_.q_dim(), kv = spec_.kv_dim();
    MatrixRef fused;
    EM_RETURN_IF_ERROR(ReadMatrix(prefix + "attn_qkv.weight", d, q + 2 * kv, fused, false));
    if (fused) {
      layer.q = {fused.tensor, 0, q};
      layer.k = {fused.tensor, q, kv};
      layer.v = {fused.tensor, q + kv, kv};
      VectorRef bias;
      EM_RETURN_IF_ERROR(ReadVector(prefix + "attn_qkv.bias", q + 2 * kv, bias, false));
      if (bias) {
        layer.q_bias = {bias.tensor, 0, q};
        layer.k_bias = {bias.tensor, q, kv};
        layer.v_bias = {bias.tensor, q + kv, kv};
      }
    } else {
      EM_RETURN_IF_ERROR(ReadMatrix(prefix + "attn_q.weight", d, q, layer.q));
      EM_RETURN_IF_ERROR(ReadMatrix(prefix + "attn_k.weight", d, kv, layer.k));
      EM_RETURN_IF_ERROR(ReadMatrix(prefix + "attn_v.weight", d, kv, layer.v));
      EM_RETURN_IF_ERROR(ReadVector(prefix + "attn_q.bias", q, layer.q_bias, false));
      EM_RETURN_IF_ERROR(ReadVector(prefix + "attn_k.bias", kv, layer.k_bias, false));
      EM_RETURN_IF_ERROR(ReadVector(prefix + "attn_v.bias", kv, layer.v_bias, false));
    }
    EM_RETURN_IF_ERROR(ReadMatrix(prefix + "attn_output.weight", q, d, layer.o));
    EM_RETURN_IF_ERROR(ReadVector(prefix + "attn_output.bias", d, layer.o_bias, false));
    EM_RETURN_IF_ERROR(ReadVector(prefix + "attn_q_norm.weight", spec_.head_dim, layer.q_norm, false));
    return ReadVector(prefix + "attn_k_norm.weight", spec_.head_dim, layer.k_norm, false);
  }

  Status ReadFfn(const std::string& prefix, LayerSpec& layer) {
    const uint64_t d = spec_.d_model, ff = spec_.ff;
    if (spec_.gated) EM_RETURN_IF_ERROR(ReadMatrix(prefix + "ffn_gate.weight", d, ff, layer.gate));
    EM_RETURN_IF_ERROR(ReadMatrix(prefix + "ffn_up.weight", d, ff, layer.up));
    EM_RETURN_IF_ERROR(ReadVector(prefix + "ffn_up.bias", ff, layer.up_bias, false));
    if (layer.up_bias && spec_.gated) {
      return Unsupported("tensor \"{}ffn_up.bias\": biases in gated feed-forward layers are not supported", prefix);
    }
    layer.down_transposed = gguf_.FindTensor(prefix + "ffn_down_t.weight") != nullptr;
    const std::string down = prefix + (layer.down_transposed ? "ffn_down_t" : "ffn_down");
    EM_RETURN_IF_ERROR(layer.down_transposed ? ReadMatrix(down + ".weight", d, ff, layer.down)
                                             : ReadMatrix(down + ".weight", ff, d, layer.down));
    return ReadVector(down + ".bias", d, layer.down_bias, false);
  }

  Status ReadLayer(uint32_t l) {
    const std::string prefix = fmt::format("blk.{}.", l);
    LayerSpec& layer = spec_.layer.emplace_back();
    EM_RETURN_IF_ERROR(ReadNorm(prefix + "attn_norm", layer.attention_norm));
    EM_RETURN_IF_ERROR(ReadAttention(prefix, layer));
    if (spec_.parallel_ffn) {
      // Falcon 7B norms once for both; 40B has attn_norm_2 for attention and keeps attn_norm for the FFN.
      layer.ffn_norm = layer.attention_norm;
      NormRef second;
      EM_RETURN_IF_ERROR(ReadNorm(prefix + "attn_norm_2", second, false));
      if (second.weight) layer.attention_norm = second;
    } else {
      EM_RETURN_IF_ERROR(ReadNorm(prefix + "ffn_norm", layer.ffn_norm));
    }
    EM_RETURN_IF_ERROR(ReadNorm(prefix + "post_attention_norm", layer.post_attention_norm, false));
    EM_RETURN_IF_ERROR(ReadNorm(prefix + "post_ffw_norm", layer.post_ffn_norm, false));
    EM_RETURN_IF_ERROR(ReadFfn(prefix, layer));
    // Gemma 3: every sixth layer is global. Mistral's window, where a file has one, holds for every layer.
    layer.local = spec_.architecture == "gemma3" ? l % 6 != 5 : spec_.window > 0;
    return absl::OkStatus();
  }

  const GgufFile& gguf_;
  std::string_view activation_;
  const ArchitectureFacts* facts_ = nullptr;
  ModelSpec spec_;
};

}  // namespace

std::optional<Activation> ActivationFromName(std::string_view name) {
  for (const ActivationEntry& entry : kActivations) {
    if (entry.name == name) return entry.activation;
  }
  return std::nullopt;
}

std::string_view ActivationName(Activation activation) {
  for (const ActivationEntry& entry : kActivations) {
    if (entry.activation == activation) return entry.name;
  }
  return "?";
}

StatusOr<ModelSpec> ReadModelSpec(const GgufFile& gguf, std::string_view activation) {
  return SpecReader(gguf, activation).Read();
}

}  // namespace elasticmem
