// The primitives on NVSHMEM's device API: a symmetric heap addressed by pointer. NVSHMEM keeps no contexts; a context here
// is a set of signal words. Windows lie at equal heap offsets on every rank, so a peer's place is this rank's own address.
#pragma once

#include <nvshmem.h>
#include <nvshmemx.h>

#include "gin/impl/count.cuh"
#include "gin/impl/pieces.cuh"
#include "gin/impl/wait.cuh"

namespace gin {

namespace nvshmem {

// NVSHMEM names the group in the function; these give it as an argument again. A partial warp acts through its leader.
template <class Coop>
struct Group {
  GIN_DEVICE static bool acts(Coop coop) { return coop.leader(); }
  GIN_DEVICE static void put_nbi(void* to, const void* from, size_t n, int pe) { nvshmem_putmem_nbi(to, from, n, pe); }
  GIN_DEVICE static void put(void* to, const void* from, size_t n, int pe) { nvshmem_putmem(to, from, n, pe); }
  GIN_DEVICE static void put_signal_nbi(void* to, const void* from, size_t n, uint64_t* word, uint64_t add, int pe) {
    nvshmem_putmem_signal_nbi(to, from, n, word, add, NVSHMEM_SIGNAL_ADD, pe);
  }
  GIN_DEVICE static void put_signal(void* to, const void* from, size_t n, uint64_t* word, uint64_t add, int pe) {
    nvshmem_putmem_signal(to, from, n, word, add, NVSHMEM_SIGNAL_ADD, pe);
  }
  GIN_DEVICE static void get_nbi(void* to, const void* from, size_t n, int pe) { nvshmem_getmem_nbi(to, from, n, pe); }
};

template <>
struct Group<Block> {
  GIN_DEVICE static bool acts(Block) { return true; }
  GIN_DEVICE static void put_nbi(void* to, const void* from, size_t n, int pe) {
    nvshmemx_putmem_nbi_block(to, from, n, pe);
  }
  GIN_DEVICE static void put(void* to, const void* from, size_t n, int pe) { nvshmemx_putmem_block(to, from, n, pe); }
  GIN_DEVICE static void put_signal_nbi(void* to, const void* from, size_t n, uint64_t* word, uint64_t add, int pe) {
    nvshmemx_putmem_signal_nbi_block(to, from, n, word, add, NVSHMEM_SIGNAL_ADD, pe);
  }
  GIN_DEVICE static void put_signal(void* to, const void* from, size_t n, uint64_t* word, uint64_t add, int pe) {
    nvshmemx_putmem_signal_block(to, from, n, word, add, NVSHMEM_SIGNAL_ADD, pe);
  }
  GIN_DEVICE static void get_nbi(void* to, const void* from, size_t n, int pe) {
    nvshmemx_getmem_nbi_block(to, from, n, pe);
  }
};

struct FullWarp : Warp {};

template <>
struct Group<FullWarp> {
  GIN_DEVICE static bool acts(FullWarp) { return true; }
  GIN_DEVICE static void put_nbi(void* to, const void* from, size_t n, int pe) {
    nvshmemx_putmem_nbi_warp(to, from, n, pe);
  }
  GIN_DEVICE static void put(void* to, const void* from, size_t n, int pe) { nvshmemx_putmem_warp(to, from, n, pe); }
  GIN_DEVICE static void put_signal_nbi(void* to, const void* from, size_t n, uint64_t* word, uint64_t add, int pe) {
    nvshmemx_putmem_signal_nbi_warp(to, from, n, word, add, NVSHMEM_SIGNAL_ADD, pe);
  }
  GIN_DEVICE static void put_signal(void* to, const void* from, size_t n, uint64_t* word, uint64_t add, int pe) {
    nvshmemx_putmem_signal_warp(to, from, n, word, add, NVSHMEM_SIGNAL_ADD, pe);
  }
  GIN_DEVICE static void get_nbi(void* to, const void* from, size_t n, int pe) {
    nvshmemx_getmem_nbi_warp(to, from, n, pe);
  }
};

template <class Coop>
GIN_DEVICE void put(impl::Channel channel, Coop coop, uint32_t peer, void* to, const void* from, uint64_t bytes,
                    uint64_t* word, uint64_t add, uint32_t counter) {
  using G = Group<Coop>;
  const int pe = int(peer);
  if (G::acts(coop)) {
    // A put that counts completes first: NVSHMEM has no completion of a single operation.
    if (counter != impl::no_counter) {
      word ? G::put_signal(to, from, bytes, word, add, pe) : G::put(to, from, bytes, pe);
    } else {
      word ? G::put_signal_nbi(to, from, bytes, word, add, pe) : G::put_nbi(to, from, bytes, pe);
    }
  }
  if (counter != impl::no_counter) {
    coop.sync();
    if (coop.leader()) impl::count(channel, counter);
  }
}

GIN_DEVICE void store(uint64_t value, uint32_t bytes, void* to, int pe) {
  switch (bytes) {
    case 8:
      return nvshmem_uint64_p(static_cast<uint64_t*>(to), value, pe);
    case 4:
      return nvshmem_uint32_p(static_cast<uint32_t*>(to), uint32_t(value), pe);
    case 2:
      return nvshmem_uint16_p(static_cast<uint16_t*>(to), uint16_t(value), pe);
    default:
      return nvshmem_uint8_p(static_cast<uint8_t*>(to), uint8_t(value), pe);
  }
}

}  // namespace nvshmem

struct Backend {
#define GIN_CAPABILITY(name, value) static constexpr bool name##_supported = value;
#include "capabilities.h"
#undef GIN_CAPABILITY

