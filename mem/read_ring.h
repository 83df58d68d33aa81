// Streams of reads through small fixed memory: a Reader owns the queue and hands completions out, each ReadRing is a
// byte ring whose reads are consumed in the order they were asked for. MergeReads decides which records share a read.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/strong_id.h"
#include "mem/read_queue.h"

namespace elasticmem {

struct ByteRange {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// One read that covers ranges [first, first + count) of those that were merged.
struct MergedRead {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  size_t first = 0;
  size_t count = 0;
};

// Joins neighbours whose gap is at most `max_gap` bytes, as long as the joint read has at most `max_bytes` (a single
// longer range stays whole). `sorted`: ascending, not empty ranges, disjoint. Every range is in exactly one read; reads
// are ascending and disjoint. For direct files let max_gap be at least the alignment, or a page may be read for two
// reads.
std::vector<MergedRead> MergeReads(std::span<const ByteRange> sorted, uint64_t max_gap, uint64_t max_bytes);

struct ReadStatistics {
  uint64_t bytes_read = 0;   // their bytes, with alignment and gaps
  uint64_t reads = 0;        // requests handed to the queue
  uint64_t wait_micros = 0;  // the caller stood still in Wait()
  uint64_t busy_micros = 0;  // reads were outstanding, as seen when polling
};

class ReadRing;

// Shares one ReadQueue between rings: what does not fit into the queue waits in order and follows as reads complete,
// which is noticed by Poll, Ready, Wait and Enqueue. One thread; outlives its rings.
class Reader {
 public:
  // Long reads are cut into requests of this size, so that one alone keeps the queue deep.
  static constexpr uint64_t kPieceBytes = 512 << 10;

  static StatusOr<std::unique_ptr<Reader>> Open(const ReadQueueOptions& options);
  explicit Reader(std::unique_ptr<ReadQueue> queue);
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader();

  // Takes in what has completed and submits what has waited. Call it between pieces of work to keep the disk busy.
  void Poll();

  const ReadQueue& queue() const { return *queue_; }
  const ReadStatistics& statistics() const { return statistics_; }
  // Reads asked for and not completed, in the queue or before it.
  size_t outstanding() const { return queue_->in_flight() + backlog_.size() - backlog_begin_; }

 private:
  friend class ReadRing;
  using Clock = std::chrono::steady_clock;

  uint16_t Attach(ReadRing* ring);
  void Detach(uint16_t ring_id);
  void Push(const ReadRequest& request);
  void DropBacklog(uint16_t ring_id);
  void Wait();  // Poll(), but blocks until at least one read has completed
  void Feed();
  void Dispatch();

  std::unique_ptr<ReadQueue> queue_;
  std::vector<ReadRequest> backlog_;  // [backlog_begin_, end) wait for room in the queue
  size_t backlog_begin_ = 0;
  std::vector<ReadRing*> rings_;  // by ring id; null where detached
  std::vector<ReadCompletion> completions_;
  ReadStatistics statistics_;
  Clock::time_point busy_since_;
  bool busy_ = false;
};

// A FIFO of reads in one piece of memory. Invariants: entries lie in the ring in ticket order and never overlap; memory
// of an entry is not reused before Release(). One thread.
class ReadRing {
 public:
  using Ticket = StrongId<struct ReadTicketTag, uint64_t>;

  // `memory` starts at a multiple of 4096 and outlives the ring; give it (or memory around it) to the queue as
  // `registered`.
  ReadRing(Reader* reader, std::span<std::byte> memory);
  ReadRing(const ReadRing&) = delete;
  ReadRing& operator=(const ReadRing&) = delete;
  ~ReadRing();  // as Clear(): nothing writes into the memory afterwards

  // Starts reading [offset, offset + bytes) of `file` (which outlives the read). Nothing when the ring lacks room now:
  // Release() something and ask again. bytes is 1..max_bytes(file). A range that leaves the file is an error at Wait().
  std::optional<Ticket> Enqueue(const ReadFile& file, uint64_t offset, uint64_t bytes);
  // Has it completed (well or not)?
  bool Ready(Ticket ticket);
  // Blocks until the read is done. The bytes asked for, valid until released; their address equals `offset` modulo
  // max(64, file alignment), so records keep their alignment. Errors: those of the reads, which name file and offset.
  StatusOr<std::span<const std::byte>> Wait(Ticket ticket);
  // Frees the oldest entry; waits for it where it still is being read.
  void Release();
  // Frees all entries; reads that have not begun are dropped, those that have are waited for.
  void Clear();

  size_t entries() const { return entries_.size(); }
  // The longest read of `file` that fits an empty ring whatever its offset.
  uint64_t max_bytes(const ReadFile& file) const;
  void CheckInvariants() const;

 private:
  friend class Reader;
  struct Entry {
    size_t begin = 0;  // [begin, end) of the ring belongs to it
    size_t end = 0;
    size_t lead = 0;  // the asked byte is at begin + lead
    uint64_t bytes = 0;
    uint32_t pieces = 0;  // outstanding
    Status status;
  };

  Entry& Find(Ticket ticket);
  void Complete(uint64_t ticket, Status status);
  std::optional<size_t> FindRoom(size_t bytes, size_t alignment) const;

  Reader* const reader_;
  const std::span<std::byte> memory_;
  uint16_t id_;
  uint64_t first_ticket_ = 0;  // of entries_.front()
  std::deque<Entry> entries_;
};

}  // namespace elasticmem
