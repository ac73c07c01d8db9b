// GPUs of one host: the copy engines move bytes between memory that is mapped in this process, each peer's requests in one
// stream and so in order. Signals are added by this CPU once the copies before them are done, so the region
// that holds them has to be host memory. No atomics.
#pragma once

#include "wire/registry.h"

namespace gin::wire {

// The calling thread's CUDA context is the one that endpoints use.
std::unique_ptr<Fabric> make_cuda(uint32_t rank, uint32_t size, const Options& options);

}  // namespace gin::wire
