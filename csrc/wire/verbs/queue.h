// One reliable-connection queue pair and the account of its work requests. Requests are numbered from 0 on; they end in
// order, so that one completion ends all up to it.
#pragma once

#include <cstdint>

#include "wire/verbs/core.h"

namespace gin::wire::verbs {

// What the end of a work request means.
struct Entry {
  enum class Ends : uint8_t { nothing, request, atomic };

  uint64_t token;
  Ends ends;
  bool writes;  // an RDMA write: its completion does not say that the target's memory has it
  bool trips;   // a read or atomic: its completion says that of all writes before it
  uint16_t slot;
};

struct Queue {
  QpHandle pair;
  uint32_t peer = 0;
  Entry* entries = nullptr;  // as many as the endpoint's depth
  bool connected = false;

  // counts of work requests
  uint64_t posted = 0, completed = 0, retired = 0;
  uint64_t wrote = 0, tripped = 0;   // after the last write and the last round trip that were posted
  uint64_t fetched = 0;              // after the last get or atomic with an answer that was posted
  uint64_t landed = 0, settled = 0;  // after the last write and the last round trip that were retired
  uint64_t goal = 0;                 // what landed was when it was first asked whether all has settled
  uint64_t fences_seen = 0;          // by relaxed writes
  uint64_t fences_met = 0,
           fence_goal = 0;   // the newest fence, and what was fetched before it, until something waits for that
  uint32_t held = 0;         // atomics that are held back; nothing is posted before them
  uint32_t emulated = 0;     // atomics that the device cannot do, which are posted again until they are done,
  uint64_t emulated_at = 0;  // and the fences before the last of them: nothing goes past a later one

  // From `failed_from` on requests have failed with `syndrome`.
  bool dead = false;
  bool told = false;  // somebody has been handed the failure
  uint64_t failed_from = 0, syndrome = 0;

  bool ready = false, unsettled = false;          // is on the endpoint's list
  ibv_send_wr *first = nullptr, *last = nullptr;  // the chain that is being built

  bool failed(uint64_t number) const { return dead && number >= failed_from; }
};

// Takes a new queue pair of an endpoint to the state where it sends. Throws gin::Error{remote or config} naming both ends.
void connect(Queue& queue, const Core& core, size_t endpoint);

// From a device here to the peer's of the same number, for messages: device, addresses, MTU.
std::string path(const Core& core, uint32_t device, uint32_t peer);

}  // namespace gin::wire::verbs
