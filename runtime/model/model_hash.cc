#include "runtime/model/model_hash.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "base/units.h"
#include "mem/read_queue.h"
#include "base/stream_hash.h"

namespace elasticmem {
namespace {

constexpr uint64_t kSamples = 64;
constexpr uint64_t kSampleBytes = 4_KiB;
constexpr uint64_t kChunkBytes = 1_MiB;

// XXH3 of file ranges fed in order.
class FileHash {
 public:
  void Add(uint64_t value) { hash_.Add(std::as_bytes(std::span(&value, 1))); }

  // Adds [begin, end) of `file`; `read`, if any, is told the bytes of each chunk.
  Status AddRange(const ReadFile& file, uint64_t begin, uint64_t end, const std::atomic<bool>* cancelled,
                  const std::function<void(uint64_t)>& read) {
    buffer_.resize(std::clamp<uint64_t>(end - begin, buffer_.size(), kChunkBytes));
    for (uint64_t at = begin; at < end;) {
      if (cancelled != nullptr && cancelled->load(std::memory_order_relaxed)) {
        return Error(StatusCode::kCancelled, "hashing {} was cancelled", file.path());
      }
      const std::span<std::byte> chunk(buffer_.data(), std::min<uint64_t>(buffer_.size(), end - at));
      EM_RETURN_IF_ERROR(file.ReadAt(at, chunk));
      hash_.Add(chunk);
      at += chunk.size();
      if (read) read(chunk.size());
    }
    return absl::OkStatus();
  }

  uint64_t Digest() const { return hash_.Digest(); }

 private:
  StreamHash hash_;
  std::vector<std::byte> buffer_;
};

// The offset of the first tensor of each part: where its metadata ends. A part without tensors is all metadata.
std::vector<uint64_t> MetadataEnds(const GgufFile& file) {
  std::vector<uint64_t> ends(file.paths().size(), UINT64_MAX);
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.bytes > 0) ends[tensor.file] = std::min(ends[tensor.file], tensor.offset);
  }
  return ends;
}

}  // namespace

StatusOr<uint64_t> ModelQuickHash(const GgufFile& file) {
  FileHash hash;
  const std::vector<uint64_t> ends = MetadataEnds(file);
  const uint64_t samples = std::max<uint64_t>(4, kSamples / std::max<size_t>(1, ends.size()));
  for (size_t part = 0; part < ends.size(); ++part) {
    EM_ASSIGN_OR_RETURN(const ReadFile opened, ReadFile::Open(file.paths()[part], /*try_direct=*/false));
    const uint64_t bytes = opened.bytes();
    const uint64_t metadata = std::min(ends[part], bytes);
    hash.Add(bytes);
    EM_RETURN_IF_ERROR(hash.AddRange(opened, 0, metadata, nullptr, nullptr));
    const uint64_t data = bytes - metadata;
    if (data <= samples * kSampleBytes) {
      EM_RETURN_IF_ERROR(hash.AddRange(opened, metadata, bytes, nullptr, nullptr));
      continue;
    }
    const uint64_t step = (data - kSampleBytes) / (samples - 1);
    for (uint64_t i = 0; i < samples; ++i) {
      const uint64_t at = i + 1 == samples ? bytes - kSampleBytes : metadata + i * step;
      EM_RETURN_IF_ERROR(hash.AddRange(opened, at, at + kSampleBytes, nullptr, nullptr));
    }
  }
  return hash.Digest();
}

StatusOr<uint64_t> ModelFullHash(const GgufFile& file, const ByteProgress& progress,
                                 const std::atomic<bool>* cancelled) {
  FileHash hash;
  uint64_t done = 0;
  const auto count = [&](uint64_t bytes) {
    done += bytes;
    if (progress) progress(done, file.file_bytes());
  };
  for (const std::string& path : file.paths()) {
    EM_ASSIGN_OR_RETURN(const ReadFile opened, ReadFile::Open(path, /*try_direct=*/false));
    EM_RETURN_IF_ERROR(hash.AddRange(opened, 0, opened.bytes(), cancelled, count));
  }
  return hash.Digest();
}

}  // namespace elasticmem
