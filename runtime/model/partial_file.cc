#include "runtime/model/partial_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "base/units.h"

namespace elasticmem {
namespace {

constexpr uint64_t kWindowBytes = 16_MiB;  // written ahead of what is waited for
constexpr std::chrono::milliseconds kPollInterval(20);

std::string FolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

Status OpenError(int error_number, const std::string& path) {
  const Status status = SystemError(error_number, fmt::format("cannot write {}", path));
  if (error_number != EACCES && error_number != EPERM && error_number != EROFS) return status;
  return Error(status.code(), "{}; choose another folder with --store-dir", Message(status));
}

// Whether `descriptor` is still the file that `path` names.
bool IsFileAt(int descriptor, const std::string& path) {
  struct stat opened {
  }, named{};
  return fstat(descriptor, &opened) == 0 && stat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

// Waits for the lock on `descriptor`.
Status WaitForLock(int descriptor, const std::string& path, const std::atomic<bool>* cancelled) {
  while (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) {
      return SystemError(errno, fmt::format("cannot lock {} (choose another folder with --store-dir)", path));
    }
    if (cancelled != nullptr && cancelled->load(std::memory_order_relaxed)) {
      return Error(StatusCode::kCancelled, "cancelled while another process packs {}", path);
    }
    std::this_thread::sleep_for(kPollInterval);
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<PartialFile> PartialFile::Lock(const std::string& path, const std::atomic<bool>* cancelled) {
  const std::string partial = path + ".partial";
  for (;;) {
    const int descriptor = open(partial.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
    if (descriptor < 0) return OpenError(errno, partial);
    struct stat info {};
    if (fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
      close(descriptor);
      return InvalidInput("{} is in the way: it is no regular file", partial);
    }
    const Status locked = WaitForLock(descriptor, partial, cancelled);
    // Whoever held the lock before has renamed or removed the file by now: then this is a lock on nothing.
    if (locked.ok() && IsFileAt(descriptor, partial)) return PartialFile(path, descriptor);
    close(descriptor);
    EM_RETURN_IF_ERROR(locked);
  }
}

void PartialFile::RemoveAbandoned(const std::string& path) {
  const std::string partial = path + ".partial";
  const int descriptor = open(partial.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (descriptor < 0) return;
  struct stat info {};
  if (fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode) && flock(descriptor, LOCK_EX | LOCK_NB) == 0 &&
      IsFileAt(descriptor, partial)) {
    unlink(partial.c_str());
  }
  close(descriptor);
}

PartialFile::PartialFile(PartialFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      committed_(other.committed_),
      reserved_(other.reserved_),
      dropped_end_(other.dropped_end_),
      pushed_end_(other.pushed_end_) {}

PartialFile::~PartialFile() {
  if (descriptor_ < 0) return;
  if (!committed_) unlink(partial().c_str());  // before the lock goes
  close(descriptor_);
}

Status PartialFile::WriteError(int error_number) const {
  const std::string folder = FolderOf(path_);
  if (error_number != ENOSPC && error_number != EDQUOT && error_number != EFBIG) {
    return SystemError(error_number, fmt::format("writing {}", partial()));
  }
  struct statvfs disk {};
  const uint64_t available = statvfs(folder.c_str(), &disk) == 0 ? uint64_t{disk.f_bavail} * disk.f_frsize : 0;
  const char* why = error_number == ENOSPC   ? "the disk is full"
                    : error_number == EDQUOT ? "the disk quota is used up"
                                             : "files may not be that large here";
  return Exhausted(
      "cannot write {}: {}: it needs {} ({} bytes), {} has {} ({} bytes) available; free some or choose "
      "another folder with --store-dir",
      partial(), why, FormatBytes(reserved_), reserved_, folder, FormatBytes(available), available);
}

Status PartialFile::Reserve(uint64_t bytes) {
  reserved_ = bytes;
  if (ftruncate(descriptor_, 0) != 0) return WriteError(errno);
  struct statvfs disk {};
  if (statvfs(FolderOf(path_).c_str(), &disk) == 0) {
    const uint64_t blocks = geteuid() == 0 ? disk.f_bfree : disk.f_bavail;
    if (blocks * disk.f_frsize < bytes) return WriteError(ENOSPC);
  }
  while (fallocate(descriptor_, 0, 0, static_cast<off_t>(bytes)) != 0) {
    if (errno == EINTR) continue;
    if (errno == EOPNOTSUPP || errno == ENOSYS) break;  // then a full disk shows when it is written
    return WriteError(errno);
  }
  return absl::OkStatus();
}

Status PartialFile::Write(uint64_t offset, std::span<const std::byte> data) {
  const uint64_t end = offset + data.size();
  while (!data.empty()) {
    const ssize_t written = pwrite(descriptor_, data.data(), data.size(), static_cast<off_t>(end - data.size()));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return WriteError(errno);
    data = data.subspan(static_cast<size_t>(written));
  }
  return end >= pushed_end_ + kWindowBytes ? PushOut(end) : absl::OkStatus();
}

// Starts writing [pushed_end_, end) to the disk, then waits for what was started the time before and drops it.
Status PartialFile::PushOut(uint64_t end) {
  const auto sync = [this](uint64_t from, uint64_t to, unsigned flags) {
    const int result = sync_file_range(descriptor_, static_cast<off_t>(from), static_cast<off_t>(to - from), flags);
    // Some file systems can't; Commit flushes all the same.
    const bool refused = result != 0 && (errno == ENOSYS || errno == EINVAL || errno == ESPIPE);
    return result == 0 || refused ? absl::OkStatus() : WriteError(errno);
  };
  EM_RETURN_IF_ERROR(sync(pushed_end_, end, SYNC_FILE_RANGE_WRITE));
  if (pushed_end_ > dropped_end_) {
    EM_RETURN_IF_ERROR(sync(dropped_end_, pushed_end_,
                            SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER));
    posix_fadvise(descriptor_, static_cast<off_t>(dropped_end_), static_cast<off_t>(pushed_end_ - dropped_end_),
                  POSIX_FADV_DONTNEED);
  }
  dropped_end_ = pushed_end_;
  pushed_end_ = end;
  return absl::OkStatus();
}

Status PartialFile::Commit() {
  if (fsync(descriptor_) != 0) return WriteError(errno);
  posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED);
  if (rename(partial().c_str(), path_.c_str()) != 0) {
    return SystemError(errno, fmt::format("cannot rename {} to {}", partial(), path_));
  }
  committed_ = true;
  const std::string folder = FolderOf(path_);
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return SystemError(errno, fmt::format("cannot open {} to flush it", folder));
  const int result = fsync(descriptor);
  const int error_number = errno;
  close(descriptor);
  // Some file systems cannot flush a folder; the file itself is safe.
  if (result != 0 && error_number != EINVAL && error_number != ENOSYS) {
    return SystemError(error_number, fmt::format("flushing the folder {}", folder));
  }
  return absl::OkStatus();
}

}  // namespace elasticmem
