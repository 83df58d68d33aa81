// What a Tokenizer holds; its parts are built by tokenizer_load.cc and used by tokenizer.cc.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "runtime/text/bpe_encoder.h"
#include "runtime/text/pretokenizer.h"
#include "runtime/text/special_tokens.h"
#include "runtime/text/spm_encoder.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/vocabulary.h"

namespace elasticmem {

// Invariants: either `spm`, or `bpe` with `pre_tokenizer`; bos and eos are kNoToken or in the vocabulary;
// adds_bos implies a bos, adds_eos an eos.
struct Tokenizer::State {
  explicit State(Vocabulary pieces) : vocabulary(std::move(pieces)) {}

  Vocabulary vocabulary;
  std::unique_ptr<const SpecialTokens> specials;
  std::optional<SpmEncoder> spm;
  std::optional<BpeEncoder> bpe;
  std::optional<PreTokenizer> pre_tokenizer;
  std::string pre;

  TokenId bos = kNoToken;
  TokenId eos = kNoToken;
  bool adds_bos = false;
  bool adds_eos = false;
  bool adds_space_prefix = false;
  bool plain_utf8 = false;  // pieces are UTF-8 with "▁" for spaces; else they are in GPT-2's byte alphabet
};

}  // namespace elasticmem
