// The pieces of a vocabulary in one arena, with a flat hash from text to id: no string objects, because every byte here
// comes out of the user's memory budget.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "runtime/text/token_id.h"

namespace elasticmem {

// As tokenizer.ggml.token_type numbers them.
enum class TokenType : uint8_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

// Invariants: Find(Piece(id)) is the smallest id with that text; ids fit kIdBits bits.
class Vocabulary {
 public:
  static constexpr int kIdBits = 21;

  // `types`: tokenizer.ggml.token_type, or none: all pieces are normal. Errors name the key and the values.
  static StatusOr<Vocabulary> Build(const std::vector<std::string>& pieces,
                                    const std::optional<std::vector<int64_t>>& types);

  size_t size() const { return attributes_.size(); }
  bool Contains(int64_t id) const { return id >= 0 && id < static_cast<int64_t>(size()); }
  std::string_view Piece(TokenId id) const {
    return std::string_view(arena_).substr(offsets_[id], offsets_[id + 1] - offsets_[id]);
  }
  TokenId Find(std::string_view piece) const;  // kNoToken if absent
  size_t longest_piece() const { return longest_piece_; }

  TokenType Type(TokenId id) const { return static_cast<TokenType>(attributes_[id] & kTypeMask); }
  void SetType(TokenId id, TokenType type) {
    attributes_[id] = static_cast<uint8_t>((attributes_[id] & ~kTypeMask) | static_cast<uint8_t>(type));
  }
  // Ends a generation.
  bool IsEnd(TokenId id) const { return attributes_[id] & kEnd; }
  void SetEnd(TokenId id, bool ends) { SetFlag(id, kEnd, ends); }
  // A control token that is part of what people read.
  bool IsVisible(TokenId id) const { return attributes_[id] & kVisible; }
  void SetVisible(TokenId id, bool visible) { SetFlag(id, kVisible, visible); }
  // White space after the token, where it is found in text, belongs to it.
  bool TakesSpaceAfter(TokenId id) const { return attributes_[id] & kTakesSpaceAfter; }
  void SetTakesSpaceAfter(TokenId id, bool takes) { SetFlag(id, kTakesSpaceAfter, takes); }

  size_t MemoryBytes() const;

 private:
  static constexpr uint8_t kTypeMask = 7, kEnd = 8, kVisible = 16, kTakesSpaceAfter = 32;
  static constexpr uint32_t kEmptySlot = ~uint32_t{0};
  static constexpr uint32_t kIdMask = (uint32_t{1} << kIdBits) - 1;

  void SetFlag(TokenId id, uint8_t flag, bool on) {
    attributes_[id] = static_cast<uint8_t>(on ? attributes_[id] | flag : attributes_[id] & ~flag);
  }
  Status SetTypes(const std::vector<int64_t>& types);
  void BuildIndex();

  std::string arena_;
  std::vector<uint32_t> offsets_;    // [size + 1] into arena_
  std::vector<uint8_t> attributes_;  // [size] type and flags
  std::vector<uint32_t> slots_;      // upper bits of the text's hash, then the id; linear probing
  size_t longest_piece_ = 0;
};

// The byte of a "<0xHH>" piece; -1 if `piece` doesn't look like one; -2 if it does and HH is no hexadecimal number.
int BytePieceValue(std::string_view piece);

}  // namespace elasticmem
