// The contract of ReadQueue, for both queues, direct and plain, registered and not; and ReadFile.
#include "mem/read_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <map>
#include <random>
#include <thread>

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
  bool registered;
};

std::string SetupName(const testing::TestParamInfo<Setup>& info) {
  return std::string(info.param.kind == ReadQueueKind::kUring ? "Uring" : "Pread") +
         (info.param.direct ? "Direct" : "Plain") + (info.param.registered ? "Registered" : "");
}

constexpr uint32_t kDepth = 16;
constexpr uint32_t kSlotBytes = 64 << 10;
constexpr uint64_t kFileBytes = (3 << 20) + 1234;  // ends between two sectors

class ReadQueueContract : public testing::TestWithParam<Setup> {
 protected:
  void SetUp() override {
    auto memory = AlignedBuffer::Allocate(budget_, MemoryCategory::kStaging, kDepth * kSlotBytes);
    ASSERT_TRUE(memory.ok()) << memory.status();
    memory_ = *std::move(memory);
    auto file = ReadFile::Open(temp_.path(), GetParam().direct);
    ASSERT_TRUE(file.ok()) << file.status();
    file_.emplace(*std::move(file));
    Open();
  }

  void Open() {
    ReadQueueOptions options;
    options.kind = GetParam().kind;
    options.depth = kDepth;
    options.pread_threads = 4;
    if (GetParam().registered) options.registered = memory_.span();
    auto queue = OpenReadQueue(options);
    if (!queue.ok() && GetParam().kind == ReadQueueKind::kUring) GTEST_SKIP() << queue.status();
    ASSERT_TRUE(queue.ok()) << queue.status();
    queue_ = *std::move(queue);
  }

  std::byte* Slot(uint64_t slot) { return memory_.data() + slot * kSlotBytes; }
  ReadRequest Request(uint64_t offset, uint32_t bytes, uint64_t slot) {
    return {&*file_, offset, bytes, Slot(slot), slot};
  }

  // Submits one read and waits for it.
  Status ReadOne(const ReadRequest& request) {
    EXPECT_EQ(queue_->Submit({&request, 1}), 1u);
    std::vector<ReadCompletion> done;
    queue_->Wait(done);
    EXPECT_EQ(done.size(), 1u);
    EXPECT_EQ(done.at(0).tag, request.tag);
    return done.at(0).status;
  }

  TempFile temp_{kFileBytes};
  Budget budget_{64_MiB};
  AlignedBuffer memory_;
  std::optional<ReadFile> file_;
  std::unique_ptr<ReadQueue> queue_;
};

INSTANTIATE_TEST_SUITE_P(Queues, ReadQueueContract,
                         testing::Values(Setup{ReadQueueKind::kUring, true, true},
                                         Setup{ReadQueueKind::kUring, true, false},
                                         Setup{ReadQueueKind::kUring, false, true},
                                         Setup{ReadQueueKind::kPread, true, false},
                                         Setup{ReadQueueKind::kPread, false, false}),
                         SetupName);

TEST_P(ReadQueueContract, RandomReadsBringTheBytesOfTheFile) {
  std::mt19937_64 random(TestSeed(1));
  const uint32_t alignment = file_->alignment();
  std::vector<uint64_t> free;
  for (uint64_t slot = 0; slot < kDepth; ++slot) free.push_back(slot);
  std::map<uint64_t, ReadRequest> flying;  // the naive model: what was asked, by tag
  std::vector<ReadCompletion> done;
  for (int finished = 0; finished < 2000;) {
    std::vector<ReadRequest> batch;
    for (size_t n = random() % (free.size() + 1); n > 0; --n) {
      const uint64_t offset = RoundDown<uint64_t>(random() % kFileBytes, alignment);
      const uint64_t longest = std::min<uint64_t>(kSlotBytes, RoundUp<uint64_t>(kFileBytes - offset, alignment));
      const auto bytes = static_cast<uint32_t>(RoundUp<uint64_t>(1 + random() % longest, alignment));
      batch.push_back(Request(offset, static_cast<uint32_t>(std::min<uint64_t>(bytes, longest)), free.back()));
      free.pop_back();
    }
    ASSERT_EQ(queue_->Submit(batch), batch.size());
    for (const ReadRequest& request : batch) flying[request.tag] = request;
    ASSERT_EQ(queue_->in_flight(), flying.size());
    done.clear();
    if (random() % 2 == 0) {
      queue_->Wait(done);
      ASSERT_TRUE(flying.empty() || !done.empty());
    } else {
      queue_->Poll(done);
    }
    for (const ReadCompletion& completion : done) {
      ASSERT_TRUE(completion.status.ok()) << completion.status;
      const auto it = flying.find(completion.tag);
      ASSERT_NE(it, flying.end()) << "completed twice or never asked";
      const ReadRequest& request = it->second;
      const uint64_t inside = std::min<uint64_t>(request.bytes, kFileBytes - request.offset);
      ASSERT_TRUE(HoldsBytesOf(request.destination, request.offset, inside)) << request.offset << " " << request.bytes;
      free.push_back(completion.tag);
      flying.erase(it);
      ++finished;
    }
    ASSERT_EQ(queue_->in_flight(), flying.size());
  }
}

