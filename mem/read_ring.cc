#include "mem/read_ring.h"

#include <algorithm>
#include <utility>

#include "base/units.h"

namespace elasticmem {
namespace {

using std::chrono::duration_cast;
using std::chrono::microseconds;

constexpr uint32_t kTicketBits = 48;  // of a tag; the ring's id is above
constexpr uint64_t kCacheLineBytes = 64;
constexpr size_t kBacklogCompactFrom = 1024;

uint64_t PlacementAlignment(const ReadFile& file) { return std::max<uint64_t>(kCacheLineBytes, file.alignment()); }

}  // namespace

std::vector<MergedRead> MergeReads(std::span<const ByteRange> sorted, uint64_t max_gap, uint64_t max_bytes) {
  std::vector<MergedRead> reads;
  for (size_t i = 0; i < sorted.size(); ++i) {
    const ByteRange& range = sorted[i];
    EM_CHECK(range.bytes > 0);
    if (!reads.empty()) {
      MergedRead& last = reads.back();
      const uint64_t end = last.offset + last.bytes;
      EM_CHECK(range.offset >= end);
      const uint64_t joint_bytes = range.offset - last.offset + range.bytes;
      if (range.offset - end <= max_gap && joint_bytes <= max_bytes) {
        last.bytes = joint_bytes;
        ++last.count;
        continue;
      }
    }
    reads.push_back({range.offset, range.bytes, i, 1});
  }
  return reads;
}

StatusOr<std::unique_ptr<Reader>> Reader::Open(const ReadQueueOptions& options) {
  EM_ASSIGN_OR_RETURN(std::unique_ptr<ReadQueue> queue, OpenReadQueue(options));
  return std::make_unique<Reader>(std::move(queue));
}

Reader::Reader(std::unique_ptr<ReadQueue> queue) : queue_(std::move(queue)) { EM_CHECK(queue_ != nullptr); }

Reader::~Reader() {
  for (const ReadRing* ring : rings_) EM_CHECK(ring == nullptr);
}

uint16_t Reader::Attach(ReadRing* ring) {
  size_t id = 0;
  while (id < rings_.size() && rings_[id] != nullptr) ++id;
  EM_CHECK(id <= UINT16_MAX);
  if (id == rings_.size()) rings_.push_back(nullptr);
  rings_[id] = ring;
  return static_cast<uint16_t>(id);
}

void Reader::Detach(uint16_t ring_id) { rings_[ring_id] = nullptr; }

void Reader::Push(const ReadRequest& request) {
  if (!busy_) {
    busy_ = true;
    busy_since_ = Clock::now();
  }
  backlog_.push_back(request);
}

void Reader::DropBacklog(uint16_t ring_id) {
  size_t kept = backlog_begin_;
  for (size_t i = backlog_begin_; i < backlog_.size(); ++i) {
    const ReadRequest& request = backlog_[i];
    if (request.tag >> kTicketBits == ring_id) {
      completions_.push_back({request.tag, Status(StatusCode::kCancelled, "the read was dropped")});
    } else {
      backlog_[kept++] = request;
    }
  }
  backlog_.resize(kept);
  Dispatch();
}

// Hands over as much of the backlog as the queue has room for.
void Reader::Feed() {
  const std::span<const ReadRequest> waiting = std::span(backlog_).subspan(backlog_begin_);
  if (waiting.empty()) return;
  const size_t taken = queue_->Submit(waiting);
  for (const ReadRequest& request : waiting.first(taken)) statistics_.bytes_read += request.bytes;
  statistics_.reads += taken;
  backlog_begin_ += taken;
  if (backlog_begin_ == backlog_.size()) {
    backlog_.clear();
    backlog_begin_ = 0;
  } else if (backlog_begin_ >= kBacklogCompactFrom) {
    backlog_.erase(backlog_.begin(), backlog_.begin() + static_cast<ptrdiff_t>(backlog_begin_));
    backlog_begin_ = 0;
  }
}

void Reader::Dispatch() {
  for (ReadCompletion& completion : completions_) {
    ReadRing* const ring = rings_[completion.tag >> kTicketBits];
    EM_CHECK(ring != nullptr);
    ring->Complete(completion.tag & ((uint64_t{1} << kTicketBits) - 1), std::move(completion.status));
  }
  completions_.clear();
  if (busy_ && outstanding() == 0) {
    busy_ = false;
    statistics_.busy_micros += static_cast<uint64_t>(duration_cast<microseconds>(Clock::now() - busy_since_).count());
  }
}

void Reader::Poll() {
  if (!busy_) return;
  queue_->Poll(completions_);
  Feed();
  Dispatch();
}

void Reader::Wait() {
  Feed();
  queue_->Wait(completions_);
  Feed();
  Dispatch();
}

ReadRing::ReadRing(Reader* reader, std::span<std::byte> memory) : reader_(reader), memory_(memory) {
  EM_CHECK(reinterpret_cast<uintptr_t>(memory.data()) % 4096 == 0);
  id_ = reader_->Attach(this);
}

ReadRing::~ReadRing() {
  Clear();
  reader_->Detach(id_);
}

uint64_t ReadRing::max_bytes(const ReadFile& file) const {
  // Up to an alignment less one byte in front and behind, and as much to bring the start of an odd ring to it.
  const uint64_t overhead = (file.alignment() > 4096 ? 3 : 2) * PlacementAlignment(file);
  return memory_.size() > overhead ? memory_.size() - overhead : 0;
}

// A place for `bytes` whose address is a multiple of `alignment`: behind the newest entry, or at the start of the ring.
std::optional<size_t> ReadRing::FindRoom(size_t bytes, size_t alignment) const {
  const auto base = reinterpret_cast<uintptr_t>(memory_.data());
  const auto fit = [&](size_t begin, size_t end) -> std::optional<size_t> {
    const size_t at = RoundUp(base + begin, alignment) - base;
    if (at > end || bytes > end - at) return std::nullopt;
    return at;
  };
  if (entries_.empty()) return fit(0, memory_.size());
  const size_t oldest = entries_.front().begin;
  const size_t newest_end = entries_.back().end;
  if (newest_end <= oldest) return fit(newest_end, oldest);  // wrapped: entries are not empty
  if (const auto behind = fit(newest_end, memory_.size())) return behind;
  return fit(0, oldest);
}

std::optional<ReadRing::Ticket> ReadRing::Enqueue(const ReadFile& file, uint64_t offset, uint64_t bytes) {
  EM_CHECK(bytes > 0 && bytes <= max_bytes(file));
  const uint64_t ticket = first_ticket_ + entries_.size();
  const uint64_t alignment = file.alignment();
  const uint64_t placement = PlacementAlignment(file);
  const uint64_t begin = RoundDown(offset, alignment);
  const bool inside = offset <= file.bytes() && bytes <= file.bytes() - offset;
  const uint64_t end = inside ? RoundUp(offset + bytes, alignment) : begin;
  // The span lies as far from a placement boundary in memory as in the file.
  const uint64_t shift = begin % placement;
  const auto at = FindRoom(std::max<uint64_t>(shift + (end - begin), 1), placement);
  if (!at) return std::nullopt;

  Entry& entry = entries_.emplace_back();
  entry.begin = *at;
  entry.end = *at + std::max<uint64_t>(shift + (end - begin), 1);
  entry.lead = shift + (offset - begin);
  entry.bytes = bytes;
  if (!inside) {
    entry.status = Corrupt("reading {} bytes at offset {} of {}: the file has only {} bytes", bytes, offset,
                           file.path(), file.bytes());
    return Ticket(ticket);
  }
  for (uint64_t piece = begin; piece < end; piece += Reader::kPieceBytes) {
    ReadRequest request;
    request.file = &file;
    request.offset = piece;
    request.bytes = static_cast<uint32_t>(std::min(Reader::kPieceBytes, end - piece));
    request.destination = memory_.data() + entry.begin + shift + (piece - begin);
    request.tag = uint64_t{id_} << kTicketBits | ticket;
    reader_->Push(request);
    ++entry.pieces;
  }
  reader_->Feed();
  return Ticket(ticket);
}

ReadRing::Entry& ReadRing::Find(Ticket ticket) {
  EM_CHECK(ticket.value() >= first_ticket_ && ticket.value() - first_ticket_ < entries_.size());
  return entries_[ticket.value() - first_ticket_];
}

void ReadRing::Complete(uint64_t ticket, Status status) {
  Entry& entry = Find(Ticket(ticket));
  EM_CHECK(entry.pieces > 0);
  --entry.pieces;
  if (entry.status.ok()) entry.status = std::move(status);
}

bool ReadRing::Ready(Ticket ticket) {
  const Entry& entry = Find(ticket);
  if (entry.pieces > 0) reader_->Poll();
  return entry.pieces == 0;
}

StatusOr<std::span<const std::byte>> ReadRing::Wait(Ticket ticket) {
  const Entry& entry = Find(ticket);
  if (!Ready(ticket)) {
    const auto start = Reader::Clock::now();
    while (entry.pieces > 0) reader_->Wait();
    reader_->statistics_.wait_micros +=
        static_cast<uint64_t>(duration_cast<microseconds>(Reader::Clock::now() - start).count());
  }
  if (!entry.status.ok()) return entry.status;
  return std::span<const std::byte>(memory_.data() + entry.begin + entry.lead, entry.bytes);
}

void ReadRing::Release() {
  EM_CHECK(!entries_.empty());
  while (entries_.front().pieces > 0) reader_->Wait();
  entries_.pop_front();
  ++first_ticket_;
}

void ReadRing::Clear() {
  reader_->DropBacklog(id_);
  while (!entries_.empty()) Release();
}

void ReadRing::CheckInvariants() const {
  bool wrapped = false;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    EM_CHECK(entry.begin < entry.end && entry.end <= memory_.size());
    EM_CHECK(entry.lead + entry.bytes <= entry.end - entry.begin || !entry.status.ok());
    if (i == 0) continue;
    if (entry.begin < entries_[i - 1].end) {
      EM_CHECK(!wrapped);
      wrapped = true;
    }
    if (wrapped) EM_CHECK(entry.end <= entries_.front().begin);
  }
}

}  // namespace elasticmem
