// Which network cards are near a GPU or a process, from what Linux tells of the PCIe tree. Nothing here needs libibverbs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gin::wire::verbs {

// Where a device or a process sits.
struct Place {
  std::vector<std::string> path;  // from the root complex down to the device; empty where it is not on a PCIe bus
  int node = -1;                  // NUMA node, -1 where it is unknown
};

// `sysfs` is where sysfs is mounted; tests have one of their own. What cannot be read leaves the place unknown.
Place place_of_nic(const std::string& sysfs, const std::string& device);
Place place_of_gpu(const std::string& sysfs, const std::string& bus_id);

// The calling thread's CPUs: their node where they are all of one.
Place place_of_cpus(const std::string& sysfs);

// How much two places share; greater is nearer.
struct Nearness {
  uint32_t bridges = 0;  // of the paths from the root complex on
  bool same_node = false;

  auto operator<=>(const Nearness&) const = default;
};

Nearness nearness(const Place& a, const Place& b);

// A card of a choice, as an index of the cards that were given, and why it was chosen.
struct Choice {
  size_t index;
  std::string why;
};

// The `count` nearest cards to a place, the nearest first. Equally near ones are dealt out by the rank's number on its
// host, `count` to each, so that ranks of one place share them. `whose` names the place in the reasons.
std::vector<Choice> choose(const std::vector<Place>& cards, const Place& to, const std::string& whose,
                           uint32_t local_rank, uint32_t count);

}  // namespace gin::wire::verbs
