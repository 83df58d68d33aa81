#include "runtime/engine/transformer.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/carver.h"
#include "base/stopwatch.h"
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

void Add(float* x, const float* y, size_t count) {
  for (size_t i = 0; i < count; ++i) x[i] += y[i];
}

// What is in memory of a matrix.
WeightRows InMemory(const DenseMatrix& w) {
  WeightRows rows = w.rows;
  rows.rows = w.resident_rows;
  return rows;
}

// y [tokens, y_stride] at rows [begin, end) = those rows . x (+ bias)
void MultiplyRows(const WeightRows& rows, size_t begin, size_t end, const ActivationRows& x, float* y, size_t y_stride,
                  const float* bias) {
  MatMulRows(rows, begin, end, x, y, y_stride);
  if (!bias) return;
  for (size_t t = 0; t < x.tokens; ++t) Add(y + t * y_stride + begin, bias + begin, end - begin);
}

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

// A step's input to one or more products: float32 rows, and the quantised form, made with the norm that made the rows or
// when the first product wants it.
struct Transformer::Input {
  const float* x;
  size_t tokens;
  size_t cols;
  bool quantised_ready = false;
};

// One of the products that share an input: y [tokens, rows of w] = w . input (+ bias).
struct Transformer::Product {
  const DenseMatrix& w;
  float* y;
  const float* bias = nullptr;
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
  const std::span<const LayerWeights> layers = weights_.layers();
  team_.ParallelFor(tokens, [&](size_t t) { NormInput(layers[0].attention_norm, layers[0].q, t); });
  for (uint32_t l = 0; l < spec_.layers; ++l) {
    const LayerWeights& w = layers[l];
    if (parts_.promoter) EM_RETURN_IF_ERROR(parts_.promoter->Pump());
    EM_RETURN_IF_ERROR(Attention(rows, l));
    const DenseMatrix& first_of_ffn = spec_.gated ? w.gate : w.up;
    team_.ParallelFor(tokens, [&](size_t t) {
      float *x = s_->x + t * d, *y = s_->attention + t * d;
      Norm(w.post_attention_norm, y, y);
      if (spec_.parallel_ffn) NormInput(w.ffn_norm, first_of_ffn, t);  // both blocks read the layer's input
      Add(x, y, d);
      if (!spec_.parallel_ffn) NormInput(w.ffn_norm, first_of_ffn, t);
    });
    EM_RETURN_IF_ERROR(FeedForward(tokens, l));
    team_.ParallelFor(tokens, [&](size_t t) {
      float *x = s_->x + t * d, *y = s_->ffn + t * d;
      if (w.down_bias) Add(y, w.down_bias, d);
      Norm(w.post_ffn_norm, y, y);
      Add(x, y, d);
      if (l + 1 < spec_.layers) NormInput(layers[l + 1].attention_norm, layers[l + 1].q, t);
    });
  }

  if (logits_rows.empty()) return std::span<const float>();
  for (size_t i = 0; i < logits_rows.size(); ++i) {
    Norm(weights_.output_norm(), s_->x + logits_rows[i] * d, s_->h + i * d);
  }
  Input input{s_->h, logits_rows.size(), d};
  EM_RETURN_IF_ERROR(MatMul({{weights_.output(), s_->logits, weights_.output_bias()}}, input));
  return std::span<const float>(s_->logits, logits_rows.size() * spec_.vocab);
}

