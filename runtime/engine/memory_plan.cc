#include "runtime/engine/memory_plan.h"

#include <algorithm>

#include "base/units.h"
#include "hybrid/planner.h"
#include "hybrid/sparse_ffn.h"
#include "mapping/prefix_index.h"

namespace elasticmem {
namespace {

// Bounds of what is chosen when the user does not say. A slice of a few hundred KiB reads at disk speed; longer ones
// only need more memory.
constexpr uint64_t kMinSliceBytes = 64 << 10;
constexpr uint64_t kMaxSliceBytes = 2 << 20;
constexpr uint64_t kMaxDeltaRingBytes = 8 << 20;
constexpr uint64_t kMaxPromotionRingBytes = 1 << 20;
constexpr uint32_t kMaxPrefillChunk = 128;
constexpr uint32_t kMinPrefillChunk = 8;
// Share of the budget that step scratch, and each ring, may take before they shrink.
constexpr uint64_t kScratchShare = 32;
constexpr uint64_t kRingShare = 64;
// Records from the store land on the host: it has room for a group's at least.
constexpr uint64_t kLeastHostSlots = SparseFfn::kNeuronGroup;

uint64_t VectorBytes(const ModelSpec& spec) {
  uint64_t floats = 0;
  const auto add = [&](const VectorRef& v) { floats += v ? RoundUp<uint64_t>(v.count, 16) : 0; };
  const auto add_norm = [&](const NormRef& n) {
    add(n.weight);
    add(n.bias);
  };
  add_norm(spec.output_norm);
  add(spec.output_bias);
  for (const LayerSpec& l : spec.layer) {
    for (const NormRef* n : {&l.attention_norm, &l.post_attention_norm, &l.ffn_norm, &l.post_ffn_norm}) add_norm(*n);
    for (const VectorRef* v :
         {&l.q_bias, &l.k_bias, &l.v_bias, &l.o_bias, &l.q_norm, &l.k_norm, &l.up_bias, &l.down_bias}) {
      add(*v);
    }
  }
  return floats * sizeof(float);
}

// How a plan is made: roomy first; tight when that does not fit.
struct Sizing {
  bool tight = false;
  bool stream = false;  // some dense matrices may be read each step
};

class Planner {
 public:
  Planner(const ModelSpec& spec, const PlanRequest& request, FfnPath ffn) : spec_(spec), request_(request) {
    plan_.mode = request.mode;
    plan_.ffn = ffn;
  }

  // Fills in the plan; the bytes it needs at least are then in plan.needs, whether or not they fit.
  StatusOr<MemoryPlan> Make(const Sizing& sizing) {
    ListDense();
    ChooseChunk(sizing);
    EM_RETURN_IF_ERROR(SizeLeastPool());
    SizeRings(sizing);
    if (sizing.stream) ChooseStreamed();
    SizePool();
    SizeHost();
    if (request_.static_kv) {
      plan_.static_kv_blocks =
          request_.static_kv_share
              ? static_cast<uint64_t>(*request_.static_kv_share * static_cast<double>(plan_.pool_blocks))
              : plan_.kv_blocks;
    }
    ListNeeds();
    return plan_;
  }

 private:
  void ListDense() {
    plan_.dense.clear();
    using Role = DenseItem::Role;
    for (uint32_t l = 0; l < spec_.layers; ++l) {
      const LayerSpec& layer = spec_.layer[l];
      const auto add = [&](Role role, const MatrixRef& matrix) {
        if (matrix) plan_.dense.push_back({role, l, matrix, matrix.rows});
      };
      add(Role::kQ, layer.q);
      add(Role::kK, layer.k);
      add(Role::kV, layer.v);
      add(Role::kO, layer.o);
      // With records the first product is dense, and that is all.
      add(Role::kGate, layer.gate);
      if (plan_.ffn == FfnPath::kMatrices || !spec_.gated) add(Role::kUp, layer.up);
      if (plan_.ffn == FfnPath::kMatrices) add(Role::kDown, layer.down);
    }
    plan_.dense.push_back({Role::kOutput, 0, spec_.output, spec_.output.rows});
    plan_.dense_resident_bytes = 0;
    plan_.dense_streamed_bytes = 0;
    for (const DenseItem& item : plan_.dense) plan_.dense_resident_bytes += RoundUp<uint64_t>(item.matrix.bytes(), 64);
  }

  uint64_t Scratch(uint32_t chunk) const {
    uint64_t bytes = StepScratchBytes(spec_, chunk, request_.logits_rows, request_.threads, plan_.ffn, 128);
    if (plan_.ffn == FfnPath::kRecords) bytes += SparseFfn::ScratchBytes(*request_.records, chunk) + 4096;
    return RoundUp<uint64_t>(bytes, 4096);
  }

