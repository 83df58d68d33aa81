// Builds a Tokenizer from a file's tokenizer.ggml.* keys.
#include <algorithm>
#include <cctype>

#include "runtime/gguf/quoted.h"
#include "runtime/text/tokenizer_state.h"

namespace elasticmem {
namespace {

constexpr std::string_view kSupportedModels = "llama, gpt2, gemma4";

// The id under `key`; `fallback` where the key is absent and the fallback is in the vocabulary.
StatusOr<TokenId> SpecialId(const GgufFile& gguf, std::string_view key, TokenId fallback,
                            const Vocabulary& vocabulary) {
  if (gguf.Find(key) == nullptr) return vocabulary.Contains(fallback) ? fallback : kNoToken;
  EM_ASSIGN_OR_RETURN(const uint64_t id, gguf.Uint(key));
  if (id >= vocabulary.size()) {
    return InvalidInput("{} is {}, but the vocabulary has {} entries", key, id, vocabulary.size());
  }
  return static_cast<TokenId>(id);
}

// Names under which vocabularies keep what ends a turn or a text, or begins the next file of a fill-in-the-middle
// prompt. They are control tokens even where the file says otherwise.
constexpr std::string_view kEndPieces =
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s> <|eom_id|> "
    "<EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response> [e~[ "
    "<｜end▁of▁sentence｜> <|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo> <REPO> "
    "<reponame> <|file_sep|>";
// The other control tokens of fill-in-the-middle prompts.
constexpr std::string_view kControlPieces =
    "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> <|prefix|> <|fim_suffix|> "
    "<fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> <|suffix|> <|fim_middle|> <fim-middle> "
    "<fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> <|middle|>";
// gpt-oss: parts of an answer's form, which those who parse the answer want to see.
constexpr std::string_view kVisiblePieces = "<|channel|> <|message|> <|start|> <|constrain|>";

// Calls `visit` with the id of each of `pieces` (separated by spaces) that is in the vocabulary.
template <class Visit>
void ForEachKnown(const Vocabulary& vocabulary, std::string_view pieces, const Visit& visit) {
  while (!pieces.empty()) {
    const size_t space = std::min(pieces.find(' '), pieces.size());
    if (const TokenId id = vocabulary.Find(pieces.substr(0, space)); id != kNoToken) visit(id);
    pieces.remove_prefix(std::min(space + 1, pieces.size()));
  }
}

void MarkKnownPieces(Vocabulary& vocabulary) {
  const auto has = [&](std::string_view piece) { return vocabulary.Find(piece) != kNoToken; };
  ForEachKnown(vocabulary, kEndPieces, [&](TokenId id) {
    vocabulary.SetType(id, TokenType::kControl);
    vocabulary.SetEnd(id, true);
  });
  ForEachKnown(vocabulary, kControlPieces, [&](TokenId id) { vocabulary.SetType(id, TokenType::kControl); });
  ForEachKnown(vocabulary, kVisiblePieces, [&](TokenId id) { vocabulary.SetVisible(id, true); });
  // Where a turn ends with <|return|> or <|call|>, <|end|> only ends a message within it.
  if (has("<|end|>") && ((has("<|return|>") && has("<|call|>")) || (has("<|calls|>") && has("<|flush|>")))) {
    vocabulary.SetVisible(vocabulary.Find("<|end|>"), true);
    vocabulary.SetEnd(vocabulary.Find("<|end|>"), false);
  }
  if (has("</s>") && has("<|tool_response>")) {  // Gemma 4 means the HTML tag
    vocabulary.SetType(vocabulary.Find("</s>"), TokenType::kNormal);
    vocabulary.SetEnd(vocabulary.Find("</s>"), false);
  }
}

// Phi-3's special tokens swallow the white space after them, except these three.
void MarkPhi3(Vocabulary& vocabulary) {
  for (size_t i = 0; i < vocabulary.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    const TokenType type = vocabulary.Type(id);
    const std::string_view piece = vocabulary.Piece(id);
    const bool special = type == TokenType::kControl || type == TokenType::kUserDefined || type == TokenType::kUnknown;
    const bool exempt = piece == "<unk>" || piece == "<s>" || piece == "<|endoftext|>";
    vocabulary.SetTakesSpaceAfter(id, piece == "</s>" || (special && !exempt));
  }
}

StatusOr<const std::vector<std::string>*> RequiredStrings(const GgufFile& gguf, std::string_view key) {
  EM_ASSIGN_OR_RETURN(const std::vector<std::string>* strings, gguf.Strings(key));
  if (strings == nullptr) return InvalidInput("{} is missing", key);
  return strings;
}

StatusOr<Vocabulary> LoadVocabulary(const GgufFile& gguf) {
  EM_ASSIGN_OR_RETURN(const std::vector<std::string>* pieces, RequiredStrings(gguf, "tokenizer.ggml.tokens"));
  EM_ASSIGN_OR_RETURN(const auto types, gguf.Ints("tokenizer.ggml.token_type"));
  EM_ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Build(*pieces, types));
  MarkKnownPieces(vocabulary);
  EM_ASSIGN_OR_RETURN(std::string name, gguf.StringOr("general.name", ""));
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  if (name.find("phi-3") != std::string::npos || name.find("phi3") != std::string::npos) MarkPhi3(vocabulary);
  return vocabulary;
}

StatusOr<SpmEncoder> LoadSpm(const GgufFile& gguf, const Vocabulary& vocabulary) {
  EM_ASSIGN_OR_RETURN(const std::vector<float>* scores, gguf.Floats("tokenizer.ggml.scores"));
  if (scores == nullptr) return InvalidInput("tokenizer.ggml.scores is missing");
  EM_ASSIGN_OR_RETURN(const TokenId unknown, SpecialId(gguf, "tokenizer.ggml.unknown_token_id", 0, vocabulary));
  return SpmEncoder::Build(vocabulary, *scores, unknown);
}

StatusOr<BpeEncoder> LoadBpe(const GgufFile& gguf, const Vocabulary& vocabulary, const PreTokenizerTraits& traits) {
  EM_ASSIGN_OR_RETURN(const std::vector<std::string>* merges, RequiredStrings(gguf, "tokenizer.ggml.merges"));
  BpeEncoder::Options options{traits.byte_level, traits.whole_words_first, traits.whole_newlines, kNoToken};
  EM_ASSIGN_OR_RETURN(options.whole_words_first,
                      gguf.BoolOr("tokenizer.ggml.ignore_merges", options.whole_words_first));
  EM_ASSIGN_OR_RETURN(options.unknown, SpecialId(gguf, "tokenizer.ggml.unknown_token_id", kNoToken, vocabulary));
  return BpeEncoder::Build(vocabulary, *merges, options);
}

}  // namespace

