#include "runtime/gguf/byte_reader.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "tests/gguf/scratch_folder.h"

namespace elasticmem {
namespace {

std::vector<std::byte> RandomBytes(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

void WriteFile(const std::string& path, std::span<const std::byte> bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(file.flush().good());
}

TEST(ByteReader, ReadsAFileInPiecesOfAnySizeAsItReadsMemory) {
  const std::vector<std::byte> bytes = RandomBytes(1'000'003, 1);
  const ScratchFolder folder;
  WriteFile(folder.Path("bytes"), bytes);
  const StatusOr<InputFile> file = InputFile::Open(folder.Path("bytes"));
  ASSERT_TRUE(file.ok());
  ByteReader from_file(*file);
  ByteReader from_memory(bytes);
  std::mt19937 random(2);
  size_t position = 0;
  while (position < bytes.size()) {
    const size_t largest = random() % 8 == 0 ? 600'000 : 64;  // beyond a window, or within
    std::vector<std::byte> piece(std::min(random() % largest, bytes.size() - position));
    std::vector<std::byte> other(piece.size());
    ASSERT_TRUE(from_file.Read(piece).ok());
    ASSERT_TRUE(from_memory.Read(other).ok());
    ASSERT_TRUE(std::equal(piece.begin(), piece.end(), bytes.begin() + static_cast<ptrdiff_t>(position)));
    ASSERT_EQ(piece, other);
    position += piece.size();
    ASSERT_EQ(from_file.position(), position);
    ASSERT_EQ(from_file.remaining(), bytes.size() - position);
  }
}

TEST(ByteReader, NeverPassesTheEnd) {
  const std::vector<std::byte> bytes = RandomBytes(10, 3);
  ByteReader reader(bytes);
  ASSERT_TRUE(reader.Number<uint64_t>().ok());
  const Status status = reader.Number<uint32_t>().status();
  EXPECT_EQ(Message(status), "the file ends at byte 10, 4 bytes were expected at byte 8");
  EXPECT_EQ(reader.position(), 8u);
  EXPECT_TRUE(reader.Number<uint16_t>().ok());
  EXPECT_TRUE(reader.Read({}).ok());
}

TEST(ByteReader, TellsThatAFileShrank) {
  const ScratchFolder folder;
  WriteFile(folder.Path("bytes"), RandomBytes(100, 4));
  const StatusOr<InputFile> file = InputFile::Open(folder.Path("bytes"));
  ASSERT_TRUE(file.ok());
  std::filesystem::resize_file(folder.Path("bytes"), 6);
  ByteReader reader(*file);
  EXPECT_EQ(Message(reader.Number<uint64_t>().status()), "the file shrank to 6 bytes while it was read, it had 100");
}

}  // namespace
}  // namespace elasticmem
