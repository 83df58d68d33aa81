// The engine: a model inside a memory budget, running sequences. Owns everything in the order it is built: budget,
// files, neuron store, plan, weights, pool, tables, forward pass.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "hybrid/residency.h"
#include "hybrid/sparse_ffn.h"
#include "mapping/kv_table.h"
#include "mapping/prefix_index.h"
#include "mem/block_pool.h"
#include "mem/read_ring.h"
#include "runtime/engine/kv_swap.h"
#include "runtime/engine/memory_plan.h"
#include "runtime/engine/memory_use.h"
#include "runtime/engine/transformer.h"
#include "runtime/engine/weights.h"
#include "runtime/model/model.h"
#include "store/neuron_store.h"

namespace elasticmem {

// Told of long work: what ("packing", "loading"), and bytes done of the total.
using Progress = std::function<void(std::string_view what, uint64_t done, uint64_t total)>;

struct EngineOptions {
  uint64_t budget_bytes = 0;  // of all memory, or, with a host tier, of the device
  // Of the host tier, which keeps neurons that find no place on the device; 0: there is none.
  uint64_t host_budget_bytes = 0;
  double copy_gbps = 0;      // between host and device; 0: as fast as they come
  std::optional<Mode> mode;  // unset: exact where the activation is sparse, else dense
  Policy policy = Policy::kElastic;
  // kStatic: what is KV's for good, either the whole context for each of so many sequences, or a share of the pool.
  uint32_t static_slots = 1;
  std::optional<double> static_kv_share;
  bool prefix_cache = false;       // keep the KV of texts that have ended, to be found again by their tokens
  bool count_activations = false;  // see Engine::activation_counts
  uint64_t swap_bytes = 0;         // of disk for the KV of paused conversations; 0: it is computed again
  std::string swap_dir;            // "": store_dir, else cache_dir
  // How often each neuron was active [layers, neurons]; kStatic fills memory with the hottest. Empty: as the store has
  // them.
  std::span<const float> profile;
  DType kv_type = DType::kF16;  // F32, F16 or Q8_0
  uint32_t context = 0;         // tokens of a sequence at most; 0: what the model was trained for
  uint32_t kv_tokens = 1;       // tokens of KV that the budget must hold in any case
  uint32_t sequences = 1;       // at once, each of kv_tokens
  int threads = 1;
  std::optional<uint32_t> prefill_chunk;
  uint32_t logits_rows = 1;  // positions whose logits are wanted at once
  std::string store_dir;     // of the neuron store; "": beside the model, else cache_dir
  std::string cache_dir;
  std::optional<DType> store_type;  // requantise the store to this
  ReadQueueKind io = ReadQueueKind::kAuto;
  bool direct_io = true;
  Progress progress;
  std::function<void(const std::string&)> notice;  // things worth saying once
  const std::atomic<bool>* cancelled = nullptr;
};

// Tokens that one step appends to one sequence.
struct StepSlice {
  SequenceId sequence;
  std::span<const TokenId> ids;  // valid ids, within the context; none: only `next` counts
  bool logits = false;           // of the last one
  uint32_t next = 1;             // tokens that the next step is likely to append: room for them is made ahead
};

struct EngineStatistics {
  uint64_t steps = 0;
  uint64_t tokens = 0;
  double seconds = 0;             // in steps
  double management_seconds = 0;  // of those: planning and moving neurons
  SparseFfnStatistics ffn;
  ReadStatistics reads;  // since the model was loaded
  KvSwapStatistics swap;
  uint64_t late_blocks = 0;             // that a step waited for: they had not been freed ahead
  uint64_t record_bytes = 0;            // of a neuron, its gate row apart; 0 where there are no records
  double kernel_core_seconds = 0;       // that cores spent in kernels since MeasureKernels; 0 before it
  double prefill_micros_per_token = 0;  // measured lately; 0: not yet
};

class Engine {
 public:
  // Packs the neuron store where one is needed and missing, plans the memory, loads. `model` outlives the engine.
  static StatusOr<std::unique_ptr<Engine>> Open(const Model& model, const EngineOptions& options);
  ~Engine();

