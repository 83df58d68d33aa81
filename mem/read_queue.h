// Asynchronous reads of files into memory: io_uring with O_DIRECT where the system permits it, a pool of pread threads
// where it does not. One thread submits and reaps; completions come in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace elasticmem {

// A file opened for reading, O_DIRECT if its file system takes it (and so said by direct()).
class ReadFile {
 public:
  // `try_direct` = false opens plainly. Errors: what open(2) says; a folder, FIFO or other non-regular file is refused.
  static StatusOr<ReadFile> Open(const std::string& path, bool try_direct);
  ReadFile(ReadFile&&) noexcept;
  ReadFile& operator=(ReadFile&&) noexcept;
  ~ReadFile();

  int descriptor() const { return descriptor_; }
  uint64_t bytes() const { return bytes_; }
  bool direct() const { return direct_; }
  // Offsets, lengths and addresses of reads must be multiples of this: 1 when not direct, else from STATX_DIOALIGN
  // (4096 where the kernel does not tell).
  uint32_t alignment() const { return alignment_; }
  const std::string& path() const { return path_; }

  // Reads exactly `out.size()` bytes at `offset`, synchronously and through an aligned bounce where needed; reading
  // past the end is an error that says so. For headers and start-up.
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const;

 private:
  ReadFile() = default;
  std::string path_;
  int descriptor_ = -1;        // O_DIRECT where direct_
  int plain_descriptor_ = -1;  // always plain; for ReadAt
  uint64_t bytes_ = 0;
  bool direct_ = false;
  uint32_t alignment_ = 1;
};

// One read. Aligned as the file asks; may reach past the end of the file by less than alignment (the short read is
// fine).
struct ReadRequest {
  const ReadFile* file = nullptr;
  uint64_t offset = 0;
  uint32_t bytes = 0;
  std::byte* destination = nullptr;
  uint64_t tag = 0;  // comes back with the completion
};

struct ReadCompletion {
  uint64_t tag = 0;
  Status status;  // names the file, the offset and what went wrong
};

class ReadQueue {
 public:
  virtual ~ReadQueue() = default;
  // Queues as many of `requests` as there is room for, in order; returns how many it took. Never blocks on the disk.
  virtual size_t Submit(std::span<const ReadRequest> requests) = 0;
  // Completions that are ready now, appended to `out`.
  virtual void Poll(std::vector<ReadCompletion>& out) = 0;
  // Blocks until at least one read completes (returns at once when none is in flight).
  virtual void Wait(std::vector<ReadCompletion>& out) = 0;
  virtual size_t in_flight() const = 0;
  virtual const char* name() const = 0;  // "io_uring" or "pread"
  // What was tried and refused at opening, for the log: each said once.
  virtual const std::vector<std::string>& notices() const = 0;
};

enum class ReadQueueKind : uint8_t { kAuto, kUring, kPread };

struct ReadQueueOptions {
  ReadQueueKind kind = ReadQueueKind::kAuto;
  uint32_t depth = 64;              // reads in flight at most
  uint32_t pread_threads = 8;       // for kPread
  std::span<std::byte> registered;  // destinations lie in here; pinned by io_uring where RLIMIT_MEMLOCK permits
};

// kAuto falls back to pread and says so in notices(); kUring fails where io_uring is refused.
StatusOr<std::unique_ptr<ReadQueue>> OpenReadQueue(const ReadQueueOptions& options);

}  // namespace elasticmem
