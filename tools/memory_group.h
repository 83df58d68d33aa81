// A memory control group of Linux (version 1 or 2): what runs in it, page cache included, gets no more than its limit.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"

namespace elasticmem {

class MemoryGroup {
 public:
  // A group below the one this process is in. Without a limit it only counts. Errors say which step the system refused.
  static StatusOr<std::unique_ptr<MemoryGroup>> Create(std::optional<uint64_t> limit_bytes);
  // The group goes with it; whoever ran in it must have ended.
  ~MemoryGroup();
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;

  const std::string& folder() const { return folder_; }
  int version() const { return version_; }  // 1 or 2
  // The most it has held so far; 0 where the kernel does not say.
  uint64_t peak_bytes() const;
  // Processes that were killed for wanting more.
  uint64_t oom_kills() const;

 private:
  MemoryGroup(std::string folder, int version) : folder_(std::move(folder)), version_(version) {}

  const std::string folder_;
  const int version_;
};

}  // namespace elasticmem
