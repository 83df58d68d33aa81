#include "runtime/engine/transformer.h"

#include <algorithm>
#include <cstring>

#include "base/carver.h"
#include "base/units.h"
#include "dense_ops/matmul.h"
#include "tensor/interleave.h"

namespace elasticmem {
namespace {

// Rows of one chunk of a product: enough to amortise a ticket, whole tiles of interleaved rows, and a few chunks for
// each thread.
constexpr size_t kMinRowsPerChunk = kInterleavedRows;
constexpr size_t kElementsPerChunk = 1024;
// Rows of a sequence that share the work on its KV.
constexpr uint32_t kAttendRows = 16;

size_t RopePairs(const ModelSpec& spec) { return spec.inverse_frequency.size(); }

}  // namespace

// Activations of a step; [tokens, width] each, rows one after another.
struct Transformer::Scratch {
  float* x;              // [tokens, d] the residual stream
  float* h;              // [tokens, d] normed input of a block
  float* q;              // [tokens, q_dim]
  float* k;              // [tokens, kv_dim]
  float* v;              // [tokens, kv_dim]
  float* heads;          // [tokens, q_dim] attention's output before the o product
  float* attention;      // [tokens, d]
  float* gate;           // [tokens, ff]
  float* up;             // [tokens, ff]; matrices only
  float* ffn;            // [tokens, d]
  float* rope;           // [tokens, 2 * pairs], then the same for local layers
  float* attend;         // [threads, AttendScratchFloats]
  std::byte* quantised;  // [tokens, prepared row] of the widest input
  float* logits;         // [logits_rows, vocab]
  size_t quantised_stride;
  size_t attend_stride;

