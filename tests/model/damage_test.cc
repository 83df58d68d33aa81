// Bad stores: each is told apart, named, and never read as if it were whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>

#include "runtime/model/model_hash.h"
#include "store/neuron_store.h"
#include "store/neuron_store_format.h"
#include "runtime/model/neuron_store_packer.h"
#include "base/stream_hash.h"
#include "tests/gguf/scratch_folder.h"
#include "tests/model/ffn_model.h"

namespace elasticmem {
namespace {

using testing::HasSubstr;

std::string Text(const Status& status) { return std::string(Message(status)); }

class DamageTest : public testing::Test {
 protected:
  DamageTest()
      : model_(folder_.Path("m.gguf"), {.d_model = 64, .ff = 96, .layers = 3}), path_(folder_.Path("m.emstore")) {
    EM_CHECK(PackNeuronStore(model_.source(), path_, {}).ok());
    whole_ = ReadAll(path_);
    expected_.layout = *PackedLayout(model_.source(), std::nullopt);
    expected_.model_quick_hash = *ModelQuickHash(model_.file());
    std::memcpy(&header_, whole_.data(), sizeof(header_));
  }

  // What opening says when the file holds `bytes`.
  Status Open(std::string_view bytes) const {
    WriteAll(path_, bytes);
    return NeuronStore::Open(path_, expected_).status();
  }
  std::string Flipped(size_t byte, int bit) const {
    std::string bytes = whole_;
    bytes[byte] = static_cast<char>(bytes[byte] ^ (1 << bit));
    return bytes;
  }
  // The whole store with another header, whose checksum is right.
  std::string WithHeader(StoreHeader header) const {
    header.header_checksum = 0;
    header.header_checksum = HashOf(std::as_bytes(std::span(&header, 1)));
    std::string bytes = whole_;
    std::memcpy(bytes.data(), &header, sizeof(header));
    return bytes;
  }