  GIN_DEVICE static uint64_t* word(impl::Channel channel, uint32_t id) {
    return static_cast<uint64_t*>(channel.comm.control.local(channel.comm.layout().native(channel.index, id)));
  }

  template <class Coop>
  GIN_DEVICE static void put(impl::Channel channel, Coop coop, uint32_t peer, const Window& dst, uint64_t dst_offset,
                             const Window& src, uint64_t src_offset, uint64_t bytes, impl::Signal signal,
                             uint32_t counter) {
    if (signal.ordered) {
      if (coop.leader()) nvshmem_fence();
      coop.sync();
    }
    void* to = dst.local(dst_offset);
    const void* from = src.local(src_offset);
    uint64_t* at = signal.present ? word(channel, signal.id) : nullptr;
    nvshmem::put(channel, coop, peer, to, from, bytes, at, signal.add, counter);
  }

  GIN_DEVICE static void put(impl::Channel channel, Warp coop, uint32_t peer, const Window& dst, uint64_t dst_offset,
                             const Window& src, uint64_t src_offset, uint64_t bytes, impl::Signal signal,
                             uint32_t counter) {
    if (coop.size() == 32) {
      put(channel, nvshmem::FullWarp{}, peer, dst, dst_offset, src, src_offset, bytes, signal, counter);
    } else {
      put<Warp>(channel, coop, peer, dst, dst_offset, src, src_offset, bytes, signal, counter);
    }
  }

  template <class Coop>
  GIN_DEVICE static void get(impl::Channel, Coop coop, uint32_t peer, const Window& src, uint64_t src_offset,
                             const Window& dst, uint64_t dst_offset, uint64_t bytes) {
    using G = nvshmem::Group<Coop>;
    if (G::acts(coop)) G::get_nbi(dst.local(dst_offset), src.local(src_offset), bytes, int(peer));
  }

  GIN_DEVICE static void put_value(impl::Channel channel, uint32_t peer, const Window& dst, uint64_t offset,
                                   uint64_t value, uint32_t bytes, impl::Signal remote) {
    if (remote.ordered) nvshmem_fence();
    char* to = static_cast<char*>(dst.local(offset));
    // Where a peer is mapped, a typed put is a plain store, which faults at a place that is not aligned.
    impl::for_each_piece(
        value, bytes, reinterpret_cast<uint64_t>(to),
        [&](uint64_t piece, uint32_t size, uint32_t at, bool) { nvshmem::store(piece, size, to + at, int(peer)); });
    // Nothing bundles a value with a signal, so a fence stands between them.
    if (remote.present) signal(channel, peer, {true, true, remote.id, remote.add});
  }