TEST_P(ReadQueueContract, NeverTakesMoreThanItsDepth) {
  std::vector<ReadRequest> requests;
  for (uint64_t i = 0; i < kDepth + 5; ++i) requests.push_back(Request(i * 4096, 4096, i % kDepth));
  EXPECT_EQ(queue_->Submit(requests), kDepth);
  EXPECT_EQ(queue_->in_flight(), kDepth);
  EXPECT_EQ(queue_->Submit(requests), 0u);
  std::vector<ReadCompletion> done;
  while (queue_->in_flight() > 0) queue_->Wait(done);
  EXPECT_EQ(done.size(), kDepth);
}

TEST_P(ReadQueueContract, WaitReturnsAtOnceWhenNothingIsInFlight) {
  std::vector<ReadCompletion> done;
  queue_->Wait(done);
  queue_->Poll(done);
  EXPECT_TRUE(done.empty());
}

TEST_P(ReadQueueContract, ReadsUpToTheEndOfTheFile) {
  const uint32_t alignment = file_->alignment();
  const uint64_t offset = RoundDown<uint64_t>(kFileBytes - 1, alignment);
  const auto bytes = static_cast<uint32_t>(alignment > 1 ? alignment : kFileBytes - offset);
  const Status status = ReadOne(Request(offset, bytes, 3));
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(HoldsBytesOf(Slot(3), offset, kFileBytes - offset));
}

TEST_P(ReadQueueContract, ReadBehindTheEndIsAnErrorWithNames) {
  const uint64_t offset = RoundUp<uint64_t>(kFileBytes, 4096);
  Status status = ReadOne(Request(offset, 4096, 0));
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(temp_.path()));
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(offset)));
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(kFileBytes)));
  status = ReadOne(Request(offset - 4096, 8192, 0));
  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
}

TEST_P(ReadQueueContract, ReadOfATruncatedFileIsAnErrorWithNames) {
  temp_.Truncate(1 << 20);
  for (const uint64_t offset : {uint64_t{1 << 20}, uint64_t{(1 << 20) - 8192}}) {
    const Status status = ReadOne(Request(offset, 16384, 0));
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(temp_.path()));
    EXPECT_THAT(std::string(status.message()), HasSubstr("offset " + std::to_string(offset)));
  }
  EXPECT_TRUE(ReadOne(Request(0, 16384, 0)).ok());
}

TEST_P(ReadQueueContract, WhatTheSystemRefusesIsNamed) {
  if (!file_->direct()) GTEST_SKIP() << "only direct reads can be refused for their alignment";
  ReadRequest request = Request(4096, 4096, 0);
  request.offset = 4097;
  const Status status = ReadOne(request);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("offset 4097"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("Invalid argument"));
}

TEST_P(ReadQueueContract, ReadsInFlightAreOverWhenTheQueueIsGone) {
  for (int round = 0; round < 30; ++round) {
    std::vector<ReadRequest> requests;
    for (uint64_t slot = 0; slot < kDepth; ++slot) requests.push_back(Request(slot * kSlotBytes, kSlotBytes, slot));
    EXPECT_EQ(queue_->Submit(requests), kDepth);
    queue_.reset();
    std::fill_n(memory_.data(), memory_.size(), std::byte{0});
    for (size_t i = 0; i < memory_.size(); i += 512) ASSERT_EQ(memory_.data()[i], std::byte{0});
    Open();
  }
}

TEST_P(ReadQueueContract, NamesItself) {
  EXPECT_STREQ(queue_->name(), GetParam().kind == ReadQueueKind::kUring ? "io_uring" : "pread");
}

