// put, put_value, get and their strided forms.
#pragma once

#include "../context.cuh"
#include "../platform/platform.cuh"
#include "check.cuh"
#include "route.cuh"

namespace gin {

namespace impl {

// The backend's put, in pieces it takes. Only the last piece signals; it is ordered then, so that it covers the others.
template <class Coop>
GIN_DEVICE void put_native(Channel channel, Coop coop, uint32_t peer, const Window& dst, uint64_t dst_offset,
                           const Window& src, uint64_t src_offset, uint64_t bytes, Signal signal, uint32_t counter) {
  const uint64_t limit = channel.comm.max_message;
  if (bytes > limit) signal.ordered = signal.present;
  while (bytes > limit) {
    Backend::put(channel, coop, peer, dst, dst_offset, src, src_offset, limit, to_signal(none), no_counter);
    dst_offset += limit, src_offset += limit, bytes -= limit;
    coop.sync();
  }
  Backend::put(channel, coop, peer, dst, dst_offset, src, src_offset, bytes, signal, counter);
}

template <class Coop>
GIN_DEVICE void put_direct(Channel channel, Coop coop, uint32_t peer, void* to, const Window& src, uint64_t src_offset,
                           uint64_t bytes, Signal signal, uint32_t counter) {
  uint64_t* word = signal.present && coop.leader() ? direct_word(channel, peer, signal) : nullptr;
  platform::copy(coop, to, src.local(src_offset), bytes);
  if (!signal.present && counter == no_counter) return;
  coop.sync();
  if (!coop.leader()) return;
  if (signal.present) send_signal(channel, peer, signal, word);
  if (counter != no_counter) count(channel, counter);
}

}  // namespace impl

template <class Coop, class Remote, class Local>
GIN_DEVICE void Context::put(Coop coop, uint32_t peer, const Window& dst, uint64_t dst_offset, const Window& src,
                             uint64_t src_offset, uint64_t bytes, Remote remote, Local local GIN_SITE_HERE) const {
  static_assert(impl::ExpectCoop<Coop>::value);
  GIN_CALL(coop.leader());
  const impl::Signal signal = impl::to_signal(remote);
  const uint32_t counter = impl::to_counter(local);
  coop.sync();
  if (impl::check_transfer(channel(), Operation::put, peer, dst, dst_offset, src, src_offset, bytes) &&
      impl::check_actions(channel(), Operation::put, signal, counter)) {
    void* to = impl::direct_pointer(channel(), dst, dst_offset, peer);
    if (bytes == 0) {
      if (coop.leader() && signal.present) impl::send_signal(channel(), peer, signal);
      if (coop.leader() && counter != impl::no_counter) impl::count(channel(), counter);
    } else if (to || impl::never_native(comm_)) {
      impl::put_direct(channel(), coop, peer, to, src, src_offset, bytes, signal, counter);
    } else {
      impl::put_native(channel(), coop, peer, dst, dst_offset, src, src_offset, bytes, signal, counter);
    }
  }
  coop.sync();
}

template <class T, class Remote>
GIN_DEVICE void Context::put_value(uint32_t peer, const Window& dst, uint64_t offset, T value,
                                   Remote remote GIN_SITE_HERE) const {
  GIN_CALL(true);
  static_assert(sizeof(T) <= 8, "gin: put_value takes up to 8 bytes; put takes more");
  static_assert(__is_trivially_copyable(T), "gin: put_value copies bytes");
  const impl::Signal signal = impl::to_signal(remote);
  if (!impl::check_peer(channel(), Operation::put_value, peer) ||
      !impl::check_place(channel(), Operation::put_value, peer, dst, offset, sizeof(T)) ||
      !impl::check_actions(channel(), Operation::put_value, signal, impl::no_counter)) {
    return;
  }
  void* to = impl::direct_pointer(channel(), dst, offset, peer);
  if (to || impl::never_native(comm_)) {
    uint64_t* word = signal.present ? impl::direct_word(channel(), peer, signal) : nullptr;
    impl::store_value(to, value);
    if (signal.present) impl::send_signal(channel(), peer, signal, word);
  } else {
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(T));
    Backend::put_value(channel(), peer, dst, offset, bits, sizeof(T), signal);
  }
}

template <class Coop>
GIN_DEVICE void Context::get(Coop coop, uint32_t peer, const Window& src, uint64_t src_offset, const Window& dst,
                             uint64_t dst_offset, uint64_t bytes GIN_SITE_HERE) const {
  static_assert(impl::ExpectCoop<Coop>::value);
  GIN_CALL(coop.leader());
  coop.sync();
  if (bytes && impl::check_transfer(channel(), Operation::get, peer, src, src_offset, dst, dst_offset, bytes)) {
    const void* from = impl::direct_pointer(channel(), src, src_offset, peer);
    if (from || impl::never_native(comm_)) {
      platform::copy(coop, dst.local(dst_offset), from, bytes);
    } else {
      const uint64_t limit = comm_.max_message;
      for (; bytes > limit; src_offset += limit, dst_offset += limit, bytes -= limit) {
        Backend::get(channel(), coop, peer, src, src_offset, dst, dst_offset, limit);
        coop.sync();
      }
      Backend::get(channel(), coop, peer, src, src_offset, dst, dst_offset, bytes);
    }
  }
  coop.sync();
}

template <class Coop, class Remote>
GIN_DEVICE void Context::iput(Coop coop, uint32_t peer, const Window& dst, uint64_t dst_offset, uint64_t dst_stride,
                              const Window& src, uint64_t src_offset, uint64_t src_stride, uint64_t element,
                              uint64_t count, Remote remote GIN_SITE_HERE) const {
  static_assert(impl::ExpectCoop<Coop>::value);
  GIN_CALL(coop.leader());
  coop.sync();
  for (uint64_t i = coop.rank(); i < count; i += coop.size()) {
    put(thread, peer, dst, dst_offset + i * dst_stride, src, src_offset + i * src_stride, element);
  }
  coop.sync();
  const impl::Signal each = impl::to_signal(remote);
  if (each.present && coop.leader() && impl::check_peer(channel(), Operation::put, peer) &&
      impl::check_actions(channel(), Operation::put, each, impl::no_counter) && !(GIN_CHECK && impl::failed(comm_))) {
    impl::send_signal(channel(), peer, impl::Signal{true, true, each.id, each.add});
  }
  coop.sync();
}

template <class Coop>
GIN_DEVICE void Context::iget(Coop coop, uint32_t peer, const Window& src, uint64_t src_offset, uint64_t src_stride,
                              const Window& dst, uint64_t dst_offset, uint64_t dst_stride, uint64_t element,
                              uint64_t count GIN_SITE_HERE) const {
  static_assert(impl::ExpectCoop<Coop>::value);
  GIN_CALL(coop.leader());
  coop.sync();
  for (uint64_t i = coop.rank(); i < count; i += coop.size()) {
    get(thread, peer, src, src_offset + i * src_stride, dst, dst_offset + i * dst_stride, element);
  }
  coop.sync();
}

GIN_DEVICE void* Context::peer_pointer(const Window& window, uint64_t offset, uint32_t peer) const {
  return impl::check_peer(channel(), Operation::peer_pointer, peer) &&
                 impl::check_place(channel(), Operation::peer_pointer, peer, window, offset, 0)
             ? impl::direct_pointer(channel(), window, offset, peer)
             : nullptr;
}

}  // namespace gin
