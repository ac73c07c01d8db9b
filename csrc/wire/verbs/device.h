// An opened device: its protection domain, the port and the address that queue pairs use.
#pragma once

#include <memory>
#include <string>
#include <vector>

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

struct Registration {
  RegionHandle handle;
  bool of_gpu = false;
  std::string note;  // what is worth telling of how a GPU's memory was registered
};

struct Device {
  VerbsPort about;
  std::string why;  // this rank uses it
  ContextHandle context;
  DomainHandle domain;
  PortAddress address;
  uint32_t initiated = 0;  // reads and atomics it has under way at once per queue pair
  uint32_t most_completions = 0, most_requests = 0;

  std::string name() const { return about.device + " port " + std::to_string(about.port); }

  // Registers memory of the host or of a GPU; nullptr for no bytes. Throws gin::Error{memory} with the limit that is too
  // low, or with what a GPU's memory lacks.
  Registration add(void* base, uint64_t bytes, bool relaxed) const;
};

// What to do where too little memory may be locked, if that can be why something failed.
std::string limit_advice(int error);

using Devices = std::vector<std::unique_ptr<Device>>;

// The devices that this rank uses, `settings.nics` of them. Throws gin::Error{unsupported} with what is wrong with each
// when none is usable, Error{config} when there are too few.
Devices open_devices(const Settings& settings);

// A GID as text; an IPv4 address as such.
std::string text(const ibv_gid& gid);

ibv_mtu mtu_code(uint32_t bytes);

}  // namespace gin::wire::verbs
