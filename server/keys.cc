#include "server/keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <cstring>
#include <fstream>
#include <sstream>

namespace elasticmem {
namespace {

constexpr std::string_view kScheme = "bearer ";

std::optional<unsigned char> HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

}  // namespace

Keys::Digest Keys::DigestOf(std::string_view key) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

StatusOr<Keys> Keys::Load(const std::string& path) {
  std::ifstream file(path);
  if (!file) return SystemError(errno, "cannot open the key file " + path);
  Keys keys;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    std::istringstream words(line);
    std::string name, sum, more;
    if (!(words >> name) || name[0] == '#') continue;
    Entry entry{name, {}};
    bool good = (words >> sum) && !(words >> more) && sum.size() == 2 * entry.digest.size();
    for (size_t i = 0; good && i < entry.digest.size(); ++i) {
      const auto high = HexDigit(sum[2 * i]), low = HexDigit(sum[2 * i + 1]);
      good = high && low;
      if (good) entry.digest[i] = static_cast<unsigned char>(*high << 4 | *low);
    }
    if (!good) {
      return InvalidInput("{}:{}: expected NAME and the key's SHA-256 sum as 64 hexadecimal digits (printf %s KEY | sha256sum)",
                          path, number);
    }
    for (const Entry& other : keys.entries_) {
      if (other.name == name) return InvalidInput("{}:{}: the name \"{}\" stands there twice", path, number, name);
      if (other.digest == entry.digest) {
        return InvalidInput("{}:{}: the key of \"{}\" is that of \"{}\"", path, number, name, other.name);
      }
    }
    keys.entries_.push_back(std::move(entry));
  }
  if (file.bad()) return SystemError(errno, "cannot read the key file " + path);
  if (keys.entries_.empty()) return InvalidInput("{}: there is no key in it", path);
  return keys;
}

std::optional<Keys::Client> Keys::Find(std::string_view header) const {
  if (header.size() <= kScheme.size()) return std::nullopt;
  for (size_t i = 0; i < kScheme.size(); ++i) {
    if ((header[i] | 0x20) != (kScheme[i] | 0x20)) return std::nullopt;
  }
  const Digest digest = DigestOf(header.substr(kScheme.size()));
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {
    if (CRYPTO_memcmp(entry.digest.data(), digest.data(), digest.size()) == 0) found = &entry;
  }
  if (!found) return std::nullopt;
  Client client{found->name, 0};
  std::memcpy(&client.tenant, digest.data(), sizeof(client.tenant));
  client.tenant |= 1;
  return client;
}

}  // namespace elasticmem
