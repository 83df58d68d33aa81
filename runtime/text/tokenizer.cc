#include "runtime/text/tokenizer.h"

#include "runtime/text/tokenizer_state.h"
#include "runtime/text/utf8.h"

namespace elasticmem {
namespace {

// A piece of the byte alphabet as its bytes; as it is if it holds any other character.
std::string DecodeByteAlphabet(std::string_view piece) {
  std::string bytes;
  for (size_t at = 0; at < piece.size();) {
    const Utf8Char character = DecodeUtf8(piece, at);
    const int byte = character.bytes > 0 ? SymbolByte(character.code_point) : -1;
    if (byte < 0) return std::string(piece);
    bytes += static_cast<char>(byte);
    at += character.bytes;
  }
  return bytes;
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<TokenId> Tokenizer::Encode(std::string_view text, const EncodeOptions& options) const {
  const State& s = *state_;
  std::vector<TokenId> ids;
  if (options.add_special && s.adds_bos) ids.push_back(s.bos);
  SymbolMerger merger;
  WordMemo memo(text.size());
  bool after_special = !options.continues;  // SentencePiece's space prefix goes to the beginning and after special tokens
  for (const TextFragment& fragment : s.specials->Partition(s.vocabulary, text, options.parse_special)) {
    const std::string_view part = text.substr(fragment.begin, fragment.end - fragment.begin);
    if (fragment.token != kNoToken) {
      ids.push_back(fragment.token);
    } else if (s.spm) {
      s.spm->Encode(s.vocabulary, part, s.adds_space_prefix && after_special, merger, memo, ids);
    } else {
      const std::string escaped = s.plain_utf8 ? EscapeSpaces(part) : std::string();
      for (const std::string_view word : s.pre_tokenizer->Split(s.plain_utf8 ? escaped : part)) {
        s.bpe->Encode(s.vocabulary, word, merger, memo, ids);
      }
    }
    after_special = fragment.token != kNoToken;
  }
  if (options.add_special && s.adds_eos) ids.push_back(s.eos);
  return ids;
}

std::string Tokenizer::TokenBytes(TokenId id, bool special) const {
  const Vocabulary& vocabulary = state_->vocabulary;
  if (!vocabulary.Contains(id)) return {};
  const std::string_view piece = vocabulary.Piece(id);
  switch (vocabulary.Type(id)) {
    case TokenType::kControl:
    case TokenType::kUnknown:
      return special || vocabulary.IsVisible(id) ? std::string(piece) : std::string();
    case TokenType::kUserDefined:
      return state_->plain_utf8 ? UnescapeSpaces(piece) : std::string(piece);
    case TokenType::kByte:
      return std::string(1, static_cast<char>(BytePieceValue(piece)));
    case TokenType::kNormal:
    case TokenType::kUnused:
      break;
  }
  if (!state_->plain_utf8) return DecodeByteAlphabet(piece);
  if (const int byte = BytePieceValue(piece); byte >= 0) return std::string(1, static_cast<char>(byte));
  return UnescapeSpaces(piece);
}

std::string Tokenizer::Decode(std::span<const TokenId> ids, bool special) const {
  std::string text;
  bool first = strips_space_prefix();
  for (const TokenId id : ids) {
    std::string bytes = TokenBytes(id, special);
    if (first && !IsControl(id)) {
      first = false;
      if (bytes.starts_with(' ')) bytes.erase(0, 1);
    }
    text += bytes;
  }
  return text;
}

size_t Tokenizer::vocab_size() const { return state_->vocabulary.size(); }
std::string_view Tokenizer::kind() const { return state_->spm ? "spm" : "bpe"; }
std::string_view Tokenizer::pre() const { return state_->pre; }

std::optional<TokenId> Tokenizer::bos() const {
  return state_->bos == kNoToken ? std::nullopt : std::optional(state_->bos);
}
std::optional<TokenId> Tokenizer::eos() const {
  return state_->eos == kNoToken ? std::nullopt : std::optional(state_->eos);
}

bool Tokenizer::IsEndOfGeneration(TokenId id) const {
  return state_->vocabulary.Contains(id) && state_->vocabulary.IsEnd(id);
}

bool Tokenizer::IsControl(TokenId id) const {
  return state_->vocabulary.Contains(id) && state_->vocabulary.Type(id) == TokenType::kControl;
}

std::optional<TokenId> Tokenizer::Find(std::string_view piece) const {
  const TokenId id = state_->vocabulary.Find(piece);
  return id == kNoToken ? std::nullopt : std::optional(id);
}

std::string_view Tokenizer::Piece(TokenId id) const {
  return state_->vocabulary.Contains(id) ? state_->vocabulary.Piece(id) : std::string_view();
}

bool Tokenizer::adds_bos() const { return state_->adds_bos; }
bool Tokenizer::strips_space_prefix() const { return state_->adds_space_prefix; }

size_t Tokenizer::MemoryBytes() const {
  const State& s = *state_;
  return sizeof s + s.vocabulary.MemoryBytes() + s.specials->MemoryBytes() + (s.spm ? s.spm->MemoryBytes() : 0) +
         (s.bpe ? s.bpe->MemoryBytes() : 0) + (s.pre_tokenizer ? s.pre_tokenizer->MemoryBytes() : 0) + s.pre.capacity();
}

}  // namespace elasticmem
