#include "tools/memory_group.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <sstream>

namespace elasticmem {
namespace {

Status WriteLine(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path);
  file << text << std::flush;
  return file.good() ? absl::OkStatus() : SystemError(errno ? errno : EIO, "cannot write to " + path);
}

// The number behind `name` in a file of "name number" lines, or the file's only number where `name` is empty.
uint64_t Number(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!name.empty() && !line.starts_with(name + " ")) continue;
    uint64_t value = 0;
    const char* begin = line.data() + (name.empty() ? 0 : name.size() + 1);
    std::from_chars(begin, line.data() + line.size(), value);
    return value;
  }
  return 0;
}

StatusOr<std::string> MakeIn(const std::string& root, std::optional<uint64_t> limit_bytes, bool unified) {
  static std::atomic<int> count{0};
  const std::string folder = fmt::format("{}/elasticmem-{}-{}", root, getpid(), count++);
  if (mkdir(folder.c_str(), 0755) != 0) return SystemError(errno, "cannot make " + folder);
  const std::string limit = limit_bytes ? std::to_string(*limit_bytes) : unified ? "max" : "-1";
  const Status limited = WriteLine(folder + (unified ? "/memory.max" : "/memory.limit_in_bytes"), limit);
  if (!limited.ok()) {
    rmdir(folder.c_str());
    return limited;
  }
  // Nothing may hide in the swap, where there is one.
  if (limit_bytes) {
    (void)WriteLine(folder + (unified ? "/memory.swap.max" : "/memory.memsw.limit_in_bytes"), unified ? "0" : limit);
  }
  return folder;
}

}  // namespace

StatusOr<std::unique_ptr<MemoryGroup>> MemoryGroup::Create(std::optional<uint64_t> limit_bytes) {
  Status refused = Unsupported("this system has no memory control groups (/proc/self/cgroup names none)");
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    std::istringstream parts(line);
    std::string id, controllers, path;
    std::getline(parts, id, ':');
    std::getline(parts, controllers, ':');
    std::getline(parts, path);
    const bool unified = id == "0" && controllers.empty();
    if (controllers != "memory" && !unified) continue;
    const std::string root = unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    for (const std::string& parent : {root + path, root}) {
      StatusOr<std::string> folder = MakeIn(parent, limit_bytes, unified);
      if (folder.ok()) return std::unique_ptr<MemoryGroup>(new MemoryGroup(*std::move(folder), unified ? 2 : 1));
      refused = folder.status();
    }
  }
  return refused;
}

MemoryGroup::~MemoryGroup() { rmdir(folder_.c_str()); }

uint64_t MemoryGroup::peak_bytes() const {
  return Number(folder_ + (version_ == 2 ? "/memory.peak" : "/memory.max_usage_in_bytes"), "");
}

uint64_t MemoryGroup::oom_kills() const {
  return Number(folder_ + (version_ == 2 ? "/memory.events" : "/memory.oom_control"), "oom_kill");
}

}  // namespace elasticmem
