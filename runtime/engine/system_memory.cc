#include "runtime/engine/system_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace elasticmem {
namespace {

// The number after `field` in a file of "Field:   123 kB" lines, in bytes.
uint64_t FieldBytes(const char* path, const std::string& field) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(field, 0) == 0) return std::strtoull(line.c_str() + field.size(), nullptr, 10) * 1024;
  }
  return 0;
}

std::optional<uint64_t> FileNumber(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  if (!(file >> number)) return std::nullopt;
  return number;
}

// What a cgroup of this process still allows, walking up to the root since every ancestor's limit counts.
std::optional<uint64_t> CgroupRoom() {
  std::ifstream groups("/proc/self/cgroup");
  std::optional<uint64_t> room;
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string group = line.substr(second + 1);
    const bool v2 = controllers.empty();
    if (!v2 && controllers.find("memory") == std::string::npos) continue;
    const std::string root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    while (true) {
      const auto limit = FileNumber(root + group + (v2 ? "/memory.max" : "/memory.limit_in_bytes"));
      const auto used = FileNumber(root + group + (v2 ? "/memory.current" : "/memory.usage_in_bytes"));
      if (limit && used) {
        const uint64_t left = *limit > *used ? *limit - *used : 0;
        room = room ? std::min(*room, left) : left;
      }
      if (group.empty() || group == "/") break;
      group.resize(group.rfind('/'));
    }
  }
  return room;
}

}  // namespace

uint64_t AvailableMemoryBytes() {
  const uint64_t machine = FieldBytes("/proc/meminfo", "MemAvailable:");
  const std::optional<uint64_t> cgroup = CgroupRoom();
  return cgroup ? std::min(machine, *cgroup) : machine;
}

uint64_t PeakResidentBytes() { return FieldBytes("/proc/self/status", "VmHWM:"); }

}  // namespace elasticmem
