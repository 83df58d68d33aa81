#include "device/team.h"

#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <thread>

#include "base/status.h"
#include "base/stopwatch.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace elasticmem {
namespace {

// About 50 microseconds on current cores: longer than the gaps between operators, shorter than a disk read.
constexpr int kSpinsBeforeSleep = 2000;

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

struct Team::Arena {
  explicit Arena(int threads) : arena(threads, 1) {}
  tbb::task_arena arena;
};

Team::Team(int threads) : threads_(std::max(1, threads)) {
  ranges_ = std::make_unique<Range[]>(threads_);
  if (threads_ > 1) arena_ = std::make_unique<Arena>(threads_);
}

Team::~Team() { EM_CHECK(!session_open_.load()); }

Team::Session::Session(Team& team) : team_(team) {
  EM_CHECK(!team_.session_open_.exchange(true));
  if (!team_.arena_) return;
  for (int i = 1; i < team_.threads_; ++i) {
    team_.joined_.fetch_add(1);
    team_.arena_->arena.enqueue([&t = team_, i] {
      t.WorkerLoop(i);
      t.joined_.fetch_sub(1, std::memory_order_release);
    });
  }
}

Team::Session::~Session() {
  team_.session_open_.store(false, std::memory_order_seq_cst);
  team_.wake_epoch_.fetch_add(1, std::memory_order_seq_cst);
  team_.wake_epoch_.notify_all();
  // Tasks that have not started yet see the closed session and leave; none may outlive it.
  for (int spins = 0; team_.joined_.load(std::memory_order_acquire) > 0; ++spins) {
    if (spins < kSpinsBeforeSleep) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
}

void Team::Run(const absl::FunctionRef<void(size_t)>& job, size_t chunk, Range& own) {
  if (!measures_busy_) return job(chunk);
  uint64_t nanos = 0;
  {
    const Stopwatch watch(nanos);
    job(chunk);
  }
  own.busy_nanos.fetch_add(nanos, std::memory_order_relaxed);
}

// Runs the chunks that are left of a worker's, for the one whose range is `own`; false if there was none.
bool Team::TakeChunksOf(Range& range, Range& own) {
  bool took = false;
  uint64_t word = range.word.load(std::memory_order_acquire);
  while (AnyIn(word)) {
    const uint64_t next = word & kChunkMask;
    if (!range.word.compare_exchange_weak(word, word + 1, std::memory_order_acquire, std::memory_order_acquire))
      continue;
    Run(*job_, next, own);
    took = true;
    done_.fetch_add(1, std::memory_order_release);
    word = range.word.load(std::memory_order_acquire);
  }
  return took;
}

bool Team::TakeChunks(int worker) {
  bool took = false;
  for (int i = 0; i < threads_; ++i) took |= TakeChunksOf(ranges_[(worker + i) % threads_], ranges_[worker]);
  return took;
}

double Team::busy_seconds() const {
  uint64_t nanos = 0;
  for (int i = 0; i < threads_; ++i) nanos += ranges_[i].busy_nanos.load(std::memory_order_relaxed);
  return static_cast<double>(nanos) * 1e-9;
}

bool Team::AnyLeft() const {
  for (int i = 0; i < threads_; ++i) {
    if (AnyIn(ranges_[i].word.load(std::memory_order_seq_cst))) return true;
  }
  return false;
}

void Team::WorkerLoop(int worker) {
  int idle = 0;
  while (session_open_.load(std::memory_order_seq_cst)) {
    if (TakeChunks(worker)) {
      idle = 0;
    } else if (++idle < kSpinsBeforeSleep) {
      Pause();
    } else {
      // Announce the sleep first, then look again: the publisher writes the ranges first, then looks for sleepers.
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      const uint32_t epoch = wake_epoch_.load(std::memory_order_seq_cst);
      if (!AnyLeft() && session_open_.load(std::memory_order_seq_cst))
        wake_epoch_.wait(epoch, std::memory_order_seq_cst);
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
      idle = 0;
    }
  }
}

void Team::Publish(size_t chunks) {
  ++generation_;
  for (size_t i = 0, begin = 0; i < static_cast<size_t>(threads_); ++i) {
    const size_t end = chunks * (i + 1) / threads_;
    ranges_[i].word.store(generation_ << (2 * kChunkBits) | end << kChunkBits | begin, std::memory_order_seq_cst);
    begin = end;
  }
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    wake_epoch_.fetch_add(1, std::memory_order_seq_cst);
    wake_epoch_.notify_all();
  }
}

void Team::ParallelFor(size_t chunks, absl::FunctionRef<void(size_t)> chunk) {
  EM_CHECK(chunks <= kChunkMask);
  if (chunks == 1 || !arena_ || !session_open_.load(std::memory_order_relaxed)) {
    for (size_t i = 0; i < chunks; ++i) Run(chunk, i, ranges_[0]);
    return;
  }
  if (chunks == 0) return;
  job_ = &chunk;
  done_.store(0, std::memory_order_relaxed);
  Publish(chunks);
  TakeChunks(0);
  for (int spins = 0; done_.load(std::memory_order_acquire) != chunks; ++spins) {
    if (spins < kSpinsBeforeSleep) {
      Pause();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace elasticmem
