#include "runtime/text/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <span>

#include "runtime/gguf/quoted.h"
#include "runtime/text/pretokenizer_table.h"
#include "runtime/text/utf8.h"

namespace elasticmem {
namespace {

constexpr size_t kNoMatch = ~size_t{0};

// White_Space of the Unicode database. PCRE2's own \s knows only ASCII without PCRE2_UCP, and one more with it.
constexpr std::string_view kWhiteSpace =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

// `pattern` with \s and \S spelled out.
std::string SpellOutWhiteSpace(std::string_view pattern) {
  std::string spelled;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      if (escaped == 's') {
        spelled += in_class ? std::string(kWhiteSpace) : fmt::format("[{}]", kWhiteSpace);
      } else if (escaped == 'S') {
        EM_CHECK(!in_class);
        spelled += fmt::format("[^{}]", kWhiteSpace);
      } else {
        spelled += {c, escaped};
      }
      continue;
    }
    if (c == '[') in_class = true;
    if (c == ']') in_class = false;
    spelled += c;
  }
  return spelled;
}

struct CodeDeleter {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
using CodePointer = std::unique_ptr<pcre2_code, CodeDeleter>;

CodePointer Compile(std::string_view pattern) {
  const std::string spelled = SpellOutWhiteSpace(pattern);
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  CodePointer code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelled.data()), spelled.size(), PCRE2_UTF, &error,
                                 &error_offset, nullptr));
  EM_CHECK(code != nullptr);  // the patterns are ours, not the user's
  // Where executable memory is forbidden this fails, and matching interprets the pattern.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return code;
}

size_t CodeBytes(const pcre2_code* code) {
  size_t bytes = 0, jit_bytes = 0;
  pcre2_pattern_info(code, PCRE2_INFO_SIZE, &bytes);
  pcre2_pattern_info(code, PCRE2_INFO_JITSIZE, &jit_bytes);
  return bytes + jit_bytes;
}

// The next non-empty match in `word` at or after `from`, as [begin, end); begin == kNoMatch if there is none.
struct Range {
  size_t begin, end;
};
Range NextMatch(const pcre2_code* code, pcre2_match_data* data, std::string_view word, size_t from) {
  const auto subject = reinterpret_cast<PCRE2_SPTR>(word.data());
  const uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
  int found = pcre2_match(code, subject, word.size(), from, options, data, nullptr);
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) {  // a very long word: the interpreter keeps its stack on the heap
    found = pcre2_match(code, subject, word.size(), from, options | PCRE2_NO_JIT, data, nullptr);
  }
  // Other errors are limits that only absurd input meets; the rest of the word then stays whole, and nothing is lost.
  if (found < 0) return {kNoMatch, kNoMatch};
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data);
  return {ends[0], ends[1]};
}

bool IsName(std::string_view names, std::string_view name) {
  while (!names.empty()) {
    const size_t space = std::min(names.find(' '), names.size());
    if (names.substr(0, space) == name) return true;
    names.remove_prefix(std::min(space + 1, names.size()));
  }
  return false;
}

// Cuts a run of digits (of any script) into groups of three, counted from its end.
void CutDigits(std::string_view run, std::vector<std::string_view>& words) {
  size_t digits = 0;
  for (size_t at = 0; at < run.size(); at += DecodeUtf8(run, at).bytes) ++digits;
  size_t begin = 0;
  for (size_t at = 0; at < run.size();) {
    at += DecodeUtf8(run, at).bytes;
    if (--digits % 3 != 0) continue;
    words.push_back(run.substr(begin, at - begin));
    begin = at;
  }
}

void CutNewlineRuns(std::string_view word, std::vector<std::string_view>& words) {
  for (size_t begin = 0; begin < word.size();) {
    const size_t end = word[begin] == '\n' ? word.find_first_not_of('\n', begin) : word.find('\n', begin);
    words.push_back(word.substr(begin, end - begin));
    begin = std::min(end, word.size());
  }
}

// Cuts [text] into stretches of UTF-8 and stretches of other bytes.
template <class Visit>
void ForEachUtf8Run(std::string_view text, const Visit& visit) {
  for (size_t at = 0; at < text.size();) {
    const size_t valid = ValidUtf8Prefix(text, at);
    if (valid > 0) visit(text.substr(at, valid), true);
    at += valid;
    const size_t begin = at;
    while (at < text.size()) {
      const Utf8Char character = DecodeUtf8(text, at);
      if (character.bytes > 0) break;
      at += character.prefix;
    }
    if (at > begin) visit(text.substr(begin, at - begin), false);
  }
}

}  // namespace

struct PreTokenizer::Step {
  SplitRule::Kind kind = SplitRule::Kind::kPattern;
  CodePointer code;

  // Appends the parts of `word`, which is UTF-8.
  void Cut(std::string_view word, pcre2_match_data* data, std::vector<std::string_view>& words) const {
    if (kind == SplitRule::Kind::kNewlineRuns) return CutNewlineRuns(word, words);
    size_t at = 0;
    while (at < word.size()) {
      const Range match = NextMatch(code.get(), data, word, at);
      if (match.begin == kNoMatch) break;
      if (match.begin > at) words.push_back(word.substr(at, match.begin - at));
      const std::string_view matched = word.substr(match.begin, match.end - match.begin);
      if (kind == SplitRule::Kind::kDigitsFromRight) {
        CutDigits(matched, words);
      } else {
        words.push_back(matched);
      }
      at = match.end;
    }
    if (at < word.size()) words.push_back(word.substr(at));
  }
};

PreTokenizer::PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

StatusOr<PreTokenizer> PreTokenizer::Create(std::string_view name) {
  std::string known;
  for (const PreTokenizerSpec& spec : KnownPreTokenizers()) {
    known += fmt::format("{}{}", known.empty() ? "" : " ", spec.names);
    if (!IsName(spec.names, name)) continue;
    PreTokenizer pre_tokenizer;
    pre_tokenizer.traits_ = spec.traits;
    for (const SplitRule& rule : spec.rules) {
      if (!rule.used()) break;
      const bool newlines = rule.kind == SplitRule::Kind::kNewlineRuns;
      pre_tokenizer.steps_.push_back({rule.kind, newlines ? nullptr : Compile(rule.pattern)});
    }
    return pre_tokenizer;
  }
  return Unsupported("unknown pre-tokenizer {} (tokenizer.ggml.pre); --pre-tokenizer NAME takes another; known ones: {}", Quoted(name), known);
}

std::vector<std::string_view> PreTokenizer::Split(std::string_view text) const {
  // Room for one match without groups.
  const std::unique_ptr<pcre2_match_data, MatchDataDeleter> data(pcre2_match_data_create(1, nullptr));
  std::vector<std::string_view> words, cut, done;
  ForEachUtf8Run(text, [&](std::string_view run, bool valid) {
    words.assign(1, run);
    for (size_t i = 0; valid && i < steps_.size(); ++i) {
      cut.clear();
      for (const std::string_view word : words) steps_[i].Cut(word, data.get(), cut);
      words.swap(cut);
    }
    done.insert(done.end(), words.begin(), words.end());
  });
  return done;
}

size_t PreTokenizer::MemoryBytes() const {
  size_t bytes = sizeof *this + steps_.capacity() * sizeof(Step);
  for (const Step& step : steps_) bytes += step.code ? CodeBytes(step.code.get()) : 0;
  return bytes;
}

}  // namespace elasticmem
