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
  bool of_gpu = false;
};

struct LocalRegion {
  char* base = nullptr;
  uint64_t bytes = 0;
  bool of_gpu = false;               // the CPU does not touch it
  std::vector<uint32_t> keys;        // by device
  std::vector<RemoteRegion> remote;  // by device and peer
  std::vector<RegionHandle> registrations;
};

// A region is registered with every device that this rank uses, until it is removed, and its keys are exported together:
// a peer's device of the same number knows the key of ours.
// Regions are added, imported and removed by one thread while endpoints of others look them up without a lock.
class Memory {
 public:
  Memory(const Devices& devices, uint32_t rank, uint32_t size);

  // What region 0 holds is ordered strictly; others as `relaxed` says.
  std::string add(uint32_t region, void* base, uint64_t bytes, bool relaxed);
  void import(uint32_t region, uint32_t peer, const std::string& exported);
  void remove(uint32_t region);

  // What is worth telling of how a GPU's memory was registered, or nothing.
  std::string note() const;

  // nullptr when there is none.
  const LocalRegion* find(uint32_t region) const {
    return region < most ? table_[region].load(std::memory_order_acquire) : nullptr;
  }

  // The region on a peer as one device reaches it, or nullptr when it was not imported.
  const RemoteRegion* find(uint32_t region, uint32_t peer, uint32_t device) const {
    const LocalRegion* found = find(region);
    if (!found || peer >= size_) return nullptr;
    const RemoteRegion* remote = &found->remote[uint64_t(device) * size_ + peer];
    return remote->known ? remote : nullptr;
  }

 private:
  static constexpr uint32_t most = 1u << 13;  // windows, and a few of the library's own

  const Devices& devices_;
  uint32_t rank_, size_;
  mutable std::mutex mutex_;
  std::string note_;
  std::unique_ptr<std::atomic<LocalRegion*>[]> table_;
  std::vector<std::unique_ptr<LocalRegion>> all_;  // removed ones as well: an endpoint may still be looking at one
};

inline bool inside(uint64_t offset, uint64_t bytes, uint64_t region_bytes) {
  return offset <= region_bytes && bytes <= region_bytes - offset;
}

}  // namespace gin::wire::verbs