StatusOr<Tokenizer> Tokenizer::FromGguf(const GgufFile& gguf, std::string_view pre_override) {
  EM_ASSIGN_OR_RETURN(const std::string model, gguf.String("tokenizer.ggml.model"));
  const bool spm = model == "llama";
  if (!spm && model != "gpt2" && model != "gemma4") {
    return Unsupported("tokenizer.ggml.model is {}; supported ones: {}", Quoted(model), kSupportedModels);
  }
  if (spm && !pre_override.empty()) {
    return InvalidInput("pre-tokenizer {} asked for, but tokenizer.ggml.model is \"llama\", which has none",
                        Quoted(pre_override));
  }
  // The pre-tokenizer first: it is the cheapest to refuse.
  std::optional<PreTokenizer> pre_tokenizer;
  PreTokenizerTraits traits{.adds_bos = spm};
  EM_ASSIGN_OR_RETURN(std::string pre, gguf.StringOr("tokenizer.ggml.pre", model == "gemma4" ? "gemma4" : "default"));
  if (!pre_override.empty()) pre = pre_override;
  if (!spm) {
    EM_ASSIGN_OR_RETURN(pre_tokenizer, PreTokenizer::Create(pre));
    traits = pre_tokenizer->traits();
  }
  EM_ASSIGN_OR_RETURN(Vocabulary vocabulary, LoadVocabulary(gguf));
  auto state = std::make_unique<State>(std::move(vocabulary));
  if (spm) {
    EM_ASSIGN_OR_RETURN(state->spm, LoadSpm(gguf, state->vocabulary));
  } else {
    EM_ASSIGN_OR_RETURN(state->bpe, LoadBpe(gguf, state->vocabulary, traits));
    state->pre_tokenizer = std::move(pre_tokenizer);
    state->pre = std::move(pre);
  }
  state->plain_utf8 = spm || !traits.byte_level;

  const auto special = [&](std::string_view key, TokenId fallback) {
    return SpecialId(gguf, key, fallback, state->vocabulary);
  };
  const TokenId default_bos = spm ? 1 : traits.has_default_bos && traits.byte_level ? 11 : kNoToken;
  const TokenId default_eos = spm ? 2 : traits.byte_level ? 11 : kNoToken;
  EM_ASSIGN_OR_RETURN(state->bos, special("tokenizer.ggml.bos_token_id", default_bos));
  EM_ASSIGN_OR_RETURN(state->eos, special("tokenizer.ggml.eos_token_id", default_eos));
  EM_ASSIGN_OR_RETURN(const TokenId eot, special("tokenizer.ggml.eot_token_id", kNoToken));
  EM_ASSIGN_OR_RETURN(const TokenId eom, special("tokenizer.ggml.eom_token_id", kNoToken));
  for (const TokenId id : {state->eos, eot, eom}) {
    if (id != kNoToken) state->vocabulary.SetEnd(id, true);
  }
  EM_ASSIGN_OR_RETURN(state->adds_bos, gguf.BoolOr("tokenizer.ggml.add_bos_token", traits.adds_bos));
  EM_ASSIGN_OR_RETURN(state->adds_eos, gguf.BoolOr("tokenizer.ggml.add_eos_token", false));
  EM_ASSIGN_OR_RETURN(state->adds_space_prefix, gguf.BoolOr("tokenizer.ggml.add_space_prefix", spm));
  state->adds_bos &= state->bos != kNoToken;
  state->adds_eos &= state->eos != kNoToken;
  state->adds_space_prefix &= spm;
  state->specials = std::make_unique<const SpecialTokens>(state->vocabulary);
  return Tokenizer(std::move(state));
}

}  // namespace elasticmem
