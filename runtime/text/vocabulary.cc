#include "runtime/text/vocabulary.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>

#include "runtime/gguf/quoted.h"

namespace elasticmem {
namespace {

// 64 x 64 -> 128 bit multiplication folded to 64 bits: each input bit reaches each output bit.
uint64_t Mix(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t HashText(std::string_view text) {
  constexpr uint64_t kA = 0x9E3779B97F4A7C15u, kB = 0xD6E8FEB86659FD93u;
  uint64_t hash = kA ^ text.size();
  const char* bytes = text.data();
  size_t left = text.size();
  uint64_t word;
  for (; left >= sizeof word; left -= sizeof word, bytes += sizeof word) {
    std::memcpy(&word, bytes, sizeof word);
    hash = Mix(hash ^ word, kB);
  }
  word = 0;
  std::memcpy(&word, bytes, left);
  return Mix(hash ^ word, kB ^ kA);
}

// `hash` spread over [0, slots).
size_t HomeSlot(uint64_t hash, size_t slots) { return static_cast<size_t>(((hash >> 32) * slots) >> 32); }

}  // namespace

int BytePieceValue(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece.back() != '>') return -1;
  int value = 0;
  const auto [end, error] = std::from_chars(piece.data() + 3, piece.data() + 5, value, 16);
  return error == std::errc() && end == piece.data() + 5 && piece[3] != '-' ? value : -2;
}

StatusOr<Vocabulary> Vocabulary::Build(const std::vector<std::string>& pieces,
                                       const std::optional<std::vector<int64_t>>& types) {
  if (pieces.empty()) return InvalidInput("tokenizer.ggml.tokens is empty");
  if (pieces.size() >= kIdMask) {
    return Unsupported("tokenizer.ggml.tokens has {} entries; at most {} are supported", pieces.size(), kIdMask - 1);
  }
  size_t bytes = 0;
  for (const std::string& piece : pieces) bytes += piece.size();
  if (bytes > std::numeric_limits<uint32_t>::max()) {
    return Unsupported("tokenizer.ggml.tokens holds {} bytes of text; at most 4 GiB are supported", bytes);
  }
  Vocabulary vocabulary;
  vocabulary.arena_.reserve(bytes);
  vocabulary.offsets_.reserve(pieces.size() + 1);
  vocabulary.offsets_.push_back(0);
  for (const std::string& piece : pieces) {
    vocabulary.arena_ += piece;
    vocabulary.offsets_.push_back(static_cast<uint32_t>(vocabulary.arena_.size()));
    vocabulary.longest_piece_ = std::max(vocabulary.longest_piece_, piece.size());
  }
  vocabulary.attributes_.assign(pieces.size(), static_cast<uint8_t>(TokenType::kNormal));
  if (types) EM_RETURN_IF_ERROR(vocabulary.SetTypes(*types));
  vocabulary.BuildIndex();
  return vocabulary;
}

Status Vocabulary::SetTypes(const std::vector<int64_t>& types) {
  if (types.size() != size()) {
    return InvalidInput("tokenizer.ggml.token_type has {} entries, tokenizer.ggml.tokens has {}", types.size(), size());
  }
  for (size_t i = 0; i < types.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    if (types[i] < 0 || types[i] > static_cast<int64_t>(TokenType::kByte)) {
      return InvalidInput("tokenizer.ggml.token_type[{}] is {}; known types are 0 to 6", i, types[i]);
    }
    // 0 means undefined: nothing is known of the piece but its text.
    SetType(id, types[i] == 0 ? TokenType::kNormal : static_cast<TokenType>(types[i]));
    if (Type(id) == TokenType::kByte && BytePieceValue(Piece(id)) < 0) {
      return InvalidInput("vocabulary entry {} has the type byte, but its text is {}, not <0x00> to <0xFF>", i,
                          Quoted(Piece(id)));
    }
  }
  return {};
}

void Vocabulary::BuildIndex() {
  slots_.assign(size() * 5 / 3 + 1, kEmptySlot);  // 60 % full: 2 probes for a hit, 4 for a miss
  for (size_t i = 0; i < size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    const std::string_view piece = Piece(id);
    if (piece.empty() || Find(piece) != kNoToken) continue;
    const uint64_t hash = HashText(piece);
    size_t slot = HomeSlot(hash, slots_.size());
    while (slots_[slot] != kEmptySlot) slot = slot + 1 == slots_.size() ? 0 : slot + 1;
    slots_[slot] = static_cast<uint32_t>(hash << kIdBits) | static_cast<uint32_t>(id);
  }
}

TokenId Vocabulary::Find(std::string_view piece) const {
  if (piece.size() > longest_piece_) return kNoToken;
  const uint64_t hash = HashText(piece);
  const auto tag = static_cast<uint32_t>(hash << kIdBits);
  for (size_t slot = HomeSlot(hash, slots_.size());;) {
    const uint32_t entry = slots_[slot];
    if (entry == kEmptySlot) return kNoToken;
    if ((entry & ~kIdMask) == tag) {
      const auto id = static_cast<TokenId>(entry & kIdMask);
      if (Piece(id) == piece) return id;
    }
    if (++slot == slots_.size()) slot = 0;
  }
}

size_t Vocabulary::MemoryBytes() const {
  return arena_.capacity() + offsets_.capacity() * sizeof(uint32_t) + attributes_.capacity() +
         slots_.capacity() * sizeof(uint32_t);
}

}  // namespace elasticmem
