// Text to token ids and back, from the vocabulary in a GGUF file.
// Two kinds: SentencePiece BPE (tokenizer.ggml.model "llama": merges by score, byte fallback, space prefix) and
// byte-level BPE ("gpt2": merges by rank after a pre-tokenizer named by tokenizer.ggml.pre has split the text;
// "gemma4": the same over characters).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "runtime/gguf/gguf.h"
#include "runtime/text/token_id.h"

namespace elasticmem {

struct EncodeOptions {
  bool add_special = true;     // BOS/EOS as the vocabulary asks
  bool parse_special = false;  // text such as "<|im_end|>" becomes its control token; else it stays plain text
  bool continues = false;      // goes on from plain text before it: no space prefix at the beginning
};

class Tokenizer {
 public:
  // `pre_override`: use this pre-tokenizer whatever the file says ("" = the file's). Errors name the key and the value:
  // unknown model or pre-tokenizer, a vocabulary entry "<0xZZ>", ids out of range, arrays whose lengths disagree.
  static StatusOr<Tokenizer> FromGguf(const GgufFile& gguf, std::string_view pre_override = "");
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  std::vector<TokenId> Encode(std::string_view text, const EncodeOptions& options) const;
  // The bytes of one token; control tokens give nothing unless `special`.
  std::string TokenBytes(TokenId id, bool special = false) const;
  // All of it at once (invalid UTF-8 stays as it is). Strips the space prefix that Encode added, as SentencePiece does.
  std::string Decode(std::span<const TokenId> ids, bool special = false) const;

  size_t vocab_size() const;
  std::string_view kind() const;  // "spm" or "bpe"
  std::string_view pre() const;
  std::optional<TokenId> bos() const;
  std::optional<TokenId> eos() const;
  bool IsEndOfGeneration(TokenId id) const;  // EOS, EOT, <|im_end|>, <end_of_turn>, ...
  bool IsControl(TokenId id) const;
  std::optional<TokenId> Find(std::string_view piece) const;  // exact vocabulary entry
  std::string_view Piece(TokenId id) const;                   // as in the vocabulary
  bool adds_bos() const;
  bool strips_space_prefix() const;  // whether Decode drops one leading space

  size_t MemoryBytes() const;  // what its tables hold, for the budget

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Turns ids into text as they come and never emits half a UTF-8 character: incomplete bytes wait for the next token.
class StreamingDetokenizer {
 public:
  // `begins_text`: the ids begin a text, so that the space prefix goes as in Decode; false where they continue a
  // prompt.
  explicit StreamingDetokenizer(const Tokenizer& tokenizer, bool special = false, bool begins_text = true);
  // The text that `id` completes: whole characters, U+FFFD for bytes that are none; may be empty.
  std::string Add(TokenId id);
  // What still waits (an incomplete character becomes U+FFFD).
  std::string Finish();

 private:
  const Tokenizer& tokenizer_;
  bool special_;
  bool first_;  // a space prefix may come yet
  std::string pending_;
};

}  // namespace elasticmem
