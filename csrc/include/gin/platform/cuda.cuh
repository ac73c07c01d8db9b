// The CUDA platform's share of the device API.
#pragma once

#include <cstdint>

#include "../comm.h"
#include "cuda_copy.cuh"

namespace gin::platform {

constexpr uint32_t polls_per_clock = 64, polls_per_failure = 16;

// A wait in progress. Long ones look less often: thousands of looks at one word keep its writer from writing it, above all
// across PCIe, where the words of flush and quiet lie. Short ones, whose latency counts, are not delayed.
class Waiting {
 public:
  GIN_DEVICE Waiting(Operation operation, uint32_t, uint64_t)
      : far_(operation != Operation::wait && operation != Operation::barrier) {}

  // After so many looks; how many may follow at once.
  GIN_DEVICE uint32_t pause(uint32_t polls) const {
    constexpr uint32_t eager_near = 128, eager_far = 16;  // looks, of half a microsecond and of one
    if (polls < (far_ ? eager_far : eager_near)) return polls_per_failure - polls % polls_per_failure;
    __nanosleep(far_ ? 4000 : 500);
    return 1;
  }

 private:
  const bool far_;
};

GIN_DEVICE uint64_t clock_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

GIN_DEVICE void overdue() {}

// What the host wrote before the kernel and nobody writes while it runs. The compiler may keep it in a register across
// acquires, each of which would otherwise cost a way to the second-level cache.
template <class T>
GIN_DEVICE T load_constant(const T* from) {
  static_assert(sizeof(T) % 8 == 0 && alignof(T) >= 8, "gin: in words of 8 bytes");
  unsigned long long words[sizeof(T) / 8];
#pragma unroll
  for (uint32_t i = 0; i < sizeof(T) / 8; ++i) words[i] = __ldg(reinterpret_cast<const unsigned long long*>(from) + i);
  T value;
  memcpy(&value, words, sizeof(T));
  return value;
}

}  // namespace gin::platform