  void ChooseChunk(const Sizing& sizing) {
    uint32_t chunk = kMaxPrefillChunk;
    if (request_.prefill_chunk) {
      chunk = *request_.prefill_chunk;
    } else {
      while (chunk > kMinPrefillChunk && (sizing.tight || Scratch(chunk) > request_.budget_bytes / kScratchShare)) {
        chunk /= 2;
      }
    }
    // Every sequence may have a token in a step.
    plan_.prefill_chunk = std::max(request_.sequences, std::min(chunk, std::max<uint32_t>(1, request_.context)));
  }

  void SizeRings(const Sizing& sizing) {
    plan_.slice_bytes = plan_.stream_ring_bytes = plan_.delta_ring_bytes = plan_.promotion_ring_bytes = 0;
    const uint64_t share = request_.host_budget_bytes.value_or(request_.budget_bytes) / kRingShare;
    if (sizing.stream) {
      plan_.slice_bytes = sizing.tight ? kMinSliceBytes : std::clamp(share / 2, kMinSliceBytes, kMaxSliceBytes);
      uint64_t longest = plan_.slice_bytes;
      for (const DenseItem& item : plan_.dense) longest = std::max(longest, item.matrix.row_bytes());
      const uint64_t span = RoundUp<uint64_t>(longest, request_.alignment) + 2 * uint64_t{request_.alignment};
      plan_.stream_ring_bytes = RoundUp<uint64_t>((sizing.tight ? 2 : 4) * span, 4096);
    }
    if (plan_.ffn == FfnPath::kRecords) {
      const uint64_t least = SparseFfn::MinRingBytes(*request_.records, request_.alignment);
      plan_.delta_ring_bytes =
          sizing.tight ? least : RoundUp<uint64_t>(std::clamp(share, least, std::max(least, kMaxDeltaRingBytes)), 4096);
      const uint64_t promotions = RoundDown<uint64_t>(std::min(share / 4, kMaxPromotionRingBytes), 4096);
      const uint64_t longest =
          RoundUp<uint64_t>(request_.records->tail_bytes, request_.alignment) + 4 * request_.alignment;
      if (!sizing.tight && !request_.static_kv && promotions >= longest) plan_.promotion_ring_bytes = promotions;
    }
  }

  // Of every matrix the same share of rows stays in memory, so that the reads of the others are spread evenly over the
  // step and hide behind its work.
  void ChooseStreamed() {
    const uint64_t all = plan_.dense_resident_bytes;
    const uint64_t others = Fixed() + PoolCost(plan_.kv_blocks);
    const uint64_t room = request_.budget_bytes > others ? request_.budget_bytes - others : 0;
    const double share = std::min(1.0, static_cast<double>(room) / all);
    plan_.dense_resident_bytes = 0;
    for (DenseItem& item : plan_.dense) {
      item.resident_rows = static_cast<uint64_t>(share * static_cast<double>(item.matrix.rows));
      // Each part is rounded up to 64 bytes in memory.
      while (item.resident_rows > 0 &&
             RoundUp<uint64_t>(item.resident_bytes(), 64) > share * static_cast<double>(item.matrix.bytes())) {
        --item.resident_rows;
      }
      plan_.dense_resident_bytes += RoundUp<uint64_t>(item.resident_bytes(), 64);
      plan_.dense_streamed_bytes += item.matrix.bytes() - item.resident_bytes();
    }
  }

  uint64_t KvTokenBytes() const { return 2 * uint64_t{spec_.kv_heads} * RowBytes(request_.kv_type, spec_.head_dim); }
  uint64_t SlotBytes() const { return plan_.ffn == FfnPath::kRecords ? request_.records->slot_bytes : 0; }
  uint64_t KvBlocks(uint32_t tokens) const {
    return uint64_t{request_.sequences} * spec_.layers *
           CeilDiv<uint64_t>(std::max<uint32_t>(1, tokens), plan_.geometry.page_tokens);
  }
  // What `blocks` blocks and the tables that describe them take.
  uint64_t PoolCost(uint64_t blocks) const {
    return blocks * BlockCost() + 4096 +
           (request_.prefix_cache ? PrefixIndex::MaxTableBytes(1, spec_.layers, plan_.geometry.page_tokens) : 0);
  }
  uint64_t BlockCost() const {
    return plan_.geometry.block_bytes + 64 + 13 * uint64_t{plan_.geometry.records_per_block} +
           (request_.prefix_cache ? PrefixTableBytesPerBlock() : 0);
  }

