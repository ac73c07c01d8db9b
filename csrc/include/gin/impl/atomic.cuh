// Atomics on a peer's window. All ranks take one route: load/store atomics and a NIC's never meet on a word.
#pragma once

#include "../context.cuh"
#include "check.cuh"
#include "route.cuh"

namespace gin {

namespace impl {

template <class T>
GIN_DEVICE T atomic(Channel channel, uint32_t peer, const Window& dst, uint64_t offset, AtomicOp op, T operand,
                    T compare = {}) {
  static_assert(Backend::atomics_supported && !GIN_LACKS_ATOMICS && sizeof(T),
                "gin: this backend has no atomics on a peer's window");
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "gin: atomics take 4 or 8 bytes");
  static_assert(T(1) / T(2) == T(0), "gin: atomics take integers");
  if (!check_peer(channel, Operation::atomic, peer) ||
      !check_place(channel, Operation::atomic, peer, dst, offset, sizeof(T)) ||
      (GIN_CHECK && offset % sizeof(T) && !refuse(channel, Operation::atomic, peer, 0, sizeof(T), offset))) {
    return T{};
  }
  if (never_native(channel.comm)) {
    return atomic_here(static_cast<T*>(direct_pointer(channel, dst, offset, peer)), op, operand, compare);
  }
  if constexpr (Backend::atomics_supported) {
    using Bits = typename Select<sizeof(T) == 8, uint64_t, uint32_t>::type;
    using Able = typename Select<sizeof(T) != 0, Backend, void>::type;  // looked up only where this is instantiated
    return T(Bits(Able::atomic(channel, peer, dst, offset, op, sizeof(T), Bits(operand), Bits(compare))));
  }
  return T{};
}

}  // namespace impl

template <class T>
GIN_DEVICE T Context::atomic_fetch_add(uint32_t peer, const Window& dst, uint64_t offset, T value GIN_SITE_HERE) const {
  GIN_CALL(true);
  return impl::atomic(channel(), peer, dst, offset, AtomicOp::fetch_add, value);
}

template <class T>
GIN_DEVICE T Context::atomic_compare_swap(uint32_t peer, const Window& dst, uint64_t offset, T expected,
                                          T desired GIN_SITE_HERE) const {
  GIN_CALL(true);
  return impl::atomic(channel(), peer, dst, offset, AtomicOp::compare_swap, desired, expected);
}

template <class T>
GIN_DEVICE T Context::atomic_swap(uint32_t peer, const Window& dst, uint64_t offset, T value GIN_SITE_HERE) const {
  GIN_CALL(true);
  return impl::atomic(channel(), peer, dst, offset, AtomicOp::swap, value);
}

template <class T>
GIN_DEVICE T Context::atomic_fetch_and(uint32_t peer, const Window& dst, uint64_t offset, T value GIN_SITE_HERE) const {
  GIN_CALL(true);
  return impl::atomic(channel(), peer, dst, offset, AtomicOp::fetch_and, value);
}

template <class T>
GIN_DEVICE T Context::atomic_fetch_or(uint32_t peer, const Window& dst, uint64_t offset, T value GIN_SITE_HERE) const {
  GIN_CALL(true);
  return impl::atomic(channel(), peer, dst, offset, AtomicOp::fetch_or, value);
}

template <class T>
GIN_DEVICE T Context::atomic_fetch_xor(uint32_t peer, const Window& dst, uint64_t offset, T value GIN_SITE_HERE) const {
  GIN_CALL(true);
  return impl::atomic(channel(), peer, dst, offset, AtomicOp::fetch_xor, value);
}

}  // namespace gin
