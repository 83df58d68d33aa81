// The known pre-tokenizers as data: which names, which patterns, which habits.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "runtime/text/pretokenizer.h"

namespace elasticmem {

struct SplitRule {
  enum class Kind {
    kPattern,          // each match is a word, and so is what lies between two
    kDigitsFromRight,  // each match, a run of digits, is cut into groups of three that end at its end
    kNewlineRuns,      // runs of line feeds and runs of anything else; no pattern
  };
  // PCRE2, where \s and \S mean the White_Space property, as they do for the authors of these patterns. Their time must
  // be linear in the text's length.
  std::string_view pattern;
  Kind kind = Kind::kPattern;

  bool used() const { return !pattern.empty() || kind == Kind::kNewlineRuns; }
};

struct PreTokenizerSpec {
  std::string_view names;               // separated by spaces
  std::array<SplitRule, 6> rules = {};  // one after another; the last ones may be unused
  PreTokenizerTraits traits = {};
};

std::span<const PreTokenizerSpec> KnownPreTokenizers();

}  // namespace elasticmem