  static size_t Carve(std::byte* base, const ModelSpec& spec, size_t tokens, size_t logits_rows, int threads,
                      FfnPath ffn, const KvPageLayout& page, Scratch& s) {
    Carver carver(base);
    const bool matrices = ffn == FfnPath::kMatrices;
    const size_t d = spec.d_model, ff = spec.ff;
    const size_t widest = std::max<size_t>({d, spec.q_dim(), matrices ? ff : 0});
    s.quantised_stride = ActivationStride(ActivationFormat::kQ16, widest);
    s.attend_stride = RoundUp<size_t>(AttendScratchFloats(page, kAttendRows, spec.heads / spec.kv_heads), 16);
    s.x = carver.Take<float>(tokens * d);
    s.h = carver.Take<float>(tokens * d);
    s.q = carver.Take<float>(tokens * spec.q_dim());
    s.k = carver.Take<float>(tokens * spec.kv_dim());
    s.v = carver.Take<float>(tokens * spec.kv_dim());
    s.heads = carver.Take<float>(tokens * spec.q_dim());
    s.attention = carver.Take<float>(tokens * d);
    s.gate = carver.Take<float>(tokens * ff);
    s.up = carver.Take<float>(matrices && spec.gated ? tokens * ff : 0);
    s.ffn = carver.Take<float>(tokens * d);
    s.rope = carver.Take<float>(tokens * RopePairs(spec) * 4);
    s.attend = carver.Take<float>(threads * s.attend_stride);
    s.quantised = carver.Take<std::byte>(tokens * s.quantised_stride);
    s.logits = carver.Take<float>(logits_rows * spec.vocab);
    return carver.used();
  }
};

// A step's input to one or more products: float32 rows, and the quantised form made when the first product wants it.
struct Transformer::Input {
  const float* x;
  size_t tokens;
  size_t cols;
  bool quantised_ready = false;
};

uint64_t StepScratchBytes(const ModelSpec& spec, uint32_t chunk, uint32_t logits_rows, int threads, FfnPath ffn,
                          uint32_t page_tokens) {
  KvPageLayout page;
  page.page_tokens = page_tokens;
  page.kv_heads = spec.kv_heads;
  page.head_dim = spec.head_dim;
  return Transformer::ScratchBytes(spec, chunk, logits_rows, threads, ffn, page);
}

uint64_t Transformer::ScratchBytes(const ModelSpec& spec, uint32_t max_rows, uint32_t max_logits_rows, int threads,
                                   FfnPath ffn, const KvPageLayout& page) {
  Scratch scratch;
  return Scratch::Carve(nullptr, spec, max_rows, max_logits_rows, threads, ffn, page, scratch);
}

StatusOr<std::unique_ptr<Transformer>> Transformer::Create(Budget& budget, const Parts& parts, uint32_t max_rows,
                                                           uint32_t max_logits_rows) {
  KvPageLayout page;
  page.type = parts.kv_type;
  page.page_tokens = parts.kv->page_tokens();
  page.kv_heads = parts.spec->kv_heads;
  page.head_dim = parts.spec->head_dim;
  const FfnPath ffn = parts.sparse_ffn ? FfnPath::kRecords : FfnPath::kMatrices;
  EM_ASSIGN_OR_RETURN(AlignedBuffer memory, AlignedBuffer::Allocate(budget, MemoryCategory::kScratch,
                                                                    ScratchBytes(*parts.spec, max_rows, max_logits_rows,
                                                                                 parts.team->threads(), ffn, page)));
  return std::unique_ptr<Transformer>(new Transformer(parts, page, max_rows, max_logits_rows, std::move(memory)));
}

Transformer::Transformer(const Parts& parts, const KvPageLayout& page, uint32_t max_rows, uint32_t max_logits_rows,
                         AlignedBuffer memory)
    : parts_(parts),
      spec_(*parts.spec),
      weights_(*parts.weights),
      team_(*parts.team),
      max_rows_(max_rows),
      max_logits_rows_(max_logits_rows),
      page_(page),
      memory_(std::move(memory)),
      s_(std::make_unique<Scratch>()) {
  const FfnPath ffn = parts.sparse_ffn ? FfnPath::kRecords : FfnPath::kMatrices;
  Scratch::Carve(memory_.data(), spec_, max_rows, max_logits_rows, team_.threads(), ffn, page_, *s_);
  inverse_frequency_ = spec_.inverse_frequency;
  for (size_t i = 0; i < weights_.rope_factors().size(); ++i) inverse_frequency_[i] /= weights_.rope_factors()[i];
}

Transformer::~Transformer() = default;

StatusOr<std::span<const float>> Transformer::Step(std::span<const StepRow> rows,
                                                   std::span<const uint32_t> logits_rows) {
  EM_CHECK(!rows.empty() && rows.size() <= max_rows_ && logits_rows.size() <= max_logits_rows_);
  Team::Session session(team_);
  const size_t tokens = rows.size();
  const size_t d = spec_.d_model;

  EM_RETURN_IF_ERROR(Embed(rows));
  PrepareRope(rows);
  FindRuns(rows);
  for (uint32_t l = 0; l < spec_.layers; ++l) {
    const LayerWeights& w = weights_.layers()[l];

    if (parts_.promoter) EM_RETURN_IF_ERROR(parts_.promoter->Pump());
    Norm(w.attention_norm, s_->x, tokens, s_->h);
    EM_RETURN_IF_ERROR(Attention(rows, l));
    Norm(w.post_attention_norm, s_->attention, tokens, s_->attention);

    if (spec_.parallel_ffn) {
      // Both blocks read the layer's input.
      Norm(w.ffn_norm, s_->x, tokens, s_->h);
      Add(s_->x, s_->attention, tokens * d);
    } else {
      Add(s_->x, s_->attention, tokens * d);
      Norm(w.ffn_norm, s_->x, tokens, s_->h);
    }
    EM_RETURN_IF_ERROR(FeedForward(tokens, l));
    Norm(w.post_ffn_norm, s_->ffn, tokens, s_->ffn);
    Add(s_->x, s_->ffn, tokens * d);
  }

  if (logits_rows.empty()) return std::span<const float>();
  for (size_t i = 0; i < logits_rows.size(); ++i) {
    if (logits_rows[i] != i) std::copy_n(s_->x + logits_rows[i] * d, d, s_->x + i * d);
  }
  Norm(weights_.output_norm(), s_->x, logits_rows.size(), s_->h);
  Input input{s_->h, logits_rows.size(), d};
  EM_RETURN_IF_ERROR(MatMul(weights_.output(), input, s_->logits, weights_.output_bias()));
  return std::span<const float>(s_->logits, logits_rows.size() * spec_.vocab);
}

Status Transformer::Embed(std::span<const StepRow> rows) {
  const size_t d = spec_.d_model;
  for (size_t t = 0; t < rows.size(); ++t) {
    float* x = s_->x + t * d;
    EM_RETURN_IF_ERROR(weights_.ReadRow(spec_.embedding, rows[t].token, x));
    for (size_t i = 0; i < d; ++i) x[i] *= spec_.embedding_scale;
    if (!spec_.position_embedding) continue;
    EM_RETURN_IF_ERROR(weights_.ReadRow(spec_.position_embedding, rows[t].position + spec_.position_offset, s_->h));
    for (size_t i = 0; i < d; ++i) x[i] += s_->h[i];
  }
  return absl::OkStatus();
}

void Transformer::PrepareRope(std::span<const StepRow> rows) {
  const size_t stride = 2 * RopePairs(spec_);
  if (stride == 0) return;
  float* local = s_->rope + rows.size() * stride;
  for (size_t t = 0; t < rows.size(); ++t) {
    RopeAngles(rows[t].position, inverse_frequency_, s_->rope + t * stride);
    if (!spec_.local_inverse_frequency.empty()) {
      RopeAngles(rows[t].position, spec_.local_inverse_frequency, local + t * stride);
    }
  }
}

// attention = o . attend(rope(q), rope(k), v), all from h.
Status Transformer::Attention(std::span<const StepRow> rows, uint32_t layer) {
  const LayerWeights& w = weights_.layers()[layer];
  const size_t tokens = rows.size();
  const size_t hd = spec_.head_dim;
  Input input{s_->h, tokens, spec_.d_model};
  EM_RETURN_IF_ERROR(MatMul(w.q, input, s_->q, w.q_bias));
  EM_RETURN_IF_ERROR(MatMul(w.k, input, s_->k, w.k_bias));
  EM_RETURN_IF_ERROR(MatMul(w.v, input, s_->v, w.v_bias));

  const bool local = spec_.layer[layer].local;
  const size_t pairs = RopePairs(spec_);
  const float* rope = s_->rope + (local && !spec_.local_inverse_frequency.empty() ? tokens * 2 * pairs : 0);
  team_.ParallelFor(tokens, [&](size_t t) {
    float* q = s_->q + t * spec_.q_dim();
    float* k = s_->k + t * spec_.kv_dim();
    if (w.q_norm) {
      for (size_t h = 0; h < spec_.heads; ++h) RmsNorm({q + h * hd, hd}, w.q_norm, spec_.norm_epsilon, q + h * hd);
    }
    if (w.k_norm) {
      for (size_t h = 0; h < spec_.kv_heads; ++h) RmsNorm({k + h * hd, hd}, w.k_norm, spec_.norm_epsilon, k + h * hd);
    }
    ApplyRope(spec_.rope, rope + t * 2 * pairs, pairs, spec_.heads, hd, q);
    ApplyRope(spec_.rope, rope + t * 2 * pairs, pairs, spec_.kv_heads, hd, k);
    const uint32_t position = rows[t].position;
    std::byte* page = parts_.kv->WritablePage(rows[t].sequence, layer, position / page_.page_tokens);
    WriteKv(page_, page, position % page_.page_tokens, k, s_->v + t * spec_.kv_dim());
  });
  AttendAll(rows, layer);
  Input heads{s_->heads, tokens, spec_.q_dim()};
  return MatMul(w.o, heads, s_->attention, w.o_bias);
}

// Rows that follow each other in their sequence go together, a few at a time: they share the work on its KV.
void Transformer::FindRuns(std::span<const StepRow> rows) {
  attend_first_.assign(1, 0);
  for (uint32_t t = 1; t < rows.size(); ++t) {
    const bool follows = rows[t].sequence == rows[t - 1].sequence && rows[t].position == rows[t - 1].position + 1;
    if (!follows || t - attend_first_.back() == kAttendRows) attend_first_.push_back(t);
  }
  attend_first_.push_back(static_cast<uint32_t>(rows.size()));
}

void Transformer::AttendAll(std::span<const StepRow> rows, uint32_t layer) {
  const uint32_t window = spec_.layer[layer].local ? spec_.window : 0;
  const uint32_t group = spec_.heads / spec_.kv_heads;
  const size_t units = (attend_first_.size() - 1) * spec_.kv_heads;
  const size_t workers = std::min<size_t>(team_.threads(), units);
  team_.ParallelFor(workers, [&](size_t worker) {
    for (size_t unit = worker; unit < units; unit += workers) {
      const uint32_t first = attend_first_[unit / spec_.kv_heads], end = attend_first_[unit / spec_.kv_heads + 1];
      const uint32_t head = static_cast<uint32_t>(unit % spec_.kv_heads);
      const size_t at = first * spec_.q_dim() + size_t{head} * group * spec_.head_dim;
      Attend(page_, parts_.kv->PagePointers(rows[first].sequence, layer),
             {0, rows[first].position + 1, end - first, window}, head, s_->q + at, spec_.q_dim(), group,
             spec_.attention_scale, s_->attend + worker * s_->attend_stride, s_->heads + at);
    }
  });
}

// ffn = down . (act(gate . h) * (up . h))
Status Transformer::FeedForward(size_t tokens, uint32_t layer) {
  const LayerWeights& w = weights_.layers()[layer];
  const size_t ff = spec_.ff;
  const size_t d = spec_.d_model;
  Input input{s_->h, tokens, d};
  // In ungated models up is the gate.
  EM_RETURN_IF_ERROR(spec_.gated ? MatMul(w.gate, input, s_->gate) : MatMul(w.up, input, s_->gate, w.up_bias));
  const size_t chunks = CeilDiv(tokens * ff, kElementsPerChunk);
  const auto for_elements = [&](auto&& body) {
    team_.ParallelFor(chunks, [&](size_t chunk) {
      const size_t begin = chunk * kElementsPerChunk;
      body(begin, std::min(tokens * ff, begin + kElementsPerChunk));
    });
  };
  for_elements([&](size_t begin, size_t end) { ApplyActivation(spec_.activation, {s_->gate + begin, end - begin}); });

  if (parts_.sparse_ffn) {
    SparseFfn::Rows rows{layer, tokens, {}, s_->gate, s_->ffn};
    if (spec_.gated) rows.x = Prepared(input, FormatFor(parts_.up_type));
    EM_RETURN_IF_ERROR(parts_.sparse_ffn->Run(rows, parts_.all_neurons));
  } else {
    if (spec_.gated) {
      EM_RETURN_IF_ERROR(MatMul(w.up, input, s_->up));
      const bool drelu = spec_.activation == Activation::kDRelu;
      for_elements([&](size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i) s_->gate[i] *= drelu && s_->up[i] < 0 ? 0.0f : s_->up[i];
      });
    }
    Input hidden{s_->gate, tokens, ff};
    EM_RETURN_IF_ERROR(spec_.layer[layer].down_transposed ? AccumulateTransposed(w.down, s_->gate, tokens, s_->ffn)
                                                          : MatMul(w.down, hidden, s_->ffn));
  }
  if (w.down_bias) {
    for (size_t t = 0; t < tokens; ++t) Add(s_->ffn + t * d, w.down_bias, d);
  }
  return absl::OkStatus();
}

