#include "wire/cuda_memory.h"

#include <dlfcn.h>
#include <unistd.h>

#include <mutex>
#include <optional>

namespace gin::wire::cuda {
namespace {

constexpr int memory_type = 2, device_memory = 2;  // CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_MEMORYTYPE_DEVICE
constexpr int dma_buf = 1;                         // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD

std::optional<MemoryApi> find_api() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (!library) return {};
  MemoryApi api{};
  api.attribute = reinterpret_cast<decltype(api.attribute)>(dlsym(library, "cuPointerGetAttribute"));
  api.range_handle = reinterpret_cast<decltype(api.range_handle)>(dlsym(library, "cuMemGetHandleForAddressRange"));
  api.describe = reinterpret_cast<decltype(api.describe)>(dlsym(library, "cuGetErrorString"));
  dlclose(library);  // whoever loaded it keeps it
  if (!api.attribute || !api.describe) return {};
  return api;
}

}  // namespace

const MemoryApi* memory_api() {
  static std::mutex mutex;
  static std::optional<MemoryApi> found;
  std::lock_guard<std::mutex> lock(mutex);
  if (!found) found = find_api();
  return found ? &*found : nullptr;
}

bool is_gpu_memory(const MemoryApi& api, const void* address) {
  unsigned kind = 0;
  return api.attribute(&kind, memory_type, Address(uintptr_t(address))) == success && kind == device_memory;
}

DmaBuf export_dma_buf(const MemoryApi& api, uint64_t address, uint64_t bytes) {
  DmaBuf made;
  if (!api.range_handle) {
    made.failure = "NVIDIA's driver has no cuMemGetHandleForAddressRange; CUDA 11.7 or newer is needed";
    return made;
  }
  const uint64_t page = uint64_t(sysconf(_SC_PAGESIZE));
  const uint64_t first = address / page * page, end = (address + bytes + page - 1) / page * page;
  made.offset = address - first;
  if (const int error = api.range_handle(&made.fd, first, end - first, dma_buf, 0)) {
    const char* text = nullptr;
    api.describe(error, &text);
    made.fd = -1;
    made.failure =
        "cuMemGetHandleForAddressRange: CUDA error " + std::to_string(error) + " (" + (text ? text : "unknown") + ")";
  }
  return made;
}

}  // namespace gin::wire::cuda