double Transformer::HotMultiplyAdds(uint32_t tokens) {
  const WeightRows rows = InMemory(weights_.layers()[0].q);
  const size_t per_thread =
      std::min<size_t>(16 * kMinRowsPerChunk, rows.rows / team_.threads()) / kMinRowsPerChunk * kMinRowsPerChunk;
  if (per_thread == 0) return 0;
  std::fill_n(s_->h, tokens * spec_.d_model, 1.0f);
  Input input{s_->h, tokens, spec_.d_model};
  const ActivationRows x = Prepared(input, FormatFor(rows.dtype));
  const auto once = [&](size_t worker) {
    MatMulRows(rows, worker * per_thread, (worker + 1) * per_thread, x, s_->q, spec_.q_dim());
  };
  const double each = static_cast<double>(per_thread * team_.threads()) * spec_.d_model * tokens;
  size_t repeats = 1;
  for (double best = 0;; repeats *= 2) {
    const auto begin = std::chrono::steady_clock::now();
    team_.ParallelFor(team_.threads(), [&](size_t worker) {
      for (size_t i = 0; i < repeats; ++i) once(worker);
    });
    const double seconds = SecondsSince(begin);
    best = std::max(best, each * static_cast<double>(repeats) / seconds);
    if (seconds > 0.05) return best;
  }
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
  Input input = NormedInput(w.q, tokens);
  EM_RETURN_IF_ERROR(MatMul({{w.q, s_->q, w.q_bias}, {w.k, s_->k, w.k_bias}, {w.v, s_->v, w.v_bias}}, input));

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
  return MatMul({{w.o, s_->attention, w.o_bias}}, heads);
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
  Input input = NormedInput(spec_.gated ? w.gate : w.up, tokens);
  EM_RETURN_IF_ERROR(Hidden(tokens, layer, input));
  if (parts_.sparse_ffn) {
    SparseFfn::Rows rows{layer, tokens, {}, s_->gate, s_->ffn};
    if (spec_.gated) rows.x = Prepared(input, FormatFor(parts_.up_type));
    return parts_.sparse_ffn->Run(rows, parts_.all_neurons);
  }
  if (spec_.layer[layer].down_transposed) return AccumulateTransposed(w.down, s_->gate, tokens, s_->ffn);
  Input hidden{s_->gate, tokens, spec_.ff};
  return MatMul({{w.down, s_->ffn}}, hidden);
}

// gate [tokens, ff] = act(gate . h), and where up is a matrix times up . h. In ungated models up is the gate.
Status Transformer::Hidden(size_t tokens, uint32_t layer, Input& input) {
  const LayerWeights& w = weights_.layers()[layer];
  const size_t ff = spec_.ff;
  const bool with_up = spec_.gated && !parts_.sparse_ffn;
  const DenseMatrix& gate = spec_.gated ? w.gate : w.up;
  const float* bias = spec_.gated ? nullptr : w.up_bias;
  const auto activate = [&](size_t t, size_t begin, size_t end) {
    float* g = s_->gate + t * ff;
    ApplyActivation(spec_.activation, {g + begin, end - begin});
    if (!with_up) return;
    const float* up = s_->up + t * ff;
    const bool drelu = spec_.activation == Activation::kDRelu;
    for (size_t i = begin; i < end; ++i) g[i] *= drelu && up[i] < 0 ? 0.0f : up[i];
  };
  if (gate.slices() == 0 && (!with_up || w.up.slices() == 0)) {
    // What a worker has just multiplied it activates as well.
    const ActivationRows x = Prepared(input, FormatFor(gate.rows.dtype));
    const ActivationRows up_x = with_up ? Prepared(input, FormatFor(w.up.rows.dtype)) : ActivationRows();
    const size_t per_chunk = RowsPerChunk(ff);
    team_.ParallelFor(CeilDiv(ff, per_chunk), [&](size_t chunk) {
      const size_t begin = chunk * per_chunk, end = std::min(ff, begin + per_chunk);
      MultiplyRows(InMemory(gate), begin, end, x, s_->gate, ff, bias);
      if (with_up) MultiplyRows(InMemory(w.up), begin, end, up_x, s_->up, ff, nullptr);
      for (size_t t = 0; t < tokens; ++t) activate(t, begin, end);
    });
    return absl::OkStatus();
  }
  EM_RETURN_IF_ERROR(MatMul({{gate, s_->gate, bias}}, input));
  if (with_up) EM_RETURN_IF_ERROR(MatMul({{w.up, s_->up}}, input));
  const size_t splits = CeilDiv(ff, kElementsPerChunk);
  team_.ParallelFor(tokens * splits, [&](size_t chunk) {
    const size_t begin = chunk % splits * kElementsPerChunk;
    activate(chunk / splits, begin, std::min(ff, begin + kElementsPerChunk));
  });
  return absl::OkStatus();
}

