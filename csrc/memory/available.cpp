#include "memory/available.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

namespace gin::memory {
namespace {

// The number after `key` at the start of a line of a "key value" file.
std::optional<uint64_t> field(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.compare(0, key.size(), key) != 0) continue;
    std::istringstream rest(line.substr(key.size()));
    uint64_t value;
    if (rest >> value) return value;
  }
  return std::nullopt;
}

// A file that holds one number; "max" and a missing file are no number.
std::optional<uint64_t> number(const std::string& path) {
  std::ifstream file(path);
  uint64_t value;
  if (file >> value) return value;
  return std::nullopt;
}

void lower(Available& found, uint64_t bytes, const std::string& limit) {
  if (bytes < found.bytes) found = {bytes, limit};
}

// One control group's room: its limit less what it uses, where cached file pages count as free.
void lower_by_group(Available& found, const std::string& folder, bool v2, uint64_t swap_free) {
  auto limit = number(folder + (v2 ? "/memory.max" : "/memory.limit_in_bytes"));
  auto used = number(folder + (v2 ? "/memory.current" : "/memory.usage_in_bytes"));
  if (!limit || !used) return;
  uint64_t reclaimable = field(folder + "/memory.stat", v2 ? "inactive_file " : "total_inactive_file ").value_or(0);
  uint64_t held = *used - std::min(*used, reclaimable);
  uint64_t room = *limit - std::min(*limit, held);
  if (v2) {
    uint64_t swap_max = number(folder + "/memory.swap.max").value_or(UINT64_MAX);
    uint64_t swap_used = number(folder + "/memory.swap.current").value_or(0);
    room += std::min(swap_max - std::min(swap_max, swap_used), swap_free);
  }
  lower(found, room, "the memory limit of control group " + folder);
}

// Every group from the process's own up to the root of the hierarchy that is mounted here.
void lower_by_groups(Available& found, const std::string& mount, std::string group, bool v2, uint64_t swap_free) {
  while (true) {
    lower_by_group(found, mount + group, v2, swap_free);
    size_t slash = group.rfind('/');
    if (group.empty() || slash == std::string::npos) return;
    group.resize(slash);
  }
}

}  // namespace

Available available(const std::string& root) {
  constexpr uint64_t kib = 1024;
  Available found{UINT64_MAX, "nothing"};
  uint64_t swap_free = field(root + "/proc/meminfo", "SwapFree:").value_or(0) * kib;
  if (auto free = field(root + "/proc/meminfo", "MemAvailable:"))
    found = {*free * kib + swap_free, "MemAvailable and SwapFree of /proc/meminfo"};

  std::ifstream groups(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {  // id:controllers:path
    size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string path = line.substr(second + 1);
    while (!path.empty() && path.back() == '/') path.pop_back();
    if (controllers == ",,") {
      lower_by_groups(found, root + "/sys/fs/cgroup", path, true, swap_free);
    } else if (controllers.find(",memory,") != std::string::npos) {
      lower_by_groups(found, root + "/sys/fs/cgroup/memory", path, false, swap_free);
    }
  }
  return found;
}

}  // namespace gin::memory
