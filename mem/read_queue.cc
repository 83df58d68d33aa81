#include "mem/read_queue.h"

#include <algorithm>
#include <cerrno>

#include "mem/read_backends.h"

namespace elasticmem {
namespace {

// A read that is interrupted this often in a row without a byte has failed.
constexpr uint32_t kMostRetries = 1000;

std::string Describe(const ReadRequest& request) {
  return fmt::format("reading {} bytes at offset {} of {}", request.bytes, request.offset, request.file->path());
}

}  // namespace

ReadProgress::ReadProgress(const ReadRequest& request) : request_(request) {
  EM_CHECK(request.file != nullptr && request.bytes > 0 && request.destination != nullptr);
  const uint64_t file_bytes = request.file->bytes();
  if (request.offset >= file_bytes || request.bytes >= file_bytes - request.offset + request.file->alignment()) {
    Fail(Corrupt("{}: the file has only {} bytes", Describe(request), file_bytes));
    return;
  }
  expected_ = static_cast<uint32_t>(std::min<uint64_t>(request.bytes, file_bytes - request.offset));
}

void ReadProgress::Fail(Status status) {
  status_ = std::move(status);
  over_ = true;
}

void ReadProgress::Advance(int64_t result) {
  EM_DCHECK(!over_);
  if (result < 0) {
    // io_uring cancels reads whose submitting thread ended: harmless, ask again.
    const bool transient = result == -EINTR || result == -EAGAIN || result == -ECANCELED;
    if (!transient || ++retries_ > kMostRetries) Fail(SystemError(static_cast<int>(-result), Describe(request_)));
    return;
  }
  retries_ = 0;
  done_ += static_cast<uint32_t>(result);
  if (done_ >= expected_) {
    over_ = true;
  } else if (result == 0 || done_ % request_.file->alignment() != 0) {
    // A direct read stops between two sectors only at the end of the file.
    Fail(Corrupt("{}: the file ends after {} of them; it had {} bytes when it was opened", Describe(request_), done_,
                 request_.file->bytes()));
  }
}

StatusOr<std::unique_ptr<ReadQueue>> OpenReadQueue(const ReadQueueOptions& options) {
  if (options.depth == 0 || options.depth > 4096) {
    return InvalidInput("a read queue can be 1 to 4096 reads deep, not {}", options.depth);
  }
  if (options.kind == ReadQueueKind::kPread) return OpenPreadQueue(options, {});
  auto uring = OpenUringQueue(options);
  if (uring.ok() || options.kind == ReadQueueKind::kUring) return uring;
  std::string notice(Message(uring.status()));
  return OpenPreadQueue(options, {notice + "; reading with pread threads instead"});
}

}  // namespace elasticmem