// y[t] = sum over i, in order, of coefficients[t, i] * row i of `down` [ff, d].
Status Transformer::AccumulateTransposed(const DenseMatrix& down, const float* coefficients, size_t tokens, float* y) {
  const size_t d = spec_.d_model;
  const size_t unit = std::max<size_t>(32, Traits(down.rows.dtype).block_elements);
  const size_t splits = std::min<size_t>(team_.threads(), CeilDiv(d, unit));
  const size_t width = RoundUp(CeilDiv(d, splits), unit);
  std::memset(y, 0, tokens * d * sizeof(float));
  const auto accumulate = [&](const WeightRows& rows, size_t first_row) {
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
  };
  if (down.resident_rows > 0) accumulate(InMemory(down), 0);
  return ForStreamed(down, accumulate);
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

// Calls body(rows, index of their first row) for the slices of the matrix that are not in memory, as they come.
template <class Body>
Status Transformer::ForStreamed(const DenseMatrix& w, Body&& body) {
  WeightRows rows = w.rows;
  rows.interleaved = false;
  for (size_t slice = 0; slice < w.slices(); ++slice) {
    EM_ASSIGN_OR_RETURN(rows.data, parts_.stream->Acquire(w.first_slice + slice));
    const size_t first_row = w.resident_rows + slice * w.rows_per_slice;
    rows.rows = std::min(w.rows_per_slice, w.rows.rows - first_row);
    body(rows, first_row);
    parts_.stream->Release();
  }
  return absl::OkStatus();
}

size_t Transformer::RowsPerChunk(size_t rows) const {
  const size_t per_thread = CeilDiv<size_t>(rows, size_t{8} * team_.threads());
  return RoundUp(std::max(kMinRowsPerChunk, per_thread), kMinRowsPerChunk);
}

// What is in memory of all the products is one job; then come the slices of each, in the order of the step.
Status Transformer::MatMul(std::initializer_list<Product> products, Input& input) {
  size_t total = 0;
  for (const Product& product : products) total += product.w.resident_rows;
  const size_t per_chunk = RowsPerChunk(total);
  size_t chunks = 0;
  for (const Product& product : products) {
    chunks += CeilDiv(product.w.resident_rows, per_chunk);
    Prepared(input, FormatFor(product.w.rows.dtype));
  }
  team_.ParallelFor(chunks, [&](size_t chunk) {
    const Product* product = products.begin();
    for (size_t n = 0; chunk >= (n = CeilDiv(product->w.resident_rows, per_chunk)); ++product) chunk -= n;
    const WeightRows rows = InMemory(product->w);
    const size_t begin = chunk * per_chunk;
    MultiplyRows(rows, begin, std::min(rows.rows, begin + per_chunk), Prepared(input, FormatFor(rows.dtype)),
                 product->y, product->w.rows.rows, product->bias);
  });
  for (const Product& product : products) {
    const size_t out = product.w.rows.rows;
    const ActivationRows x = Prepared(input, FormatFor(product.w.rows.dtype));
    EM_RETURN_IF_ERROR(ForStreamed(product.w, [&](const WeightRows& rows, size_t first_row) {
      const size_t rows_per_chunk = RowsPerChunk(rows.rows);
      team_.ParallelFor(CeilDiv(rows.rows, rows_per_chunk), [&](size_t chunk) {
        const size_t begin = chunk * rows_per_chunk;
        MultiplyRows(rows, begin, std::min(rows.rows, begin + rows_per_chunk), x, product.y + first_row, out,
                     product.bias ? product.bias + first_row : nullptr);
      });
    }));
  }
  return absl::OkStatus();
}

// What NormInput has made of `tokens` rows.
Transformer::Input Transformer::NormedInput(const DenseMatrix& first, size_t tokens) const {
  return {s_->h, tokens, spec_.d_model, FormatFor(first.rows.dtype) == ActivationFormat::kQ16};
}

// h [t] = norm(x [t]), and its quantised form where the product with `first` wants that: both while the row is in L1.
void Transformer::NormInput(const NormWeights& norm, const DenseMatrix& first, size_t t) const {
  const size_t d = spec_.d_model;
  Norm(norm, s_->x + t * d, s_->h + t * d);
  const ActivationFormat format = FormatFor(first.rows.dtype);
  if (format == ActivationFormat::kF32) return;
  PrepareActivations(format, s_->h + t * d, d, s_->quantised + t * s_->quantised_stride);
}

void Transformer::Norm(const NormWeights& norm, const float* x, float* out) const {
  if (!norm.weight) return;
  const size_t d = spec_.d_model;
  if (spec_.norm == NormKind::kRms) {
    RmsNorm({x, d}, norm.weight, spec_.norm_epsilon, out);
  } else {
    LayerNorm({x, d}, norm.weight, norm.bias, spec_.norm_epsilon, out);
  }
}

}  // namespace elasticmem
