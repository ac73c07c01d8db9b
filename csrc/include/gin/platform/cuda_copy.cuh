// The CUDA platform's copy by a group, in plain C++: its test runs on any machine.
#pragma once

#include <cstdint>

#include "../status.h"

namespace gin::platform {

namespace detail {

struct alignas(16) Line {  // the widest access
  uint64_t word[2];
};

// Which thread of the group this is, of how many.
struct Share {
  uint32_t rank, size;
};

// `units` of T, at places aligned for it. A thread's loads are under way together before its first store: one after the other
// each would take the memory's latency, as the compiler has to take a store for one to the next source.
template <class T>
GIN_DEVICE void copy_units(Share share, void* to, const void* from, uint64_t units) {
  constexpr uint32_t loads = 8;  // 256 threads then fill an SM's link
  const uint64_t step = share.size;
  const T* source = static_cast<const T*>(from);
  T* target = static_cast<T*>(to);
  uint64_t at = share.rank;
  for (; at + (loads - 1) * step < units; at += loads * step) {
    T held[loads];
    GIN_UNROLLED for (uint32_t i = 0; i < loads; ++i) held[i] = source[at + i * step];
    GIN_UNROLLED for (uint32_t i = 0; i < loads; ++i) target[at + i * step] = held[i];
  }
  if (at >= units) return;
  T held[loads - 1] = {};  // the last ones, fewer
  GIN_UNROLLED for (uint32_t i = 0; i < loads - 1; ++i) {
    if (at + i * step < units) held[i] = source[at + i * step];
  }
  GIN_UNROLLED for (uint32_t i = 0; i < loads - 1; ++i) {
    if (at + i * step < units) target[at + i * step] = held[i];
  }
}

// What lies before the first whole unit (rising) or behind the last one, `bytes` below 16: one access for each bit of it, so
// ordered that each is aligned.
GIN_DEVICE void copy_edge(Share share, char* to, const char* from, uint32_t bytes, bool rising) {
  for (uint32_t bit = share.rank; bit < 4; bit += share.size) {
    const uint32_t piece = 1u << bit;
    if (!(bytes & piece)) continue;
    const uint32_t at = bytes & (rising ? piece - 1 : ~(2 * piece - 1));
    char* target = to + at;
    const char* source = from + at;
    switch (piece) {
      case 8:
        *reinterpret_cast<uint64_t*>(target) = *reinterpret_cast<const uint64_t*>(source);
        break;
      case 4:
        *reinterpret_cast<uint32_t*>(target) = *reinterpret_cast<const uint32_t*>(source);
        break;
      case 2:
        *reinterpret_cast<uint16_t*>(target) = *reinterpret_cast<const uint16_t*>(source);
        break;
      default:
        *target = *source;
    }
  }
}

// With the widest access that both addresses allow. Not inlined: there is much of it, and what else a kernel does would lie far
// apart.
GIN_DEVICE_CALL void copy_any(uint32_t rank, uint32_t size, char* to, const char* from, uint64_t bytes) {
  const Share share{rank, size};
  const uintptr_t apart = reinterpret_cast<uintptr_t>(to) ^ reinterpret_cast<uintptr_t>(from);
  // Not above `bytes`, so that what comes before the first whole unit is part of them.
  const uint32_t unit = apart % 16 == 0 && bytes >= 16 ? 16
                        : apart % 8 == 0 && bytes >= 8 ? 8
                        : apart % 4 == 0 && bytes >= 4 ? 4
                                                       : 1;
  const uint32_t head = (0u - uint32_t(reinterpret_cast<uintptr_t>(to))) & (unit - 1);
  if (head) {
    copy_edge(share, to, from, head, true);
    to += head, from += head, bytes -= head;
  }
  if (unit == 16) {
    copy_units<Line>(share, to, from, bytes / 16);
  } else if (unit == 8) {
    copy_units<uint64_t>(share, to, from, bytes / 8);
  } else if (unit == 4) {
    copy_units<uint32_t>(share, to, from, bytes / 4);
  } else {
    copy_units<char>(share, to, from, bytes);
  }
  const uint32_t tail = uint32_t(bytes) & (unit - 1);
  if (tail) copy_edge(share, to + (bytes - tail), from + (bytes - tail), tail, false);
}

}  // namespace detail

// The group copies.
template <class Coop>
GIN_DEVICE void copy(Coop coop, void* to_, const void* from_, uint64_t bytes) {
  char* to = static_cast<char*>(to_);
  const char* from = static_cast<const char*>(from_);
  const bool words = (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes) % 8 == 0;
  if (words &&
      bytes <= 8 * uint64_t(coop.size())) {  // small messages, whose latency counts: one word of a thread at most
    const uint64_t at = 8 * uint64_t(coop.rank());
    if (at < bytes) *reinterpret_cast<uint64_t*>(to + at) = *reinterpret_cast<const uint64_t*>(from + at);
  } else {
    detail::copy_any(uint32_t(coop.rank()), uint32_t(coop.size()), to, from, bytes);
  }
}

}  // namespace gin::platform
