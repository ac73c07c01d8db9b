// What one block moves to memory of its own GPU, and of another where there is one: whether a way of copying is held up by
// NVLink or by the SM.
//
//     nvcc -O2 -std=c++17 -arch=sm_90 -o one_block benchmarks/one_block.cu && ./one_block
//
// stores        16 bytes by each of 1024 threads, of which nothing is loaded
// copy          8 loads of 16 bytes by each of 512 threads, then 8 stores, as gin's direct route does
// bulk S x N    one thread hands N bytes at a time to the bulk-copy engine, into shared memory and out of it, S under way
//
// Prints JSON: GB/s (1e9 bytes/s) by memory, way and number of blocks, medians of nine.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

constexpr uint64_t share = 8u << 20;  // bytes of each block
constexpr int most_blocks = 32;

void check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(result));
  std::exit(1);
}
#define CHECK(call) check(call, #call)

__global__ void stores(char* to, const char*) {
  auto* target = reinterpret_cast<uint4*>(to + blockIdx.x * share);
  const uint4 value{1, 2, 3, threadIdx.x};
  for (uint64_t at = threadIdx.x; at < share / 16; at += blockDim.x) target[at] = value;
}

__global__ void copy(char* to, const char* from) {
  constexpr int loads = 8;
  auto* target = reinterpret_cast<uint4*>(to + blockIdx.x * share);
  auto* source = reinterpret_cast<const uint4*>(from + blockIdx.x * share);
  for (uint64_t at = threadIdx.x; at < share / 16; at += loads * blockDim.x) {
    uint4 held[loads];
#pragma unroll
    for (int i = 0; i < loads; ++i) held[i] = source[at + i * blockDim.x];
#pragma unroll
    for (int i = 0; i < loads; ++i) target[at + i * blockDim.x] = held[i];
  }
}

__device__ uint32_t shared_address(const void* at) { return uint32_t(__cvta_generic_to_shared(at)); }

// By one thread. A stage is loaded again when its bytes have been read for the copy that goes out.
template <int stages, int bytes>
__global__ void bulk(char* to, const char* from) {
  extern __shared__ __align__(128) char stage[];
  __shared__ uint64_t loaded[stages];
  constexpr uint64_t pieces = share / bytes;
  to += blockIdx.x * share, from += blockIdx.x * share;
  for (int i = 0; i < stages; ++i) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(&loaded[i])));
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  const auto load = [&](uint64_t i) {
    const uint32_t barrier = shared_address(&loaded[i % stages]);
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(stage + i % stages * bytes)),
                 "l"(from + i * bytes), "r"(bytes), "r"(barrier)
                 : "memory");
  };
  for (uint64_t i = 0; i < stages - 1; ++i) load(i);
  for (uint64_t i = 0; i < pieces; ++i) {
    for (uint32_t there = 0; !there;) {
      asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                   : "=r"(there)
                   : "r"(shared_address(&loaded[i % stages])), "r"(uint32_t(i / stages & 1))
                   : "memory");
    }
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to + i * bytes),
                 "r"(shared_address(stage + i % stages * bytes)), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    if (i + stages - 1 < pieces) {
      asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
      load(i + stages - 1);
    }
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

struct Way {
  std::string name;
  void (*kernel)(char*, const char*);
  int threads, shared;
};

template <int stages, int bytes>
Way bulk_way() {
  CHECK(cudaFuncSetAttribute(bulk<stages, bytes>, cudaFuncAttributeMaxDynamicSharedMemorySize, stages * bytes));
  return {"bulk " + std::to_string(stages) + " x " + std::to_string(bytes >> 10) + " KiB", bulk<stages, bytes>, 1,
          stages * bytes};
}

double rate(const Way& way, int blocks, char* to, const char* from) {
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  std::vector<float> times(9);
  for (float& ms : times) {
    CHECK(cudaEventRecord(begin));
    way.kernel<<<blocks, way.threads, way.shared>>>(to, from);
    CHECK(cudaEventRecord(end));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaEventElapsedTime(&ms, begin, end));
  }
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  std::nth_element(times.begin(), times.begin() + 4, times.end());
  return double(blocks * share) / 1e6 / times[4];
}

// Memory of a GPU, as GPU 0 reaches it; nullptr where it does not.
char* memory_of(int gpu) {
  int reached = gpu == 0;
  if (gpu) CHECK(cudaDeviceCanAccessPeer(&reached, 0, gpu));
  if (!reached) return nullptr;
  char* memory = nullptr;
  CHECK(cudaSetDevice(gpu));
  CHECK(cudaMalloc(&memory, most_blocks * share));
  CHECK(cudaSetDevice(0));
  if (gpu) CHECK(cudaDeviceEnablePeerAccess(gpu, 0));
  return memory;
}

}  // namespace

int main() {
  int gpus = 0;
  CHECK(cudaGetDeviceCount(&gpus));
  CHECK(cudaSetDevice(0));
  char* from = memory_of(0);
  const Way ways[] = {{"stores", stores, 1024, 0}, {"copy", copy, 512, 0}, bulk_way<4, 4096>(),
                      bulk_way<4, 16384>(),        bulk_way<8, 8192>(),    bulk_way<12, 16384>()};
  const char* separator = "";
  std::printf("{");
  for (int gpu = 0; gpu < std::min(gpus, 2); ++gpu) {
    char* to = memory_of(gpu);
    if (!to) continue;
    for (const Way& way : ways) {
      for (int blocks : {1, 8, most_blocks}) {
        std::printf("%s\n  \"%s, %s, %d blocks\": %.1f", separator, gpu ? "peer" : "own", way.name.c_str(), blocks,
                    rate(way, blocks, to, from));
        separator = ",";
      }
    }
  }
  std::printf("\n}\n");
}
