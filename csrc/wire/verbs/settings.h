// The wire's options as numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "wire/verbs/verbs.h"

namespace gin::wire::verbs {

constexpr uint32_t most_nics = 8;  // of one rank

struct Settings {
  std::vector<std::string> devices;  // allowed, as name or name:port; empty: all
  bool own_devices = false;          // they are allowed to this rank of the host only
  uint32_t local_rank = 0;           // picks among equally near ones
  uint32_t nics = 1;                 // that this rank uses
  std::string gpu;                   // PCI bus id of this rank's GPU; empty: it has none
  std::string sysfs = "/sys";
  uint32_t port = 0;       // 0: the first that is up
  int32_t gid_index = -1;  // -1: chosen
  uint8_t pkey_index = 0, service_level = 0, traffic_class = 0, timeout = 0, retry = 0;
  uint32_t mtu = 0;  // bytes, 0: the port's
  uint32_t inline_bytes = 0;
  uint32_t depth = 0;  // work requests of a queue pair
  bool relaxed = false;
  uint64_t max_message = 0, queue = 0;
};

// Throws gin::Error{config}.
Settings parse(const Options& options);

}  // namespace gin::wire::verbs
