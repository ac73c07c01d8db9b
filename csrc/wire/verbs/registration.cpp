#include "wire/verbs/registration.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace gin::wire::verbs {
namespace {

constexpr int access =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

ibv_mr* by_address(const Library& library, ibv_pd* domain, void* address, uint64_t bytes, bool relaxed) {
  if (relaxed && library.reg_mr_iova2)
    return library.reg_mr_iova2(domain, address, bytes, uintptr_t(address), access | IBV_ACCESS_RELAXED_ORDERING);
  return library.reg_mr(domain, address, bytes, access);
}

// Sets `failure` where it returns nullptr.
ibv_mr* by_dma_buf(const Library& library, const cuda::MemoryApi& gpu, ibv_pd* domain, uint64_t address, uint64_t bytes,
                   bool relaxed, std::string& failure) {
  if (!library.reg_dmabuf_mr) {
    failure = "libibverbs has no ibv_reg_dmabuf_mr; rdma-core 34 or newer is needed";
    return nullptr;
  }
  const cuda::DmaBuf buffer = cuda::export_dma_buf(gpu, address, bytes);
  if (buffer.fd < 0) {
    failure = buffer.failure;
    return nullptr;
  }
  const int rights = relaxed ? access | IBV_ACCESS_RELAXED_ORDERING : int(access);
  ibv_mr* made = library.reg_dmabuf_mr(domain, buffer.offset, bytes, address, buffer.fd, rights);
  if (!made) failure = std::string("ibv_reg_dmabuf_mr: ") + std::strerror(errno);
  close(buffer.fd);  // the region holds the buffer
  return made;
}

}  // namespace

Registered register_memory(const Library& library, const cuda::MemoryApi* gpu, ibv_pd* domain, void* address,
                           uint64_t bytes, bool relaxed) {
  Registered done;
  const bool of_gpu = done.of_gpu = gpu && cuda::is_gpu_memory(*gpu, address);
  if (of_gpu) {
    std::string failure;
    done.region = by_dma_buf(library, *gpu, domain, uintptr_t(address), bytes, relaxed, failure);
    if (done.region) return done;
    done.note = "not by dma-buf: " + failure;
  }
  done.region = by_address(library, domain, address, bytes, relaxed);
  if (done.region) {
    if (of_gpu) done.note = "GPU memory by nvidia-peermem, " + done.note;
    return done;
  }
  done.error = errno;
  if (of_gpu)
    done.note = "it is a GPU's memory. " + done.note + "; nor by nvidia-peermem: " + std::strerror(done.error) +
                ". Load that module (modprobe nvidia-peermem), or use Linux 5.12 or newer with NVIDIA's open kernel "
                "modules and rdma-core 34 or newer";
  return done;
}

}  // namespace gin::wire::verbs
