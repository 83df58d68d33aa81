// A file opened for reading, and a cursor over its bytes (or over memory) that cannot pass their end.
// Only the bytes that are asked for are read, a window at a time: model files are larger than memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/status.h"

namespace elasticmem {

// A regular file, open while this lives.
class InputFile {
 public:
  // Never blocks. Folders, FIFOs and devices are errors; every error names the path.
  static StatusOr<InputFile> Open(const std::string& path);

  InputFile(InputFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)), bytes_(other.bytes_) {}
  InputFile& operator=(InputFile&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~InputFile();

  int fd() const { return fd_; }
  uint64_t bytes() const { return bytes_; }  // its size when it was opened

 private:
  explicit InputFile(int fd) : fd_(fd) {}
  int fd_ = -1;
  uint64_t bytes_ = 0;
};

// 0 <= position() <= size(). What it reads from must outlive it. Numbers are little endian.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : size_(bytes.size()), window_(bytes) {}
  explicit ByteReader(const InputFile& file) : fd_(file.fd()), size_(file.bytes()) {}
  ByteReader(const ByteReader&) = delete;
  ByteReader& operator=(const ByteReader&) = delete;

  uint64_t size() const { return size_; }
  uint64_t position() const { return position_; }
  uint64_t remaining() const { return size_ - position_; }

  // Fills `out` and moves on. Where fewer bytes remain, an error, and nothing moves.
  Status Read(std::span<std::byte> out);

  template <class T>
  requires std::is_arithmetic_v<T> StatusOr<T> Number() {
    T value;
    EM_RETURN_IF_ERROR(Read(std::as_writable_bytes(std::span(&value, 1))));
    return value;
  }

 private:
  Status Refill();

  int fd_ = -1;  // none: the window is all there is
  uint64_t size_ = 0;
  uint64_t position_ = 0;
  uint64_t window_start_ = 0;  // the window holds bytes [window_start_, window_start_ + window_.size())
  std::span<const std::byte> window_;
  std::vector<std::byte> buffer_;  // behind the window, when reading a file
};

}  // namespace elasticmem