  uint64_t PrefixTableBytesPerBlock() const {
    constexpr uint32_t kMany = 1 << 16;
    return CeilDiv<uint64_t>(PrefixIndex::MaxTableBytes(kMany, spec_.layers, plan_.geometry.page_tokens), kMany) + 1;
  }

  GeometryShapes Shapes() const {
    GeometryShapes shapes;
    shapes.layers = spec_.layers;
    shapes.kv_bytes_per_token_layer = KvTokenBytes();
    shapes.slot_bytes = SlotBytes();
    shapes.context = std::max<uint32_t>(1, request_.kv_tokens);
    shapes.sequences = request_.sequences;
    return shapes;
  }

  // The geometry and pool that hold the KV asked for in the fewest bytes.
  Status SizeLeastPool() {
    EM_ASSIGN_OR_RETURN(plan_.geometry, SmallestGeometry(Shapes()));
    constexpr double kMostBytes = 1e15;
    const double longest = std::max(request_.context, request_.kv_tokens);
    if (longest * request_.sequences * spec_.layers * static_cast<double>(KvTokenBytes()) > kMostBytes) {
      return InvalidInput(
          "KV for {} sequences of {} tokens is more than any machine has, let alone a budget of {} bytes",
          request_.sequences, longest, request_.budget_bytes);
    }
    plan_.kv_blocks = plan_.pool_blocks = KvBlocks(request_.kv_tokens);
    return absl::OkStatus();
  }

  // What the budget leaves, as far as it is of use: the geometry with the least waste, or, where that cannot hold the
  // KV asked for, the smallest.
  void SizePool() {
    // The tables depend on the geometry, and so does what they leave.
    const auto room = [&] {
      const uint64_t others = Fixed() + plan_.dense_resident_bytes;
      return request_.budget_bytes > others ? request_.budget_bytes - others : 0;
    };
    GeometryShapes shapes = Shapes();
    shapes.pool_bytes = room();
    const Geometry smallest = plan_.geometry;
    const StatusOr<Geometry> best = ChooseGeometry(shapes);
    for (const Geometry& geometry : {best.ok() ? *best : smallest, smallest}) {
      plan_.geometry = geometry;
      plan_.kv_blocks = KvBlocks(request_.kv_tokens);
      uint64_t useful = KvBlocks(std::max(request_.context, request_.kv_tokens));
      if (plan_.ffn == FfnPath::kRecords) {
        useful += CeilDiv<uint64_t>(uint64_t{spec_.layers} * spec_.ff, geometry.records_per_block);
      }
      const uint64_t fits = room() > 4096 ? (room() - 4096) / BlockCost() : 0;
      // Where even the least pool does not fit it stays in the list of needs, to be shown.
      plan_.pool_blocks = std::max(plan_.kv_blocks, std::min(fits, useful));
      if (fits >= plan_.kv_blocks) return;
    }
  }

  // Slots for neurons in what the host's budget leaves.
  void SizeHost() {
    if (!request_.host_budget_bytes || plan_.ffn != FfnPath::kRecords) return;
    const uint64_t neurons = uint64_t{spec_.layers} * spec_.ff;
    const uint64_t fits = *request_.host_budget_bytes > HostFixed() ? (*request_.host_budget_bytes - HostFixed()) /
                                                                          NeuronResidency::HostSlotBytes(SlotBytes())
                                                                    : 0;
    const uint64_t reach = (SlotGrid::kUnitBytes << NeuronEntry::kAddressBits) / SlotBytes();
    plan_.host_slots = std::max(std::min(kLeastHostSlots, neurons), std::min({fits, neurons, reach}));
  }

  uint64_t NeuronTables() const {
    if (plan_.ffn != FfnPath::kRecords) return 0;
    return (request_.count_activations ? 12 : 8) * uint64_t{spec_.layers} * spec_.ff +
           Missed::MemoryBytes(uint64_t{spec_.layers} * spec_.ff) + 4096 + request_.store_table_bytes;
  }
  // A page's entry in the table of its sequence; tables double as they grow.
  uint64_t KvTables() const {
    constexpr uint64_t kPageBytes = 2 * 24, kFirstPages = 8;
    const uint64_t most = KvBlocks(std::max(request_.kv_tokens, request_.context));
    return kPageBytes * most + kPageBytes * kFirstPages * spec_.layers * request_.sequences + 8192;
  }

