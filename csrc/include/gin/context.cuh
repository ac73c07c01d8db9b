// The device API. Every operation is declared and documented here; the bodies are in impl/.
//
//   extern "C" __global__ void shift(gin::Comm comm, gin::Window dst) {
//     gin::Context net(comm);
//     net.put_value((net.rank() + 1) % net.size(), dst, 0, net.rank(), gin::signal_inc{0});
//     net.wait(gin::thread, 0, 1);
//   }
//
// Sizes and offsets are bytes, 64-bit. Operations return at once unless they say that they wait. `coop` is gin::thread,
// gin::warp or gin::block: all of its threads call with equal arguments, and the call begins and ends with a
// synchronisation of the group, so what the group wrote to a source beforehand is sent. The caller's own rank is a legal
// peer. Nothing is ordered across contexts. GIN_SITE is where the call stands, for the simulator's stories; elsewhere it is
// nothing.
#pragma once

#include "backend.cuh"
#include "platform/sim.cuh"

namespace gin {

// What wait_any found: the position in `ids` of a signal that is far enough, unless the status says that none got there.
struct Found {
  Status status;
  uint32_t index;
};

// Who is to send what a wait waits for.
struct from {
  uint32_t peer;
};

class Context {
 public:
  // A context by number, 0 to comm.contexts - 1. Free to construct; any thread may use any context.
  GIN_DEVICE explicit Context(const Comm& comm, uint32_t index = 0) : comm_(comm), index_(index) {}

  GIN_DEVICE uint32_t rank() const { return comm_.rank; }
  GIN_DEVICE uint32_t size() const { return comm_.size; }
  GIN_DEVICE uint32_t index() const { return index_; }
  GIN_DEVICE const Comm& comm() const { return comm_; }

  // -- moving bytes --------------------------------------------------------------------------------------------------

  // Copies `bytes` from this rank's `src` to `dst` of `peer`. The source may be reused after flush, a waited ticket or the
  // counter; the bytes have settled when the peer sees the signal this put carries, or one ordered after it.
  //   remote  none, signal_inc{id}, signal_add{id, v}, or ordered(one of these)
  //   local   none, counter_inc{id}
  // 0 bytes still signal and count. Puts over the backend's message limit are split; the signal covers all pieces.
  // All backends.
  template <class Coop, class Remote = None, class Local = None>
  GIN_DEVICE void put(
      Coop coop, uint32_t peer, const Window& dst, uint64_t dst_offset, const Window& src, uint64_t src_offset,
      uint64_t bytes, Remote remote = {}, Local local = {} GIN_SITE) const;

  // Writes a value of 1 to 8 bytes, trivially copyable, by one thread. Nothing to flush. All backends.
  template <class T, class Remote = None>
  GIN_DEVICE void put_value(
      uint32_t peer, const Window& dst, uint64_t offset, T value, Remote remote = {} GIN_SITE) const;

  // Copies `bytes` from `src` of `peer` to this rank's `dst`, readable after flush or a waited ticket. All backends.
  template <class Coop>
  GIN_DEVICE void get(Coop coop, uint32_t peer, const Window& src, uint64_t src_offset, const Window& dst,
                      uint64_t dst_offset, uint64_t bytes GIN_SITE) const;

  // `count` elements of `element` bytes, whose beginnings lie the given strides (bytes) apart at either side. A signal
  // covers all of them. All backends; as many puts or gets as elements.
  template <class Coop, class Remote = None>
  GIN_DEVICE void iput(
      Coop coop, uint32_t peer, const Window& dst, uint64_t dst_offset, uint64_t dst_stride, const Window& src,
      uint64_t src_offset, uint64_t src_stride, uint64_t element, uint64_t count, Remote remote = {} GIN_SITE) const;
  template <class Coop>
  GIN_DEVICE void iget(Coop coop, uint32_t peer, const Window& src, uint64_t src_offset, uint64_t src_stride,
                       const Window& dst, uint64_t dst_offset, uint64_t dst_stride, uint64_t element,
                       uint64_t count GIN_SITE) const;

  // Where `peer`'s memory at `offset` can be loaded and stored from here, or nullptr.
  GIN_DEVICE void* peer_pointer(const Window& window, uint64_t offset, uint32_t peer) const;

  // -- signals -------------------------------------------------------------------------------------------------------
  // A signal belongs to (context, id), the same on both sides, and only grows. id is 0 to comm.signals - 1.

  // Adds to a signal of the peer. Weak: says nothing about puts. ordered(...): visible only after every earlier put of this
  // context to that peer has settled. By one thread. All backends.
  template <class Remote>
  GIN_DEVICE void signal(uint32_t peer, Remote remote GIN_SITE) const;

  // Waits until the signal is at least `least`. What it covers may then be read by the whole group. All backends.
  //   timeout_ns  the deadline; by default the communicator's. 0 waits without one
  template <class Coop>
  GIN_DEVICE Status wait(Coop coop, uint32_t id, uint64_t least GIN_SITE) const;
  template <class Coop>
  GIN_DEVICE Status wait(Coop coop, uint32_t id, uint64_t least, uint64_t timeout_ns GIN_SITE) const;

  // The same for a signal that one peer sends: the story of a wait that fails names the peer. With on_peer_failure=peer the
  // wait ends with Code::remote, and the job goes on, once the peer is lost and what it sent before is not enough. All
  // backends.
  template <class Coop>
  GIN_DEVICE Status wait(Coop coop, uint32_t id, uint64_t least, from sender GIN_SITE) const;
  template <class Coop>
  GIN_DEVICE Status wait(Coop coop, uint32_t id, uint64_t least, from sender, uint64_t timeout_ns GIN_SITE) const;

