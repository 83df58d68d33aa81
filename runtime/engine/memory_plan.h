// Where every byte of the budgets goes, decided before anything is allocated: which dense matrices stay in memory and
// which are streamed, how long a prefill chunk is, what the pool of KV pages and neurons gets. A pure function of the
// model and the request.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mem/budget.h"
#include "mem/geometry.h"
#include "runtime/model/model_spec.h"
#include "store/neuron_store.h"

namespace elasticmem {

enum class Mode : uint8_t {
  kExact,  // gates first, then only the neurons that are active
  kDense,  // every neuron
};
std::string_view Name(Mode mode);

// Where FFN weights come from.
enum class FfnPath : uint8_t {
  kRecords,   // gates as a dense matrix, [up, down] from pool slots or the neuron store
  kMatrices,  // the file's own rows
};

// One dense matrix, in the order in which a step uses them.
struct DenseItem {
  enum class Role : uint8_t { kQ, kK, kV, kO, kGate, kUp, kDown, kOutput };
  Role role = Role::kQ;
  uint32_t layer = 0;
  MatrixRef matrix;
  uint64_t resident_rows = 0;  // the first ones; the others are streamed

  uint64_t resident_bytes() const { return resident_rows * matrix.row_bytes(); }
};

struct PlanRequest {
  uint64_t budget_bytes = 0;  // of the device
  // Of the host tier; unset: there is none, and all memory is the device's. Its budget holds neurons, and what a
  // machine with a device keeps in RAM anyway: what reads land in, the tokenizer, and the tables of neurons.
  std::optional<uint64_t> host_budget_bytes;
  Mode mode = Mode::kExact;
  DType kv_type = DType::kF16;
  uint32_t kv_tokens = 0;  // tokens of KV that must fit whatever else is dropped
  uint32_t context = 0;    // tokens of a sequence at most
  uint32_t sequences = 1;  // at once, each of kv_tokens
  bool prefix_cache = false;
  bool count_activations = false;
  bool static_kv = false;  // KV is fixed: what kv_tokens and sequences ask for, or this share of the pool
  std::optional<double> static_kv_share;
  int threads = 1;
  std::optional<uint32_t> prefill_chunk;
  uint32_t logits_rows = 1;  // rows of a step whose logits are wanted at once
  uint64_t tokenizer_bytes = 0;
  uint64_t store_table_bytes = 0;       // checksums and positions
  std::optional<RecordLayout> records;  // of the neuron store; none for models without a sparse activation
  uint32_t alignment = 4096;            // of direct reads
};

// The end of a page is lent to neurons where so many tokens will come before it is wanted back.
inline constexpr uint32_t kPageEndLeastTokens = 8;

struct MemoryNeed {
  std::string what;
  MemoryCategory category;
  uint64_t bytes = 0;
};

struct MemoryPlan {
  Mode mode = Mode::kExact;
  FfnPath ffn = FfnPath::kMatrices;
  std::vector<DenseItem> dense;
  uint64_t dense_resident_bytes = 0;
  uint64_t dense_streamed_bytes = 0;
  uint32_t prefill_chunk = 1;
  uint64_t slice_bytes = 0;           // of a stream, at most
  uint64_t stream_ring_bytes = 0;     // 0: nothing is streamed
  uint64_t promotion_ring_bytes = 0;  // 0: no room for reads ahead of need
  uint64_t delta_ring_bytes = 0;      // 0: no records
  Geometry geometry;
  uint64_t pool_blocks = 0;
  uint64_t kv_blocks = 0;         // that kv_tokens take
  uint64_t static_kv_blocks = 0;  // with a static policy: what is KV's and stays so
  std::vector<MemoryNeed> needs;  // sums to what the engine will reserve
  uint64_t host_slots = 0;        // for neurons
  std::vector<MemoryNeed> host_needs;

  uint64_t TotalBytes() const;  // of the device
  uint64_t HostBytes() const;
  // Share of the neurons that have a place on the device beside the KV of so many sequences of `tokens` tokens each.
  double ResidentShare(const ModelSpec& spec, uint32_t sequences, uint32_t tokens) const;
  // Share of the neurons that have a place on the host.
  double HostShare(const ModelSpec& spec) const {
    return static_cast<double>(host_slots) / (static_cast<double>(spec.layers) * spec.ff);
  }
  // A table of needs, a line each, for people.
  std::string Describe() const;
};

// Bytes of activations that a step of `chunk` tokens works in (Transformer's own scratch).
uint64_t StepScratchBytes(const ModelSpec& spec, uint32_t chunk, uint32_t logits_rows, int threads, FfnPath ffn,
                          uint32_t page_tokens);

// Error: Exhausted, with the table of needs and the smallest budget that would work.
StatusOr<MemoryPlan> PlanMemory(const ModelSpec& spec, const PlanRequest& request);
// The plan that needs the least; its TotalBytes() is the smallest budget that works, its HostBytes() the host's.
StatusOr<MemoryPlan> SmallestPlan(const ModelSpec& spec, const PlanRequest& request);

}  // namespace elasticmem
