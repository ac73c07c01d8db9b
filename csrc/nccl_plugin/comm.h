// One communicator: the ranks that NCCL connected, the memory they registered, and the agent that changes words of this rank's
// memory for the others.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "nccl_plugin/mesh.h"
#include "nccl_plugin/region.h"
#include "nccl_plugin/settings.h"
#include "nccl_plugin/words.h"

namespace gin::rma {

class Comm {
 public:
  // Collective. Throws gin::Error.
  Comm(const Listener& listener, const std::vector<Handle>& handles, uint32_t rank);
  ~Comm();

  uint32_t rank() const { return mesh_.rank(); }
  uint32_t size() const { return mesh_.size(); }
  const Settings& settings() const { return settings_; }
  const std::shared_ptr<Gpu>& gpu() const { return gpu_; }
  Words& words() { return words_; }
  Mesh& mesh() { return mesh_; }

  // Registers this rank's part. Collective; sizes and kinds may differ by rank.
  std::shared_ptr<Region> add(void* data, uint64_t bytes, bool cuda, bool never_reset);
  void remove(const Region& region);

  // Null when there is none.
  std::shared_ptr<Region> find(uint32_t number);

  // A collective step of `Context`. Every rank gets every rank's text; throws what a rank failed with.
  template <class Make>
  std::vector<Letter> step(const char* name, Make make) {
    std::lock_guard<std::mutex> lock(collective_);
    return mesh_.exchange(name, or_fail(name, make));
  }

 private:
  // Tells the others when this rank cannot do its part.
  template <class Make>
  auto or_fail(const char* name, Make make) -> decltype(make()) {
    try {
      return make();
    } catch (const std::exception& error) {
      mesh_.fail(name, error.what());
      throw;
    }
  }

  Settings settings_;
  std::shared_ptr<Gpu> gpu_;
  Mesh mesh_;
  Words words_;
  std::mutex collective_;  // one step at a time
  uint32_t next_ = 0;      // the number of the region that is registered next: one of those steps
  std::mutex table_;       // guards what follows
  std::unordered_map<uint32_t, std::shared_ptr<Region>> regions_;
};

}  // namespace gin::rma
