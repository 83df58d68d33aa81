// The bytes of a neuron store file. Little endian; version 1.
//
//   [0, 256)                    StoreHeader
//   [256, data_offset)          tables, then zeros up to a multiple of 4096:
//                                 StoreExtent extents[layers]
//                                 u32 positions[layers][ff]   where neuron i's record lies in its layer's extent
//                                 u32 head_sums[layers][ff]   low 32 bits of XXH3 of neuron i's head
//                                 u32 tail_sums[layers][ff]   the same of its tail
//   [data_offset, file_bytes)   one extent a layer, each at a multiple of 4096: ff records, then zeros up to 4096
//
// A record is [head][tail][zeros]; sizes and parts are RecordLayout's. A record's tail starts at a multiple of 64 in
// it. Every byte of the file is under a checksum: the header under its own, the tables under tables_checksum, the data
// under its extent's. The first 24 bytes of the header keep their meaning in every version, so that another version
// can be told from a damaged file.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace elasticmem {

static_assert(std::endian::native == std::endian::little);

inline constexpr char kStoreMagic[8] = {'E', 'M', 'S', 'T', 'O', 'R', 'E', '\n'};
inline constexpr uint32_t kStoreVersion = 1;
inline constexpr uint64_t kStoreAlignment = 4096;  // of the data and of each extent

struct StoreHeader {
  char magic[8];
  uint32_t version;
  uint32_t header_bytes;
  uint64_t header_checksum;  // XXH3 of the header's bytes with this field zero

  uint64_t file_bytes;
  uint64_t data_offset;
  uint64_t tables_checksum;  // XXH3 of [header_bytes, data_offset)

  uint64_t model_quick_hash;
  uint64_t model_full_hash;
  uint64_t model_bytes;

  uint32_t layers;
  uint32_t ff;
  uint32_t d_model;
  uint32_t gated;      // 0 or 1
  uint32_t gate_type;  // GGUF type numbers; 0 where ungated
  uint32_t up_type;
  uint32_t down_type;

  uint32_t head_bytes;
  uint32_t tail_bytes;
  uint32_t slot_bytes;
  uint32_t record_bytes;
  uint32_t up_offset;
  uint32_t down_offset;
  uint32_t reserved_word;
  uint64_t extent_bytes;
  uint64_t reserved[15];
};
static_assert(std::is_trivially_copyable_v<StoreHeader> && sizeof(StoreHeader) == 256);
static_assert(offsetof(StoreHeader, version) == 8 && offsetof(StoreHeader, header_bytes) == 12 &&
              offsetof(StoreHeader, header_checksum) == 16);
static_assert(offsetof(StoreHeader, model_quick_hash) == 48 && offsetof(StoreHeader, layers) == 72 &&
              offsetof(StoreHeader, head_bytes) == 100 && offsetof(StoreHeader, extent_bytes) == 128);

struct StoreExtent {
  uint64_t offset;    // in the file
  uint64_t checksum;  // XXH3 of its extent_bytes
};
static_assert(std::is_trivially_copyable_v<StoreExtent> && sizeof(StoreExtent) == 16);

// Of a store whose record layout is known: where its parts lie.
struct StoreGeometry {
  uint64_t positions_offset, head_sums_offset, tail_sums_offset, tables_end, data_offset, extent_bytes, file_bytes;

  static constexpr StoreGeometry Of(uint64_t layers, uint64_t ff, uint64_t record_bytes) {
    constexpr auto round = [](uint64_t n) { return (n + kStoreAlignment - 1) / kStoreAlignment * kStoreAlignment; };
    StoreGeometry g{};
    const uint64_t table = layers * ff * sizeof(uint32_t);
    g.positions_offset = sizeof(StoreHeader) + layers * sizeof(StoreExtent);
    g.head_sums_offset = g.positions_offset + table;
    g.tail_sums_offset = g.head_sums_offset + table;
    g.tables_end = g.tail_sums_offset + table;
    g.data_offset = round(g.tables_end);
    g.extent_bytes = round(ff * record_bytes);
    g.file_bytes = g.data_offset + layers * g.extent_bytes;
    return g;
  }
};

}  // namespace elasticmem
