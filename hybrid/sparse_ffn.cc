#include "hybrid/sparse_ffn.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/carver.h"
#include "base/stopwatch.h"
#include "base/units.h"

namespace elasticmem {
namespace {

constexpr uint64_t kMaxReadBytes = 256 << 10;
// Records, and groups of neurons, that one chunk of work takes: enough to amortise a ticket, few enough to balance.
constexpr size_t kRecordsPerChunk = 16;
constexpr size_t kGroupsPerChunk = 4;
// Neurons of a wave for every token of a step, so that the lists stay in cache.
constexpr size_t kListPerToken = 256;

size_t ListCapacity(const RecordLayout& layout, uint32_t max_tokens) {
  return std::max<size_t>(RoundUp(layout.ff, SparseFfn::kNeuronGroup), kListPerToken * max_tokens);
}

}  // namespace

uint64_t SparseFfn::ScratchBytes(const RecordLayout& layout, uint32_t max_tokens) {
  const size_t list = ListCapacity(layout, max_tokens);
  Carver carver(nullptr);
  carver.Take<uint8_t>(layout.ff);
  carver.Take<uint32_t>(layout.ff);
  carver.Take<std::byte*>(layout.ff);
  carver.Take<uint32_t>(list);
  carver.Take<float>(list);
  carver.Take<float>(list);
  return carver.used();
}

uint64_t SparseFfn::MinRingBytes(const RecordLayout& layout, uint32_t file_alignment) {
  // A wave is at least one group. In the worst case all of it is missing: records one by one, or, where they are short,
  // joined with the gaps between them. Twice that, so that the next wave is on its way.
  const uint64_t alone = RoundUp<uint64_t>(layout.tail_bytes, file_alignment) + 2 * uint64_t{file_alignment} + 64;
  const uint64_t group =
      kNeuronGroup * std::min<uint64_t>(alone, layout.record_bytes + 64) + 4 * uint64_t{file_alignment};
  return RoundUp<uint64_t>(2 * group + (64 << 10), 4096);
}

StatusOr<std::unique_ptr<SparseFfn>> SparseFfn::Create(Budget& budget, Team* team, const NeuronStore* store,
                                                       NeuronResidency* residency, ReadRing* ring,
                                                       Activation activation, uint32_t max_tokens) {
  EM_ASSIGN_OR_RETURN(AlignedBuffer scratch, AlignedBuffer::Allocate(budget, MemoryCategory::kScratch,
                                                                     ScratchBytes(store->layout(), max_tokens)));
  return std::unique_ptr<SparseFfn>(
      new SparseFfn(team, store, residency, ring, activation, max_tokens, std::move(scratch)));
}

SparseFfn::SparseFfn(Team* team, const NeuronStore* store, NeuronResidency* residency, ReadRing* ring,
                     Activation activation, uint32_t max_tokens, AlignedBuffer scratch)
    : team_(team),
      store_(store),
      residency_(residency),
      ring_(ring),
      activation_(activation),
      layout_(store->layout()),
      max_tokens_(max_tokens),
      list_capacity_(ListCapacity(layout_, max_tokens)),
      scratch_(std::move(scratch)) {
  Carver carver(scratch_.data());
  marks_ = carver.Take<uint8_t>(layout_.ff);
  union_ = carver.Take<uint32_t>(layout_.ff);
  records_ = carver.Take<const std::byte*>(layout_.ff);
  neurons_ = carver.Take<uint32_t>(list_capacity_);
  gates_ = carver.Take<float>(list_capacity_);
  coefficients_ = carver.Take<float>(list_capacity_);
}

// Fills union_ and marks_, and counts the active neurons into heat.
void SparseFfn::FindUnion(const Rows& rows, bool all_neurons) {
  const uint32_t ff = layout_.ff;
  statistics_.possible += rows.tokens * ff;
  if (rows.tokens == 1 && !all_neurons) {
    union_size_ = CompactNonZero({rows.gate, ff}, union_);
    std::memset(marks_, kUnused, ff);
    for (size_t i = 0; i < union_size_; ++i) marks_[union_[i]] = kResident;
    residency_->heat().Touch(rows.layer, {union_, union_size_});
    statistics_.active += union_size_;
    return;
  }
  std::memset(marks_, all_neurons ? kResident : kUnused, ff);
  for (size_t t = 0; t < rows.tokens; ++t) {
    const size_t active = CompactNonZero({rows.gate + t * ff, ff}, union_);
    residency_->heat().Touch(rows.layer, {union_, active});
    for (size_t i = 0; i < active; ++i) marks_[union_[i]] = kResident;
    statistics_.active += active;
  }
  union_size_ = 0;
  for (uint32_t i = 0; i < ff; ++i) {
    if (marks_[i]) union_[union_size_++] = i;
  }
}

// Looks up every neuron of the union and cuts it into waves: as many groups as the lists and half of the ring hold.
void SparseFfn::PlanWaves(size_t tokens, uint32_t layer) {
  waves_.clear();
  missing_.clear();
  reads_.clear();
  tickets_.clear();
  const uint32_t groups = CeilDiv(layout_.ff, kNeuronGroup);
  const uint32_t groups_per_wave = std::max<uint32_t>(1, static_cast<uint32_t>(list_capacity_ / tokens / kNeuronGroup));
  const uint32_t alignment = store_->file().alignment();
  const uint64_t half_ring = ring_->max_bytes(store_->file()) / 2;
  // Small beside the ring, so that what is lost where its end wraps around is small too.
  const uint64_t max_read = std::min<uint64_t>(kMaxReadBytes, half_ring / 2);
  const auto span_bytes = [&](const MergedRead& read) {
    return RoundUp<uint64_t>(read.bytes, alignment) + 2 * alignment + 64;
  };

  Wave wave;
  uint64_t wave_bytes = 0;
  size_t next = 0;  // in union_
  for (uint32_t g = 0; g < groups; ++g) {
    const size_t first_missing = missing_.size();
    const size_t first_next = next;
    for (; next < union_size_ && union_[next] / kNeuronGroup == g; ++next) {
      const uint32_t neuron = union_[next];
      const NeuronEntry entry = residency_->table().Lookup({layer, neuron});
      records_[neuron] = residency_->Record(entry);
      if (entry.tier() == Tier::kHost) {
        ++statistics_.on_host;
        residency_->WantOnDevice({layer, neuron});
      }
      if (records_[neuron]) continue;
      marks_[neuron] = kLate;
      missing_.push_back({store_->TailOffset(layer, neuron), neuron, 0});
    }
    std::sort(missing_.begin() + first_missing, missing_.end(),
              [](const Missing& a, const Missing& b) { return a.offset < b.offset; });
    ranges_.clear();
    for (size_t m = first_missing; m < missing_.size(); ++m)
      ranges_.push_back({missing_[m].offset, layout_.tail_bytes});
    std::vector<MergedRead> merged = MergeReads(ranges_, std::max<uint64_t>(kMaxGapBytes, alignment), max_read);
    const auto total = [&] {
      uint64_t bytes = 0;
      for (const MergedRead& read : merged) bytes += span_bytes(read);
      return bytes;
    };
    uint64_t group_bytes = total();
    if (group_bytes > half_ring) {
      // Records far apart in the store: the gaps are not worth the ring's room.
      merged = MergeReads(ranges_, 0, max_read);
      group_bytes = total();
    }
    const bool full =
        g > wave.group_begin && (g - wave.group_begin >= groups_per_wave || wave_bytes + group_bytes > half_ring);
    if (full) {
      wave.group_end = g;
      wave.union_end = first_next;
      wave.read_end = reads_.size();
      waves_.push_back(wave);
      wave = {g, g, first_next, first_next, reads_.size(), reads_.size()};
      wave_bytes = 0;
    }
    for (const MergedRead& read : merged) {
      for (size_t m = 0; m < read.count; ++m) {
        missing_[first_missing + read.first + m].read = static_cast<uint32_t>(reads_.size());
      }
      reads_.push_back({read.offset, read.bytes, first_missing + read.first, read.count});
    }
    wave_bytes += group_bytes;
  }
  wave.group_end = groups;
  wave.union_end = union_size_;
  wave.read_end = reads_.size();
  waves_.push_back(wave);
  statistics_.wanted += union_size_;
  statistics_.resident += union_size_ - missing_.size();
  statistics_.record_bytes_read += missing_.size() * layout_.tail_bytes;
}

void SparseFfn::EnqueueReads() {
  while (tickets_.size() < reads_.size()) {
    const MergedRead& read = reads_[tickets_.size()];
    const auto ticket = ring_->Enqueue(store_->file(), read.offset, read.bytes);
    if (!ticket) return;
    tickets_.push_back(*ticket);
  }
}

Status SparseFfn::WaitForReads(const Wave& wave, uint32_t layer) {
  for (size_t r = wave.read_begin; r < wave.read_end; ++r) {
    EM_CHECK(r < tickets_.size());
    EM_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, ring_->Wait(tickets_[r]));
    for (size_t m = reads_[r].first; m < reads_[r].first + reads_[r].count; ++m) {
      const auto tail = bytes.subspan(missing_[m].offset - reads_[r].offset, layout_.tail_bytes);
      records_[missing_[m].neuron] = tail.data();
    }
  }
  // Checked by all workers; what they find is told by one.
  std::atomic<bool> damaged = false;
  const size_t first = wave.read_begin < wave.read_end ? reads_[wave.read_begin].first : 0;
  const size_t last =
      wave.read_begin < wave.read_end ? reads_[wave.read_end - 1].first + reads_[wave.read_end - 1].count : 0;
  const auto verify = [&](size_t m) {
    return store_->VerifyTail(layer, missing_[m].neuron, {records_[missing_[m].neuron], layout_.tail_bytes});
  };
  team_->ParallelFor(CeilDiv(last - first, kRecordsPerChunk), [&](size_t chunk) {
    const size_t end = std::min(last, first + (chunk + 1) * kRecordsPerChunk);
    for (size_t m = first + chunk * kRecordsPerChunk; m < end; ++m) {
      if (!verify(m).ok()) damaged.store(true);
    }
  });
  for (size_t m = first; damaged.load() && m < last; ++m) EM_RETURN_IF_ERROR(verify(m));
  return absl::OkStatus();
}

