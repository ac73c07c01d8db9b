// What a device beside a GPU has to know of the GPU's memory, asked of NVIDIA's driver where this process has loaded it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "wire/cuda_driver.h"

namespace gin::wire::cuda {

struct MemoryApi {
  int (*attribute)(void* value, int which, Address);
  int (*range_handle)(void* handle, Address, size_t bytes, int kind, unsigned long long flags);
  int (*describe)(int error, const char**);
};

// nullptr while nobody has loaded the driver: then no memory is a GPU's. Loads nothing.
const MemoryApi* memory_api();

bool is_gpu_memory(const MemoryApi& api, const void* address);

// A dma-buf of the whole pages around a range; the descriptor is the owner's to close.
struct DmaBuf {
  int fd = -1;
  uint64_t offset = 0;  // of the range in it
  std::string failure;  // why there is none
};

DmaBuf export_dma_buf(const MemoryApi& api, uint64_t address, uint64_t bytes);

}  // namespace gin::wire::cuda
