#include "wire/verbs/nearness.h"

#include <sched.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>

namespace gin::wire::verbs {
namespace {

namespace fs = std::filesystem;

int number_in(const fs::path& file) {
  std::ifstream in(file);
  int value = -1;
  return in >> value && value >= 0 ? value : -1;
}

// A PCI device's place by its folder, which may be a link to it.
Place place_of(const fs::path& folder) {
  std::error_code error;
  const fs::path real = fs::canonical(folder, error);
  Place place;
  if (error) return place;
  for (const fs::path& part : real) {
    const std::string name = part.string();
    if (name.starts_with("pci") || !place.path.empty()) place.path.push_back(name);
  }
  place.node = number_in(real / "numa_node");
  return place;
}

// "0-3,8": whether every CPU of the set is in the list.
bool holds(const std::string& list, const cpu_set_t& set) {
  cpu_set_t left = set;
  std::istringstream ranges(list);
  for (std::string range; std::getline(ranges, range, ',');) {
    int first = 0, last = 0;
    char dash = 0;
    std::istringstream in(range);
    if (!(in >> first)) continue;
    if (!(in >> dash >> last)) last = first;
    for (int cpu = std::max(first, 0); cpu <= last && cpu < CPU_SETSIZE; ++cpu) CPU_CLR(cpu, &left);
  }
  return CPU_COUNT(&left) == 0;
}

std::string reason(const Nearness& near, size_t equals, size_t all, const std::string& whose, uint32_t local_rank) {
  std::string why;
  if (near.bridges)
    why = "shares " + std::to_string(near.bridges) + " levels of PCIe with " + whose;
  else if (near.same_node)
    why = "is on the NUMA node of " + whose;
  if (equals > 1)
    why += (why.empty() ? "by local rank " : ", by local rank ") + std::to_string(local_rank) + " among " +
           std::to_string(equals);
  if (!why.empty()) return why;
  return all == 1 ? "the only one" : "farther from " + whose;
}

}  // namespace

Place place_of_nic(const std::string& sysfs, const std::string& device) {
  return place_of(fs::path(sysfs) / "class/infiniband" / device / "device");
}

Place place_of_gpu(const std::string& sysfs, const std::string& bus_id) {
  if (bus_id.empty()) return {};
  std::string id = bus_id;
  for (char& c : id) c = char(std::tolower(static_cast<unsigned char>(c)));
  if (const size_t colon = id.find(':'); colon > 4 && colon != std::string::npos) id.erase(0, colon - 4);
  return place_of(fs::path(sysfs) / "bus/pci/devices" / id);
}

Place place_of_cpus(const std::string& sysfs) {
  Place place;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return place;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fs::path(sysfs) / "devices/system/node", error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("node") || name.size() < 5 || !std::isdigit(static_cast<unsigned char>(name[4]))) continue;
    std::ifstream in(entry.path() / "cpulist");
    std::string list;
    std::getline(in, list);
    if (holds(list, set)) place.node = std::atoi(name.c_str() + 4);
  }
  return place;
}

Nearness nearness(const Place& a, const Place& b) {
  const auto ends = std::mismatch(a.path.begin(), a.path.end(), b.path.begin(), b.path.end());
  return {uint32_t(ends.first - a.path.begin()), a.node >= 0 && a.node == b.node};
}

std::vector<Choice> choose(const std::vector<Place>& cards, const Place& to, const std::string& whose,
                           uint32_t local_rank, uint32_t count) {
  std::vector<Nearness> near;
  for (const Place& card : cards) near.push_back(nearness(card, to));
  std::vector<size_t> order(cards.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return near[a] > near[b]; });
  std::vector<Choice> chosen;
  for (auto first = order.begin(); first != order.end() && chosen.size() < count;) {
    const auto last = std::find_if(first, order.end(), [&](size_t i) { return near[i] != near[*first]; });
    const size_t equals = size_t(last - first);
    std::rotate(first, first + ptrdiff_t(uint64_t(local_rank) * count % equals), last);
    for (; first != last && chosen.size() < count; ++first)
      chosen.push_back({*first, reason(near[*first], equals, cards.size(), whose, local_rank)});
    first = last;
  }
  return chosen;
}

}  // namespace gin::wire::verbs