// Lists, for each token, the wave's neurons that it uses, with their gates.
void SparseFfn::ListWave(const Rows& rows, const Wave& wave, bool all_neurons) {
  const uint32_t groups = wave.group_end - wave.group_begin;
  list_begin_.assign(1, 0);
  group_begin_.clear();
  size_t entry = 0;
  for (size_t t = 0; t < rows.tokens; ++t) {
    const float* gate = rows.gate + t * layout_.ff;
    size_t next = wave.union_begin;
    const size_t begin = entry;
    for (uint32_t g = 0; g < groups; ++g) {
      group_begin_.push_back(static_cast<uint32_t>(entry - begin));
      const uint32_t end = (wave.group_begin + g + 1) * kNeuronGroup;
      for (; next < wave.union_end && union_[next] < end; ++next) {
        const uint32_t neuron = union_[next];
        if (gate[neuron] == 0 && !all_neurons) continue;
        neurons_[entry] = neuron;
        gates_[entry++] = gate[neuron];
      }
    }
    group_begin_.push_back(static_cast<uint32_t>(entry - begin));
    list_begin_.push_back(entry);
  }
}

// coefficients_ = gate * up . x for every entry of the lists whose neuron has this mark. A chunk takes a few groups and
// all tokens, so that a row that several tokens use comes from memory once.
void SparseFfn::ComputeCoefficients(const Rows& rows, uint8_t mark) {
  if (!layout_.gated) {
    if (mark == kResident) std::copy_n(gates_, list_begin_.back(), coefficients_);
    return;
  }
  const size_t groups = group_begin_.size() / rows.tokens - 1;
  team_->ParallelFor(CeilDiv(groups, kGroupsPerChunk), [&](size_t chunk) {
    const size_t first = chunk * kGroupsPerChunk, last = std::min(groups, first + kGroupsPerChunk);
    for (size_t t = 0; t < rows.tokens; ++t) {
      ActivationRows x = rows.x;
      x.data = rows.x.Row(t);
      x.tokens = 1;
      const std::byte* up_rows[kGroupsPerChunk * kNeuronGroup];
      size_t entries[kGroupsPerChunk * kNeuronGroup];
      float ups[kGroupsPerChunk * kNeuronGroup];
      size_t n = 0;
      const uint32_t* group = group_begin_.data() + t * (groups + 1);
      for (size_t k = list_begin_[t] + group[first]; k < list_begin_[t] + group[last]; ++k) {
        if (marks_[neurons_[k]] != mark) continue;
        up_rows[n] = records_[neurons_[k]] + layout_.up_offset;
        entries[n++] = k;
      }
      if (n == 0) continue;
      GatherDot(layout_.up, {up_rows, n}, layout_.d_model, x, ups, n);
      for (size_t i = 0; i < n; ++i) {
        // Written so that NaN passes.
        const float up = activation_ == Activation::kDRelu && ups[i] < 0 ? 0.0f : ups[i];
        coefficients_[entries[i]] = gates_[entries[i]] * up;
      }
    }
  });
}

