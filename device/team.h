// The host's cores as a team: one oneTBB task per worker for the length of a step, sharing ticketed chunks of work.
//
// A parallel_for per operator costs several microseconds of scheduling; here a job is one 64-bit word that workers take
// tickets from. The caller takes tickets too and can finish a job alone, so a worker that the system has parked delays nobody.
// Within a step an idle worker spins briefly, then sleeps; between steps no task runs at all.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <absl/functional/function_ref.h>

namespace elasticmem {

class Team {
 public:
  // `threads` cores work on a job, the calling thread among them; at least 1.
  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int threads() const { return threads_; }

  // Runs chunk(0) .. chunk(chunks - 1), each once, on any worker in any order; returns when all are done. `chunks` < 2^24.
  // Called by one thread at a time and not from inside a chunk. Chunks must not block on a device or a disk.
  void ParallelFor(size_t chunks, absl::FunctionRef<void(size_t)> chunk);

  // Workers stay at hand from construction to destruction of a Session: one a step. Without one, ParallelFor runs alone.
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
  void WorkerLoop();
  bool TakeTicket(uint64_t word);
  void Publish(uint64_t word);

  // word_ = generation << 48 | chunks << 24 | next ticket. A worker that takes a ticket by compare-and-swap knows that the job
  // is live until it adds to done_, so reading job_ after that is safe.
  static constexpr uint64_t kTicketBits = 24;
  static constexpr uint64_t kTicketMask = (uint64_t{1} << kTicketBits) - 1;

  const int threads_;
  std::unique_ptr<Arena> arena_;
  alignas(64) std::atomic<uint64_t> word_{0};
  alignas(64) std::atomic<size_t> done_{0};
  const absl::FunctionRef<void(size_t)>* job_ = nullptr;
  alignas(64) std::atomic<uint32_t> wake_epoch_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> session_open_{false};
  std::atomic<int> joined_{0};
};

}  // namespace elasticmem