  // The plan that Open would make, without making it; nothing is packed or loaded.
  static StatusOr<MemoryPlan> Plan(const Model& model, const EngineOptions& options, bool smallest = false);

  SequenceId NewSequence() { return kv_->AddSequence(); }
  void EndSequence(SequenceId sequence);
  // Keeps the first `tokens` tokens.
  void Truncate(SequenceId sequence, uint32_t tokens);
  uint32_t tokens(SequenceId sequence) const { return kv_->tokens(sequence); }

  // Appends `ids` to the sequence, in chunks. The logits [vocab] after the last one, valid until the next call.
  // Errors: the context or the budget's KV is full (both numbers), a token id out of range, reads, weights that give
  // NaN.
  StatusOr<std::span<const float>> Append(SequenceId sequence, std::span<const TokenId> ids);
  // The same, and `each(position, logits)` for every token of `ids`.
  Status AppendEach(SequenceId sequence, std::span<const TokenId> ids,
                    const std::function<void(uint32_t position, std::span<const float> logits)>& each);

  // One step over many sequences, each at most once; max_step_tokens() tokens in all. Logits [slices that want them,
  // vocab], in the order of the slices, valid until the next call. On an error no sequence has changed: Exhausted where
  // the KV does not fit (see BlocksFor and obtainable_blocks), reads, weights that give NaN.
  StatusOr<std::span<const float>> Step(std::span<const StepSlice> slices);
  uint32_t max_step_tokens() const { return plan_.prefill_chunk; }
  uint32_t max_step_logits() const { return transformer_->max_logits_rows(); }
  // Blocks that `tokens` more tokens of a sequence take; blocks that KV can have, at the price of neurons.
  uint32_t BlocksFor(SequenceId sequence, uint32_t tokens) const { return kv_->BlocksFor(sequence, tokens); }
  uint32_t BlocksOfSequence(uint32_t tokens) const { return kv_->layers() * CeilDiv(tokens, kv_->page_tokens()); }
  uint32_t most_kv_blocks() const { return residency_ ? residency_->most_kv_blocks() : pool_->capacity(); }
  // Are all ids tokens of the model?
  Status CheckTokens(std::span<const TokenId> ids) const;
  uint32_t obtainable_blocks() const {
    return (residency_ ? residency_->obtainable_blocks() : pool_->free()) + (prefix_ ? prefix_->evictable_blocks() : 0);
  }

  // The empty sequence begins with the longest run of whole pages that is kept of `tokens`, for this tenant (its salt);
  // all but the last token at most. Returns how many tokens it has then. IndexPrefix keeps those that a sequence has,
  // whose first tokens `tokens` are. Without prefix_cache neither does anything.
  uint32_t AdoptPrefix(uint64_t salt, std::span<const TokenId> tokens, SequenceId sequence);
  void IndexPrefix(uint64_t salt, std::span<const TokenId> tokens, SequenceId sequence);

  // Keeps the sequence's KV on disk, where that is cheaper than computing it again, as measured, and there is room. The
  // sequence is as it was. SwapIn brings it into an empty sequence; on an error (Exhausted: no blocks; reads) that is
  // empty again.
  std::optional<SavedKv> SwapOut(SequenceId sequence);
  Status SwapIn(const SavedKv& saved, SequenceId sequence);
  void ForgetSaved(SavedKv& saved) { swap_->Forget(saved); }

  // How often each neuron was active since the start [layers, neurons]; empty without count_activations.
  std::span<const uint32_t> activation_counts() const;
  // From now on neurons are worth what `worth` [layers, neurons] says (kOracle, kStatic); the most valuable are read
  // into memory in place of others.
  Status PlaceNeurons(std::span<const float> worth);