  // The signal's value now; what it covers may be read by the calling thread.
  GIN_DEVICE uint64_t read(uint32_t id GIN_SITE) const;

  // Whether the signal is at least `least` now; what it covers may be read by the calling thread.
  GIN_DEVICE bool test(uint32_t id, uint64_t least GIN_SITE) const { return read(id GIN_SITE_PASS) >= least; }

  // Waits until signal ids[i] is at least least[i]: for some i, which is returned; for every i; or for one or more, of which
  // the positions are written to `which` and the number is returned through `found`. Arrays of `count`, readable by the
  // whole group. None to wait for is done at once: wait_any then finds the position `count`.
  template <class Coop>
  GIN_DEVICE Found wait_any(Coop coop, const uint32_t* ids, const uint64_t* least, uint32_t count GIN_SITE) const;
  template <class Coop>
  GIN_DEVICE Status wait_all(Coop coop, const uint32_t* ids, const uint64_t* least, uint32_t count GIN_SITE) const;
  template <class Coop>
  GIN_DEVICE Status wait_some(Coop coop, const uint32_t* ids, const uint64_t* least, uint32_t count, uint32_t* which,
                              uint32_t* found GIN_SITE) const;

  // The largest value that a wait on this signal was satisfied with; 0 at first. Kept by the library over launches, so that
  // `wait(coop, id, epoch(id) + n)` waits for the next n without any reset, however early the peer sent them.
  GIN_DEVICE uint64_t epoch(uint32_t id) const;

  // Takes the signal back to 0, and its epoch, and returns what it was. Additions that arrive meanwhile are kept. By one
  // thread, while no other thread of this rank waits for the signal.
  GIN_DEVICE uint64_t reset(uint32_t id GIN_SITE) const;

  // -- counters: local completion of the puts that named one ------------------------------------------------------------

  template <class Coop>
  GIN_DEVICE Status wait_counter(Coop coop, uint32_t id, uint64_t least GIN_SITE) const;
  GIN_DEVICE uint64_t read_counter(uint32_t id GIN_SITE) const;
  GIN_DEVICE bool test_counter(uint32_t id, uint64_t least GIN_SITE) const {
    return read_counter(id GIN_SITE_PASS) >= least;
  }
  GIN_DEVICE uint64_t reset_counter(uint32_t id GIN_SITE) const;

  // -- peers that fail -------------------------------------------------------------------------------------------------

  // Whether nothing has failed that concerns the peer: with on_peer_failure=peer (capability `peer_failure`) the peer itself,
  // otherwise anything in the job. What is sent to a lost peer is dropped: its puts and gets end, its counters count, its
  // atomics return 0. On a GPU a look at host memory where peers may be lost. All backends.
  GIN_DEVICE bool alive(uint32_t peer) const;

  // -- completion and order ------------------------------------------------------------------------------------------

  // Waits until the sources of this context's puts may be reused and its gets have landed, those from lost peers apart. Says
  // nothing about targets.
  template <class Coop>
  GIN_DEVICE Status flush(Coop coop GIN_SITE) const;

  // The same for one peer without waiting: test or wait for the ticket. By one thread. A test asks the library, and takes as
  // long as its answer: on nvshmem a quiet, on nccl_gin up to some milliseconds while gets are under way. A wait for the ticket
  // of a lost peer ends with Code::remote.
  GIN_DEVICE Ticket flush_async(uint32_t peer GIN_SITE) const;
  GIN_DEVICE bool test(Ticket& ticket GIN_SITE) const;
  template <class Coop>
  GIN_DEVICE Status wait(Coop coop, Ticket ticket GIN_SITE) const;

  // What this context sends after it settles after what it sent before, per peer. May wait.
  template <class Coop>
  GIN_DEVICE Status fence(Coop coop GIN_SITE) const;

  // Waits until everything this context sent has settled. Capability `quiet`.
  template <class Coop>
  GIN_DEVICE Status quiet(Coop coop GIN_SITE) const;

  // Waits until every rank of `team` has entered. With `drain`, what this context sent before has settled, on every rank,
  // when it returns. One group of a rank at a time per index; an index, 0 to comm.barriers - 1, serves one team. Ends with
  // Code::remote once a member is lost and not all have entered; its members may then see different ends.
  template <class Coop>
  GIN_DEVICE Status barrier(Coop coop, Team team = {}, uint32_t index = 0, bool drain = true GIN_SITE) const;

  // -- atomics on a peer's window, 4 or 8 bytes, aligned, by one thread; they wait for the old value ----------------------
  // Capability `atomics`. Atomic with one another, not with loads and stores of the window's owner.

  template <class T>
  GIN_DEVICE T atomic_fetch_add(uint32_t peer, const Window& dst, uint64_t offset, T value GIN_SITE) const;
  template <class T>
  GIN_DEVICE T atomic_compare_swap(uint32_t peer, const Window& dst, uint64_t offset, T expected,
                                   T desired GIN_SITE) const;
  template <class T>
  GIN_DEVICE T atomic_swap(uint32_t peer, const Window& dst, uint64_t offset, T value GIN_SITE) const;
  template <class T>
  GIN_DEVICE T atomic_fetch_and(uint32_t peer, const Window& dst, uint64_t offset, T value GIN_SITE) const;
  template <class T>
  GIN_DEVICE T atomic_fetch_or(uint32_t peer, const Window& dst, uint64_t offset, T value GIN_SITE) const;
  template <class T>
  GIN_DEVICE T atomic_fetch_xor(uint32_t peer, const Window& dst, uint64_t offset, T value GIN_SITE) const;

 private:
  GIN_DEVICE impl::Channel channel() const { return {comm_, index_}; }

  const Comm& comm_;
  uint32_t index_;
};

}  // namespace gin
