// The forward pass: one step over rows of any sequences, decode tokens and prefill chunks alike. It reads top to bottom
// as the algorithm; what differs between architectures is data in ModelSpec.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "device/team.h"
#include "hybrid/dense_stream.h"
#include "hybrid/promoter.h"
#include "hybrid/sparse_ffn.h"
#include "mapping/kv_table.h"
#include "runtime/engine/memory_plan.h"
#include "runtime/engine/weights.h"
#include "runtime/text/tokenizer.h"

namespace elasticmem {

// One token of one sequence. Its KV page must be there; rows of a sequence come in order of position.
struct StepRow {
  SequenceId sequence;
  uint32_t position = 0;
  TokenId token = 0;
};

class Transformer {
 public:
  struct Parts {
    const ModelSpec* spec = nullptr;
    const Weights* weights = nullptr;
    Team* team = nullptr;
    KvTable* kv = nullptr;
    DenseStream* stream = nullptr;    // null where nothing is streamed
    SparseFfn* sparse_ffn = nullptr;  // null: FFN from the file's own matrices
    Promoter* promoter = nullptr;     // null: neurons come only when asked for
    bool all_neurons = false;         // dense mode
    DType up_type = DType::kF32;      // of the records' up rows
    DType kv_type = DType::kF16;
  };
  ~Transformer();

  // Everything in `parts` outlives it. Reserves its scratch.
  static StatusOr<std::unique_ptr<Transformer>> Create(Budget& budget, const Parts& parts, uint32_t max_rows,
                                                       uint32_t max_logits_rows);

  // What Create will reserve.
  static uint64_t ScratchBytes(const ModelSpec& spec, uint32_t max_rows, uint32_t max_logits_rows, int threads,
                               FfnPath ffn, const KvPageLayout& page);

  // Runs `rows` (at most max_rows). Logits [logits_rows.size(), vocab] of the rows with these indices (ascending) stay
  // valid until the next step. Errors are those of reads; KV of the rows is then undefined.
  StatusOr<std::span<const float>> Step(std::span<const StepRow> rows, std::span<const uint32_t> logits_rows);

  // See Engine::HotMultiplyAdds; of `tokens` rows, within a Session of the team. What a step left in the scratch goes.
  double HotMultiplyAdds(uint32_t tokens);

  DType kv_type() const { return page_.type; }
  uint32_t max_rows() const { return max_rows_; }
  uint32_t max_logits_rows() const { return max_logits_rows_; }

 private:
  struct Scratch;
  struct Input;
  struct Product;
  Transformer(const Parts& parts, const KvPageLayout& page, uint32_t max_rows, uint32_t max_logits_rows,
              AlignedBuffer memory);

  Status Embed(std::span<const StepRow> rows);
  void PrepareRope(std::span<const StepRow> rows);
  Status Attention(std::span<const StepRow> rows, uint32_t layer);
  void FindRuns(std::span<const StepRow> rows);
  void AttendAll(std::span<const StepRow> rows, uint32_t layer);
  Status FeedForward(size_t tokens, uint32_t layer);
  Status Hidden(size_t tokens, uint32_t layer, Input& input);
  Status AccumulateTransposed(const DenseMatrix& down, const float* coefficients, size_t tokens, float* y);
  Status MatMul(std::initializer_list<Product> products, Input& input);
  template <class Body>
  Status ForStreamed(const DenseMatrix& w, Body&& body);
  size_t RowsPerChunk(size_t rows) const;
  ActivationRows Prepared(Input& input, ActivationFormat format);
  void Norm(const NormWeights& norm, const float* x, float* out) const;
  Input NormedInput(const DenseMatrix& first, size_t tokens) const;
  void NormInput(const NormWeights& norm, const DenseMatrix& first, size_t t) const;

  const Parts parts_;
  const ModelSpec& spec_;
  const Weights& weights_;
  Team& team_;
  const uint32_t max_rows_;
  const uint32_t max_logits_rows_;
  KvPageLayout page_;
  std::vector<float> inverse_frequency_;
  std::vector<uint32_t> attend_first_;  // rows of the step that begin a run of AttendAll, and their number
  AlignedBuffer memory_;
  std::unique_ptr<Scratch> s_;
};

}  // namespace elasticmem
