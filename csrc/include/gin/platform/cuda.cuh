// The CUDA platform's share of the device API.
#pragma once

#include <cstdint>

#include "../comm.h"

namespace gin::platform {

// A wait in progress.
struct Waiting {
  GIN_DEVICE Waiting(Operation, uint32_t, uint64_t) {}
  GIN_DEVICE void poll() const {}
};

GIN_DEVICE uint64_t clock_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

GIN_DEVICE void overdue() {}

constexpr uint32_t polls_per_clock = 64, polls_per_failure = 16;

namespace detail {

template <class T, class Coop>
GIN_DEVICE uint64_t copy_units(Coop coop, char* to, const char* from, uint64_t bytes) {
  constexpr uint32_t unroll = 4;  // loads in flight per thread before the first store
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
