// Reads through a pool of threads that call pread, for systems where io_uring is refused.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#include "mem/read_backends.h"

namespace elasticmem {
namespace {

ReadCompletion ReadWhole(const ReadRequest& request) {
  ReadProgress read(request);
  while (!read.over()) {
    const ssize_t got =
        pread(request.file->descriptor(), read.destination(), read.bytes(), static_cast<off_t>(read.offset()));
    read.Advance(got < 0 ? -errno : got);
  }
  return read.TakeCompletion();
}

class PreadQueue final : public ReadQueue {
 public:
  PreadQueue(uint32_t depth, std::vector<std::string> notices) : depth_(depth), notices_(std::move(notices)) {}

  // Reads not begun are dropped, those begun are waited for.
  ~PreadQueue() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  Status Start(uint32_t threads) {
    try {
      for (uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
    } catch (const std::system_error& error) {
      if (threads_.empty()) return SystemError(error.code().value(), "starting a thread that reads");
      notices_.push_back(fmt::format("only {} of {} reading threads could be started", threads_.size(), threads));
    }
    return absl::OkStatus();
  }

  size_t Submit(std::span<const ReadRequest> requests) override {
    const size_t taken = std::min(requests.size(), depth_ - in_flight_);
    {
      const std::lock_guard lock(mutex_);
      todo_.insert(todo_.end(), requests.begin(), requests.begin() + static_cast<ptrdiff_t>(taken));
    }
    for (size_t i = 0; i < std::min(taken, threads_.size()); ++i) work_.notify_one();
    in_flight_ += taken;
    return taken;
  }

  void Poll(std::vector<ReadCompletion>& out) override {
    const std::lock_guard lock(mutex_);
    TakeDone(out);
  }

  void Wait(std::vector<ReadCompletion>& out) override {
    if (in_flight_ == 0) return;
    std::unique_lock lock(mutex_);
    completed_.wait(lock, [this] { return !done_.empty(); });
    TakeDone(out);
  }

  size_t in_flight() const override { return in_flight_; }
  const char* name() const override { return "pread"; }
  const std::vector<std::string>& notices() const override { return notices_; }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_.wait(lock, [this] { return stopping_ || !todo_.empty(); });
      if (stopping_) return;
      const ReadRequest request = todo_.front();
      todo_.pop_front();
      lock.unlock();
      ReadCompletion completion = ReadWhole(request);
      lock.lock();
      done_.push_back(std::move(completion));
      completed_.notify_one();
    }
  }

  void TakeDone(std::vector<ReadCompletion>& out) {  // with mutex_ held
    in_flight_ -= done_.size();
    std::move(done_.begin(), done_.end(), std::back_inserter(out));
    done_.clear();
  }

  const size_t depth_;
  std::vector<std::string> notices_;
  std::vector<std::thread> threads_;
  size_t in_flight_ = 0;  // the caller's thread only

  std::mutex mutex_;  // guards what follows
  std::condition_variable work_;
  std::condition_variable completed_;
  std::deque<ReadRequest> todo_;
  std::vector<ReadCompletion> done_;
  bool stopping_ = false;
};

}  // namespace

StatusOr<std::unique_ptr<ReadQueue>> OpenPreadQueue(const ReadQueueOptions& options, std::vector<std::string> notices) {
  auto queue = std::make_unique<PreadQueue>(options.depth, std::move(notices));
  EM_RETURN_IF_ERROR(queue->Start(std::clamp(options.pread_threads, 1u, options.depth)));
  return queue;
}

}  // namespace elasticmem
