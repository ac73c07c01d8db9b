// What a verbs fabric and its endpoints share.
#pragma once

#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "wire/verbs/memory.h"

namespace gin::wire::verbs {

class VerbsEndpoint;

// Zeroed memory in whole pages, registered as long as it lives.
class Pages {
 public:
  Pages(const Device& device, uint64_t bytes);
  char* data() const { return memory_.get(); }
  uint64_t address() const { return uint64_t(uintptr_t(memory_.get())); }
  uint32_t local_key() const { return registration_->lkey; }
  uint32_t remote_key() const { return registration_->rkey; }

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  std::unique_ptr<char, Free> memory_;
  RegionHandle registration_;
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
  PortAddress port;
  uint32_t sequence = 0;  // of the first packet
  Board board;
  std::vector<uint32_t> numbers;  // queue pairs for that peer, by endpoint

  std::string text() const;
  // Throws gin::Error{config}.
  static PeerAddress parse(const std::string& text, uint32_t peer);
};

struct Core {
  Core(uint32_t own_rank, uint32_t ranks, const Settings& options);

  const uint32_t rank, size;
  const Settings settings;
  const std::unique_ptr<Device> device;
  Memory memory;
  const Pages board;
  const uint32_t sequence;
  std::vector<Board> boards;  // by peer, once connected

  std::mutex mutex;
  std::vector<VerbsEndpoint*> endpoints;  // by number, nullptr for those that are gone
};

}  // namespace gin::wire::verbs
