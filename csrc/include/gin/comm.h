// The handles a kernel takes by value. Plain data with one layout in device code, host code and the Python binding.
#pragma once

#include <cstdint>

#include "status.h"

namespace gin {

// What this rank knows of one window on one peer.
struct PeerWindow {
  void* pointer;   // where the peer's memory can be loaded and stored from here, or nullptr
  uint64_t bytes;  // the window's size on that peer
};

constexpr uint32_t near_ranks = 8;  // of which a window's value has the pointers itself

// Registered memory: one per rank, sizes may differ by rank. A place in it is (window, byte offset).
struct Window {
  void* base;               // this rank's memory
  uint64_t bytes;           // its size on this rank
  uint64_t handle;          // the backend's name for it
  const PeerWindow* peers;  // one entry per rank, in device-readable memory
  // peers[rank].pointer of the first ranks. A kernel's parameters are in constant memory; `peers` has to be looked up anew in
  // the second-level cache after every acquire.
  void* near[near_ranks];

  // This rank's own memory at a byte offset.
  GIN_HD void* local(uint64_t offset = 0) const { return static_cast<char*>(base) + offset; }
};

// Where the words of one signal lie in the control window, which has the same layout on every rank: the words added to by
// load and store, and the words added to by the backend's own operations. The two kinds of adder never meet on a word; a
// signal's value is the sum of its two words. Behind them, for backends that prove settlement by asking the target: one word
// per sender to add to, and one per peer for the answer.
struct ControlLayout {
  uint32_t contexts, ids, size;

  GIN_HD uint64_t words() const { return uint64_t(contexts) * ids; }
  GIN_HD uint64_t direct(uint32_t context, uint32_t id) const { return 8 * (uint64_t(context) * ids + id); }
  GIN_HD uint64_t native(uint32_t context, uint32_t id) const { return 8 * words() + direct(context, id); }
  GIN_HD uint64_t settle(uint32_t context, uint32_t sender) const {
    return 16 * words() + 8 * (uint64_t(context) * size + sender);
  }
  GIN_HD uint64_t answer(uint32_t context, uint32_t peer) const {
    return settle(context, peer) + 8 * uint64_t(contexts) * size;
  }
  GIN_HD uint64_t bytes() const { return 16 * words() + 16 * uint64_t(contexts) * size; }
};

// A communicator as a kernel sees it.
struct Comm {
  // flags
  static constexpr uint32_t native_only = 1;  // route=native: never load and store a peer's memory
  static constexpr uint32_t all_direct = 2;   // every rank loads and stores every window of every rank
  static constexpr uint32_t mixed = 4;        // some window of a directly reachable peer is not itself reachable
  static constexpr uint32_t peers_fail = 8;   // on_peer_failure=peer: the loss of a peer is not the job's failure
  static constexpr uint32_t few = 16;         // at most near_ranks ranks

  uint32_t rank, size;
  uint32_t contexts, signals, counters, barriers;
  uint32_t rounds;  // signal words of one barrier index: two for one exchange, then ceil(log2(size)) for dissemination
  uint32_t flags;
  uint64_t timeout_ns;   // deadline of every wait, 0 for none
  uint64_t max_message;  // larger puts and gets are split
  Record* record;
  uint32_t* failed;        // nonzero once the job has failed; &record->state where the device reads host memory cheaply
  uint64_t* epoch;         // [contexts][signals] the largest value a wait was satisfied with
  uint64_t* base;          // [contexts][signals] what reset has taken off
  uint64_t* entered;       // [contexts][barriers][2] barriers this rank has entered, by exchange and by dissemination
  uint64_t* counter;       // [contexts][counters] completions counted by gin itself
  uint64_t* counter_base;  // [contexts][counters] what reset_counter has taken off
  Window control;
  const void* backend;  // the backend's own device-side state

  // Whether a flag is set. Known already when a kernel is compiled, where the communicator that it is for is open by then.
  GIN_HD bool has(uint32_t flag) const {
#if defined(GIN_COMM_FLAGS)
    return (GIN_COMM_FLAGS & flag) != 0;
#else
    return (flags & flag) != 0;
#endif
  }

  // With peers_fail: [size + 1] words behind the record, nonzero once that peer is lost; the last, once any is.
  GIN_HD uint32_t* lost() const { return reinterpret_cast<uint32_t*>(record + 1); }

  GIN_HD uint32_t ids() const { return signals + barriers * rounds; }
  GIN_HD ControlLayout layout() const { return {contexts, ids(), size}; }
};

}  // namespace gin