  // All but dense matrices and the pool.
  uint64_t Fixed() const {
    return NormBytes() + Scratch(plan_.prefill_chunk) + KvTables() + (request_.host_budget_bytes ? 0 : HostFixed());
  }
  // What is the host's where there is a host tier, but for its slots.
  uint64_t HostFixed() const {
    const uint64_t tier = request_.host_budget_bytes && plan_.ffn == FfnPath::kRecords
                              ? NeuronResidency::HostFixedBytes(spec_.ff, plan_.geometry.records_per_block) + 8192
                              : 0;
    return request_.tokenizer_bytes + plan_.stream_ring_bytes + plan_.delta_ring_bytes + plan_.promotion_ring_bytes +
           NeuronTables() + tier;
  }
  // Norms and biases, and the rounding of the buffers that hold dense weights.
  uint64_t NormBytes() const { return RoundUp<uint64_t>(VectorBytes(spec_), 4096) + 8192; }

  void ListNeeds() {
    uint64_t gates = 0, weights = 0;
    for (const DenseItem& item : plan_.dense) {
      const bool gate =
          plan_.ffn == FfnPath::kRecords && (item.role == DenseItem::Role::kGate || item.role == DenseItem::Role::kUp);
      (gate ? gates : weights) += RoundUp<uint64_t>(item.resident_bytes(), 64);
    }
    plan_.needs.clear();
    plan_.host_needs.clear();
    const auto add_to = [](std::vector<MemoryNeed>& needs, std::string what, MemoryCategory category, uint64_t bytes) {
      if (bytes > 0) needs.push_back({std::move(what), category, bytes});
    };
    const auto add = [&](std::string what, MemoryCategory category, uint64_t bytes) {
      add_to(plan_.needs, std::move(what), category, bytes);
    };
    const auto add_host = [&](std::string what, MemoryCategory category, uint64_t bytes) {
      add_to(request_.host_budget_bytes ? plan_.host_needs : plan_.needs, std::move(what), category, bytes);
    };
    add("attention and output weights", MemoryCategory::kDenseWeights, weights);
    add("gates", MemoryCategory::kGates, gates);
    add("norms and biases", MemoryCategory::kDenseWeights, NormBytes());
    add_host("tokenizer", MemoryCategory::kTokenizer, request_.tokenizer_bytes);
    add(fmt::format("step scratch ({} tokens)", plan_.prefill_chunk), MemoryCategory::kScratch,
        Scratch(plan_.prefill_chunk));
    add_host("ring for streamed weights", MemoryCategory::kStaging, plan_.stream_ring_bytes);
    add_host("ring for missing neurons", MemoryCategory::kStaging, plan_.delta_ring_bytes);
    add_host("ring for promoted neurons", MemoryCategory::kStaging, plan_.promotion_ring_bytes);
    add_host("neuron tables", MemoryCategory::kTables, NeuronTables());
    add("KV tables", MemoryCategory::kTables, KvTables());
    add(request_.sequences == 1 ? fmt::format("KV for {} tokens", request_.kv_tokens)
                                : fmt::format("KV for {} x {} tokens", request_.sequences, request_.kv_tokens),
        MemoryCategory::kPool, PoolCost(plan_.kv_blocks));
    add("rest of the pool, for neurons and KV", MemoryCategory::kPool,
        (plan_.pool_blocks - plan_.kv_blocks) * BlockCost());
    if (plan_.host_slots == 0) return;
    const uint64_t rings = plan_.stream_ring_bytes + plan_.delta_ring_bytes + plan_.promotion_ring_bytes;
    add_host("neurons", MemoryCategory::kNeurons,
             HostFixed() - request_.tokenizer_bytes - rings - NeuronTables() +
                 plan_.host_slots * NeuronResidency::HostSlotBytes(SlotBytes()));
  }

