// The cores that this process may use, on machines with fast and slow ones apart.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace elasticmem {

struct Cores {
  int fast = 1;  // by default one thread runs on each: a slow one would have the others wait at the end of each product
  int slow = 0;
};

// Slow are Intel's efficiency cores (SYSTEM/cpu_atom/cpus) and ARM cores of less than half of the largest capacity
// (SYSTEM/system/cpu/cpu*/cpu_capacity). What the system does not tell counts as fast, and so do the cores if all that
// `usable` names are slow.
Cores ClassifyCores(std::span<const int> usable, const std::string& system = "/sys/devices");

// The numbers of those that the process may run on, ascending.
std::vector<int> UsableCores();

}  // namespace elasticmem
