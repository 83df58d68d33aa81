// How an engine is built: files, store, plan, weights, pool, the first neurons.
#include <algorithm>
#include <cstring>

#include "base/units.h"
#include "device/host_device.h"
#include "hybrid/neuron_loader.h"
#include "runtime/engine/engine.h"
#include "runtime/model/model_hash.h"

namespace elasticmem {
namespace {

// Used for loading when nothing is streamed later; the pool takes its place.
constexpr uint64_t kLoadRingBytes = 8 << 20;
constexpr uint64_t kMinLoadRingBytes = 32 << 10;

void Notice(const EngineOptions& options, const std::string& text) {
  if (options.notice) options.notice(text);
}

// How the model and the options ask for memory. The store's tables are known from its layout alone.
StatusOr<PlanRequest> MakeRequest(const Model& model, const EngineOptions& options, uint32_t alignment) {
  const ModelSpec& spec = model.spec();
  PlanRequest request;
  request.budget_bytes = options.budget_bytes;
  const bool sparse = spec.HasSparseActivation();
  if (options.host_budget_bytes > 0) {
    if (!sparse) {
      return InvalidInput(
          "a host tier keeps neurons, but every neuron of a {} model is needed for every token; pass "
          "--memory alone",
          ActivationName(spec.activation));
    }
    request.host_budget_bytes = options.host_budget_bytes;
  }
  request.mode = sparse ? options.mode.value_or(Mode::kExact) : Mode::kDense;
  request.kv_type = options.kv_type;
  request.context = options.context > 0 ? options.context : spec.context;
  request.kv_tokens = std::min(options.kv_tokens, request.context);
  request.sequences = options.sequences;
  request.prefix_cache = options.prefix_cache;
  request.count_activations = options.count_activations;
  if (options.policy == Policy::kStatic) {
    request.static_kv = true;
    request.static_kv_share = options.static_kv_share;
    if (!options.static_kv_share) {
      request.kv_tokens = request.context;
      request.sequences = options.static_slots;
    }
  }
  request.threads = options.threads;
  request.prefill_chunk = options.prefill_chunk;
  request.logits_rows = options.logits_rows;
  request.tokenizer_bytes = model.MemoryBytes();
  request.alignment = alignment;
  if (options.kv_type == DType::kQ8_0 && spec.head_dim % 32 != 0) {
    return InvalidInput("--kv-type q8_0 needs a head size that is a multiple of 32; this model's is {}", spec.head_dim);
  }
  if (spec.position_embedding && uint64_t{request.context} + spec.position_offset > spec.position_embedding.rows) {
    return InvalidInput("a context of {} tokens is longer than the {} positions that the model has", request.context,
                        spec.position_embedding.rows - spec.position_offset);
  }
  if (options.prefill_chunk && *options.prefill_chunk == 0)
    return InvalidInput("--prefill-chunk is 0; expected 1 or more");
  if (sparse) {
    EM_ASSIGN_OR_RETURN(request.records, PackedLayout(model.pack_source(), options.store_type));
    request.store_table_bytes = uint64_t{spec.layers} * (spec.ff * 4 + 16);
  }
  return request;
}

}  // namespace

Engine::~Engine() = default;

StatusOr<MemoryPlan> Engine::Plan(const Model& model, const EngineOptions& options, bool smallest) {
  EM_ASSIGN_OR_RETURN(const ReadFile file, ReadFile::Open(model.gguf().paths()[0], options.direct_io));
  EM_ASSIGN_OR_RETURN(const PlanRequest request, MakeRequest(model, options, file.alignment()));
  return smallest ? SmallestPlan(model.spec(), request) : PlanMemory(model.spec(), request);
}

StatusOr<std::unique_ptr<Engine>> Engine::Open(const Model& model, const EngineOptions& options) {
  std::unique_ptr<Engine> engine(new Engine(model));
  EM_RETURN_IF_ERROR(engine->OpenFiles(options));
  EM_ASSIGN_OR_RETURN(PlanRequest request, MakeRequest(model, options, engine->files_[0].alignment()));
  if (options.mode == Mode::kExact && request.mode != Mode::kExact) {
    Notice(options, fmt::format("every neuron of a {} model is active, so exact mode is dense mode here",
                                ActivationName(model.spec().activation)));
  }
  engine->context_ = request.context;
  EM_ASSIGN_OR_RETURN(engine->plan_, PlanMemory(model.spec(), request));
  engine->budget_ = std::make_unique<Budget>(options.budget_bytes);
  if (options.host_budget_bytes > 0) {
    engine->host_budget_ = std::make_unique<Budget>(options.host_budget_bytes);
    engine->device_ = std::make_unique<HostDevice>(options.copy_gbps);
  }
  EM_ASSIGN_OR_RETURN(engine->tokenizer_,
                      engine->HostSide().Reserve(MemoryCategory::kTokenizer, request.tokenizer_bytes));
  engine->team_ = std::make_unique<Team>(options.threads);
  engine->cancelled_ = options.cancelled;
  if (engine->plan_.ffn == FfnPath::kRecords) {
    EM_RETURN_IF_ERROR(engine->OpenStore(options));
    // The store may lie on another disk.
    if (engine->store_->file().alignment() > request.alignment) {
      request.alignment = engine->store_->file().alignment();
      EM_ASSIGN_OR_RETURN(engine->plan_, PlanMemory(model.spec(), request));
    }
  }
  EM_RETURN_IF_ERROR(engine->LoadWeights(options));
  EM_RETURN_IF_ERROR(engine->MakePool(options));
  engine->reads_at_start_ = engine->reader_->statistics();
  return engine;
}

Status Engine::OpenFiles(const EngineOptions& options) {
  for (const std::string& path : model_.gguf().paths()) {
    EM_ASSIGN_OR_RETURN(ReadFile file, ReadFile::Open(path, options.direct_io));
    files_.push_back(std::move(file));
  }
  if (options.direct_io && !files_[0].direct()) {
    Notice(options,
           fmt::format("{}: this file system takes no direct reads; reading through the page cache", files_[0].path()));
  }
  return absl::OkStatus();
}

Status Engine::OpenStore(const EngineOptions& options) {
  EM_ASSIGN_OR_RETURN(const uint64_t hash, ModelQuickHash(model_.gguf()));
  EM_ASSIGN_OR_RETURN(const std::string path,
                      StorePath({model_.path(), options.store_dir, options.cache_dir, options.store_type, hash}));
  PackOptions pack;
  pack.type = options.store_type;
  pack.cancelled = options.cancelled;
  pack.scratch_bytes =
      std::min<uint64_t>(pack.scratch_bytes, std::max<uint64_t>(1_MiB, HostSide().available_bytes() / 2));
  if (options.progress) {
    pack.progress = [&](uint64_t done, uint64_t total) { options.progress("packing the neuron store", done, total); };
  }
  NeuronStore::Options open;
  open.try_direct = options.direct_io;
  EM_ASSIGN_OR_RETURN(OpenedStore opened, OpenOrPackNeuronStore(model_.pack_source(), path, pack, open));
  store_.emplace(std::move(opened.store));
  packed_ = std::move(opened.packed);
  if (packed_ && !packed_->reused) {
    Notice(options,
           fmt::format("packed {} in {:.1f} s{}", path, packed_->seconds,
                       packed_->requantised.empty() ? ""
                                                    : fmt::format("; {} (relative error {:.4f})", packed_->requantised,
                                                                  packed_->relative_error)));
  }
  EM_ASSIGN_OR_RETURN(store_tables_, HostSide().Reserve(MemoryCategory::kTables, store_->MemoryBytes()));
  return absl::OkStatus();
}

Status Engine::LoadWeights(const EngineOptions& options) {
  const uint64_t staging = plan_.stream_ring_bytes + plan_.delta_ring_bytes + plan_.promotion_ring_bytes;
  // Loading wants a ring whether or not running does; what the pool and the scratch will take is free for it until
  // then.
  uint64_t weights = 0;
  for (const MemoryNeed& need : plan_.needs) {
    if (need.category == MemoryCategory::kDenseWeights || need.category == MemoryCategory::kGates)
      weights += need.bytes;
  }
  if (host_budget_) weights = 0;  // the ring is the host's, the weights aren't
  const uint64_t available = HostSide().available_bytes();
  const uint64_t load = std::clamp(RoundDown<uint64_t>(available > weights ? available - weights : 0, 4096),
                                   std::max(staging, kMinLoadRingBytes), std::max(staging, kLoadRingBytes));
  {
    EM_ASSIGN_OR_RETURN(AlignedBuffer memory, AlignedBuffer::Allocate(HostSide(), MemoryCategory::kStaging, load));
    ReadQueueOptions queue;
    queue.kind = options.io;
    queue.registered = memory.span();
    EM_ASSIGN_OR_RETURN(std::unique_ptr<Reader> reader, Reader::Open(queue));
    ReadRing ring(reader.get(), memory.span());
    const auto progress = [&](uint64_t done, uint64_t total) {
      if (options.progress) options.progress("loading weights", done, total);
    };
    EM_ASSIGN_OR_RETURN(weights_,
                        Weights::Load(*budget_, model_.spec(), plan_, files_, &ring, progress, options.cancelled));
  }
  EM_ASSIGN_OR_RETURN(staging_, AlignedBuffer::Allocate(HostSide(), MemoryCategory::kStaging, staging));
  ReadQueueOptions queue;
  queue.kind = options.io;
  queue.registered = staging_.span();
  EM_ASSIGN_OR_RETURN(reader_, Reader::Open(queue));
  for (const std::string& text : reader_->queue().notices()) Notice(options, text);
  if (plan_.stream_ring_bytes > 0) {
    stream_ring_ = std::make_unique<ReadRing>(reader_.get(), staging_.span().first(plan_.stream_ring_bytes));
    stream_ = std::make_unique<DenseStream>(stream_ring_.get(), weights_->slices());
  }
  if (plan_.delta_ring_bytes > 0) {
    const auto rings = staging_.span().subspan(plan_.stream_ring_bytes);
    delta_ring_ = std::make_unique<ReadRing>(reader_.get(), rings.first(plan_.delta_ring_bytes));
    if (plan_.promotion_ring_bytes > 0) {
      promotion_ring_ = std::make_unique<ReadRing>(reader_.get(), rings.subspan(plan_.delta_ring_bytes));
    }
  }
  return absl::OkStatus();
}

Status Engine::MakePool(const EngineOptions& options) {
  const ModelSpec& spec = model_.spec();
  const Geometry& geometry = plan_.geometry;
  if (plan_.pool_blocks > UINT32_MAX) {
    return Exhausted("a pool of {} blocks is more than the {} that tables can number", plan_.pool_blocks, UINT32_MAX);
  }
  EM_ASSIGN_OR_RETURN(pool_,
                      BlockPool::Create(*budget_, static_cast<uint32_t>(plan_.pool_blocks), geometry.block_bytes));
  kv_ = std::make_unique<KvTable>(pool_.get(), budget_.get(), spec.layers, geometry.page_tokens);
  if (options.prefix_cache) {
    EM_ASSIGN_OR_RETURN(prefix_, PrefixIndex::Create(budget_.get(), pool_.get(), kv_.get(), [this](BlockId block) {
                          if (residency_) residency_->TakeBackKv(Index(block));
                        }));
  }
  if (options.swap_bytes > 0) {
    const std::string& other = options.store_dir.empty() ? options.cache_dir : options.store_dir;
    EM_ASSIGN_OR_RETURN(swap_,
                        KvSwap::Create(budget_.get(), kv_.get(), options.swap_dir.empty() ? other : options.swap_dir,
                                       options.swap_bytes, geometry.page_bytes));
  }
  Transformer::Parts parts;
  parts.spec = &spec;
  parts.weights = weights_.get();
  parts.team = team_.get();
  parts.kv = kv_.get();
  parts.stream = stream_.get();
  parts.kv_type = options.kv_type;
  if (plan_.ffn == FfnPath::kRecords) {
    std::optional<HostTierOptions> host;
    if (host_budget_) host = {host_budget_.get(), device_.get(), static_cast<uint32_t>(plan_.host_slots)};
    EM_ASSIGN_OR_RETURN(
        residency_,
        NeuronResidency::Create(*budget_, pool_.get(),
                                {options.policy, spec.layers, spec.ff, store_->layout().slot_bytes, geometry.page_bytes,
                                 static_cast<uint32_t>(plan_.static_kv_blocks), options.count_activations},
                                host));
    EM_ASSIGN_OR_RETURN(sparse_ffn_, SparseFfn::Create(*budget_, team_.get(), &*store_, residency_.get(),
                                                       delta_ring_.get(), spec.activation, plan_.prefill_chunk));
    EM_RETURN_IF_ERROR(FillNeurons(options));
    if (promotion_ring_) {
      promoter_ = std::make_unique<Promoter>(&*store_, residency_.get(), reader_.get(), promotion_ring_.get());
    }
    parts.promoter = promoter_.get();
    parts.sparse_ffn = sparse_ffn_.get();
    parts.all_neurons = plan_.mode == Mode::kDense;
    parts.up_type = store_->layout().up;
  }
  EM_ASSIGN_OR_RETURN(transformer_, Transformer::Create(*budget_, parts, plan_.prefill_chunk,
                                                        std::min(options.logits_rows, plan_.prefill_chunk)));
  return absl::OkStatus();
}

// Fills the slots with the hottest neurons where a profile tells them, else with the same share of every layer.
Status Engine::FillNeurons(const EngineOptions& options) {
  const RecordLayout& layout = store_->layout();
  residency_->Grow();
  if (options.profile.empty()) return ReadNeurons(EvenPlacement(*store_, *residency_), options.progress);
  if (options.profile.size() != uint64_t{layout.layers} * layout.ff) {
    return InvalidInput("the activation profile has {} values; expected {} layers of {} neurons",
                        options.profile.size(), layout.layers, layout.ff);
  }
  return ReadNeurons(residency_->Place(options.profile), options.progress);
}

Status Engine::PlaceNeurons(std::span<const float> worth) {
  EM_CHECK(residency_ && worth.size() == residency_->heat().values().size());
  return ReadNeurons(residency_->Place(worth), nullptr);
}

Status Engine::ReadNeurons(std::vector<Placement> neurons, const Progress& progress) {
  return LoadNeurons(*store_, *residency_, *delta_ring_, std::move(neurons), [&](uint64_t done, uint64_t total) {
    if (progress) progress("loading neurons", done, total);
    return CheckCancelled();
  });
}

}  // namespace elasticmem
