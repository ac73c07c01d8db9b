// The primitives on NCCL's GPU-initiated networking: windows addressed by (window, offset), signals and counters by number
// within a context. One thread posts for the group, which has synchronised: NCCL's own group forms do the same.
#pragma once

#include <nccl_device.h>

#include "gin/impl/pieces.cuh"
#include "gin/impl/wait.cuh"
#include "state.h"

namespace gin {

namespace nccl {

GIN_DEVICE const State& state(impl::Channel channel) { return *static_cast<const State*>(channel.comm.backend); }
GIN_DEVICE ncclWindow_t handle(const Window& window) { return reinterpret_cast<ncclWindow_t>(window.handle); }

// Calls `post` with the remote action NCCL knows for a signal. Always additions: NCCL forbids mixing them with increments.
template <class Post>
GIN_DEVICE void with_remote(impl::Signal signal, Post post) {
  if (!signal.present) {
    post(ncclGin_None{});
  } else if (signal.ordered) {
    post(ncclGin_StrongSignalAdd{signal.id, signal.add});
  } else {
    post(ncclGin_WeakSignalAdd{signal.id, signal.add});
  }
}

// NCCL's operations inline the code of all its transports; each is here once, so that a kernel compiles in seconds.

GIN_DEVICE_CALL void post_put(const ncclDevComm& dev, uint32_t context, uint32_t peer, ncclWindow_t dst,
                              uint64_t dst_offset, ncclWindow_t src, uint64_t src_offset, uint64_t bytes,
                              impl::Signal signal, uint32_t counter) {
  const ncclGin net(dev, int(context));
  const ncclTeam world = ncclTeamWorld(dev);
  with_remote(signal, [&](auto remote) {
    if (counter == impl::no_counter) {
      net.put(world, int(peer), dst, dst_offset, src, src_offset, bytes, remote);
    } else {
      net.put(world, int(peer), dst, dst_offset, src, src_offset, bytes, remote, ncclGin_WeakCounterInc{counter});
    }
  });
}

template <class T>
GIN_DEVICE_CALL void post_value(const ncclDevComm& dev, uint32_t context, uint32_t peer, ncclWindow_t dst,
                                uint64_t offset, T value, impl::Signal signal) {
  const ncclGin net(dev, int(context));
  with_remote(signal, [&](auto remote) { net.putValue(ncclTeamWorld(dev), int(peer), dst, offset, value, remote); });
}

GIN_DEVICE_CALL void post_get(const ncclDevComm& dev, uint32_t context, uint32_t peer, ncclWindow_t src,
                              uint64_t src_offset, ncclWindow_t dst, uint64_t dst_offset, uint64_t bytes) {
  ncclGin(dev, int(context)).get(ncclTeamWorld(dev), int(peer), src, src_offset, dst, dst_offset, bytes);
}

GIN_DEVICE_CALL void post_signal(const ncclDevComm& dev, uint32_t context, uint32_t peer, impl::Signal signal) {
  const ncclGin net(dev, int(context));
  const ncclTeam world = ncclTeamWorld(dev);
  if (signal.ordered) {
    net.signal(world, int(peer), ncclGin_StrongSignalAdd{signal.id, signal.add});
  } else {
    net.signal(world, int(peer), ncclGin_WeakSignalAdd{signal.id, signal.add});
  }
}

GIN_DEVICE_CALL void post_signal_at(const ncclDevComm& dev, uint32_t context, uint32_t peer, ncclWindow_t window,
                                    uint64_t offset) {
  ncclGin(dev, int(context)).signal(ncclTeamWorld(dev), int(peer), ncclGin_StrongVASignalAdd{window, offset, 1});
}

GIN_DEVICE_CALL ncclGinRequest_t post_flush(const ncclDevComm& dev, uint32_t context, uint32_t peer) {
  ncclGinRequest_t request;
  ncclGin(dev, int(context)).flushAsync(ncclTeamWorld(dev), peer, &request);
  return request;
}

// Where gets are to be made visible, every wait first asks the proxy for it, anew, and sees the answer to that alone: a wait
// that is too short for the proxy's answer never succeeds, however often it is repeated. So each look lasts longer than the
// one before, from some microseconds, which is one answer, to some milliseconds, which many threads at once may need.
constexpr uint32_t shortest_look = 15, longest_look = 23;  // log2 of GPU cycles

GIN_DEVICE_CALL bool flushed(const ncclDevComm& dev, uint32_t context, ncclGinRequest_t request, uint32_t looks) {
  const ncclGin net(dev, int(context));
  const uint32_t length = shortest_look + looks < longest_look ? shortest_look + looks : longest_look;
  return net.wait(request, ncclCoopThread{}, ncclGin_None{}, cuda::memory_order_acquire, uint64_t(1) << length) ==
         ncclSuccess;
}

}  // namespace nccl

struct Backend {
#define GIN_CAPABILITY(name, value) static constexpr bool name##_supported = value;
#include "capabilities.h"
#undef GIN_CAPABILITY

  template <class Coop>
  GIN_DEVICE static void put(impl::Channel channel, Coop coop, uint32_t peer, const Window& dst, uint64_t dst_offset,
                             const Window& src, uint64_t src_offset, uint64_t bytes, impl::Signal signal,
                             uint32_t counter) {
    if (!coop.leader()) return;
    nccl::post_put(nccl::state(channel).dev, channel.index, peer, nccl::handle(dst), dst_offset, nccl::handle(src),
                   src_offset, bytes, signal, counter);
  }

