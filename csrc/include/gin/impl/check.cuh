// Range checks that GIN_CHECK=1 compiles in. What fails one is recorded and not done.
#pragma once

#include "failure.cuh"

#ifndef GIN_CHECK
#define GIN_CHECK 0
#endif

namespace gin::impl {

GIN_DEVICE bool refuse(Channel channel, Operation operation, uint32_t peer, uint32_t id, uint64_t limit,
                       uint64_t asked) {
  fail(channel.comm, Code::range, {operation, channel.index, int32_t(peer), id}, limit, asked);
  return false;
}

GIN_DEVICE bool check_context(Channel channel, Operation operation) {
  return !GIN_CHECK || channel.index < channel.comm.contexts ||
         refuse(channel, operation, 0xffffffffu, channel.index, channel.comm.contexts, channel.index);
}

GIN_DEVICE bool check_peer(Channel channel, Operation operation, uint32_t peer) {
  return !GIN_CHECK || (check_context(channel, operation) &&
                        (peer < channel.comm.size || refuse(channel, operation, peer, 0, channel.comm.size, peer)));
}

GIN_DEVICE bool check_id(Channel channel, Operation operation, uint32_t id, uint32_t count) {
  return !GIN_CHECK ||
         (check_context(channel, operation) && (id < count || refuse(channel, operation, 0xffffffffu, id, count, id)));
}

GIN_DEVICE bool check_place(Channel channel, Operation operation, uint32_t peer, const Window& window, uint64_t offset,
                            uint64_t bytes) {
  if (!GIN_CHECK) return true;
  const uint64_t size = peer == channel.comm.rank ? window.bytes : window.peers[peer].bytes;
  return (bytes <= size && offset <= size - bytes) || refuse(channel, operation, peer, 0, size, offset + bytes);
}

GIN_DEVICE bool check_actions(Channel channel, Operation operation, Signal signal, uint32_t counter) {
  return (!signal.present || check_id(channel, operation, signal.id, channel.comm.signals)) &&
         (counter == no_counter || check_id(channel, operation, counter, channel.comm.counters));
}

// A transfer between a place of this rank and a place of a peer.
GIN_DEVICE bool check_transfer(Channel channel, Operation operation, uint32_t peer, const Window& there,
                               uint64_t there_offset, const Window& here, uint64_t here_offset, uint64_t bytes) {
  return !GIN_CHECK ||
         (check_peer(channel, operation, peer) && check_place(channel, operation, peer, there, there_offset, bytes) &&
          check_place(channel, operation, channel.comm.rank, here, here_offset, bytes));
}

}  // namespace gin::impl