  const ScratchFolder folder_;
  FfnModel model_;
  const std::string path_;
  std::string whole_;
  StoreExpectation expected_;
  StoreHeader header_;
};

TEST_F(DamageTest, OpensWhatIsWhole) { EXPECT_TRUE(Open(whole_).ok()); }

TEST_F(DamageTest, AnAbsentStoreIsNotFound) {
  const Status status = NeuronStore::Open(folder_.Path("none"), expected_).status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
}

TEST_F(DamageTest, TruncationAnywhereIsAnErrorWithBothSizes) {
  std::vector<uint64_t> sizes = {0, 1, 7, 8, 23, 24, 25, 255, 256, 257, 1000, header_.data_offset - 1};
  for (uint32_t layer = 0; layer < 3; ++layer) {
    const uint64_t begin = header_.data_offset + layer * header_.extent_bytes;
    for (const uint64_t size : {begin, begin + 1, begin + header_.record_bytes, begin + header_.extent_bytes - 1}) {
      sizes.push_back(size);
    }
  }
  for (const uint64_t size : sizes) {
    const Status status = Open(whole_.substr(0, size));
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << size;
    EXPECT_THAT(Text(status), HasSubstr("truncated")) << size;
    EXPECT_THAT(Text(status), HasSubstr(fmt::format("the file has {}", size)));
  }
  const uint64_t begin = header_.data_offset + header_.extent_bytes;
  EXPECT_THAT(Text(Open(whole_.substr(0, begin + 5))),
              HasSubstr(fmt::format("the extent of layer 1 ends at byte {}, the file has {}",
                                    begin + header_.extent_bytes, begin + 5)));
  EXPECT_THAT(Text(Open(whole_ + "x")), HasSubstr(fmt::format("has {} bytes, its header says", whole_.size() + 1)));
}

TEST_F(DamageTest, AFlippedBitInTheHeaderIsDamageAndNeverAnotherVersionOrModel) {
  for (size_t byte = 0; byte < sizeof(StoreHeader); ++byte) {
    const Status status = Open(Flipped(byte, static_cast<int>(byte % 8)));
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << byte << ": " << status;
  }
}

TEST_F(DamageTest, AFlippedBitInTheTablesIsFoundWhenOpening) {
  for (size_t byte = sizeof(StoreHeader); byte < header_.data_offset; byte += 13) {
    const Status status = Open(Flipped(byte, static_cast<int>(byte % 8)));
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << byte;
    EXPECT_THAT(Text(status), HasSubstr("the tables (bytes 256 to "));
  }
}

TEST_F(DamageTest, AFlippedBitInTheDataIsFoundByItsRecordOrExtent) {
  const RecordLayout& layout = expected_.layout;
  for (size_t byte = header_.data_offset; byte < whole_.size(); byte += 761) {
    WriteAll(path_, Flipped(byte, static_cast<int>(byte % 8)));
    const auto store = NeuronStore::Open(path_, expected_, {.heads = true});
    ASSERT_TRUE(store.ok()) << store.status();
    const Status status = store->VerifyAll(nullptr, nullptr);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << byte;
    const uint32_t layer = (byte - header_.data_offset) / header_.extent_bytes;
    const uint64_t within = (byte - header_.data_offset) % header_.extent_bytes;
    const uint32_t neuron = within / layout.record_bytes;
    if (neuron >= layout.ff || within % layout.record_bytes >= layout.head_bytes + layout.tail_bytes) {
      EXPECT_THAT(Text(status), HasSubstr(fmt::format("the extent of layer {} (bytes ", layer)));  // in padding
      continue;
    }
    EXPECT_THAT(Text(status), HasSubstr(fmt::format("the record of layer {} neuron {} is damaged", layer, neuron)));

    std::vector<std::byte> tail(layout.slot_bytes);
    ASSERT_TRUE(store->file().ReadAt(store->TailOffset(layer, neuron), tail).ok());
    const bool in_tail = within % layout.record_bytes >= layout.head_bytes;
    const Status verified = store->VerifyTail(layer, neuron, tail);
    EXPECT_EQ(verified.ok(), !in_tail);
    if (in_tail) {
      EXPECT_THAT(Text(verified), HasSubstr(fmt::format("bytes at {})", store->TailOffset(layer, neuron))));
    }
  }
}

TEST_F(DamageTest, AnotherVersionIsStale) {
  StoreHeader header = header_;
  header.version = 2;
  const Status status = Open(WithHeader(header));
  EXPECT_TRUE(IsStale(status)) << status;
  EXPECT_THAT(Text(status), HasSubstr("is of version 2, this program reads 1"));
}

TEST_F(DamageTest, AnotherModelIsStaleAndPackedAnew) {
  const FfnModel other(model_.path(), model_.shape(), /*seed=*/2);
  model_.Reopen();
  expected_.model_quick_hash = *ModelQuickHash(model_.file());
  EXPECT_TRUE(IsStale(Open(whole_)));
  const auto opened = OpenOrPackNeuronStore(model_.source(), path_, {}, {});
  ASSERT_TRUE(opened.ok()) << opened.status();
  ASSERT_TRUE(opened->packed.has_value());
  EXPECT_FALSE(opened->packed->reused);
  EXPECT_EQ(opened->store.model_quick_hash(), expected_.model_quick_hash);
  EXPECT_NE(ReadAll(path_), whole_);
}

TEST_F(DamageTest, AnotherLayoutIsStaleAndDescribed) {
  expected_.layout = *PackedLayout(model_.source(), DType::kQ8_0);
  const Status status = Open(whole_);
  EXPECT_TRUE(IsStale(status));
  EXPECT_THAT(Text(status),
              HasSubstr("has other records (gated, 3 layers of 96 neurons of 64, F16/F16/F16), wanted: "));
}

TEST_F(DamageTest, ImpossibleShapesInARightlySignedHeaderAreRefused) {
  const auto refused = [&](auto change) {
    StoreHeader header = header_;
    change(header);
    WriteAll(path_, WithHeader(header));
    const Status status = NeuronStore::Open(path_, std::nullopt).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
  };
  refused([](StoreHeader& h) { h.layers = 0; });
  refused([](StoreHeader& h) { h.layers = UINT32_MAX; });
  refused([](StoreHeader& h) { h.ff = 1 << 24; });  // the file would be far larger
  refused([](StoreHeader& h) { h.d_model = 1 << 30; });
  refused([](StoreHeader& h) { h.up_type = 99; });
  refused([](StoreHeader& h) { h.record_bytes += 64; });
  refused([](StoreHeader& h) { h.extent_bytes += 4096; });
  refused([](StoreHeader& h) { h.file_bytes -= 4096; });
}

TEST_F(DamageTest, ADamagedStoreIsAnErrorThatPackingMends) {
  EXPECT_FALSE(Open(Flipped(300, 1)).ok());
  EXPECT_EQ(OpenOrPackNeuronStore(model_.source(), path_, {}, {}).status().code(), StatusCode::kDataLoss);
  ASSERT_TRUE(PackNeuronStore(model_.source(), path_, {}).ok());
  EXPECT_EQ(ReadAll(path_), whole_);
}

TEST_F(DamageTest, AFolderOrAFifoIsNoStore) {
  EXPECT_EQ(NeuronStore::Open(folder_.path(), expected_).status().code(), StatusCode::kInvalidArgument);
  const std::string fifo = folder_.Path("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(NeuronStore::Open(fifo, expected_).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(DamageTest, CheckingEverythingReportsProgressAndStopsWhenCancelled) {
  const auto store = NeuronStore::Open(path_, expected_);
  ASSERT_TRUE(store.ok());
  uint64_t last = 0;
  EXPECT_TRUE(store->VerifyAll([&](uint64_t done, uint64_t) { last = done; }, nullptr).ok());
  EXPECT_EQ(last, whole_.size());
  const std::atomic<bool> cancelled = true;
  EXPECT_EQ(store->VerifyAll(nullptr, &cancelled).code(), StatusCode::kCancelled);
}

TEST(ModelHashTest, TellsModelsApart) {
  const ScratchFolder folder;
  FfnModel model(folder.Path("m.gguf"), {.d_model = 64, .ff = 96});
  const auto hashes = [&] {
    return std::pair(*ModelQuickHash(model.file()), *ModelFullHash(model.file(), nullptr, nullptr));
  };
  const auto first = hashes();
  EXPECT_EQ(hashes(), first);
  const std::string whole = ReadAll(model.path());
  // This model is smaller than the samples, so that any byte counts for both hashes.
  for (const size_t byte : {whole.size() - 1, whole.size() / 2}) {
    std::string bytes = whole;
    bytes[byte] = static_cast<char>(bytes[byte] ^ 1);
    WriteAll(model.path(), bytes);
    EXPECT_NE(hashes().first, first.first) << byte;
    EXPECT_NE(hashes().second, first.second) << byte;
  }
  WriteAll(model.path(), whole + std::string(1, '\0'));
  EXPECT_NE(hashes().first, first.first);
}

TEST(ModelHashTest, SamplesALargeModelButHashesAllOfItWhenAsked) {
  const ScratchFolder folder;
  FfnModel model(folder.Path("m.gguf"), {.d_model = 256, .ff = 1024, .layers = 3});  // 4.7 MB; samples: 0.26 MB
  const uint64_t quick = *ModelQuickHash(model.file()), full = *ModelFullHash(model.file(), nullptr, nullptr);
  std::string bytes = ReadAll(model.path());
  bytes[bytes.size() - 10'000] ^= 1;  // between the last two samples
  WriteAll(model.path(), bytes);
  EXPECT_EQ(*ModelQuickHash(model.file()), quick);
  EXPECT_NE(*ModelFullHash(model.file(), nullptr, nullptr), full);
  bytes.back() ^= 1;  // in the last sample
  WriteAll(model.path(), bytes);
  EXPECT_NE(*ModelQuickHash(model.file()), quick);
}

}  // namespace
}  // namespace elasticmem
