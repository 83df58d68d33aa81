// A file that appears at its path whole or not at all: written as `<path>.partial` under a lock, then renamed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"

namespace elasticmem {

// Owns the lock and the partial while it is written; removes the partial unless committed. What a killed process left
// under that name is taken over, since the system frees its lock. Not for use from several threads.
class PartialFile {
 public:
  // Takes the lock, waiting while another process (or another PartialFile) holds it. kCancelled once *cancelled is
  // true.
  static StatusOr<PartialFile> Lock(const std::string& path, const std::atomic<bool>* cancelled);
  // Removes a partial that a killed process left for `path`; one that is being written now stays.
  static void RemoveAbandoned(const std::string& path);
  PartialFile(PartialFile&& other) noexcept;
  PartialFile& operator=(PartialFile&&) = delete;
  ~PartialFile();

  // Empties the partial and makes room for `bytes`. kResourceExhausted: bytes needed and there, and what to do.
  Status Reserve(uint64_t bytes);

  // Writes all of `data` at `offset`. What lies well behind the last write is pushed to the disk and dropped from the
  // page cache.
  Status Write(uint64_t offset, std::span<const std::byte> data);

  // Flushes to the disk, renames the partial to its path (replacing what is there) and flushes the folder.
  Status Commit();

 private:
  PartialFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  Status WriteError(int error_number) const;
  Status PushOut(uint64_t end);
  std::string partial() const { return path_ + ".partial"; }

  std::string path_;
  int descriptor_ = -1;  // locked; -1 when moved from
  bool committed_ = false;
  uint64_t reserved_ = 0;     // bytes
  uint64_t dropped_end_ = 0;  // [0, dropped_end_) is on disk and out of the page cache
  uint64_t pushed_end_ = 0;   // [dropped_end_, pushed_end_) is on its way
};

}  // namespace elasticmem
