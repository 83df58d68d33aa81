// The ledger of memory: every byte the engine holds is reserved here under a named category before it is allocated, so
// that what is in use can never pass what the user allowed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/status.h"

namespace elasticmem {

enum class MemoryCategory : uint8_t {
  kDenseWeights,  // attention, norms, embeddings, output: whatever is not an FFN neuron
  kGates,         // gate matrices of exact mode
  kPool,          // the blocks that hold KV pages and neurons
  kKv,            // KV memory outside the pool
  kNeurons,       // neuron memory outside the pool
  kScratch,       // activations and prefill temporaries
  kStaging,       // read rings and bounce buffers
  kTables,        // mapping tables and checksums
  kTokenizer,
  kOther,
};
inline constexpr size_t kMemoryCategories = 10;

// The category as tables print it: "dense weights".
std::string_view Name(MemoryCategory category);

class Budget;

// A share of a budget, given back when it goes. Move-only; must not outlive its budget.
class Reservation {
 public:
  Reservation() = default;  // of nothing
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation() { Release(); }

  uint64_t bytes() const { return bytes_; }
  MemoryCategory category() const { return category_; }
  // Gives the bytes back now.
  void Release();

 private:
  friend class Budget;
  Reservation(Budget* budget, MemoryCategory category, uint64_t bytes)
      : budget_(budget), bytes_(bytes), category_(category) {}

  Budget* budget_ = nullptr;
  uint64_t bytes_ = 0;
  MemoryCategory category_ = MemoryCategory::kOther;
};

// Invariants: current == sum over categories of what is reserved; current <= peak <= total.
// One thread at a time. Neither copied nor moved: reservations point to it.
class Budget {
 public:
  struct Line {
    MemoryCategory category;
    uint64_t bytes;  // reserved now
    uint64_t peak_bytes;
  };

  explicit Budget(uint64_t total_bytes) : total_bytes_(total_bytes) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;
  ~Budget();  // every reservation must be gone

  // Takes `bytes` for `category`, or an Exhausted error that names the category, the bytes asked, the bytes left and
  // what every category holds.
  StatusOr<Reservation> Reserve(MemoryCategory category, uint64_t bytes);
  // The same without an error to read: nothing where it does not fit.
  std::optional<Reservation> TryReserve(MemoryCategory category, uint64_t bytes);

  uint64_t total_bytes() const { return total_bytes_; }
  uint64_t current_bytes() const { return current_bytes_; }
  uint64_t available_bytes() const { return total_bytes_ - current_bytes_; }
  uint64_t peak_bytes() const { return peak_bytes_; }
  uint64_t bytes(MemoryCategory category) const { return bytes_[static_cast<size_t>(category)]; }

  // One line for each category that ever held anything, in the order of the enum.
  std::vector<Line> Report() const;
  void CheckInvariants() const;

 private:
  friend class Reservation;
  void Release(MemoryCategory category, uint64_t bytes);

  const uint64_t total_bytes_;
  uint64_t current_bytes_ = 0;
  uint64_t peak_bytes_ = 0;
  std::array<uint64_t, kMemoryCategories> bytes_{};
  std::array<uint64_t, kMemoryCategories> category_peak_bytes_{};
};

// Page-aligned memory from the system, zero-filled when first touched and given back to the system when it goes. There
// is no way to make one but through a budget. From 8 MiB up it asks for huge pages and starts at a 2 MiB boundary.
class AlignedBuffer {
 public:
  static constexpr size_t kAlignment = 4096;

  // `bytes` rounded up to 4096 are reserved. Zero bytes give an empty buffer. Errors: the budget's, or the system's
  // refusal.
  static StatusOr<AlignedBuffer> Allocate(Budget& budget, MemoryCategory category, uint64_t bytes);
  AlignedBuffer() = default;
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  ~AlignedBuffer() { Free(); }

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }  // as asked for
  std::span<std::byte> span() const { return {data_, size_}; }
  bool empty() const { return size_ == 0; }
  // The memory as `size() / sizeof(T)` objects of a trivial type.
  template <class T>
  std::span<T> As() const {
    static_assert(std::is_trivially_copyable_v<T>);
    return {reinterpret_cast<T*>(data_), size_ / sizeof(T)};
  }
  // Hands the whole pages inside [offset, offset + bytes) back to the system; they read as zero afterwards. The
  // reservation stays. Not for memory that is registered with a read queue: reads would go on filling the old pages.
  void DropPages(size_t offset, size_t bytes);

 private:
  void Free();

  Reservation reservation_;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t mapped_bytes_ = 0;
};

}  // namespace elasticmem
