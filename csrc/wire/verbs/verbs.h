// Reliable-connection queue pairs through libibverbs: InfiniBand, RoCE, Soft-RoCE. One queue pair per (endpoint, peer).
// The library is loaded when the wire is made; a build without its header lists the wire and refuses to make it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "wire/registry.h"

namespace gin::wire {

// Options beside those of every wire; docs/verbs.md says what each is for.
extern const std::vector<std::string> verbs_options;

std::unique_ptr<Fabric> make_verbs(uint32_t rank, uint32_t size, const Options& options);

// One port of one device, and whether a queue pair could be made on it.
struct VerbsPort {
  std::string device;
  uint32_t port = 0;
  bool usable = false;
  std::string reason;  // why not
  std::string link;    // "InfiniBand" or "Ethernet"
  int32_t gid_index = -1;
  std::string gid, gid_type;
  uint32_t mtu = 0;        // bytes
  uint32_t atomics = 0;    // reads and atomics under way per queue pair
  uint64_t max_bytes = 0;  // of one message
};

// What is there, whether usable or not. Throws gin::Error{unsupported} without the library.
std::vector<VerbsPort> verbs_ports(const Options& options = {});

// A port that a rank uses, and why this one.
struct VerbsUse {
  std::string port, why;
};

// What a rank with these options uses. Throws what make_verbs throws.
std::vector<VerbsUse> verbs_used(const Options& options);

// What this process has open.
struct VerbsLive {
  int64_t devices, regions, completion_queues, queue_pairs;
};
VerbsLive verbs_live();

// A completion's detail in words.
std::string verbs_detail(uint64_t detail);

}  // namespace gin::wire
