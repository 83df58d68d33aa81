#include "mem/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <map>
#include <random>

#include "base/units.h"
#include "tests/mem/random_seed.h"

namespace elasticmem {
namespace {

using testing::HasSubstr;

TEST(Budget, RefusesWhatDoesNotFitAndSaysWhoHoldsWhat) {
  Budget budget(100_MiB);
  auto weights = budget.Reserve(MemoryCategory::kDenseWeights, 60_MiB);
  auto gates = budget.Reserve(MemoryCategory::kGates, 30_MiB);
  ASSERT_TRUE(weights.ok() && gates.ok());
  const Status status = budget.Reserve(MemoryCategory::kStaging, 10_MiB + 1).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr("staging"));
  EXPECT_THAT(message, HasSubstr(std::to_string(10_MiB + 1)));
  EXPECT_THAT(message, HasSubstr("10.0 MiB"));
  EXPECT_THAT(message, HasSubstr("dense weights 60.0 MiB"));
  EXPECT_THAT(message, HasSubstr("gates 30.0 MiB"));
  EXPECT_FALSE(budget.TryReserve(MemoryCategory::kOther, UINT64_MAX));
  EXPECT_TRUE(budget.Reserve(MemoryCategory::kStaging, 10_MiB).ok());
}

TEST(Budget, RandomReservationsNeverPassTheTotal) {
  std::mt19937_64 random(TestSeed(4));
  constexpr uint64_t kTotal = 1000;
  Budget budget(kTotal);
  std::vector<Reservation> held;
  std::map<MemoryCategory, uint64_t> model;
  std::map<MemoryCategory, uint64_t> model_peak;
  uint64_t sum = 0;
  uint64_t peak = 0;
  for (int operation = 0; operation < 50000; ++operation) {
    if (random() % 2 == 0) {
      const auto category = static_cast<MemoryCategory>(random() % kMemoryCategories);
      const uint64_t bytes = random() % 200;
      auto reservation = budget.TryReserve(category, bytes);
      ASSERT_EQ(reservation.has_value(), sum + bytes <= kTotal);
      if (reservation) {
        sum += bytes;
        peak = std::max(peak, sum);
        model[category] += bytes;
        model_peak[category] = std::max(model_peak[category], model[category]);
        held.push_back(*std::move(reservation));
      }
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      sum -= held.back().bytes();
      model[held.back().category()] -= held.back().bytes();
      if (random() % 2 == 0) held.back().Release();
      held.pop_back();
    }
    budget.CheckInvariants();
    ASSERT_EQ(budget.current_bytes(), sum);
    ASSERT_EQ(budget.peak_bytes(), peak);
  }
  for (const Budget::Line& line : budget.Report()) {
    EXPECT_EQ(line.bytes, model[line.category]);
    EXPECT_EQ(line.peak_bytes, model_peak[line.category]);
  }
  held.clear();
  EXPECT_EQ(budget.current_bytes(), 0u);
}

TEST(AlignedBuffer, IsReservedZeroAndAlignedAndGoesBackWithItsReservation) {
  Budget budget(32_MiB);
  {
    auto buffer = AlignedBuffer::Allocate(budget, MemoryCategory::kScratch, 5000);
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    EXPECT_EQ(buffer->size(), 5000u);
    EXPECT_EQ(budget.bytes(MemoryCategory::kScratch), 8192u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % AlignedBuffer::kAlignment, 0u);
    for (const std::byte byte : buffer->span()) ASSERT_EQ(byte, std::byte{0});
    AlignedBuffer moved = *std::move(buffer);
    EXPECT_EQ(moved.size(), 5000u);
    EXPECT_EQ(moved.As<float>().size(), 1250u);
    EXPECT_EQ(budget.current_bytes(), 8192u);
  }
  EXPECT_EQ(budget.current_bytes(), 0u);
  EXPECT_EQ(budget.peak_bytes(), 8192u);
  EXPECT_FALSE(AlignedBuffer::Allocate(budget, MemoryCategory::kScratch, 33_MiB).ok());
  EXPECT_TRUE(AlignedBuffer::Allocate(budget, MemoryCategory::kScratch, 0)->empty());
}

TEST(AlignedBuffer, LargeOnesStartAtAHugePage) {
  Budget budget(32_MiB);
  auto buffer = AlignedBuffer::Allocate(budget, MemoryCategory::kPool, 9_MiB + 5);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 2_MiB, 0u);
  buffer->data()[buffer->size() - 1] = std::byte{1};
}

TEST(AlignedBuffer, DroppedPagesAreNotResidentAndReadAsZero) {
  Budget budget(1_MiB);
  auto buffer = AlignedBuffer::Allocate(budget, MemoryCategory::kPool, 10 * 4096);
  ASSERT_TRUE(buffer.ok());
  std::fill_n(buffer->data(), buffer->size(), std::byte{7});
  buffer->DropPages(4096 - 1, 2 * 4096 + 1);  // whole pages 1 and 2
  unsigned char resident[10];
  ASSERT_EQ(mincore(buffer->data(), buffer->size(), resident), 0);
  for (int page = 0; page < 10; ++page) EXPECT_EQ(resident[page] & 1, page != 1 && page != 2) << page;
  EXPECT_EQ(buffer->data()[4095], std::byte{7});
  EXPECT_EQ(buffer->data()[4096], std::byte{0});
  EXPECT_EQ(buffer->data()[3 * 4096], std::byte{7});
}

}  // namespace
}  // namespace elasticmem