TEST(OpenReadQueue, RefusesADepthOfNothing) {
  ReadQueueOptions options;
  options.depth = 0;
  EXPECT_EQ(OpenReadQueue(options).status().code(), StatusCode::kInvalidArgument);
}

// Makes io_uring_setup fail in the calling thread and those it starts, as containers' seccomp profiles do.
bool RefuseUringInThisThread() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program = {static_cast<unsigned short>(std::size(filter)), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(OpenReadQueue, FallsBackToPreadAndSaysSoWhereUringIsRefused) {
  std::thread([] {
    if (!RefuseUringInThisThread()) GTEST_SKIP() << "no seccomp here";
    auto queue = OpenReadQueue({});
    ASSERT_TRUE(queue.ok()) << queue.status();
    EXPECT_STREQ((*queue)->name(), "pread");
    ASSERT_EQ((*queue)->notices().size(), 1u);
    EXPECT_THAT((*queue)->notices()[0], HasSubstr("io_uring"));
    EXPECT_THAT((*queue)->notices()[0], HasSubstr("pread"));
    ReadQueueOptions only_uring;
    only_uring.kind = ReadQueueKind::kUring;
    EXPECT_EQ(OpenReadQueue(only_uring).status().code(), StatusCode::kPermissionDenied);
  }).join();
}

TEST(OpenReadQueue, ReadsIntoUnregisteredMemoryWhereItMayNotBeLocked) {
  Budget budget(64_MiB);
  auto memory = AlignedBuffer::Allocate(budget, MemoryCategory::kStaging, 4_MiB);
  ASSERT_TRUE(memory.ok());
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit small = {64 << 10, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &small), 0);
  const uid_t user = geteuid();
  if (user == 0) {
    ASSERT_EQ(seteuid(65534), 0);  // root may lock what it likes
  }
  ReadQueueOptions options;
  options.kind = ReadQueueKind::kUring;
  options.registered = memory->span();
  auto queue = OpenReadQueue(options);
  if (user == 0) {
    ASSERT_EQ(seteuid(0), 0);
  }
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &before), 0);
  if (!queue.ok()) GTEST_SKIP() << queue.status();
  ASSERT_EQ((*queue)->notices().size(), 1u);
  EXPECT_THAT((*queue)->notices()[0], HasSubstr("RLIMIT_MEMLOCK"));

  const TempFile temp(1 << 20);
  auto file = ReadFile::Open(temp.path(), true);
  ASSERT_TRUE(file.ok());
  const ReadRequest request = {&*file, 8192, 65536, memory->data(), 7};
  ASSERT_EQ((*queue)->Submit({&request, 1}), 1u);
  std::vector<ReadCompletion> done;
  (*queue)->Wait(done);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_TRUE(done[0].status.ok()) << done[0].status;
  EXPECT_TRUE(HoldsBytesOf(memory->data(), 8192, 65536));
}

TEST(ReadFile, ReadsAnyRangeAndSaysWhereTheFileEnds) {
  const TempFile temp(100001);
  for (const bool direct : {false, true}) {
    auto file = ReadFile::Open(temp.path(), direct);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->bytes(), 100001u);
    EXPECT_EQ(file->direct(), file->alignment() > 1);
    std::vector<std::byte> out(777);
    ASSERT_TRUE(file->ReadAt(100001 - 777, out).ok());
    EXPECT_TRUE(HoldsBytesOf(out.data(), 100001 - 777, 777));
    const Status status = file->ReadAt(100001 - 776, out);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr("100001"));
    EXPECT_FALSE(file->ReadAt(UINT64_MAX - 5, out).ok());
    EXPECT_TRUE(file->ReadAt(100001, {}).ok());
  }
}

TEST(ReadFile, RefusesWhatIsNoFile) {
  EXPECT_EQ(ReadFile::Open("/nowhere/to/be/found", true).status().code(), StatusCode::kNotFound);
  const Status folder = ReadFile::Open(testing::TempDir(), true).status();
  EXPECT_THAT(std::string(folder.message()), HasSubstr("folder"));
  const std::string fifo = testing::TempDir() + "elasticmem_fifo_" + std::to_string(getpid());
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const Status status = ReadFile::Open(fifo, true).status();
  unlink(fifo.c_str());
  EXPECT_THAT(std::string(status.message()), HasSubstr("FIFO"));
}

TEST(ReadFile, OpensAnEmptyFile) {
  const TempFile temp(0);
  auto file = ReadFile::Open(temp.path(), true);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->bytes(), 0u);
}

}  // namespace
}  // namespace elasticmem
