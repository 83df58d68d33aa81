// Reads through io_uring: one ring, destinations in registered buffers where they may be pinned.
#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/units.h"
#include "mem/read_backends.h"

namespace elasticmem {
namespace {

constexpr uint64_t kRegisteredChunkBytes = 1_GiB;  // the kernel's limit for one buffer

std::string ErrnoText(int error_number) { return std::generic_category().message(error_number); }

class UringQueue final : public ReadQueue {
 public:
  static StatusOr<std::unique_ptr<ReadQueue>> Open(const ReadQueueOptions& options) {
    auto queue = std::unique_ptr<UringQueue>(new UringQueue(options.depth));
    EM_RETURN_IF_ERROR(queue->SetUp());
    queue->RegisterBuffers(options.registered);
    return queue;
  }

  ~UringQueue() override {
    if (!set_up_) return;
    draining_ = true;
    std::vector<ReadCompletion> ignored;
    while (flying_ > 0) WaitOnce(ignored);
    io_uring_queue_exit(&ring_);
  }

  size_t Submit(std::span<const ReadRequest> requests) override {
    const size_t taken = std::min(requests.size(), depth_ - in_flight());
    for (const ReadRequest& request : requests.first(taken)) {
      ReadProgress read(request);
      if (read.over()) {
        rejected_.push_back(read.TakeCompletion());
        continue;
      }
      const uint32_t index = free_.back();
      free_.pop_back();
      reads_[index] = std::move(read);
      ++flying_;
      Prepare(index);
    }
    Flush();
    return taken;
  }

  void Poll(std::vector<ReadCompletion>& out) override {
    TakeRejected(out);
    Reap(out);
    Flush();
  }

  void Wait(std::vector<ReadCompletion>& out) override {
    const size_t before = out.size();
    TakeRejected(out);
    Reap(out);
    while (out.size() == before && flying_ > 0) WaitOnce(out);
    Flush();
  }

  size_t in_flight() const override { return flying_ + rejected_.size(); }
  const char* name() const override { return "io_uring"; }
  const std::vector<std::string>& notices() const override { return notices_; }

 private:
  explicit UringQueue(uint32_t depth) : depth_(depth), reads_(depth) {
    for (uint32_t i = depth; i > 0; --i) free_.push_back(i - 1);
  }

  Status SetUp() {
    // Completions are taken in when we ask for them, not by interrupting the thread that computes (Linux 5.19).
    int error = io_uring_queue_init(depth_, &ring_, IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG);
    if (error == -EINVAL) error = io_uring_queue_init(depth_, &ring_, 0);
    if (error < 0) return SystemError(-error, "io_uring is refused");
    set_up_ = true;
    io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
    const bool reads = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) != 0;
    io_uring_free_probe(probe);
    if (!reads) return Error(StatusCode::kUnavailable, "io_uring of this kernel has no plain reads");
    return TryNop();
  }

  // A sandbox may allow to set a ring up and refuse to enter it.
  Status TryNop() {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    EM_CHECK(sqe != nullptr);
    io_uring_prep_nop(sqe);
    int result;
    do {
      result = io_uring_submit_and_wait(&ring_, 1);
    } while (result == -EINTR);
    io_uring_cqe* cqe = nullptr;
    if (result >= 0) result = io_uring_peek_cqe(&ring_, &cqe);
    if (result < 0) return SystemError(-result, "io_uring is refused");
    io_uring_cqe_seen(&ring_, cqe);
    return absl::OkStatus();
  }

  void RegisterBuffers(std::span<std::byte> memory) {
    std::vector<iovec> chunks;
    for (uint64_t begin = 0; begin < memory.size(); begin += kRegisteredChunkBytes) {
      chunks.push_back({memory.data() + begin, std::min<uint64_t>(kRegisteredChunkBytes, memory.size() - begin)});
    }
    if (chunks.empty()) return;
    const int error = io_uring_register_buffers(&ring_, chunks.data(), static_cast<unsigned>(chunks.size()));
    if (error == 0) {
      registered_ = memory;
    } else {
      notices_.push_back(fmt::format("io_uring can't register {} of buffers ({}{}); reading into unregistered ones",
                                     FormatBytes(memory.size()), ErrnoText(-error),
                                     error == -ENOMEM ? ", RLIMIT_MEMLOCK (ulimit -l) is too small" : ""));
    }
  }

