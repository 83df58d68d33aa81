// What the two read queues share and nobody else needs: how one read proceeds, and how each queue is opened.
#pragma once

#include <cstdint>
#include <memory>

#include "mem/read_queue.h"

namespace elasticmem {

// One read on its way: takes in results of the system until every byte that the file has is there, or it failed.
class ReadProgress {
 public:
  ReadProgress() = default;
  // Already over, with an error, where the request leaves the file.
  explicit ReadProgress(const ReadRequest& request);

  // `result` as pread(2) gave it, or -errno. Afterwards over(), or the rest (offset, bytes, destination) is to be read.
  void Advance(int64_t result);
  bool over() const { return over_; }
  // Once over.
  ReadCompletion TakeCompletion() { return {request_.tag, std::move(status_)}; }

  const ReadRequest& request() const { return request_; }
  uint64_t offset() const { return request_.offset + done_; }
  uint32_t bytes() const { return request_.bytes - done_; }
  std::byte* destination() const { return request_.destination + done_; }

 private:
  void Fail(Status status);

  ReadRequest request_;
  uint32_t expected_ = 0;  // bytes of the request that lie inside the file
  uint32_t done_ = 0;
  uint32_t retries_ = 0;  // results in a row that brought nothing
  bool over_ = false;
  Status status_;
};

StatusOr<std::unique_ptr<ReadQueue>> OpenUringQueue(const ReadQueueOptions& options);
// `notices` are those of a queue that was tried before.
StatusOr<std::unique_ptr<ReadQueue>> OpenPreadQueue(const ReadQueueOptions& options, std::vector<std::string> notices);

}  // namespace elasticmem
