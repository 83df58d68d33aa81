// ReadRing and Reader against a naive queue of expected bytes, and MergeReads against a naive model of its rules.
#include "mem/read_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <set>

#include "base/units.h"
#include "mem/budget.h"
#include "tests/mem/random_seed.h"
#include "tests/mem/temp_file.h"

namespace elasticmem {
namespace {

using testing::HasSubstr;

struct Setup {
  ReadQueueKind kind;
  bool direct;
};

std::string SetupName(const testing::TestParamInfo<Setup>& info) {
  return std::string(info.param.kind == ReadQueueKind::kUring ? "Uring" : "Pread") +
         (info.param.direct ? "Direct" : "Plain");
}

constexpr uint64_t kFileBytes = (5 << 20) + 777;

class ReadRingContract : public testing::TestWithParam<Setup> {
 protected:
  void SetUp() override {
    auto memory = AlignedBuffer::Allocate(budget_, MemoryCategory::kStaging, 4_MiB);
    ASSERT_TRUE(memory.ok()) << memory.status();
    memory_ = *std::move(memory);
    auto file = ReadFile::Open(temp_.path(), GetParam().direct);
    ASSERT_TRUE(file.ok()) << file.status();
    file_.emplace(*std::move(file));
    ReadQueueOptions options;
    options.kind = GetParam().kind;
    options.depth = 4;
    options.registered = memory_.span();
    auto reader = Reader::Open(options);
    if (!reader.ok() && GetParam().kind == ReadQueueKind::kUring) GTEST_SKIP() << reader.status();
    ASSERT_TRUE(reader.ok()) << reader.status();
    reader_ = *std::move(reader);
  }

  TempFile temp_{kFileBytes};
  Budget budget_{64_MiB};
  AlignedBuffer memory_;
  std::optional<ReadFile> file_;
  std::unique_ptr<Reader> reader_;
};

INSTANTIATE_TEST_SUITE_P(Queues, ReadRingContract,
                         testing::Values(Setup{ReadQueueKind::kUring, true}, Setup{ReadQueueKind::kUring, false},
                                         Setup{ReadQueueKind::kPread, true}, Setup{ReadQueueKind::kPread, false}),
                         SetupName);

// One ring, and what a naive model says is in it.
struct ModelledRing {
  struct Expected {
    ReadRing::Ticket ticket;
    uint64_t offset;
    uint64_t bytes;
  };
  std::unique_ptr<ReadRing> ring;
  std::span<std::byte> memory;
  std::deque<Expected> entries;

