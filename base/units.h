// Byte sizes as people write them, and rounding.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace elasticmem {

constexpr uint64_t operator""_KiB(unsigned long long n) { return n << 10; }
constexpr uint64_t operator""_MiB(unsigned long long n) { return n << 20; }
constexpr uint64_t operator""_GiB(unsigned long long n) { return n << 30; }

template <class T>
constexpr T CeilDiv(T a, T b) {
  return (a + b - 1) / b;
}
template <class T>
constexpr T RoundUp(T value, T multiple) {
  return CeilDiv(value, multiple) * multiple;
}
template <class T>
constexpr T RoundDown(T value, T multiple) {
  return value / multiple * multiple;
}

// "512MiB", "2GB", "1.5GiB", "4096", "4096B": bytes. "75%": that share of `whole_bytes`.
// Errors name the text and the units that are understood.
StatusOr<uint64_t> ParseBytes(std::string_view text, uint64_t whole_bytes);

// "1.50 GiB", "640.0 KiB", "12 B": for people.
std::string FormatBytes(uint64_t bytes);

}  // namespace elasticmem