// y += the wave's groups, each summed on its own first. A chunk takes a range of columns and all tokens, so that a row
// that several tokens use comes from memory once.
void SparseFfn::Accumulate(const Rows& rows, const Wave& wave) {
  const size_t d = layout_.d_model;
  const size_t unit = std::max<size_t>(32, Traits(layout_.down).block_elements);
  const size_t splits = std::min<size_t>(team_->threads() * (rows.tokens > 1 ? 2 : 1), std::max<size_t>(1, d / unit));
  const size_t width = RoundUp(CeilDiv(d, splits), unit);
  const uint32_t groups = wave.group_end - wave.group_begin;
  team_->ParallelFor(splits, [&](size_t chunk) {
    const size_t begin = std::min(d, chunk * width);
    const size_t end = std::min(d, begin + width);
    if (begin == end) return;
    // The lists in the order in which they are summed: by group, then by token; the next one's rows are fetched ahead.
    const std::byte* down_rows[2][kNeuronGroup];
    size_t counts[2];
    const size_t lists = groups * rows.tokens;
    const auto list_rows = [&](size_t list) {
      const size_t t = list % rows.tokens;
      const uint32_t* group = group_begin_.data() + t * (groups + 1) + list / rows.tokens;
      const size_t first = list_begin_[t] + group[0];
      counts[list % 2] = group[1] - group[0];
      for (size_t k = 0; k < counts[list % 2]; ++k) {
        down_rows[list % 2][k] = records_[neurons_[first + k]] + layout_.down_offset;
      }
      return coefficients_ + first;
    };
    const float* coefficients = list_rows(0);
    for (size_t list = 0; list < lists; ++list) {
      const size_t now = list % 2, count = counts[now];
      const float* next = list + 1 < lists ? list_rows(list + 1) : nullptr;
      const size_t ahead = next ? counts[1 - now] : 0;
      if (count > 0) {
        AccumulateGroup(layout_.down, {down_rows[now], count}, coefficients, begin, end,
                        rows.y + list % rows.tokens * d, {down_rows[1 - now], ahead});
      }
      coefficients = next;
    }
  });
}

