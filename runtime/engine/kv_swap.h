// Where the KV of a paused conversation waits when its blocks are needed: a file without a name, gone with the process.
// Bringing it back is a read instead of computing all of its tokens again.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "mapping/kv_table.h"
#include "mem/budget.h"

namespace elasticmem {

// KV of one sequence in the file. Give it back with KvSwap::Forget when it is not wanted any more.
struct SavedKv {
  uint32_t tokens = 0;
  std::vector<uint32_t> places;  // in the file, one a page: that page of all layers
  Reservation table;             // of `places`
};

struct KvSwapStatistics {
  uint64_t bytes_written = 0;
  uint64_t bytes_read = 0;
  double micros_per_byte = 0.002;  // as measured lately, of either; 500 MB/s until then
};

// One thread. Budget and KV table outlive it.
class KvSwap {
 public:
  // The file lies in `folder` and takes at most `most_bytes`; `page_bytes` is what a page uses of its block. Errors:
  // what the system says of the folder, by name.
  static StatusOr<std::unique_ptr<KvSwap>> Create(Budget* budget, const KvTable* kv, const std::string& folder,
                                                  uint64_t most_bytes, uint64_t page_bytes);
  KvSwap(const KvSwap&) = delete;
  KvSwap& operator=(const KvSwap&) = delete;
  ~KvSwap();

  // Writes all pages of the sequence, which may be removed afterwards. Errors: Exhausted where the file or the budget
  // has no room; what the system says (a full disk). Nothing is taken then.
  StatusOr<SavedKv> Save(SequenceId sequence);
  // Reads them into the pages of a sequence that has as many tokens, none of them shared.
  Status Restore(const SavedKv& saved, SequenceId sequence);
  void Forget(SavedKv& saved);

  // Would saving `tokens` tokens and bringing them back take less time than computing them?
  bool IsCheaper(uint32_t tokens, double prefill_micros_per_token) const;
  const KvSwapStatistics& statistics() const { return statistics_; }

 private:
  KvSwap(Budget* budget, const KvTable* kv, int file, std::string path, uint64_t stride, uint32_t most_places)
      : budget_(budget), kv_(kv), file_(file), path_(std::move(path)), stride_(stride), most_places_(most_places) {}
  uint64_t PlaceBytes() const { return stride_ * kv_->layers(); }
  void Measure(uint64_t bytes, double micros);

  Budget* const budget_;
  const KvTable* const kv_;
  const int file_;
  const std::string path_;
  const uint64_t stride_;  // bytes of one layer's page, a multiple of 4096
  const uint32_t most_places_;
  uint32_t places_ = 0;         // used or free
  std::vector<uint32_t> free_;  // among those
  KvSwapStatistics statistics_;
};

}  // namespace elasticmem
