// Memory that every rank of a communicator registered its part of.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nccl_plugin/gpu.h"

namespace gin::rma {

// One rank's part, as this rank knows it.
struct Part {
  uint64_t bytes = 0;
  bool cuda = false;
  char* reached = nullptr;  // where this GPU (or, for one's own, also the CPU) reaches it; null: by messages only
  bool on_device = false;   // it is memory of this rank's GPU
  bool reaches = false;     // that rank's GPU reaches this rank's part
  std::unique_ptr<Mapping> mapping;

  // How copies go between it and memory of this rank's, which is or is not the GPU's.
  Copy way(bool cuda_here) const { return cuda_here && on_device ? Copy::within : Copy::straight; }
};

struct Region : std::enable_shared_from_this<Region> {
  uint32_t number = 0;
  char* base = nullptr;
  uint64_t bytes = 0;
  bool cuda = false;
  bool never_reset = false;
  std::vector<uint64_t> shadow;  // of signal words that only grow: their values, once the GPU is through
  std::vector<Part> parts;       // by rank

  bool holds(uint64_t offset, uint64_t count) const { return offset <= bytes && count <= bytes - offset; }
};

inline bool holds(const Part& part, uint64_t offset, uint64_t count) {
  return offset <= part.bytes && count <= part.bytes - offset;
}

// What a rank tells the others about its part: text and descriptors of one letter.
std::string describe(const Region& region, const std::optional<Exported>& exported, const Gpu* gpu);

// The part of another rank, which has to call the region `number` as well. `note` says why it is not reached, when that is so
// and could be otherwise. Throws gin::Error.
Part understand(Letter& letter, uint32_t peer, uint32_t number, const Gpu* gpu, std::string& note);

}  // namespace gin::rma