  const ModelSpec& spec_;
  const PlanRequest& request_;
  MemoryPlan plan_;
};

bool Fits(const MemoryPlan& plan, const PlanRequest& request) {
  return plan.TotalBytes() <= request.budget_bytes && plan.HostBytes() <= request.host_budget_bytes.value_or(0);
}

// The ways to lay a model out, best first.
StatusOr<MemoryPlan> FirstThatFits(const ModelSpec& spec, const PlanRequest& request) {
  const bool sparse = request.records.has_value();
  std::optional<MemoryPlan> last;
  const auto attempt = [&](FfnPath ffn, Sizing sizing) -> StatusOr<bool> {
    EM_ASSIGN_OR_RETURN(MemoryPlan plan, Planner(spec, request, ffn).Make(sizing));
    const bool fits = Fits(plan, request);
    last = std::move(plan);
    return fits;
  };
  // Dense mode of a sparse model uses the file's rows when all of them fit, and the store's records when not.
  if (request.mode == Mode::kDense) {
    EM_ASSIGN_OR_RETURN(const bool fits, attempt(FfnPath::kMatrices, {false, false}));
    if (fits) return *last;
  }
  const FfnPath ffn = sparse ? FfnPath::kRecords : FfnPath::kMatrices;
  for (const Sizing sizing : {Sizing{false, false}, Sizing{false, true}, Sizing{true, true}}) {
    EM_ASSIGN_OR_RETURN(const bool fits, attempt(ffn, sizing));
    if (fits) return *last;
  }
  return Exhausted("{}", last->Describe());
}

uint64_t Sum(const std::vector<MemoryNeed>& needs) {
  uint64_t total = 0;
  for (const MemoryNeed& need : needs) total += need.bytes;
  return total;
}

std::string NeedsTable(const std::vector<MemoryNeed>& needs) {
  std::string text;
  for (const MemoryNeed& need : needs) text += fmt::format("  {:<36} {:>12}\n", need.what, FormatBytes(need.bytes));
  return text + fmt::format("  {:<36} {:>12}\n", "total", FormatBytes(Sum(needs)));
}

}  // namespace

std::string_view Name(Mode mode) { return mode == Mode::kExact ? "exact" : "dense"; }

uint64_t MemoryPlan::TotalBytes() const { return Sum(needs); }
uint64_t MemoryPlan::HostBytes() const { return Sum(host_needs); }

double MemoryPlan::ResidentShare(const ModelSpec& spec, uint32_t sequences, uint32_t tokens) const {
  if (ffn == FfnPath::kMatrices) return dense_streamed_bytes == 0 ? 1 : 0;
  const Geometry& g = geometry;
  if (g.records_per_block == 0) return 0;
  const uint64_t pages = uint64_t{sequences} * spec.layers * CeilDiv(tokens, g.page_tokens);
  const uint64_t kv = static_kv_blocks > 0 ? static_kv_blocks : std::min(pool_blocks, pages);
  // Whole slots in bytes [begin, end) of a block.
  const auto slots_in = [&](uint64_t begin, uint64_t end) {
    const uint64_t first = CeilDiv(begin, g.slot_bytes), last = end / g.slot_bytes;
    return last > first ? last - first : 0;
  };
  uint64_t slots =
      (pool_blocks - kv) * g.records_per_block + std::min(kv, pages) * slots_in(g.page_bytes, g.block_bytes);
  if (const uint32_t filled = tokens % g.page_tokens; filled > 0) {
    const uint64_t begin = std::max(filled, 1 + kPageEndLeastTokens) * (g.page_bytes / g.page_tokens);
    slots += uint64_t{sequences} * spec.layers * slots_in(begin, g.page_bytes);
  }
  return std::min(1.0, static_cast<double>(slots) / (static_cast<double>(spec.layers) * spec.ff));
}

std::string MemoryPlan::Describe() const {
  std::string text = NeedsTable(needs);
  if (!host_needs.empty()) text += "and on the host\n" + NeedsTable(host_needs);
  if (dense_streamed_bytes > 0) {
    text += fmt::format("  {:<36} {:>12}\n", "(streamed from disk each step)", FormatBytes(dense_streamed_bytes));
  }
  return text;
}

StatusOr<MemoryPlan> SmallestPlan(const ModelSpec& spec, const PlanRequest& request) {
  PlanRequest least = request;
  least.budget_bytes = 0;
  if (least.host_budget_bytes) least.host_budget_bytes = 0;
  return Planner(spec, least, request.records ? FfnPath::kRecords : FfnPath::kMatrices).Make({true, true});
}

StatusOr<MemoryPlan> PlanMemory(const ModelSpec& spec, const PlanRequest& request) {
  StatusOr<MemoryPlan> plan = FirstThatFits(spec, request);
  if (plan.ok() || plan.status().code() != StatusCode::kResourceExhausted) return plan;
  EM_ASSIGN_OR_RETURN(const MemoryPlan smallest, SmallestPlan(spec, request));
  const bool host_is_short = request.host_budget_bytes && *request.host_budget_bytes < smallest.HostBytes();
  const uint64_t budget = host_is_short ? *request.host_budget_bytes : request.budget_bytes;
  const uint64_t least = host_is_short ? smallest.HostBytes() : smallest.TotalBytes();
  return Exhausted("a {}budget of {} ({} bytes) is too small; the smallest that works here is {} ({} bytes):\n{}",
                   host_is_short               ? "host "
                   : request.host_budget_bytes ? "device "
                                               : "",
                   FormatBytes(budget), budget, FormatBytes(least), least, smallest.Describe());
}

}  // namespace elasticmem