  // Puts what is left of a read into the submission ring, which has room: it holds depth_ entries, one a read.
  void Prepare(uint32_t index) {
    const ReadProgress& read = reads_[index];
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    if (sqe == nullptr) {  // full of what an earlier Flush could not hand over
      Flush();
      sqe = io_uring_get_sqe(&ring_);
    }
    EM_CHECK(sqe != nullptr);
    const int descriptor = read.request().file->descriptor();
    const int buffer = RegisteredChunk(read.destination(), read.bytes());
    if (buffer >= 0) {
      io_uring_prep_read_fixed(sqe, descriptor, read.destination(), read.bytes(), read.offset(), buffer);
    } else {
      io_uring_prep_read(sqe, descriptor, read.destination(), read.bytes(), read.offset());
    }
    io_uring_sqe_set_data64(sqe, index);
  }

  // The registered buffer that holds all of the destination; -1 where none does.
  int RegisteredChunk(const std::byte* destination, uint32_t bytes) const {
    const std::byte* begin = registered_.data();
    if (registered_.empty() || destination < begin || destination + bytes > begin + registered_.size()) return -1;
    const uint64_t first = static_cast<uint64_t>(destination - begin) / kRegisteredChunkBytes;
    const uint64_t last = (static_cast<uint64_t>(destination - begin) + bytes - 1) / kRegisteredChunkBytes;
    return first == last ? static_cast<int>(first) : -1;
  }

  // Hands over what is prepared. What the kernel has no room for now stays prepared for the next call.
  void Flush() {
    while (io_uring_sq_ready(&ring_) > 0) {
      const int result = io_uring_submit(&ring_);
      if (result >= 0 || result == -EINTR) continue;
      EM_CHECK(result == -EAGAIN || result == -EBUSY || result == -ENOMEM);
      return;
    }
  }

  void WaitOnce(std::vector<ReadCompletion>& out) {
    const int result = io_uring_submit_and_wait(&ring_, 1);
    EM_CHECK(result >= 0 || result == -EINTR || result == -EAGAIN || result == -EBUSY || result == -ENOMEM);
    Reap(out);
  }

  void TakeRejected(std::vector<ReadCompletion>& out) {
    std::move(rejected_.begin(), rejected_.end(), std::back_inserter(out));
    rejected_.clear();
  }

  void Reap(std::vector<ReadCompletion>& out) {
    io_uring_cqe* batch[64];
    for (;;) {
      const unsigned count = io_uring_peek_batch_cqe(&ring_, batch, std::size(batch));
      for (unsigned i = 0; i < count; ++i) Finish(static_cast<uint32_t>(batch[i]->user_data), batch[i]->res, out);
      io_uring_cq_advance(&ring_, count);
      if (count == 0) return;
    }
  }

  void Finish(uint32_t index, int32_t result, std::vector<ReadCompletion>& out) {
    ReadProgress& read = reads_[index];
    read.Advance(result);
    if (!read.over() && !draining_) {
      Prepare(index);
      return;
    }
    out.push_back(read.TakeCompletion());
    free_.push_back(index);
    --flying_;
  }

  const size_t depth_;
  io_uring ring_{};
  bool set_up_ = false;
  bool draining_ = false;
  std::span<std::byte> registered_;
  std::vector<ReadProgress> reads_;  // by user_data
  std::vector<uint32_t> free_;       // indices of reads_ that are not in use
  size_t flying_ = 0;                // reads_ in use; flying_ + free_.size() == depth_
  std::vector<ReadCompletion> rejected_;
  std::vector<std::string> notices_;
};

}  // namespace

StatusOr<std::unique_ptr<ReadQueue>> OpenUringQueue(const ReadQueueOptions& options) {
  return UringQueue::Open(options);
}

}  // namespace elasticmem
