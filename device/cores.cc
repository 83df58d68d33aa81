#include "device/cores.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

namespace elasticmem {
namespace {

std::optional<std::string> FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

std::optional<int> Number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Whether a list such as "0-3,8" names `core`.
bool Names(const std::string& list, int core) {
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t dash = part.find('-');
    const std::optional<int> first = Number(part.substr(0, dash));
    const std::optional<int> last = dash == std::string::npos ? first : Number(part.substr(dash + 1));
    if (first && last && *first <= core && core <= *last) return true;
  }
  return false;
}

}  // namespace

Cores ClassifyCores(std::span<const int> usable, const std::string& system) {
  const std::string atoms = FirstLine(system + "/cpu_atom/cpus").value_or("");
  std::vector<int> capacities;
  for (const int core : usable) {
    const auto line = FirstLine(system + "/system/cpu/cpu" + std::to_string(core) + "/cpu_capacity");
    capacities.push_back(line ? Number(*line).value_or(0) : 0);
  }
  const int largest = capacities.empty() ? 0 : *std::max_element(capacities.begin(), capacities.end());
  int slow = 0;
  for (size_t i = 0; i < usable.size(); ++i) {
    if (Names(atoms, usable[i]) || (capacities[i] > 0 && capacities[i] < largest / 2)) ++slow;
  }
  const int all = std::max<int>(1, static_cast<int>(usable.size()));
  return slow == all ? Cores{all, 0} : Cores{all - slow, slow};
}

std::vector<int> UsableCores() {
  std::vector<int> cores;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) cores.push_back(core);
    }
    return cores;
  }
  // More cores than the set has room for.
  for (unsigned core = 0; core < std::max(1u, std::thread::hardware_concurrency()); ++core) {
    cores.push_back(static_cast<int>(core));
  }
  return cores;
}

}  // namespace elasticmem
