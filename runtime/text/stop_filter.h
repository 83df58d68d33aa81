// Ends a text at the first of its stop texts, which is never shown, not even in part.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace elasticmem {

class StopFilter {
 public:
  explicit StopFilter(std::vector<std::string> stops);

  // What may be shown of the text so far: what could still become a stop text is held back. Nothing after a stop.
  std::string Add(std::string_view text);
  // The rest, where the text ends by itself.
  std::string Finish() { return stopped_ ? std::string() : std::exchange(pending_, ""); }
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;  // none is empty
  std::string pending_;
  bool stopped_ = false;
};

}  // namespace elasticmem
