// ReadFile: opening, alignment of direct reads, and the plain synchronous path.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "mem/read_queue.h"

namespace elasticmem {
namespace {

constexpr uint32_t kUsualAlignment = 4096;
constexpr uint32_t kLargestAlignment = 64 << 10;

// The kernel's struct statx, of which we want two members that older C libraries don't declare
// (include/uapi/linux/stat.h).
struct StatxResult {
  uint32_t mask;
  uint32_t unused_before[37];
  uint32_t dio_mem_align;     // at byte 0x98
  uint32_t dio_offset_align;  // at byte 0x9c
  uint32_t unused_after[24];
};
static_assert(sizeof(StatxResult) == 256);
static_assert(offsetof(StatxResult, dio_mem_align) == 0x98);
constexpr uint32_t kStatxDioAlign = 0x2000;  // STATX_DIOALIGN, since Linux 6.1

// The alignment of direct reads; 0 where the kernel says that there are none.
uint32_t DirectAlignment(int descriptor) {
  StatxResult result{};
  if (syscall(SYS_statx, descriptor, "", AT_EMPTY_PATH, kStatxDioAlign, &result) != 0) return kUsualAlignment;
  if ((result.mask & kStatxDioAlign) == 0) return kUsualAlignment;
  if (result.dio_mem_align == 0 || result.dio_offset_align == 0) return 0;
  const uint32_t alignment = std::max(result.dio_mem_align, result.dio_offset_align);
  return std::has_single_bit(alignment) && alignment <= kLargestAlignment ? alignment : 0;
}

// Some file systems accept O_DIRECT when opening and refuse it when reading.
bool DirectReadWorks(int descriptor, uint32_t alignment) {
  void* bounce = std::aligned_alloc(std::max(alignment, kUsualAlignment), std::max(alignment, kUsualAlignment));
  if (bounce == nullptr) return false;
  ssize_t got;
  do {
    got = pread(descriptor, bounce, alignment, 0);
  } while (got < 0 && errno == EINTR);
  std::free(bounce);
  return got >= 0;
}

const char* KindOfFile(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISBLK(mode) || S_ISCHR(mode)) return "a device";
  return "something else";
}

}  // namespace

StatusOr<ReadFile> ReadFile::Open(const std::string& path, bool try_direct) {
  ReadFile file;
  file.path_ = path;
  // O_NONBLOCK: opening a FIFO must not wait for its writer.
  file.plain_descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.plain_descriptor_ < 0) return SystemError(errno, fmt::format("opening {}", path));
  struct stat info;
  if (fstat(file.plain_descriptor_, &info) != 0)
    return SystemError(errno, fmt::format("asking for the size of {}", path));
  if (!S_ISREG(info.st_mode)) return InvalidInput("{} is {}, not a file", path, KindOfFile(info.st_mode));
  file.bytes_ = static_cast<uint64_t>(info.st_size);
  file.descriptor_ = file.plain_descriptor_;
  if (!try_direct) return file;

  // By its descriptor, not by its path, which may name another file by now.
  const std::string self = fmt::format("/proc/self/fd/{}", file.plain_descriptor_);
  int direct = open(self.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  if (direct < 0 && errno == ENOENT) direct = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);  // no /proc
  if (direct < 0) return file;
  const uint32_t alignment = DirectAlignment(direct);
  if (alignment == 0 || !DirectReadWorks(direct, alignment)) {
    close(direct);
    return file;
  }
  file.descriptor_ = direct;
  file.direct_ = true;
  file.alignment_ = alignment;
  return file;
}

ReadFile::ReadFile(ReadFile&& other) noexcept { *this = std::move(other); }

ReadFile& ReadFile::operator=(ReadFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(plain_descriptor_, other.plain_descriptor_);
  std::swap(bytes_, other.bytes_);
  std::swap(direct_, other.direct_);
  std::swap(alignment_, other.alignment_);
  return *this;
}

ReadFile::~ReadFile() {
  if (descriptor_ >= 0 && descriptor_ != plain_descriptor_) close(descriptor_);
  if (plain_descriptor_ >= 0) close(plain_descriptor_);
}

Status ReadFile::ReadAt(uint64_t offset, std::span<std::byte> out) const {
  const auto what = [&] { return fmt::format("reading {} bytes at offset {} of {}", out.size(), offset, path_); };
  if (offset > bytes_ || out.size() > bytes_ - offset) return Corrupt("{}: the file has only {} bytes", what(), bytes_);
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t got =
        pread(plain_descriptor_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(errno, what());
    if (got == 0) {
      return Corrupt("{}: the file ends after {} of them; it had {} bytes when it was opened", what(), done, bytes_);
    }
    done += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

}  // namespace elasticmem
