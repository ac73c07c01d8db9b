// What a verbs fabric and its endpoints share.
#pragma once

#include <cstdlib>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "wire/verbs/memory.h"

namespace gin::wire::verbs {

class VerbsEndpoint;

// Zeroed memory in whole pages, registered with some devices as long as it lives.
class Pages {
 public:
  Pages(std::span<const std::unique_ptr<Device>> devices, uint64_t bytes);
  char* data() const { return memory_.get(); }
  uint64_t address() const { return uint64_t(uintptr_t(memory_.get())); }
  uint32_t local_key() const { return registrations_.front()->lkey; }
  uint32_t remote_key(uint32_t device) const { return registrations_[device]->rkey; }

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  std::unique_ptr<char, Free> memory_;
  std::vector<RegionHandle> registrations_;
};

// Each rank's board is what its peers read and write for the wire's own purposes: one word per peer for its goodbye, and
// a page to be probed.
struct Board {
  uint64_t address = 0;
  uint32_t key = 0;

  uint64_t goodbye(uint32_t rank) const { return address + 8 * uint64_t(rank); }
  uint64_t page(uint32_t size) const { return address + 8 * uint64_t(size); }
  static uint64_t bytes(uint32_t size) { return 8 * uint64_t(size) + page_bytes; }
  static constexpr uint64_t page_bytes = 4096;
};

// What a rank tells a peer about itself.
struct PeerAddress {
  std::vector<PortAddress> ports;  // by device
  std::vector<Board> boards;       // the same board, as each device names it
  uint32_t sequence = 0;           // of the first packet
  std::vector<uint32_t> numbers;   // queue pairs for that peer, by endpoint

  std::string text() const;
  // Throws gin::Error{config}.
  static PeerAddress parse(const std::string& text, uint32_t peer);
};

// Endpoint i of every rank is on the rank's device i modulo their number, so that both sides of a context agree, and all
// additions to a signal are made by one device at its target.
struct Core {
  Core(uint32_t own_rank, uint32_t ranks, const Settings& options);

  const uint32_t rank, size;
  const Settings settings;
  const Devices devices;
  Memory memory;
  const Pages board;
  const uint32_t sequence;
  std::vector<PeerAddress> peers;  // once connected

  uint32_t device_of(size_t endpoint) const { return uint32_t(endpoint % devices.size()); }

  std::mutex mutex;
  std::vector<VerbsEndpoint*> endpoints;  // by number, nullptr for those that are gone
};

}  // namespace gin::wire::verbs
