// A file in the test's temporary folder whose bytes follow from their offsets; removed with the object.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace elasticmem {

// Byte at `offset` of every test file: neighbouring words differ, so a shifted read is seen.
inline std::byte ExpectedByte(uint64_t offset) {
  const uint64_t word = (offset / 8 + 1) * 0x9e3779b97f4a7c15u;
  return static_cast<std::byte>(word >> (offset % 8 * 8));
}

class TempFile {
 public:
  explicit TempFile(uint64_t bytes) {
    static std::atomic<int> count = 0;
    path_ = testing::TempDir() + "elasticmem_test_" + std::to_string(getpid()) + "_" + std::to_string(count++);
    std::vector<std::byte> content(bytes);
    for (uint64_t i = 0; i < bytes; ++i) content[i] = ExpectedByte(i);
    std::FILE* file = std::fopen(path_.c_str(), "wb");
    EXPECT_NE(file, nullptr) << path_;
    if (bytes > 0) {
      EXPECT_EQ(std::fwrite(content.data(), 1, bytes, file), bytes);
    }
    EXPECT_EQ(std::fclose(file), 0);
  }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  ~TempFile() { unlink(path_.c_str()); }

  const std::string& path() const { return path_; }
  void Truncate(uint64_t bytes) const { EXPECT_EQ(truncate(path_.c_str(), static_cast<off_t>(bytes)), 0); }

 private:
  std::string path_;
};

inline bool HoldsBytesOf(const std::byte* data, uint64_t offset, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; ++i) {
    if (data[i] != ExpectedByte(offset + i)) return false;
  }
  return true;
}

}  // namespace elasticmem
