// Splits text into the words that byte-level BPE merges within, by the rules that tokenizer.ggml.pre names.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace elasticmem {

// What a pre-tokenizer's name says about the rest of the tokenizer.
struct PreTokenizerTraits {
  bool byte_level = true;          // false: plain UTF-8 with "▁" for spaces, as SentencePiece writes it
  bool whole_words_first = false;  // BpeEncoder::Options
  bool whole_newlines = false;
  bool adds_bos = false;
  bool has_default_bos = true;
};

class PreTokenizer {
 public:
  // `name` as in tokenizer.ggml.pre. An unknown one is an error that lists the known ones.
  static StatusOr<PreTokenizer> Create(std::string_view name);
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  // The words of `text`, which cover it without gaps. Bytes that are not UTF-8 make words of their own.
  std::vector<std::string_view> Split(std::string_view text) const;

  const PreTokenizerTraits& traits() const { return traits_; }
  size_t MemoryBytes() const;

 private:
  struct Step;
  PreTokenizer();

  PreTokenizerTraits traits_;
  std::vector<Step> steps_;  // each cuts the words of the one before
};

}  // namespace elasticmem
