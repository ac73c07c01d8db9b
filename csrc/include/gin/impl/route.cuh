// The choice between a peer's memory itself and the backend's own operations, and what the direct route needs.
#pragma once

#include "count.cuh"

namespace gin::impl {

// Where a place of a peer can be loaded and stored, if the route allows it and the hardware does. Callers ask never_native
// too before they take the other way, which lets a compiler that knows the flags leave that way out.
GIN_DEVICE void* direct_pointer(Channel channel, const Window& window, uint64_t offset, uint32_t peer) {
  return channel.comm.has(Comm::native_only) ? nullptr : Backend::peer_pointer(channel, window, offset, peer);
}

// Whether no operation of this communicator ever goes through the backend.
GIN_DEVICE bool never_native(const Comm& comm) {
  return comm.has(Comm::all_direct) && !comm.has(Comm::native_only) && !comm.has(Comm::mixed);
}

// Adds to a signal of the peer by whichever route covers what it has to cover: an ordered one goes native where some puts to
// that peer did, and covers direct stores there because they are performed before it is posted.
// `word` is what direct_word found: looked up early, so that the look-up does not stand between bytes and their signal.
GIN_DEVICE void send_signal(Channel channel, uint32_t peer, Signal signal, uint64_t* word) {
  if (word || never_native(channel.comm)) {
    add_release(word, signal.add);
  } else {
    if (channel.comm.has(Comm::mixed)) fence_release();
    Backend::signal(channel, peer, signal);
  }
}

GIN_DEVICE uint64_t* direct_word(Channel channel, uint32_t peer, Signal signal) {
  const Comm& comm = channel.comm;
  if (signal.ordered && comm.has(Comm::mixed)) return nullptr;
  const uint64_t offset = comm.layout().direct(channel.index, signal.id);
  return static_cast<uint64_t*>(direct_pointer(channel, comm.control, offset, peer));
}

GIN_DEVICE void send_signal(Channel channel, uint32_t peer, Signal signal) {
  send_signal(channel, peer, signal, direct_word(channel, peer, signal));
}

// The same after a fence of the caller's, which then stands for all the signals that follow it.
GIN_DEVICE void send_released(Channel channel, uint32_t peer, Signal signal) {
  uint64_t* word = direct_word(channel, peer, signal);
  if (word || never_native(channel.comm)) {
    add_released(word, signal.add);
  } else {
    Backend::signal(channel, peer, signal);
  }
}

// A signal's two words of this rank, before anything is taken off.
GIN_DEVICE uint64_t raw_signal(Channel channel, uint32_t id) {
  const Comm& comm = channel.comm;
  uint64_t value = 0;
  if (!comm.has(Comm::native_only)) {
    value = load_acquire(static_cast<uint64_t*>(comm.control.local(comm.layout().direct(channel.index, id))));
  }
  if (!never_native(comm)) value += Backend::signal_value(channel, id);
  return value;
}

}  // namespace gin::impl
