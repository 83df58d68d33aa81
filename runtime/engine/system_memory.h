// What the operating system says about memory: how much is free for us, and the most this process has held.
#pragma once

#include <cstdint>

namespace elasticmem {

// Bytes that this process may take: the machine's available memory, or less where a cgroup (v1 or v2) allows less.
// 0 where the system does not tell.
uint64_t AvailableMemoryBytes();

// The most memory the process has had resident (VmHWM); 0 where the system does not tell.
uint64_t PeakResidentBytes();

}  // namespace elasticmem