  template <class Coop>
  GIN_DEVICE static void get(impl::Channel channel, Coop coop, uint32_t peer, const Window& src, uint64_t src_offset,
                             const Window& dst, uint64_t dst_offset, uint64_t bytes) {
    if (!coop.leader()) return;
    nccl::post_get(nccl::state(channel).dev, channel.index, peer, nccl::handle(src), src_offset, nccl::handle(dst),
                   dst_offset, bytes);
  }

  GIN_DEVICE static void put_value(impl::Channel channel, uint32_t peer, const Window& dst, uint64_t offset,
                                   uint64_t value, uint32_t bytes, impl::Signal signal) {
    const ncclDevComm& dev = nccl::state(channel).dev;
    // The signal goes with the last piece, ordered when there are others before it.
    signal.ordered |= (bytes & (bytes - 1)) != 0;
    impl::for_each_piece(value, bytes, 0, [&](uint64_t piece, uint32_t size, uint32_t at, bool last) {
      const impl::Signal carried = last ? signal : impl::to_signal(none);
      auto post = [&](auto typed) {
        nccl::post_value(dev, channel.index, peer, nccl::handle(dst), offset + at, typed, carried);
      };
      switch (size) {
        case 8:
          return post(piece);
        case 4:
          return post(uint32_t(piece));
        case 2:
          return post(uint16_t(piece));
        default:
          return post(uint8_t(piece));
      }
    });
  }

  GIN_DEVICE static void signal(impl::Channel channel, uint32_t peer, impl::Signal signal) {
    nccl::post_signal(nccl::state(channel).dev, channel.index, peer, signal);
  }

  GIN_DEVICE static uint64_t signal_value(impl::Channel channel, uint32_t id) {
    return ncclGin(nccl::state(channel).dev, int(channel.index)).readSignal(id);
  }

  GIN_DEVICE static uint64_t counter_value(impl::Channel channel, uint32_t id) {
    return ncclGin(nccl::state(channel).dev, int(channel.index)).readCounter(id);
  }

  GIN_DEVICE static Ticket flush_begin(impl::Channel channel, uint32_t peer) {
    const ncclGinRequest_t request = nccl::post_flush(nccl::state(channel).dev, channel.index, peer);
    return {{request.opaque[0], request.opaque[1]}, peer, true};
  }

  GIN_DEVICE static bool flush_done(impl::Channel channel, Ticket& ticket) {
    const ncclGinRequest_t request{{ticket.word[0], ticket.word[1]}};
    // Once the job has failed NCCL's queues may stay full, and nothing says so to who posts.
    if (impl::failed(channel.comm)) return false;
    ticket.native = !nccl::flushed(nccl::state(channel).dev, channel.index, request, ticket.looks);
    // Where another thread's flush has covered this one's gets, NCCL returns on what it has read without an acquire.
    if (!ticket.native) impl::fence_acquire();
    if (nccl::shortest_look + ticket.looks < nccl::longest_look) ++ticket.looks;
    return !ticket.native;
  }

  GIN_DEVICE static Status fence(impl::Channel channel) { return quiet(channel); }

  // NCCL promises settlement only through what a strong signal's observer sees. So each peer gets one, at an address, and
  // its memory is read until as many are there as were counted here. All are asked before the first answer is waited for.
  GIN_DEVICE static Status quiet(impl::Channel channel) {
    if (impl::failed(channel.comm))
      return impl::failure(channel.comm);  // NCCL waits for room in its queues without end
    const nccl::State& state = nccl::state(channel);
    const uint64_t asked = channel.comm.layout().settle(channel.index, channel.comm.rank);
    // Whoever counts after this has sent its signal after what is settled here, so that it may stand for this one's.
    const uint64_t turn = impl::add_acq_rel(&state.settles[channel.index], 1) + 1;
    for (uint32_t peer = 0; peer < channel.comm.size; ++peer) {
      nccl::post_signal_at(state.dev, channel.index, peer, state.control, asked);
      ask(channel, peer);
    }
    Status status;
    for (uint32_t peer = 0; peer < channel.comm.size && status.ok(); ++peer) status = settle(channel, peer, turn);
    return status;
  }

  GIN_DEVICE static void* peer_pointer(impl::Channel channel, const Window& window, uint64_t offset, uint32_t peer) {
    return impl::mapped(channel, window, offset, peer);
  }

 private:
  // Reads how many of this rank's signals have settled at the peer.
  GIN_DEVICE static void ask(impl::Channel channel, uint32_t peer) {
    const nccl::State& state = nccl::state(channel);
    const ControlLayout layout = channel.comm.layout();
    nccl::post_get(state.dev, channel.index, peer, state.control, layout.settle(channel.index, channel.comm.rank),
                   state.control, layout.answer(channel.index, peer), 8);
  }

  // Waits for the `turn`-th of them, of which the first read is under way.
  GIN_DEVICE static Status settle(impl::Channel channel, uint32_t peer, uint64_t turn) {
    void* answer = channel.comm.control.local(channel.comm.layout().answer(channel.index, peer));
    const impl::Subject subject{Operation::quiet, channel.index, int32_t(peer), 0};
    bool asked = true;
    Status read;  // of the last look; a failed one ends the wait, as each posts to NCCL's queues
    const Status status = impl::wait_until(channel.comm, subject, turn, channel.comm.timeout_ns, [&]() -> uint64_t {
      if (!asked) ask(channel, peer);
      asked = false;
      Ticket ticket = flush_begin(channel, peer);
      read = impl::wait_for(channel.comm, subject, [&] { return flush_done(channel, ticket); });
      return read.ok() ? impl::load_acquire(static_cast<uint64_t*>(answer)) : turn;
    });
    return read.ok() ? status : read;
  }
};

}  // namespace gin
