#include "runtime/engine/kv_swap.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <limits>

#include "base/units.h"

namespace elasticmem {
namespace {

using Clock = std::chrono::steady_clock;

double MicrosSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// A file in `folder` that has no name; direct where the file system takes it.
int OpenNameless(const std::string& folder) {
  for (const int direct : {O_DIRECT, 0}) {
    const int file = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | direct, 0600);
    if (file >= 0) return file;
  }
  std::string path = folder + "/elasticmem-kv-XXXXXX";
  const int file = mkostemp(path.data(), O_CLOEXEC);
  if (file >= 0) unlink(path.c_str());
  return file;
}

template <class Transfer>
bool TransferAll(Transfer&& transfer, uint64_t bytes, uint64_t offset) {
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t n = transfer(done, bytes - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = EIO;
    if (n <= 0) return false;
    done += static_cast<uint64_t>(n);
  }
  return true;
}

}  // namespace

StatusOr<std::unique_ptr<KvSwap>> KvSwap::Create(Budget* budget, const KvTable* kv, const std::string& folder,
                                                 uint64_t most_bytes, uint64_t page_bytes) {
  const uint64_t stride = RoundUp<uint64_t>(page_bytes, 4096);
  const uint64_t most = most_bytes / (stride * kv->layers());
  const int file = OpenNameless(folder.empty() ? "." : folder);
  if (file < 0) return SystemError(errno, fmt::format("cannot make a file for paused conversations in {}", folder));
  return std::unique_ptr<KvSwap>(
      new KvSwap(budget, kv, file, folder, stride, static_cast<uint32_t>(std::min<uint64_t>(most, UINT32_MAX))));
}

KvSwap::~KvSwap() { close(file_); }

void KvSwap::Measure(uint64_t bytes, double micros) {
  const bool first = statistics_.bytes_read + statistics_.bytes_written == bytes;
  const double seen = micros / static_cast<double>(bytes);
  statistics_.micros_per_byte += (first ? 1.0 : 0.3) * (seen - statistics_.micros_per_byte);
}

bool KvSwap::IsCheaper(uint32_t tokens, double prefill_micros_per_token) const {
  const double bytes = static_cast<double>(CeilDiv(tokens, kv_->page_tokens())) * static_cast<double>(PlaceBytes());
  return prefill_micros_per_token == 0 || 2 * bytes * statistics_.micros_per_byte < tokens * prefill_micros_per_token;
}

StatusOr<SavedKv> KvSwap::Save(SequenceId sequence) {
  const uint32_t pages = kv_->pages(sequence);
  const uint64_t room = free_.size() + uint64_t{most_places_ - places_};
  if (pages > room) {
    return Exhausted("{} pages of KV do not fit the file for paused conversations in {}, which has room for {} of {}",
                     pages, path_, room, most_places_);
  }
  auto table = budget_->TryReserve(MemoryCategory::kTables, pages * 2 * sizeof(uint32_t));
  if (!table) return Exhausted("the budget has no room for the table of {} paused pages", pages);
  SavedKv saved;
  saved.tokens = kv_->tokens(sequence);
  saved.table = std::move(*table);
  const auto start = Clock::now();
  for (uint32_t page = 0; page < pages; ++page) {
    if (free_.empty()) free_.push_back(places_++);
    saved.places.push_back(free_.back());
    free_.pop_back();
    for (uint32_t layer = 0; layer < kv_->layers(); ++layer) {
      const std::byte* from = kv_->PagePointers(sequence, layer)[page];
      const auto write = [&](uint64_t done, uint64_t bytes, off_t at) { return pwrite(file_, from + done, bytes, at); };
      if (TransferAll(write, stride_, saved.places.back() * PlaceBytes() + layer * stride_)) continue;
      const Status status = SystemError(errno, fmt::format("cannot write KV of a paused conversation in {}", path_));
      Forget(saved);
      return status;
    }
  }
  const uint64_t bytes = pages * PlaceBytes();
  statistics_.bytes_written += bytes;
  Measure(bytes, MicrosSince(start));
  return saved;
}

Status KvSwap::Restore(const SavedKv& saved, SequenceId sequence) {
  EM_CHECK(kv_->tokens(sequence) == saved.tokens && kv_->pages(sequence) == saved.places.size());
  const auto start = Clock::now();
  for (uint32_t page = 0; page < saved.places.size(); ++page) {
    for (uint32_t layer = 0; layer < kv_->layers(); ++layer) {
      std::byte* to = kv_->WritablePage(sequence, layer, page);
      const auto read = [&](uint64_t done, uint64_t bytes, off_t at) { return pread(file_, to + done, bytes, at); };
      if (TransferAll(read, stride_, saved.places[page] * PlaceBytes() + layer * stride_)) continue;
      return SystemError(errno, fmt::format("cannot read KV of a paused conversation in {}", path_));
    }
  }
  const uint64_t bytes = saved.places.size() * PlaceBytes();
  statistics_.bytes_read += bytes;
  Measure(bytes, MicrosSince(start));
  return absl::OkStatus();
}

void KvSwap::Forget(SavedKv& saved) {
  free_.insert(free_.end(), saved.places.begin(), saved.places.end());
  saved = SavedKv();
}

}  // namespace elasticmem
