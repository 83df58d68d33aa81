#include "tensor/int8_units.h"

#include <algorithm>
#include <atomic>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace elasticmem {
namespace {

std::atomic<Int8Units> limit{Int8Units::kMatrix};

Int8Units Detect() {
#if defined(__x86_64__) && defined(__linux__)
  if (!__builtin_cpu_supports("avx512vnni")) return Int8Units::kNone;
  constexpr unsigned kLeaf = 7, kAmxTile = 1u << 24, kAmxInt8 = 1u << 25;
  unsigned a, b, c, d;
  if (!__get_cpuid_count(kLeaf, 0, &a, &b, &c, &d)) return Int8Units::kDot;
  if (!(d & kAmxTile) || !(d & kAmxInt8)) return Int8Units::kDot;
  // Linux gives the tiles' registers to a process that asks.
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0 ? Int8Units::kMatrix : Int8Units::kDot;
#elif defined(__aarch64__) && defined(__linux__)
  constexpr unsigned long kDotProducts = 1ul << 20, kInt8MatrixProducts = 1ul << 13;
  if (!(getauxval(AT_HWCAP) & kDotProducts)) return Int8Units::kNone;
  return getauxval(AT_HWCAP2) & kInt8MatrixProducts ? Int8Units::kMatrix : Int8Units::kDot;
#else
  return Int8Units::kNone;
#endif
}

}  // namespace

Int8Units Int8UnitsHere() {
  static const Int8Units here = Detect();
  return std::min(here, limit.load(std::memory_order_relaxed));
}

void LimitInt8UnitsForTest(Int8Units most) { limit = most; }

}  // namespace elasticmem
