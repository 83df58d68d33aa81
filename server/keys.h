// API keys: a file of their SHA-256 sums, so that who reads it cannot use them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace elasticmem {

class Keys {
 public:
  struct Client {
    std::string name;
    uint64_t tenant = 0;  // who shares no prefix with others; never 0
  };

  // Lines "NAME SHA256" (64 hexadecimal digits), empty ones and ones that begin with '#'. Errors name the file and the line: what is none of these,
  // a name or a sum that stands there twice, no key at all.
  static StatusOr<Keys> Load(const std::string& path);

  // Whose key `header` ("Bearer KEY") has. It takes the same time whichever key it is, or none.
  std::optional<Client> Find(std::string_view header) const;
  size_t size() const { return entries_.size(); }

 private:
  using Digest = std::array<unsigned char, 32>;
  struct Entry {
    std::string name;
    Digest digest;
  };
  static Digest DigestOf(std::string_view key);

  std::vector<Entry> entries_;
};

}  // namespace elasticmem
