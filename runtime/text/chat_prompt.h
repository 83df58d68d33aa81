// A conversation as token ids: the model's chat template around the messages, where control tokens count only if the template
// wrote them. What a user types stays plain text, even "<|im_end|>".
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "runtime/text/chat_template.h"
#include "runtime/text/tokenizer.h"

namespace elasticmem {

class ChatPrompt {
 public:
  // Errors: the model has no template, or one that cannot be parsed. `tokenizer` outlives it.
  static StatusOr<ChatPrompt> Create(const Tokenizer& tokenizer, const std::string& chat_template);

  void AddMessage(std::string_view role, std::string_view content) { messages_.push_back({std::string(role), std::string(content)}); }

  // The same template for another conversation.
  ChatPrompt Empty() const;

  void RemoveLastMessage() { messages_.pop_back(); }

  // The whole conversation, ready for the assistant's answer. Errors: the template's own, or that it makes no token.
  StatusOr<std::vector<TokenId>> Encode() const;

 private:
  struct ChatMessage {
    std::string role, content;
  };
  ChatPrompt(const Tokenizer& tokenizer, ChatTemplate parsed);
  std::string MarkControlTokens(std::string_view content) const;

  const Tokenizer* tokenizer_;
  std::shared_ptr<const ChatTemplate> template_;
  std::vector<std::string> control_pieces_;  // texts that parsing would turn into control tokens
  std::vector<ChatMessage> messages_;
};

}  // namespace elasticmem