// y[t] = sum over i, in order, of coefficients[t, i] * row i of `down` [ff, d].
Status Transformer::AccumulateTransposed(const DenseMatrix& down, const float* coefficients, size_t tokens, float* y) {
  const size_t d = spec_.d_model;
  const size_t unit = std::max<size_t>(32, Traits(down.rows.dtype).block_elements);
  const size_t splits = std::min<size_t>(team_.threads(), CeilDiv(d, unit));
  const size_t width = RoundUp(CeilDiv(d, splits), unit);
  std::memset(y, 0, tokens * d * sizeof(float));
  return ForSlices(down, [&](const WeightRows& rows, size_t first_row) {
    team_.ParallelFor(tokens * splits, [&](size_t chunk) {
      const size_t t = chunk / splits;
      const size_t begin = std::min(d, chunk % splits * width);
      const size_t end = std::min(d, begin + width);
      constexpr size_t kRows = 64;
      const std::byte* pointers[kRows];
      for (size_t r = 0; r < rows.rows && begin < end; r += kRows) {
        const size_t n = std::min(kRows, rows.rows - r);
        for (size_t i = 0; i < n; ++i) pointers[i] = rows.Row(r + i);
        AccumulateRows(rows.dtype, {pointers, n}, coefficients + t * spec_.ff + first_row + r, begin, end, y + t * d);
      }
    });
  });
}

