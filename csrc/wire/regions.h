// What the wires of one host know of registered memory, here and on every peer.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace gin::wire {

// A region on one peer: mapped here, or to be reached through the kernel at an address of that process.
struct PeerRegion {
  char* mapped = nullptr;
  uint64_t address = 0;
  uint64_t bytes = 0;
  pid_t pid = 0;           // 0 until it was imported
  bool on_device = false;  // this rank's
};

struct Region {
  char* base;
  uint64_t bytes;
  bool on_device;  // this rank's
  std::vector<PeerRegion> peers;
};

// Regions are added, imported and removed by one thread while endpoints of others look them up without a lock.
class Regions {
 public:
  // device  what this rank's is called on every rank; empty where none matters
  Regions(uint32_t rank, uint32_t size, std::string device = {});

  // on_device  whether it is memory of this rank's, and not of the host; another device's is not expected
  std::string add(uint32_t region, void* base, uint64_t bytes, bool on_device = false);
  void import(uint32_t region, uint32_t peer, const std::string& exported, void* mapped);
  void remove(uint32_t region);

  // nullptr when there is none.
  const Region* find(uint32_t region) const {
    return region < most ? table_[region].load(std::memory_order_acquire) : nullptr;
  }

  // The region on a peer, or nullptr when it was not imported.
  const PeerRegion* find(uint32_t region, uint32_t peer) const {
    const Region* found = find(region);
    if (!found || peer >= size_ || !found->peers[peer].pid) return nullptr;
    return &found->peers[peer];
  }

 private:
  static constexpr uint32_t most = 1u << 13;  // windows, and a few of the library's own

  uint32_t rank_, size_;
  std::string device_;
  std::mutex mutex_;
  std::unique_ptr<std::atomic<Region*>[]> table_;
  std::vector<std::unique_ptr<Region>> all_;  // removed ones as well: an endpoint may still be looking at one
};

}  // namespace gin::wire
