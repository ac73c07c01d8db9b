// An opened device: its protection domain, the port and the address that queue pairs use.
#pragma once

#include <memory>
#include <string>

#include "wire/verbs/library.h"
#include "wire/verbs/settings.h"

namespace gin::wire::verbs {

// What a peer needs to know of a port.
struct PortAddress {
  uint32_t lid = 0;
  ibv_gid gid{};
  uint32_t mtu = 0;      // bytes
  uint32_t atomics = 0;  // reads and atomics it serves at once per queue pair
  bool global = false;   // reached by GID
};

struct Device {
  VerbsPort about;
  ContextHandle context;
  DomainHandle domain;
  PortAddress address;
  uint32_t initiated = 0;  // reads and atomics it has under way at once per queue pair
  uint32_t most_completions = 0, most_requests = 0;

  std::string name() const { return about.device + " port " + std::to_string(about.port); }

  // Registers memory. Throws gin::Error{memory} with the limit that is too low; nullptr for no bytes.
  RegionHandle add(void* base, uint64_t bytes, bool relaxed) const;
};

// The device that this rank uses. Throws gin::Error{unsupported} with what is wrong with each when none is usable.
std::unique_ptr<Device> open_device(const Settings& settings);

// A GID as text; an IPv4 address as such.
std::string text(const ibv_gid& gid);

ibv_mtu mtu_code(uint32_t bytes);

}  // namespace gin::wire::verbs
