// How an emulated library reaches its network card: a wire that the kernel's own OS thread posts to. Shared by the device
// headers here, which kernels include in place of the vendors', and by csrc/emulation/nic.cpp.
#pragma once

#include <cstdint>

#include "card.h"
#include "gin/coop.cuh"

namespace gin::emulation {

// Posts, giving the kernel's other threads their turn while the queue is full.
inline uint64_t submit(const Card& card, const wire::Request& request, uint64_t* counter = nullptr) {
  for (;;) {
    const uint64_t number = card.post(card.nic, &request, counter);
    if (number || __atomic_load_n(card.failed, __ATOMIC_RELAXED)) return number;
    host::yield();
  }
}

inline void finish(const Card& card, uint32_t context) {
  const uint64_t number = card.posted(card.nic, context);
  while (!card.completed(card.nic, context, number)) host::yield();
}

inline void settle(const Card& card, uint32_t context) {
  const uint64_t number = card.posted(card.nic, context);
  while (!card.settled(card.nic, context, number)) host::yield();
}

}  // namespace gin::emulation
