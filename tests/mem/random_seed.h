// Seeds of random tests: fixed in a plain run, others in each round of `--gtest_shuffle --gtest_repeat=N` (which prints
// the seed of a failing round, to be given back as --gtest_random_seed).
#pragma once

#include <gtest/gtest.h>

#include <cstdint>

namespace elasticmem {

inline uint64_t TestSeed(uint64_t test) {
  return test + 1000 * static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed());
}

}  // namespace elasticmem