ActivationRows Transformer::Prepared(Input& input, ActivationFormat format) {
  if (format == ActivationFormat::kF32) {
    return {format, reinterpret_cast<const std::byte*>(input.x), input.tokens, input.cols * sizeof(float)};
  }
  if (!input.quantised_ready) {
    team_.ParallelFor(input.tokens, [&](size_t t) {
      PrepareActivations(format, input.x + t * input.cols, input.cols, s_->quantised + t * s_->quantised_stride);
    });
    input.quantised_ready = true;
  }
  return {format, s_->quantised, input.tokens, s_->quantised_stride};
}

// Calls body(rows, index of their first row) for the matrix as it comes: what is in memory at once, the rest slice by
// slice.
template <class Body>
Status Transformer::ForSlices(const DenseMatrix& w, Body&& body) {
  WeightRows rows = w.rows;
  if (w.resident_rows > 0) {
    rows.rows = w.resident_rows;
    body(rows, 0);
  }
  for (size_t slice = 0; slice < w.slices(); ++slice) {
    EM_ASSIGN_OR_RETURN(rows.data, parts_.stream->Acquire(w.first_slice + slice));
    rows.interleaved = false;
    const size_t first_row = w.resident_rows + slice * w.rows_per_slice;
    rows.rows = std::min(w.rows_per_slice, w.rows.rows - first_row);
    body(rows, first_row);
    parts_.stream->Release();
  }
  return absl::OkStatus();
}

