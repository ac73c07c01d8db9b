// How an emulated library reaches its network card: a wire that the kernel's own OS thread posts to. Shared by the device
// headers here, which kernels include in place of the vendors', and by csrc/emulation/nic.cpp.
#pragma once

#include <cstdint>

#include "card.h"
#include "gin/coop.cuh"

namespace gin::emulation {

// Waits, giving the kernel's other threads their turn: until it is done, the deadline has passed or the job has failed.
template <class Done>
void await(const Card& card, uint32_t context, Operation operation, Done done) {
  if (done()) return;
  host::Waiting waiting("the emulated library, in context {}", context);
  const uint64_t start = host::clock_ns();
  while (!done() && !__atomic_load_n(card.failed, __ATOMIC_RELAXED)) {
    if (card.timeout_ns && host::clock_ns() - start > card.timeout_ns)
      card.overdue(card.nic, context, operation, card.timeout_ns);
    waiting.poll();
  }
}

// Posts as soon as the queue has room.
inline uint64_t submit(const Card& card, const wire::Request& request, uint64_t* counter = nullptr) {
  uint64_t number = 0;
  await(card, request.context, Operation::put, [&] { return (number = card.post(card.nic, &request, counter)) != 0; });
  return number;
}

inline void finish(const Card& card, uint32_t context, uint64_t number) {
  await(card, context, Operation::flush, [&] { return card.completed(card.nic, context, number); });
}

inline void finish(const Card& card, uint32_t context) { finish(card, context, card.posted(card.nic, context)); }

inline void settle(const Card& card, uint32_t context) {
  const uint64_t number = card.posted(card.nic, context);
  await(card, context, Operation::quiet, [&] { return card.settled(card.nic, context, number); });
}

}  // namespace gin::emulation
