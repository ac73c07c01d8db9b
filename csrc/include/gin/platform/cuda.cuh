// The CUDA platform's share of the device API.
#pragma once

#include <cstdint>

#include "../comm.h"

namespace gin::platform {

// A wait in progress. Long ones look less often: thousands of looks at one word keep its writer from writing it, above all
// across PCIe, where the words of flush and quiet lie. Short ones, whose latency counts, are not delayed.
class Waiting {
 public:
  GIN_DEVICE Waiting(Operation operation, uint32_t, uint64_t)
      : far_(operation != Operation::wait && operation != Operation::barrier) {}

  GIN_DEVICE void poll() {
    constexpr uint32_t eager_near = 128, eager_far = 16;  // looks, of half a microsecond and of one
    if (++looks_ > (far_ ? eager_far : eager_near)) __nanosleep(far_ ? 4000 : 500);
  }

 private:
  const bool far_;
  uint32_t looks_ = 0;
};

GIN_DEVICE uint64_t clock_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

GIN_DEVICE void overdue() {}

constexpr uint32_t polls_per_clock = 64, polls_per_failure = 16;

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

namespace detail {

template <class T, class Coop>
GIN_DEVICE uint64_t copy_units(Coop coop, char* to, const char* from, uint64_t bytes) {
  constexpr uint32_t unroll =
      8;  // loads in flight per thread before the first store: 256 threads then fill an SM's link
  const uint64_t units = bytes / sizeof(T), step = uint64_t(coop.size());
  const T* source = reinterpret_cast<const T*>(from);
  T* target = reinterpret_cast<T*>(to);
  uint64_t at = coop.rank();
  for (; at + (unroll - 1) * step < units; at += unroll * step) {
    T held[unroll];
#pragma unroll
    for (uint32_t i = 0; i < unroll; ++i) held[i] = source[at + i * step];
#pragma unroll
    for (uint32_t i = 0; i < unroll; ++i) target[at + i * step] = held[i];
  }
  for (; at < units; at += step) target[at] = source[at];
  return units * sizeof(T);
}

}  // namespace detail

// The group copies with the widest access that both addresses allow.
template <class Coop>
GIN_DEVICE void copy(Coop coop, void* to_, const void* from_, uint64_t bytes) {
  char* to = static_cast<char*>(to_);
  const char* from = static_cast<const char*>(from_);
  const uintptr_t apart = reinterpret_cast<uintptr_t>(to) ^ reinterpret_cast<uintptr_t>(from);
  uint64_t done = 0;
  if (apart % 4 == 0) {
    const uint64_t unit = apart % 16 == 0 ? 16 : apart % 8 == 0 ? 8 : 4;
    uint64_t head = (unit - reinterpret_cast<uintptr_t>(to) % unit) % unit;
    if (head > bytes) head = bytes;
    detail::copy_units<char>(coop, to, from, head);
    done = head;
    if (unit == 16) {
      done += detail::copy_units<uint4>(coop, to + done, from + done, bytes - done);
    } else if (unit == 8) {
      done += detail::copy_units<uint2>(coop, to + done, from + done, bytes - done);
    } else {
      done += detail::copy_units<uint32_t>(coop, to + done, from + done, bytes - done);
    }
  }
  detail::copy_units<char>(coop, to + done, from + done, bytes - done);
}

}  // namespace gin::platform