  void CheckBytes(const Expected& entry, const ReadFile& file) const {
    const auto got = ring->Wait(entry.ticket);
    ASSERT_TRUE(got.ok()) << got.status();
    ASSERT_EQ(got->size(), entry.bytes);
    ASSERT_TRUE(HoldsBytesOf(got->data(), entry.offset, entry.bytes)) << entry.offset << " " << entry.bytes;
    ASSERT_EQ(reinterpret_cast<uintptr_t>(got->data()) % 64, entry.offset % 64);
    if (file.direct()) {
      ASSERT_EQ(reinterpret_cast<uintptr_t>(got->data()) % file.alignment(), entry.offset % file.alignment());
    }
    ASSERT_GE(got->data(), memory.data());
    ASSERT_LE(got->data() + got->size(), memory.data() + memory.size());
  }
};

TEST_P(ReadRingContract, RandomStreamsOfSeveralRingsBringTheBytesOfTheFile) {
  std::mt19937_64 random(TestSeed(2));
  std::vector<ModelledRing> rings(3);
  size_t begin = 0;
  for (const size_t bytes : {size_t{64_KiB}, size_t{1_MiB}, size_t{300 * 1024 + 64}}) {
    ModelledRing& ring = rings[begin == 0 ? 0 : begin == 64_KiB ? 1 : 2];
    ring.memory = memory_.span().subspan(begin, bytes);
    ring.ring = std::make_unique<ReadRing>(reader_.get(), ring.memory);
    begin += RoundUp<size_t>(bytes, 4096);
  }
  uint64_t enqueued = 0;
  uint64_t refused = 0;
  for (int operation = 0; operation < 30000; ++operation) {
    ModelledRing& ring = rings[random() % rings.size()];
    switch (random() % 8) {
      default: {
        const uint64_t longest = ring.ring->max_bytes(*file_);
        const uint64_t bytes = 1 + random() % (random() % 16 == 0 ? longest : std::min<uint64_t>(longest, 6000));
        const uint64_t offset = random() % (kFileBytes - bytes + 1);
        const auto ticket = ring.ring->Enqueue(*file_, offset, bytes);
        ASSERT_TRUE(ticket || !ring.entries.empty()) << "an empty ring has room";
        ticket ? ++enqueued : ++refused;
        if (ticket) ring.entries.push_back({*ticket, offset, bytes});
        break;
      }
      case 4:
        if (!ring.entries.empty()) ring.ring->Ready(ring.entries[random() % ring.entries.size()].ticket);
        break;
      case 5:
        if (!ring.entries.empty()) ring.CheckBytes(ring.entries[random() % ring.entries.size()], *file_);
        break;
      case 6:
        if (!ring.entries.empty()) {
          // Checked when it leaves: had a later read overlapped it, its bytes would be gone.
          if (random() % 4 != 0) ring.CheckBytes(ring.entries.front(), *file_);
          ring.ring->Release();
          ring.entries.pop_front();
        }
        break;
      case 7:
        if (random() % 200 == 0) {
          ring.ring->Clear();
          ring.entries.clear();
        }
        break;
    }
    ASSERT_EQ(ring.ring->entries(), ring.entries.size());
    ring.ring->CheckInvariants();
  }
  EXPECT_GT(enqueued, 5000u);
  EXPECT_GT(refused, 100u);
  for (ModelledRing& ring : rings) {
    for (const auto& entry : ring.entries) ring.CheckBytes(entry, *file_);
    ring.ring.reset();
  }
  EXPECT_EQ(reader_->outstanding(), 0u);
  EXPECT_GT(reader_->statistics().busy_micros, 0u);
}

TEST_P(ReadRingContract, LongReadsAreCutIntoManyAndEachByteIsReadOnce) {
  ReadRing ring(reader_.get(), memory_.span());
  const uint64_t bytes = ring.max_bytes(*file_);
  const auto ticket = ring.Enqueue(*file_, 4096 + 100, bytes);
  ASSERT_TRUE(ticket);
  EXPECT_GE(reader_->outstanding(), 4u);
  const auto got = ring.Wait(*ticket);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(HoldsBytesOf(got->data(), 4196, bytes));
  EXPECT_EQ(reader_->statistics().reads, CeilDiv(bytes, Reader::kPieceBytes));
  EXPECT_LT(reader_->statistics().bytes_read, bytes + 2 * file_->alignment());
  EXPECT_GE(reader_->statistics().bytes_read, bytes);
}

TEST_P(ReadRingContract, ARangeThatLeavesTheFileIsAnErrorAtWait) {
  ReadRing ring(reader_.get(), memory_.span());
  const auto good = ring.Enqueue(*file_, kFileBytes - 10, 10);
  const auto bad = ring.Enqueue(*file_, kFileBytes - 10, 11);
  const auto far = ring.Enqueue(*file_, UINT64_MAX - 3, 100);
  ASSERT_TRUE(good && bad && far);
  EXPECT_TRUE(ring.Wait(*good).ok());
  const Status status = ring.Wait(*bad).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(temp_.path()));
  EXPECT_EQ(ring.Wait(*far).status().code(), StatusCode::kDataLoss);
}

TEST_P(ReadRingContract, ATruncatedFileIsAnErrorAndTheRingGoesOn) {
  ReadRing ring(reader_.get(), memory_.span());
  temp_.Truncate(1_MiB);
  const auto bad = ring.Enqueue(*file_, 1_MiB - 100, 3_MiB);
  ASSERT_TRUE(bad);
  EXPECT_EQ(ring.Wait(*bad).status().code(), StatusCode::kDataLoss);
  ring.Release();
  const auto good = ring.Enqueue(*file_, 1000, 100);
  ASSERT_TRUE(good);
  const auto got = ring.Wait(*good);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(HoldsBytesOf(got->data(), 1000, 100));
}

TEST_P(ReadRingContract, ARingGoesWhileItsReadsAreInFlight) {
  ReadRing other(reader_.get(), memory_.span().subspan(2_MiB));
  const auto kept = other.Enqueue(*file_, 5, 1_MiB);
  ASSERT_TRUE(kept);
  for (int round = 0; round < 20; ++round) {
    ReadRing ring(reader_.get(), memory_.span().first(2_MiB));
    for (uint64_t i = 0; i < 40; ++i) ASSERT_TRUE(ring.Enqueue(*file_, i * 20000, 20000));
  }
  const auto got = other.Wait(*kept);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(HoldsBytesOf(got->data(), 5, 1_MiB));
  EXPECT_EQ(reader_->outstanding(), 0u);
}

TEST(MergeReads, JoinsNeighboursReadsThroughSmallGapsAndKeepsToTheLimit) {
  const std::vector<ByteRange> ranges = {{0, 10}, {10, 10}, {25, 5}, {100, 10}, {110, 200}};
  const auto reads = MergeReads(ranges, 5, 150);
  ASSERT_EQ(reads.size(), 3u);
  EXPECT_EQ(reads[0].offset, 0u);
  EXPECT_EQ(reads[0].bytes, 30u);
  EXPECT_EQ(reads[0].count, 3u);
  EXPECT_EQ(reads[1].bytes, 10u);
  EXPECT_EQ(reads[2].bytes, 200u);
  EXPECT_EQ(reads[2].first, 4u);
  EXPECT_TRUE(MergeReads({}, 5, 150).empty());
}

TEST(MergeReads, RandomRangesFollowTheRules) {
  std::mt19937_64 random(TestSeed(3));
  for (int round = 0; round < 3000; ++round) {
    std::vector<ByteRange> ranges;
    uint64_t at = random() % 100;
    for (size_t n = random() % 40; n > 0; --n) {
      const uint64_t bytes = 1 + random() % 60;
      ranges.push_back({at, bytes});
      at += bytes + (random() % 3 == 0 ? 0 : random() % 50);
    }
    const uint64_t max_gap = random() % 40;
    const uint64_t max_bytes = 1 + random() % 300;
    const auto reads = MergeReads(ranges, max_gap, max_bytes);
    std::set<uint64_t> bytes_read;
    size_t next = 0;
    for (size_t r = 0; r < reads.size(); ++r) {
      const MergedRead& read = reads[r];
      ASSERT_EQ(read.first, next);
      ASSERT_GT(read.count, 0u);
      next += read.count;
      const ByteRange& first = ranges[read.first];
      const ByteRange& last = ranges[read.first + read.count - 1];
      ASSERT_EQ(read.offset, first.offset);
      ASSERT_EQ(read.offset + read.bytes, last.offset + last.bytes);
      ASSERT_TRUE(read.bytes <= max_bytes || read.count == 1);
      for (size_t i = read.first + 1; i < next; ++i) {
        ASSERT_LE(ranges[i].offset - (ranges[i - 1].offset + ranges[i - 1].bytes), max_gap);
      }
      for (uint64_t b = 0; b < read.bytes; ++b) ASSERT_TRUE(bytes_read.insert(read.offset + b).second) << "read twice";
      if (next < ranges.size()) {  // a split has a reason
        const ByteRange& following = ranges[next];
        const bool gap = following.offset - (read.offset + read.bytes) > max_gap;
        ASSERT_TRUE(gap || following.offset + following.bytes - read.offset > max_bytes);
      }
    }
    ASSERT_EQ(next, ranges.size());
  }
}

}  // namespace
}  // namespace elasticmem
