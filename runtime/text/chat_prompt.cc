#include "runtime/text/chat_prompt.h"

#include <ctime>

#include <nlohmann/json.hpp>

namespace elasticmem {
namespace {

std::string_view Trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

}  // namespace

StatusOr<ChatPrompt> ChatPrompt::Create(const Tokenizer& tokenizer, const std::string& chat_template) {
  if (chat_template.empty()) return InvalidInput("this model's file has no chat template; run it without --chat");
  EM_ASSIGN_OR_RETURN(ChatTemplate parsed, ChatTemplate::Parse(chat_template));
  return ChatPrompt(tokenizer, std::move(parsed));
}

StatusOr<std::string> ChatPrompt::Render() const {
  nlohmann::ordered_json context;
  context["messages"] = nlohmann::ordered_json::array();
  for (const ChatMessage& message : messages_) {
    context["messages"].push_back({{"role", message.role}, {"content", message.content}});
  }
  context["add_generation_prompt"] = true;
  if (const auto bos = tokenizer_->bos()) context["bos_token"] = tokenizer_->Piece(*bos);
  if (const auto eos = tokenizer_->eos()) context["eos_token"] = tokenizer_->Piece(*eos);
  return template_.Render(context, std::time(nullptr));
}

// Finds each message's content in what was rendered, in order, and encodes it as plain text; what is between them is the
// template's, and its control tokens are parsed.
StatusOr<std::vector<TokenId>> ChatPrompt::Encode() const {
  EM_ASSIGN_OR_RETURN(const std::string text, Render());
  std::vector<TokenId> ids;
  const auto append = [&](std::string_view part, bool parse_special) {
    if (part.empty()) return;
    const std::vector<TokenId> more = tokenizer_->Encode(part, {/*add_special=*/false, parse_special});
    ids.insert(ids.end(), more.begin(), more.end());
  };
  size_t begin = 0;  // of what is not encoded yet
  size_t from = 0;
  for (const ChatMessage& message : messages_) {
    const std::string_view content = Trim(message.content);
    const size_t at = content.empty() ? std::string::npos : text.find(content, from);
    if (at == std::string::npos) continue;
    from = at + content.size();
    // Text without control tokens reads the same either way: leave it joined with what is around it.
    const EncodeOptions plain{false, false}, special{false, true};
    if (tokenizer_->Encode(content, plain) == tokenizer_->Encode(content, special)) continue;
    append(std::string_view(text).substr(begin, at - begin), true);
    append(content, false);
    begin = from;
  }
  append(std::string_view(text).substr(begin), true);
  // Templates that do not write BOS leave it to the tokenizer.
  const auto bos = tokenizer_->bos();
  if (tokenizer_->adds_bos() && bos && (ids.empty() || ids.front() != *bos)) ids.insert(ids.begin(), *bos);
  return ids;
}

}  // namespace elasticmem
