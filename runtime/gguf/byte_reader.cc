#include "runtime/gguf/byte_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "base/units.h"

namespace elasticmem {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied from files as they are");

constexpr uint64_t kWindowBytes = 256_KiB;

std::string_view KindOfFile(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "no regular file";
}

}  // namespace

StatusOr<InputFile> InputFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO returns at once, so that it can be refused below.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return SystemError(errno, fmt::format("cannot open {}", path));
  InputFile file(fd);
  struct stat stat;
  if (fstat(fd, &stat) != 0) return SystemError(errno, fmt::format("cannot read the size of {}", path));
  if (!S_ISREG(stat.st_mode)) return InvalidInput("{} is {}, not a file", path, KindOfFile(stat.st_mode));
  file.bytes_ = static_cast<uint64_t>(stat.st_size);
  return file;
}

InputFile::~InputFile() {
  if (fd_ >= 0) close(fd_);
}

Status ByteReader::Read(std::span<std::byte> out) {
  if (out.size() > remaining()) {
    return Corrupt("the file ends at byte {}, {} bytes were expected at byte {}", size_, out.size(), position_);
  }
  while (!out.empty()) {
    if (position_ - window_start_ >= window_.size()) EM_RETURN_IF_ERROR(Refill());
    const std::span<const std::byte> ready = window_.subspan(position_ - window_start_);
    const size_t bytes = std::min(ready.size(), out.size());
    std::memcpy(out.data(), ready.data(), bytes);
    out = out.subspan(bytes);
    position_ += bytes;
  }
  return {};
}

Status ByteReader::Refill() {
  EM_CHECK(fd_ >= 0 && position_ < size_);
  buffer_.resize(std::min(kWindowBytes, size_));
  const size_t wanted = std::min<uint64_t>(buffer_.size(), remaining());
  ssize_t got;
  do {
    got = pread(fd_, buffer_.data(), wanted, static_cast<off_t>(position_));
  } while (got < 0 && errno == EINTR);
  if (got < 0) return SystemError(errno, fmt::format("cannot read at byte {}", position_));
  if (got == 0) return Corrupt("the file shrank to {} bytes while it was read, it had {}", position_, size_);
  window_start_ = position_;
  window_ = std::span(buffer_).first(static_cast<size_t>(got));
  return {};
}

}  // namespace elasticmem
