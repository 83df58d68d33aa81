// The host's cores as a team: one oneTBB task per worker for the length of a step, sharing ticketed chunks of work.
//
// A parallel_for per operator costs several microseconds of scheduling; here a job is one 64-bit word a worker: the
// chunks that are its own, which it takes in order, so that what it reads is one stream; then it helps the others with
// theirs. The caller works too and can finish a job alone, so a worker that the system has parked delays nobody. Within
// a step an idle worker spins briefly, then sleeps; between steps no task runs at all.
#pragma once

#include <absl/functional/function_ref.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace elasticmem {

class Team {
 public:
  // `threads` cores work on a job, the calling thread among them; at least 1.
  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int threads() const { return threads_; }

  // Runs chunk(0) .. chunk(chunks - 1), each once, on any worker in any order; returns when all are done. `chunks` <
  // 2^24. Neighbouring chunks tend to run on one worker, in order. Called by one thread at a time and not from inside a
  // chunk. Chunks must not block on a device or a disk.
  void ParallelFor(size_t chunks, absl::FunctionRef<void(size_t)> chunk);

  // Adds up, from now on, the time that workers spend in chunks: core seconds. It costs two looks at the clock for each
  // chunk, so nobody does it unasked.
  void MeasureBusy() { measures_busy_ = true; }
  double busy_seconds() const;

  // Workers stay at hand from construction to destruction of a Session: one a step. Without one, ParallelFor runs
  // alone.
  class Session {
   public:
    explicit Session(Team& team);
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

   private:
    Team& team_;
  };

 private:
  struct Arena;
  void WorkerLoop(int worker);
  struct Range;
  void Run(const absl::FunctionRef<void(size_t)>& job, size_t chunk, Range& own);
  bool TakeChunks(int worker);
  bool TakeChunksOf(Range& range, Range& own);
  bool AnyLeft() const;
  void Publish(size_t chunks);

  // generation << 48 | end << 24 | next: the chunks of one worker. Who takes one by compare-and-swap knows that the job
  // is live until it adds to done_, so reading job_ after that is safe.
  static constexpr uint64_t kChunkBits = 24;
  static constexpr uint64_t kChunkMask = (uint64_t{1} << kChunkBits) - 1;
  static bool AnyIn(uint64_t word) { return (word & kChunkMask) < (word >> kChunkBits & kChunkMask); }
  struct alignas(64) Range {
    std::atomic<uint64_t> word{0};
    std::atomic<uint64_t> busy_nanos{0};  // of the worker
  };

  const int threads_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Range[]> ranges_;  // [threads]
  uint64_t generation_ = 0;
  bool measures_busy_ = false;
  alignas(64) std::atomic<size_t> done_{0};
  const absl::FunctionRef<void(size_t)>* job_ = nullptr;
  alignas(64) std::atomic<uint32_t> wake_epoch_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> session_open_{false};
  std::atomic<int> joined_{0};
};

}  // namespace elasticmem
