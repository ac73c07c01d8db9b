// What a backend owes on the device: `struct gin::Backend` in gin/backends/<name>/device.cuh with the members described
// here, found through GIN_BACKEND_HEADER. Everything else is written once on top of it (impl/), so a backend never sees the
// direct route, splitting, epochs, barriers or checks, and waits only through impl::wait_until.
#pragma once

#include <cstdint>

#include "action.cuh"
#include "comm.h"
#include "coop.cuh"

// 1: the backend has atomics, but not by the wire and route that it is compiled for.
#ifndef GIN_LACKS_ATOMICS
#define GIN_LACKS_ATOMICS 0
#endif

namespace gin {

enum class AtomicOp : uint32_t { fetch_add, compare_swap, swap, fetch_and, fetch_or, fetch_xor };

// A point in a context's stream of operations to one peer; see Context::flush_async.
struct Ticket {
  uint64_t word[2];
  uint32_t peer;
  bool native;        // false when there is nothing to wait for
  uint8_t looks = 0;  // of the backend's own
};

namespace impl {

// The context an operation belongs to. Passed to every primitive.
struct Channel {
  const Comm& comm;
  uint32_t index;
};

}  // namespace impl

// struct Backend {
//   // Constants, from the folder's capabilities.h: which optional operations exist.
//   static constexpr bool quiet_supported, atomics_supported, flush_covers_all_peers_supported, ...;
//
//   // Group primitives: called by all threads of `coop`, which have just synchronised; the group synchronises afterwards.
//   // bytes is 1 to comm.max_message. With a counter the backend adds 1 to it on local completion: natively, or by
//   // completing the put first and calling impl::count.
//   template <class Coop> static void put(Channel, Coop, uint32_t peer, const Window& dst, uint64_t dst_offset,
//                                         const Window& src, uint64_t src_offset, uint64_t bytes, Signal, uint32_t counter);
//   template <class Coop> static void get(Channel, Coop, uint32_t peer, const Window& src, uint64_t src_offset,
//                                         const Window& dst, uint64_t dst_offset, uint64_t bytes);
//
//   // Thread primitives.
//   static void put_value(Channel, uint32_t peer, const Window& dst, uint64_t offset, uint64_t value, uint32_t bytes, Signal);
//   static void signal(Channel, uint32_t peer, Signal);
//   static uint64_t signal_value(Channel, uint32_t id);    // this rank's native word, acquire at system scope
//   static uint64_t counter_value(Channel, uint32_t id);   // native completions, acquire
//   static Ticket flush_begin(Channel, uint32_t peer);     // everything so far to that peer
//   static bool flush_done(Channel, Ticket&);              // sources reusable, gets landed; waits a moment at most
//   static Status fence(Channel);                          // later operations settle after earlier ones, per peer
//   static Status quiet(Channel);                          // everything this context sent has settled
//   // With the capability `atomics` only.
//   static uint64_t atomic(Channel, uint32_t peer, const Window& dst, uint64_t offset, AtomicOp, uint32_t bytes,
//                          uint64_t operand, uint64_t compare);
//
//   // Where a peer's memory can be loaded and stored from here, or nullptr.
//   static void* peer_pointer(Channel, const Window&, uint64_t offset, uint32_t peer);
// };
struct Backend;

}  // namespace gin