  GIN_DEVICE static void signal(impl::Channel channel, uint32_t peer, impl::Signal signal) {
    if (signal.ordered) nvshmem_fence();
    nvshmemx_signal_op(word(channel, signal.id), signal.add, NVSHMEM_SIGNAL_ADD, int(peer));
  }

  GIN_DEVICE static uint64_t signal_value(impl::Channel channel, uint32_t id) {
    return impl::load_acquire(word(channel, id));
  }

  GIN_DEVICE static uint64_t counter_value(impl::Channel, uint32_t) { return 0; }

  GIN_DEVICE static Ticket flush_begin(impl::Channel, uint32_t peer) { return {{0, 0}, peer, true}; }

  // NVSHMEM can only wait, for everything.
  GIN_DEVICE static bool flush_done(impl::Channel channel, Ticket& ticket) {
    if (impl::failed(channel.comm)) return false;  // it would wait without end for what is lost
    nvshmem_quiet();
    ticket.native = false;
    return true;
  }

  GIN_DEVICE static Status fence(impl::Channel channel) {
    if (impl::failed(channel.comm)) return impl::failure(channel.comm);
    nvshmem_fence();
    return {};
  }

  GIN_DEVICE static Status quiet(impl::Channel channel) {
    if (impl::failed(channel.comm)) return impl::failure(channel.comm);
    nvshmem_quiet();
    return {};
  }

  GIN_DEVICE static uint64_t atomic(impl::Channel, uint32_t peer, const Window& dst, uint64_t offset, AtomicOp op,
                                    uint32_t bytes, uint64_t operand, uint64_t compare) {
    const int pe = int(peer);
    if (bytes == 4) {
      auto* at = static_cast<uint32_t*>(dst.local(offset));
      const uint32_t value = uint32_t(operand);
      switch (op) {
        case AtomicOp::fetch_add:
          return nvshmem_uint32_atomic_fetch_add(at, value, pe);
        case AtomicOp::compare_swap:
          return nvshmem_uint32_atomic_compare_swap(at, uint32_t(compare), value, pe);
        case AtomicOp::swap:
          return nvshmem_uint32_atomic_swap(at, value, pe);
        case AtomicOp::fetch_and:
          return nvshmem_uint32_atomic_fetch_and(at, value, pe);
        case AtomicOp::fetch_or:
          return nvshmem_uint32_atomic_fetch_or(at, value, pe);
        case AtomicOp::fetch_xor:
          return nvshmem_uint32_atomic_fetch_xor(at, value, pe);
      }
      return 0;
    }
    auto* at = static_cast<uint64_t*>(dst.local(offset));
    switch (op) {
      case AtomicOp::fetch_add:
        return nvshmem_uint64_atomic_fetch_add(at, operand, pe);
      case AtomicOp::compare_swap:
        return nvshmem_uint64_atomic_compare_swap(at, compare, operand, pe);
      case AtomicOp::swap:
        return nvshmem_uint64_atomic_swap(at, operand, pe);
      case AtomicOp::fetch_and:
        return nvshmem_uint64_atomic_fetch_and(at, operand, pe);
      case AtomicOp::fetch_or:
        return nvshmem_uint64_atomic_fetch_or(at, operand, pe);
      case AtomicOp::fetch_xor:
        return nvshmem_uint64_atomic_fetch_xor(at, operand, pe);
    }
    return 0;
  }

  GIN_DEVICE static void* peer_pointer(impl::Channel channel, const Window& window, uint64_t offset, uint32_t peer) {
    return impl::mapped(channel, window, offset, peer);
  }
};

}  // namespace gin
