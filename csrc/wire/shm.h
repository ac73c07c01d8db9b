// Ranks of one host. An endpoint carries each request out while it is posted, in order: by copying into the peer's
// mapped memory, or through the kernel where that memory is not mapped (an array registered from elsewhere). Signals
// and atomics need mapped memory.
#pragma once

#include "wire/registry.h"

namespace gin::wire {

std::unique_ptr<Fabric> make_shm(uint32_t rank, uint32_t size, const Options& options);

}  // namespace gin::wire