// Keeps the records that are hotter than what lies in memory, and frees their place in the ring.
void SparseFfn::AdmitAndRelease(const Wave& wave, uint32_t layer) {
  const auto in_use = [&](NeuronId id) { return id.layer == layer && marks_[id.neuron]; };
  for (size_t r = wave.read_begin; r < wave.read_end; ++r) {
    for (size_t m = reads_[r].first; m < reads_[r].first + reads_[r].count; ++m) {
      const uint32_t neuron = missing_[m].neuron;
      if (std::byte* slot = residency_->Admit({layer, neuron}, in_use)) {
        std::memcpy(slot, records_[neuron], layout_.tail_bytes);
      }
    }
    ring_->Release();
  }
}

Status SparseFfn::Run(const Rows& rows, bool all_neurons) {
  EM_CHECK(rows.tokens <= max_tokens_);
  std::memset(rows.y, 0, rows.tokens * layout_.d_model * sizeof(float));
  FindUnion(rows, all_neurons);
  {
    const Stopwatch watch(statistics_.management_nanos);
    PlanWaves(rows.tokens, rows.layer);
  }
  EnqueueReads();
  Status status;
  for (const Wave& wave : waves_) {
    ListWave(rows, wave, all_neurons);
    ComputeCoefficients(rows, kResident);
    status = WaitForReads(wave, rows.layer);
    if (!status.ok()) break;
    ComputeCoefficients(rows, kLate);
    Accumulate(rows, wave);
    {
      const Stopwatch watch(statistics_.management_nanos);
      AdmitAndRelease(wave, rows.layer);
    }
    EnqueueReads();
  }
  if (!status.ok()) ring_->Clear();
  residency_->MoveBetweenTiers();
  return status;
}

}  // namespace elasticmem
