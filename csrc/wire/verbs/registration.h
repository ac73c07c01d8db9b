// Memory made known to a device: of the host, or of a GPU.
#pragma once

#include <cstdint>
#include <string>

#include "wire/cuda_memory.h"
#include "wire/verbs/library.h"

namespace gin::wire::verbs {

struct Registered {
  ibv_mr* region = nullptr;
  int error = 0;  // errno, where there is no region
  bool of_gpu = false;
  std::string note;  // for a GPU's memory: what did not work, in words
};

// `gpu` may be nullptr: then all memory is the host's. A GPU's memory is registered by a dma-buf, and where that does not
// work by its address, which nvidia-peermem makes possible. Either way `address` is the region's own.
Registered register_memory(const Library& library, const cuda::MemoryApi* gpu, ibv_pd* domain, void* address,
                           uint64_t bytes, bool relaxed);

}  // namespace gin::wire::verbs
