#include "runtime/text/chat_prompt.h"

#include <algorithm>
#include <ctime>

#include <nlohmann/json.hpp>

namespace elasticmem {
namespace {

// Private-use characters around what a user typed that looks like a control token: they pass through a template as any text
// does, and tell afterwards which of its control tokens are not its own.
constexpr std::string_view kPlainBegin = "\xEF\xA3\xBE";  // U+F8FE
constexpr std::string_view kPlainEnd = "\xEF\xA3\xBF";    // U+F8FF

void EraseAll(std::string& text, std::string_view what) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at)) text.erase(at, what.size());
}

}  // namespace

ChatPrompt::ChatPrompt(const Tokenizer& tokenizer, ChatTemplate parsed)
    : tokenizer_(&tokenizer), template_(std::make_shared<ChatTemplate>(std::move(parsed))) {
  for (size_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const auto token = static_cast<TokenId>(id);
    if (tokenizer.IsControl(token) && !tokenizer.Piece(token).empty()) {
      control_pieces_.emplace_back(tokenizer.Piece(token));
    }
  }
}

std::string ChatPrompt::MarkControlTokens(std::string_view content) const {
  std::string text(content);
  EraseAll(text, kPlainBegin);
  EraseAll(text, kPlainEnd);
  std::string out;
  for (size_t at = 0; at < text.size();) {
    size_t longest = 0;
    for (const std::string& piece : control_pieces_) {
      if (piece[0] == text[at] && piece.size() > longest && text.compare(at, piece.size(), piece) == 0) longest = piece.size();
    }
    if (longest == 0) {
      out += text[at++];
      continue;
    }
    out.append(kPlainBegin).append(text, at, longest).append(kPlainEnd);
    at += longest;
  }
  return out;
}

StatusOr<ChatPrompt> ChatPrompt::Create(const Tokenizer& tokenizer, const std::string& chat_template) {
  if (chat_template.empty()) return InvalidInput("this model's file has no chat template; run it without --chat");
  EM_ASSIGN_OR_RETURN(ChatTemplate parsed, ChatTemplate::Parse(chat_template));
  return ChatPrompt(tokenizer, std::move(parsed));
}

ChatPrompt ChatPrompt::Empty() const {
  ChatPrompt empty = *this;
  empty.messages_.clear();
  return empty;
}

StatusOr<std::vector<TokenId>> ChatPrompt::Encode() const {
  nlohmann::ordered_json context;
  context["messages"] = nlohmann::ordered_json::array();
  for (const ChatMessage& message : messages_) {
    context["messages"].push_back({{"role", message.role}, {"content", MarkControlTokens(message.content)}});
  }
  context["add_generation_prompt"] = true;
  if (const auto bos = tokenizer_->bos()) context["bos_token"] = tokenizer_->Piece(*bos);
  if (const auto eos = tokenizer_->eos()) context["eos_token"] = tokenizer_->Piece(*eos);
  EM_ASSIGN_OR_RETURN(const std::string text, template_->Render(context, std::time(nullptr)));

  std::vector<TokenId> ids;
  for (size_t at = 0; at < text.size();) {
    const bool plain = text.compare(at, kPlainBegin.size(), kPlainBegin) == 0;
    const size_t begin = plain ? at + kPlainBegin.size() : at;
    const size_t end = std::min(text.find(plain ? kPlainEnd : kPlainBegin, begin), text.size());
    std::string part = text.substr(begin, end - begin);
    // A template that cuts text may leave half a pair.
    EraseAll(part, kPlainBegin);
    EraseAll(part, kPlainEnd);
    const bool continues = !ids.empty() && !tokenizer_->IsControl(ids.back());
    const std::vector<TokenId> more = tokenizer_->Encode(part, {.add_special = false, .parse_special = !plain, .continues = continues});
    ids.insert(ids.end(), more.begin(), more.end());
    at = plain && end < text.size() ? end + kPlainEnd.size() : end;
  }
  // Templates that do not write BOS leave it to the tokenizer.
  const auto bos = tokenizer_->bos();
  if (tokenizer_->adds_bos() && bos && (ids.empty() || ids.front() != *bos)) ids.insert(ids.begin(), *bos);
  if (ids.empty()) return InvalidInput("the model's chat template makes no text of this conversation");
  return ids;
}

}  // namespace elasticmem
