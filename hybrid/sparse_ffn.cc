#include "hybrid/sparse_ffn.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <numeric>

#include "base/carver.h"
#include "base/stopwatch.h"
#include "base/units.h"

namespace elasticmem {
namespace {

constexpr uint64_t kMaxReadBytes = 256 << 10;
// Records, and groups of neurons, that one chunk of work takes: enough to amortise a ticket, few enough to balance.
constexpr size_t kRecordsPerChunk = 16;
constexpr size_t kGroupsPerChunk = 4;
constexpr size_t kChunksPerThread = 4;
constexpr size_t kTokensTogether = 64;  // of a group's product with all its rows
// Neurons of a wave for every token of a step, so that the lists stay in cache.
constexpr size_t kListPerToken = 256;

size_t ListCapacity(const RecordLayout& layout, uint32_t max_tokens) {
  return std::max<size_t>(RoundUp(layout.ff, SparseFfn::kNeuronGroup), kListPerToken * max_tokens);
}

// each(i) for the bits of a word, ascending.
template <class Each>
void ForBits(uint64_t word, Each&& each) {
  for (; word; word &= word - 1) each(static_cast<uint32_t>(std::countr_zero(word)));
}

}  // namespace

uint64_t SparseFfn::ScratchBytes(const RecordLayout& layout, uint32_t max_tokens) {
  const size_t list = ListCapacity(layout, max_tokens);
  const size_t groups = CeilDiv<size_t>(layout.ff, kNeuronGroup);
  Carver carver(nullptr);
  carver.Take<uint64_t>(max_tokens * groups);
  for (int i = 0; i < 3; ++i) carver.Take<uint64_t>(groups);
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
      groups_(CeilDiv(layout_.ff, kNeuronGroup)),
      scratch_(std::move(scratch)) {
  Carver carver(scratch_.data());
  active_ = carver.Take<uint64_t>(size_t{max_tokens} * groups_);
  union_ = carver.Take<uint64_t>(groups_);
  resident_ = carver.Take<uint64_t>(groups_);
  late_ = carver.Take<uint64_t>(groups_);
  records_ = carver.Take<const std::byte*>(layout_.ff);
  neurons_ = carver.Take<uint32_t>(list_capacity_);
  gates_ = carver.Take<float>(list_capacity_);
  coefficients_ = carver.Take<float>(list_capacity_);
}

void SparseFfn::ForGroups(const Wave& wave, absl::FunctionRef<void(uint32_t group)> each) {
  const size_t groups = wave.group_end - wave.group_begin;
  const size_t per_chunk = std::clamp<size_t>(groups / (kChunksPerThread * team_->threads()), 1, kGroupsPerChunk);
  team_->ParallelFor(CeilDiv(groups, per_chunk), [&](size_t chunk) {
    const size_t end = std::min(groups, (chunk + 1) * per_chunk);
    for (size_t g = chunk * per_chunk; g < end; ++g) each(wave.group_begin + static_cast<uint32_t>(g));
  });
}

// Fills active_ and union_, and counts the active neurons into heat.
void SparseFfn::FindUnion(const Rows& rows, bool all_neurons) {
  std::atomic<uint64_t> active = 0;
  ForGroups({.group_end = groups_}, [&](uint32_t group) {
    const uint32_t first = group * kNeuronGroup, count = std::min(kNeuronGroup, layout_.ff - first);
    const uint64_t whole = ~uint64_t{0} >> (kNeuronGroup - count);
    uint64_t any = 0, number = 0;
    for (size_t t = 0; t < rows.tokens; ++t) {
      uint64_t& word = active_[t * groups_ + group];
      MarkNonZero({rows.gate + t * layout_.ff + first, count}, &word);
      uint32_t list[kNeuronGroup];
      size_t n = 0;
      ForBits(word, [&](uint32_t i) { list[n++] = first + i; });
      residency_->heat().Touch(rows.layer, {list, n});
      number += n;
      if (all_neurons) word = whole;
      any |= word;
    }
    union_[group] = any;
    active.fetch_add(number, std::memory_order_relaxed);
  });
  statistics_.active += active.load();
  statistics_.possible += rows.tokens * layout_.ff;
}

// Looks up a group's neurons and merges the reads of those that are missing; the room that they take of the ring.
uint64_t SparseFfn::PlanGroup(uint32_t group, uint32_t layer, uint64_t half_ring, std::vector<MergedRead>& merged) {
  const uint32_t alignment = store_->file().alignment();
  // Small beside the ring, so that what is lost where its end wraps around is small too.
  const uint64_t max_read = std::min<uint64_t>(kMaxReadBytes, half_ring / 2);
  const size_t first_missing = missing_.size();
  uint64_t late = 0;
  ForBits(union_[group], [&](uint32_t i) {
    const uint32_t neuron = group * kNeuronGroup + i;
    const NeuronEntry entry = residency_->table().Lookup({layer, neuron});
    records_[neuron] = residency_->Record(entry);
    if (entry.tier() == Tier::kHost) {
      ++statistics_.on_host;
      residency_->WantOnDevice({layer, neuron});
    }
    if (records_[neuron]) return;
    late |= uint64_t{1} << i;
    missing_.push_back({store_->TailOffset(layer, neuron), neuron, 0});
  });
  late_[group] = late;
  resident_[group] = union_[group] & ~late;
  merged.clear();
  if (!late) return 0;
  std::sort(missing_.begin() + first_missing, missing_.end(),
            [](const Missing& a, const Missing& b) { return a.offset < b.offset; });
  ranges_.clear();
  for (size_t m = first_missing; m < missing_.size(); ++m) ranges_.push_back({missing_[m].offset, layout_.tail_bytes});
  const auto total = [&] {
    uint64_t bytes = 0;
    for (const MergedRead& read : merged) bytes += RoundUp<uint64_t>(read.bytes, alignment) + 2 * alignment + 64;
    return bytes;
  };
  merged = MergeReads(ranges_, std::max<uint64_t>(kMaxGapBytes, alignment), max_read);
  if (total() > half_ring) merged = MergeReads(ranges_, 0, max_read);  // the gaps are not worth the ring's room
  return total();
}

// Cuts the layer into waves: as many groups as the lists and half of the ring hold.
void SparseFfn::PlanWaves(size_t tokens, uint32_t layer) {
  waves_.clear();
  missing_.clear();
  reads_.clear();
  tickets_.clear();
  const uint64_t half_ring = ring_->max_bytes(store_->file()) / 2;
  Wave wave;
  uint64_t wave_bytes = 0, wanted = 0;
  size_t wave_entries = 0;
  std::vector<MergedRead> merged;
  for (uint32_t g = 0; g < groups_; ++g) {
    const size_t first_missing = missing_.size();
    const uint64_t bytes = PlanGroup(g, layer, half_ring, merged);
    size_t entries = 0;
    for (size_t t = 0; t < tokens; ++t) entries += std::popcount(active_[t * groups_ + g]);
    if (g > wave.group_begin && (wave_entries + entries > list_capacity_ || wave_bytes + bytes > half_ring)) {
      wave.group_end = g;
      wave.read_end = reads_.size();
      waves_.push_back(wave);
      wave = {g, g, reads_.size(), reads_.size()};
      wave_bytes = wave_entries = 0;
    }
    for (const MergedRead& read : merged) {
      for (size_t m = 0; m < read.count; ++m) {
        missing_[first_missing + read.first + m].read = static_cast<uint32_t>(reads_.size());
      }
      reads_.push_back({read.offset, read.bytes, first_missing + read.first, read.count});
    }
    wave_bytes += bytes;
    wave_entries += entries;
    wanted += std::popcount(union_[g]);
  }
  wave.group_end = groups_;
  wave.read_end = reads_.size();
  waves_.push_back(wave);
  statistics_.wanted += wanted;
  statistics_.resident += wanted - missing_.size();
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
  for (size_t t = 0; t < rows.tokens; ++t) {
    uint32_t entries = 0;
    for (uint32_t g = wave.group_begin; g < wave.group_end; ++g) {
      group_begin_.push_back(entries);
      entries += std::popcount(active_[t * groups_ + g]);
    }
    group_begin_.push_back(entries);
    list_begin_.push_back(list_begin_.back() + entries);
  }
  EM_CHECK(list_begin_.back() <= list_capacity_);
  const uint32_t first = wave.group_begin * kNeuronGroup;
  const uint32_t count = std::min(layout_.ff - first, groups * kNeuronGroup);
  team_->ParallelFor(rows.tokens, [&](size_t t) {
    const float* gate = rows.gate + t * layout_.ff + first;
    uint32_t* neurons = neurons_ + list_begin_[t];
    float* gates = gates_ + list_begin_[t];
    if (!all_neurons) {
      CompactNonZero({gate, count}, first, neurons, gates);
      return;
    }
    std::iota(neurons, neurons + count, first);
    std::copy_n(gate, count, gates);
  });
}

// coefficients_ = gate * up . x for the entries of the lists whose neuron is marked.
void SparseFfn::ComputeCoefficients(const Rows& rows, const Wave& wave, const uint64_t* marks) {
  if (std::none_of(marks + wave.group_begin, marks + wave.group_end, [](uint64_t word) { return word != 0; })) return;
  if (!layout_.gated) {
    ForGroups(wave, [&](uint32_t group) {
      for (size_t t = 0; t < rows.tokens; ++t) {
        const Entries e = EntriesOf(wave, t, group);
        std::copy(gates_ + e.begin, gates_ + e.end, coefficients_ + e.begin);
      }
    });
    return;
  }
  // Both ways have the same bits. Which is faster depends on how many tokens share a row, and on the kernels.
  const int way = rows.tokens > 1 ? up_ways_.Choose(rows.tokens) : 0;
  uint64_t nanos = 0;
  {
    const Stopwatch watch(nanos);
    ForGroups(wave, [&](uint32_t group) {
      if (marks[group]) way == 0 ? GatherUps(rows, wave, marks, group) : MultiplyUps(rows, wave, marks, group);
    });
  }
  if (marks == resident_) up_ways_.Record(rows.tokens, way, list_begin_.back(), nanos);
}

// Each token's rows of a group, one token after another: a row that several use comes from memory once.
void SparseFfn::GatherUps(const Rows& rows, const Wave& wave, const uint64_t* marks, uint32_t group) {
  for (size_t t = 0; t < rows.tokens; ++t) {
    ActivationRows x = rows.x;
    x.data = rows.x.Row(t);
    x.tokens = 1;
    const std::byte* up_rows[kNeuronGroup];
    size_t entries[kNeuronGroup];
    float ups[kNeuronGroup];
    size_t n = 0;
    const Entries e = EntriesOf(wave, t, group);
    for (size_t k = e.begin; k < e.end; ++k) {
      if (!(marks[group] >> neurons_[k] % kNeuronGroup & 1)) continue;
      up_rows[n] = records_[neurons_[k]] + layout_.up_offset;
      entries[n++] = k;
    }
    if (n == 0) continue;
    GatherDot(layout_.up, {up_rows, n}, layout_.d_model, x, ups, n);
    for (size_t i = 0; i < n; ++i) coefficients_[entries[i]] = Coefficient(gates_[entries[i]], ups[i]);
  }
}

// All marked rows of a group times all tokens; what a token does not use is dropped.
void SparseFfn::MultiplyUps(const Rows& rows, const Wave& wave, const uint64_t* marks, uint32_t group) {
  const std::byte* up_rows[kNeuronGroup];
  uint8_t place[kNeuronGroup];
  size_t n = 0;
  ForBits(marks[group], [&](uint32_t i) {
    place[i] = static_cast<uint8_t>(n);
    up_rows[n++] = records_[group * kNeuronGroup + i] + layout_.up_offset;
  });
  float ups[kTokensTogether * kNeuronGroup];
  for (size_t token = 0; token < rows.tokens; token += kTokensTogether) {
    ActivationRows x = rows.x;
    x.data = rows.x.Row(token);
    x.tokens = std::min(kTokensTogether, rows.tokens - token);
    GatherDot(layout_.up, {up_rows, n}, layout_.d_model, x, ups, n);
    for (size_t t = 0; t < x.tokens; ++t) {
      const Entries e = EntriesOf(wave, token + t, group);
      for (size_t k = e.begin; k < e.end; ++k) {
        const uint32_t i = neurons_[k] % kNeuronGroup;
        if (marks[group] >> i & 1) coefficients_[k] = Coefficient(gates_[k], ups[t * n + place[i]]);
      }
    }
  }
}

// y += the wave's groups, each summed on its own first. A chunk takes a range of columns and all tokens, so that a row
// that several tokens use comes from memory once.
void SparseFfn::Accumulate(const Rows& rows, const Wave& wave) {
  const size_t d = layout_.d_model;
  const size_t unit = std::max<size_t>(32, Traits(layout_.down).block_elements);
  const size_t splits = std::min<size_t>(team_->threads() * (rows.tokens > 1 ? 2 : 1), std::max<size_t>(1, d / unit));
  const size_t width = RoundUp(CeilDiv(d, splits), unit);
  const int way = rows.tokens > 1 ? down_ways_.Choose(rows.tokens) : 0;
  uint64_t nanos = 0;
  {
    const Stopwatch watch(nanos);
    team_->ParallelFor(splits, [&](size_t chunk) {
      const size_t begin = std::min(d, chunk * width);
      const size_t end = std::min(d, begin + width);
      if (begin == end) return;
      way == 0 ? AccumulateByToken(rows, wave, begin, end) : AccumulateByGroup(rows, wave, begin, end);
    });
  }
  down_ways_.Record(rows.tokens, way, list_begin_.back(), nanos);
}

// The lists in the order in which they are summed: by group, then by token; the next one's rows are fetched ahead.
void SparseFfn::AccumulateByToken(const Rows& rows, const Wave& wave, size_t begin, size_t end) {
  const size_t lists = (wave.group_end - wave.group_begin) * rows.tokens;
  const std::byte* down_rows[2][kNeuronGroup];
  size_t counts[2];
  const auto list_rows = [&](size_t list) {
    const Entries e =
        EntriesOf(wave, list % rows.tokens, wave.group_begin + static_cast<uint32_t>(list / rows.tokens));
    counts[list % 2] = e.end - e.begin;
    for (size_t k = 0; k < counts[list % 2]; ++k) {
      down_rows[list % 2][k] = records_[neurons_[e.begin + k]] + layout_.down_offset;
    }
    return coefficients_ + e.begin;
  };
  const float* coefficients = list_rows(0);
  for (size_t list = 0; list < lists; ++list) {
    const size_t now = list % 2, count = counts[now];
    const float* next = list + 1 < lists ? list_rows(list + 1) : nullptr;
    const size_t ahead = next ? counts[1 - now] : 0;
    if (count > 0) {
      AccumulateGroup(layout_.down, {down_rows[now], count}, coefficients, begin, end,
                      rows.y + list % rows.tokens * layout_.d_model, {down_rows[1 - now], ahead});
    }
    coefficients = next;
  }
}

// Group by group for all tokens.
void SparseFfn::AccumulateByGroup(const Rows& rows, const Wave& wave, size_t begin, size_t end) {
  const std::byte* down_rows[2][kNeuronGroup];
  const auto group_rows = [&](uint32_t group) {
    const std::byte** out = down_rows[group % 2];
    std::fill_n(out, kNeuronGroup, nullptr);
    if (group == wave.group_end) return;
    ForBits(union_[group], [&](uint32_t i) { out[i] = records_[group * kNeuronGroup + i] + layout_.down_offset; });
  };
  group_rows(wave.group_begin);
  for (uint32_t group = wave.group_begin; group < wave.group_end; ++group) {
    group_rows(group + 1);
    for (size_t token = 0; token < rows.tokens; token += kTokensTogether) {
      TokenList lists[kTokensTogether];
      size_t n = 0;
      for (size_t t = token; t < std::min(rows.tokens, token + kTokensTogether); ++t) {
        const Entries e = EntriesOf(wave, t, group);
        if (e.begin == e.end) continue;
        lists[n++] = {{neurons_ + e.begin, e.end - e.begin}, coefficients_ + e.begin, rows.y + t * layout_.d_model};
      }
      AccumulateGroupForTokens(layout_.down, down_rows[group % 2], {lists, n}, begin, end, down_rows[1 - group % 2]);
    }
  }
}

// Keeps the records that are hotter than what lies in memory, and frees their place in the ring.
void SparseFfn::AdmitAndRelease(const Wave& wave, uint32_t layer) {
  const auto in_use = [&](NeuronId id) { 
    return id.layer == layer && (union_[id.neuron / kNeuronGroup] >> id.neuron % kNeuronGroup & 1);
  };
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
    ComputeCoefficients(rows, wave, resident_);
    status = WaitForReads(wave, rows.layer);
    if (!status.ok()) break;
    ComputeCoefficients(rows, wave, late_);
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
