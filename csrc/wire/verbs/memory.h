// What the verbs wire knows of registered memory, here and on every peer.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "wire/verbs/device.h"

namespace gin::wire::verbs {

struct RemoteRegion {
  uint64_t address = 0, bytes = 0;
  uint32_t key = 0;
  bool known = false;
};

struct LocalRegion {
  char* base = nullptr;
  uint64_t bytes = 0;
  uint32_t key = 0;
  std::vector<RemoteRegion> peers;
  RegionHandle registration;
};

// Regions are added, imported and removed by one thread while endpoints of others look them up without a lock.
class Memory {
 public:
  Memory(const Device& device, uint32_t rank, uint32_t size);

  // What region 0 holds is ordered strictly; others as `relaxed` says.
  std::string add(uint32_t region, void* base, uint64_t bytes, bool relaxed);
  void import(uint32_t region, uint32_t peer, const std::string& exported);
  void remove(uint32_t region);

  // nullptr when there is none.
  const LocalRegion* find(uint32_t region) const {
    return region < most ? table_[region].load(std::memory_order_acquire) : nullptr;
  }

  // The region on a peer, or nullptr when it was not imported.
  const RemoteRegion* find(uint32_t region, uint32_t peer) const {
    const LocalRegion* found = find(region);
    return found && peer < size_ && found->peers[peer].known ? &found->peers[peer] : nullptr;
  }

 private:
  static constexpr uint32_t most = 1u << 13;  // windows, and a few of the library's own

  const Device& device_;
  uint32_t rank_, size_;
  std::mutex mutex_;
  std::unique_ptr<std::atomic<LocalRegion*>[]> table_;
  std::vector<std::unique_ptr<LocalRegion>> all_;  // removed ones as well: an endpoint may still be looking at one
};

inline bool inside(uint64_t offset, uint64_t bytes, uint64_t region_bytes) {
  return offset <= region_bytes && bytes <= region_bytes - offset;
}

}  // namespace gin::wire::verbs