// y [tokens, rows] = w . input (+ bias)
Status Transformer::MatMul(const DenseMatrix& w, Input& input, float* y, const float* bias) {
  const size_t out = w.rows.rows;
  const ActivationRows x = Prepared(input, FormatFor(w.rows.dtype));
  EM_RETURN_IF_ERROR(ForSlices(w, [&](const WeightRows& rows, size_t first_row) {
    const size_t per_thread = CeilDiv<size_t>(rows.rows, size_t{8} * team_.threads());
    const size_t per_chunk = RoundUp(std::max(kMinRowsPerChunk, per_thread), kMinRowsPerChunk);
    team_.ParallelFor(CeilDiv(rows.rows, per_chunk), [&](size_t chunk) {
      const size_t begin = chunk * per_chunk;
      MatMulRows(rows, begin, std::min(rows.rows, begin + per_chunk), x, y + first_row, out);
    });
  }));
  if (bias) {
    for (size_t t = 0; t < input.tokens; ++t) Add(y + t * out, bias, out);
  }
  return absl::OkStatus();
}

void Transformer::Norm(const NormWeights& norm, const float* x, size_t tokens, float* out) {
  if (!norm.weight) return;
  const size_t d = spec_.d_model;
  team_.ParallelFor(tokens, [&](size_t t) {
    if (spec_.norm == NormKind::kRms) {
      RmsNorm({x + t * d, d}, norm.weight, spec_.norm_epsilon, out + t * d);
    } else {
      LayerNorm({x + t * d, d}, norm.weight, norm.bias, spec_.norm_epsilon, out + t * d);
    }
  });
}

void Transformer::Add(float* x, const float* y, size_t count) {
  for (size_t i = 0; i < count; ++i) x[i] += y[i];
}

}  // namespace elasticmem