  const Model& model() const { return model_; }
  const MemoryPlan& plan() const { return plan_; }
  const Budget& budget() const { return *budget_; }
  const Budget* host_budget() const { return host_budget_.get(); }  // null without a host tier
  const Device* device() const { return device_.get(); }            // the same
  uint32_t context() const { return context_; }
  Mode mode() const { return plan_.mode; }
  DType kv_type() const { return transformer_->kv_type(); }
  const char* io_name() const { return reader_->queue().name(); }
  const BlockPool& pool() const { return *pool_; }
  const NeuronResidency* residency() const { return residency_.get(); }  // null without records
  const std::optional<PackResult>& packed() const { return packed_; }    // when the store was made by this start
  EngineStatistics statistics() const;
  MemoryUse memory_use() const;

  // For benches. Counts EngineStatistics::kernel_core_seconds from now on, at two looks at the clock a chunk of work.
  void MeasureKernels() { team_->MeasureBusy(); }
  // Reads the dense weights in memory once with all cores, as a step that is bound by memory does at best. Their bytes.
  uint64_t ReadWeightsOnce();
  // Multiply-adds a second, of all cores, where the weights (of the first layer's q, for a step's most tokens) stay in
  // caches: what prefill is bound by. 0 where those weights are streamed.
  double HotMultiplyAdds();

  // Walks all tables.
  void CheckInvariants() const;

 private:
  explicit Engine(const Model& model) : model_(model) {}
  Status OpenFiles(const EngineOptions& options);
  Status OpenStore(const EngineOptions& options);
  Status LoadWeights(const EngineOptions& options);
  Status MakePool(const EngineOptions& options);
  Status FillNeurons(const EngineOptions& options);
  Status ReadNeurons(std::vector<Placement> neurons, const Progress& progress);
  void LendLeftovers(SequenceId sequence, uint32_t tokens, uint32_t pages_before, bool last_was_copied);
  void PrepareNext(std::span<const StepSlice> slices);
  void FreeBlocks(uint32_t blocks);
  bool CachedPageIsWorthLess();
  void TakeBackTails(SequenceId sequence, uint32_t first_page);
  void TakeBackTokens(std::span<const StepSlice> slices);
  Status MakeRoom(std::span<const StepSlice> slices);
  StatusOr<std::span<const float>> Forward(std::span<const StepSlice> slices, std::span<const uint32_t> logits_rows);
  Status CheckAppend(SequenceId sequence, std::span<const TokenId> ids) const;
  // What a machine with a device keeps in RAM.
  Budget& HostSide() { return host_budget_ ? *host_budget_ : *budget_; }
  Status CheckCancelled() const;
  Status CheckLogits(std::span<const float> logits) const;

  const Model& model_;
  uint32_t context_ = 0;
  const std::atomic<bool>* cancelled_ = nullptr;
  std::unique_ptr<Budget> budget_, host_budget_;  // the second null without a host tier
  std::unique_ptr<Device> device_;                // the same: nothing is copied then
  Reservation tokenizer_, store_tables_;
  std::vector<ReadFile> files_;
  std::optional<NeuronStore> store_;
  std::optional<PackResult> packed_;
  MemoryPlan plan_;
  std::unique_ptr<Team> team_;
  AlignedBuffer staging_;
  std::unique_ptr<Reader> reader_;
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<ReadRing> stream_ring_, delta_ring_, promotion_ring_;
  std::unique_ptr<DenseStream> stream_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<NeuronResidency> residency_;
  std::unique_ptr<KvTable> kv_;
  std::unique_ptr<PrefixIndex> prefix_;  // null without prefix_cache
  std::unique_ptr<KvSwap> swap_;         // null without swap_bytes
  std::unique_ptr<SparseFfn> sparse_ffn_;
  std::unique_ptr<Promoter> promoter_;
  std::unique_ptr<Transformer> transformer_;
  std::vector<StepRow> rows_;
  std::vector<uint32_t> logits_rows_;
  ReadStatistics reads_at_start_;
  uint64_t steps_ = 0;
  uint64_t tokens_ = 0;
  double seconds_ = 0;
  uint64_t late_blocks_ = 0;
  double prefill_micros_per_token_ = 0;
};

}  // namespace elasticmem
