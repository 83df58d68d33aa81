#include "mem/budget.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/units.h"

namespace elasticmem {
namespace {

constexpr std::array<std::string_view, kMemoryCategories> kNames = {
    "dense weights", "gates", "pool", "KV", "neurons", "scratch", "staging", "tables", "tokenizer", "other"};
static_assert(static_cast<size_t>(MemoryCategory::kOther) + 1 == kMemoryCategories);

constexpr size_t kHugePageBytes = 2_MiB;
constexpr size_t kHugeFromBytes = 8_MiB;

}  // namespace

std::string_view Name(MemoryCategory category) { return kNames[static_cast<size_t>(category)]; }

Reservation::Reservation(Reservation&& other) noexcept
    : budget_(std::exchange(other.budget_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      category_(other.category_) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this == &other) return *this;
  Release();
  budget_ = std::exchange(other.budget_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  category_ = other.category_;
  return *this;
}

void Reservation::Release() {
  if (budget_ != nullptr) std::exchange(budget_, nullptr)->Release(category_, std::exchange(bytes_, 0));
}

Budget::~Budget() { EM_CHECK(current_bytes_ == 0); }

std::optional<Reservation> Budget::TryReserve(MemoryCategory category, uint64_t bytes) {
  if (bytes > available_bytes()) return std::nullopt;
  const auto index = static_cast<size_t>(category);
  bytes_[index] += bytes;
  current_bytes_ += bytes;
  category_peak_bytes_[index] = std::max(category_peak_bytes_[index], bytes_[index]);
  peak_bytes_ = std::max(peak_bytes_, current_bytes_);
  return Reservation(this, category, bytes);
}

StatusOr<Reservation> Budget::Reserve(MemoryCategory category, uint64_t bytes) {
  if (auto reservation = TryReserve(category, bytes)) return std::move(*reservation);
  std::string held;
  for (const Line& line : Report()) {
    if (line.bytes == 0) continue;
    held += fmt::format("{}{} {}", held.empty() ? "" : ", ", Name(line.category), FormatBytes(line.bytes));
  }
  return Exhausted("{} need {} ({} bytes), but {} of the memory budget of {} are left (held: {})", Name(category),
                   FormatBytes(bytes), bytes, FormatBytes(available_bytes()), FormatBytes(total_bytes_),
                   held.empty() ? "nothing" : held);
}

void Budget::Release(MemoryCategory category, uint64_t bytes) {
  const auto index = static_cast<size_t>(category);
  EM_CHECK(bytes_[index] >= bytes);
  bytes_[index] -= bytes;
  current_bytes_ -= bytes;
}

std::vector<Budget::Line> Budget::Report() const {
  std::vector<Line> lines;
  for (size_t i = 0; i < kMemoryCategories; ++i) {
    if (category_peak_bytes_[i] == 0) continue;
    lines.push_back({static_cast<MemoryCategory>(i), bytes_[i], category_peak_bytes_[i]});
  }
  return lines;
}

void Budget::CheckInvariants() const {
  uint64_t sum = 0;
  for (size_t i = 0; i < kMemoryCategories; ++i) {
    sum += bytes_[i];
    EM_CHECK(bytes_[i] <= category_peak_bytes_[i] && category_peak_bytes_[i] <= peak_bytes_);
  }
  EM_CHECK(sum == current_bytes_ && current_bytes_ <= peak_bytes_ && peak_bytes_ <= total_bytes_);
}

StatusOr<AlignedBuffer> AlignedBuffer::Allocate(Budget& budget, MemoryCategory category, uint64_t bytes) {
  AlignedBuffer buffer;
  if (bytes == 0) return buffer;
  if (bytes > SIZE_MAX / 2) return Exhausted("{} need {} bytes, more than any machine has", Name(category), bytes);
  const size_t mapped = RoundUp<size_t>(bytes, kAlignment);
  EM_ASSIGN_OR_RETURN(buffer.reservation_, budget.Reserve(category, mapped));
  // A mapping starts at any page; huge pages need a 2 MiB boundary, so map more and cut both ends off.
  const bool huge = bytes >= kHugeFromBytes;
  const size_t slack = huge ? kHugePageBytes : 0;
  void* const map =
      mmap(nullptr, mapped + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) {
    const int error = errno;
    return SystemError(error, fmt::format("allocating {} for {}", FormatBytes(bytes), Name(category)));
  }
  auto* begin = static_cast<std::byte*>(map);
  if (huge) {
    const size_t head =
        RoundUp(reinterpret_cast<uintptr_t>(begin), kHugePageBytes) - reinterpret_cast<uintptr_t>(begin);
    if (head > 0) munmap(begin, head);
    begin += head;
    if (slack > head) munmap(begin + mapped, slack - head);
    madvise(begin, mapped, MADV_HUGEPAGE);  // where refused, small pages do
  }
  buffer.data_ = begin;
  buffer.size_ = bytes;
  buffer.mapped_bytes_ = mapped;
  return buffer;
}

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept { *this = std::move(other); }

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  if (this == &other) return *this;
  Free();
  reservation_ = std::move(other.reservation_);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  mapped_bytes_ = std::exchange(other.mapped_bytes_, 0);
  return *this;
}

void AlignedBuffer::DropPages(size_t offset, size_t bytes) {
  EM_CHECK(offset <= size_ && bytes <= size_ - offset);
  const size_t begin = RoundUp(offset, kAlignment);
  const size_t end = offset + bytes == size_ ? mapped_bytes_ : RoundDown(offset + bytes, kAlignment);
  if (begin < end) EM_CHECK(madvise(data_ + begin, end - begin, MADV_DONTNEED) == 0);
}

void AlignedBuffer::Free() {
  if (data_ != nullptr) EM_CHECK(munmap(data_, mapped_bytes_) == 0);
  data_ = nullptr;
  size_ = mapped_bytes_ = 0;
  reservation_.Release();
}

}  // namespace elasticmem
