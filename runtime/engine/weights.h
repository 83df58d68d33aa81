// The model's dense weights in memory, as a memory plan laid them out: matrices that stay, slices of those that are
// streamed, and norms and biases as float32.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/team.h"
#include "hybrid/dense_stream.h"
#include "mem/budget.h"
#include "mem/read_ring.h"
#include "runtime/engine/memory_plan.h"
#include "runtime/model/model_spec.h"

namespace elasticmem {

struct NormWeights {
  const float* weight = nullptr;  // [d]; null: no norm here
  const float* bias = nullptr;
};

struct LayerWeights {
  NormWeights attention_norm, post_attention_norm, ffn_norm, post_ffn_norm;
  DenseMatrix q, k, v, o, gate, up, down;  // with no rows where absent or in the neuron store
  const float* q_bias = nullptr;
  const float* k_bias = nullptr;
  const float* v_bias = nullptr;
  const float* o_bias = nullptr;
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;
};

class Weights {
 public:
  // `files[i]` is open on part i of the model and outlives this. `ring` is used while loading only.
  // Everything is reserved in `budget`. Errors name the tensor.
  static StatusOr<std::unique_ptr<Weights>> Load(Budget& budget, const ModelSpec& spec, const MemoryPlan& plan,
                                                 std::span<const ReadFile> files, ReadRing* ring,
                                                 const std::function<void(uint64_t done, uint64_t total)>& progress,
                                                 const std::atomic<bool>* cancelled);

  const std::vector<LayerWeights>& layers() const { return layers_; }
  const NormWeights& output_norm() const { return output_norm_; }
  const DenseMatrix& output() const { return output_; }
  const float* output_bias() const { return output_bias_; }
  // Reads all matrices that are in memory once, within a session of the team. Their bytes.
  uint64_t ReadOnce(Team& team) const;
  const std::vector<DenseSlice>& slices() const { return slices_; }  // of the streamed matrices, in order of use

  // Row `row` of `matrix` as float32 [cols]: an embedding. From memory where `matrix` is the resident output, else by a
  // read.
  Status ReadRow(const MatrixRef& matrix, uint64_t row, float* out) const;
  // Divisors of the RoPE frequencies; empty where the model has none.
  const std::vector<float>& rope_factors() const { return rope_factors_; }

 private:
  Weights(const ModelSpec& spec, std::span<const ReadFile> files) : spec_(spec), files_(files) {}
  Status LoadVectors(Budget& budget);
  Status LoadMatrices(Budget& budget, const MemoryPlan& plan, ReadRing* ring,
                      const std::function<void(uint64_t, uint64_t)>& progress, const std::atomic<bool>* cancelled);
  StatusOr<const float*> LoadVector(const VectorRef& ref);
  DenseMatrix& Slot(const DenseItem& item);

  const ModelSpec& spec_;
  std::span<const ReadFile> files_;
  AlignedBuffer matrices_;
  AlignedBuffer gates_;
  AlignedBuffer vectors_;
  size_t vectors_used_ = 0;
  std::vector<LayerWeights> layers_;
  NormWeights output_norm_;
  DenseMatrix output_;
  const float* output_bias_ = nullptr;
  std::vector<DenseSlice> slices_;
  std::vector<float> rope_factors_;
};

}  // namespace elasticmem
