// StreamingDetokenizer: ids in, whole characters out.
#include "runtime/text/tokenizer.h"
#include "runtime/text/utf8.h"

namespace elasticmem {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace

StreamingDetokenizer::StreamingDetokenizer(const Tokenizer& tokenizer, bool special, bool begins_text)
    : tokenizer_(tokenizer), special_(special), first_(begins_text && tokenizer.strips_space_prefix()) {}

std::string StreamingDetokenizer::Add(TokenId id) {
  std::string bytes = tokenizer_.TokenBytes(id, special_);
  if (first_ && !tokenizer_.IsControl(id)) {
    first_ = false;
    if (bytes.starts_with(' ')) bytes.erase(0, 1);
  }
  pending_ += bytes;

  std::string text;
  size_t at = 0;
  while (at < pending_.size()) {
    const size_t valid = ValidUtf8Prefix(pending_, at);
    text.append(pending_, at, valid);
    at += valid;
    if (at == pending_.size()) break;
    const Utf8Char character = DecodeUtf8(pending_, at);
    if (character.cut_short) break;
    text += kReplacement;
    at += character.prefix;
  }
  pending_.erase(0, at);
  return text;
}

std::string StreamingDetokenizer::Finish() {
  const bool waiting = !pending_.empty();
  pending_.clear();
  return std::string(waiting ? kReplacement : "");
}

}  // namespace elasticmem
