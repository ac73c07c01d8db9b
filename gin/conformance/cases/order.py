"""fence, ordered signals, weak signals, quiet: what has settled when."""

from __future__ import annotations

import numpy as np

from gin.conformance.registry import case
from gin.conformance.world import World

# Puts go in several pieces, and more are under way than the ring holds.
TIGHT = {"max_message": 64, "ring_depth": 64}

FENCE = r"""
#include <gin/gin.cuh>
extern "C" __global__ void fence(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window out, int rounds, int pieces,
                                 int bytes, int how) {
  gin::Context net(comm, 1);
  const uint32_t right = (net.rank() + 1) % net.size(), left = (net.rank() + net.size() - 1) % net.size();
  for (int round = 1; round <= rounds; ++round) {
    int* source = static_cast<int*>(src.local());
    for (int i = threadIdx.x; i < pieces * bytes / 4; i += blockDim.x) source[i] = round * 1000003 + i;
    __syncthreads();
    for (int piece = threadIdx.x; piece < pieces; piece += blockDim.x) {
      net.put(gin::thread, right, dst, piece * bytes, src, piece * bytes, bytes);
    }
    if (how == 0) {  // a weak signal after a fence
      net.fence(gin::block);
      if (threadIdx.x == 0) net.signal(right, gin::signal_inc{3});
    } else if (how == 1) {  // a put with a weak signal after a fence
      net.fence(gin::block);
      net.put(gin::block, right, dst, pieces * bytes, src, 0, 4, gin::signal_inc{3});
    } else if (how == 2) {  // an ordered signal
      __syncthreads();
      if (threadIdx.x == 0) net.signal(right, gin::ordered(gin::signal_inc{3}));
    } else if (how == 3) {  // a put with an ordered signal
      net.put(gin::block, right, dst, pieces * bytes, src, 0, 4, gin::ordered(gin::signal_add{3, 1}));
    } else {  // a value with an ordered signal
      __syncthreads();
      if (threadIdx.x == 0) net.put_value(right, dst, pieces * bytes, round, gin::ordered(gin::signal_inc{3}));
    }
    net.wait(gin::block, 3, round);
    const int* target = static_cast<const int*>(dst.local());
    for (int i = threadIdx.x; i < pieces * bytes / 4; i += blockDim.x) {
      if (target[i] != round * 1000003 + i) atomicAdd(static_cast<int*>(out.local()), 1);
    }
    net.flush(gin::block);
    if (threadIdx.x == 0) net.signal(left, gin::signal_inc{4});
    net.wait(gin::block, 4, round);
  }
}
"""


@case(
    "order.covers_a_hundred_puts",
    promise="fence, ordered, rule 1",
    kernel=(FENCE, "fence"),
    ranks=(2,),
    settings=TIGHT,
    hostile=True,
    situations=("NVIDIA/nccl#2210",),
    variants={
        "fence, signal": {"how": 0},
        "fence, put": {"how": 1},
        "ordered signal": {"how": 2},
        "put with ordered signal": {"how": 3},
        "value with ordered signal": {"how": 4},
    },
)
def covers_a_hundred_puts(world: World, how: int) -> None:
    """A signal after a fence, and an ordered signal, cover the hundred puts before them, of all threads of the block."""
    pieces, size = 100, 160
    dst, src, out = world.window(pieces * size + 4), world.window(pieces * size), world.window(4)
    world.run(dst, src, out, 20, pieces, size, how, block=32)
    world.equal(out.read(np.int32), 0, "words read wrong")


LAST = r"""
#include <gin/gin.cuh>
// The same places are written again and again; a fence is all there is between.
extern "C" __global__ void last(gin::Comm comm, gin::Window dst, gin::Window src, int writes, int words) {
  gin::Context net(comm, 2);
  const uint32_t right = (net.rank() + 1) % net.size();
  uint32_t* source = static_cast<uint32_t*>(src.local());
  for (int i = threadIdx.x; i < writes * words; i += blockDim.x) source[i] = i / words + 1;
  __syncthreads();
  for (int write = 0; write < writes; ++write) {
    net.put(gin::block, right, dst, 0, src, uint64_t(write) * words * 4, words * 4);
    if (threadIdx.x == 0) net.put_value(right, dst, words * 4, uint32_t(write + 1));
    net.fence(gin::block);
  }
  if (threadIdx.x == 0) net.signal(right, gin::signal_inc{0});
  net.wait(gin::block, 0, 1);
  net.flush(gin::block);
}
"""


@case("order.fence_lets_the_last_write_win", promise="fence", kernel=(LAST, "last"), ranks=(2, 3), hostile=True)
def fence_lets_the_last_write_win(world: World) -> None:
    """Of puts to the same place with fences between, the last one's bytes stay."""
    writes, words = 60, 40
    dst, src = world.window(4 * words + 4), world.window(4 * words * writes)
    world.run(dst, src, writes, words, block=64)
    world.equal(dst.read(np.uint32), writes, "the target")
    world.barrier()


PEERS = r"""
#include <gin/gin.cuh>
// To every peer in turn: many puts without a signal, then one ordered signal for each. Order holds per peer.
extern "C" __global__ void peers(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window out, int rounds, int pieces) {
  gin::Context net(comm);
  const uint32_t n = net.size(), me = net.rank();
  uint32_t* source = static_cast<uint32_t*>(src.local());
  const uint32_t* target = static_cast<const uint32_t*>(dst.local());
  for (int round = 1; round <= rounds; ++round) {
    for (int i = threadIdx.x; i < pieces * 4; i += blockDim.x) source[i] = me * 100003u + round * 911u + i;
    __syncthreads();
    for (int piece = threadIdx.x; piece < pieces; piece += blockDim.x) {
      for (uint32_t peer = 0; peer < n; ++peer) {
        net.put(gin::thread, peer, dst, (me * pieces + piece) * 16, src, piece * 16, 16);
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      for (uint32_t peer = 0; peer < n; ++peer) net.signal(peer, gin::ordered(gin::signal_inc{10 + me}));
    }
    for (uint32_t peer = 0; peer < n; ++peer) {
      net.wait(gin::block, 10 + peer, round);
      for (int i = threadIdx.x; i < pieces * 4; i += blockDim.x) {
        if (target[peer * pieces * 4 + i] != peer * 100003u + round * 911u + i) {
          atomicAdd(static_cast<uint32_t*>(out.local()), 1u);
        }
      }
    }
    net.flush(gin::block);
    net.barrier(gin::block);
  }
}
"""


@case("order.ordered_per_peer", promise="signal, rule 1", kernel=(PEERS, "peers"), ranks=(2, 3, 5), hostile=True)
def ordered_per_peer(world: World) -> None:
    """An ordered signal covers every earlier put of its context to that peer, with puts to others in between."""
    pieces = 60
    dst, src, out = world.window(16 * pieces * world.size), world.window(16 * pieces), world.window(4)
    world.run(dst, src, out, 15, pieces, block=32)
    world.equal(out.read(np.uint32), 0, "words read wrong")


CHUNKS = r"""
#include <gin/gin.cuh>
// One signal per chunk, all weak, all under way at once: each covers its own chunk in whatever order they come.
extern "C" __global__ void chunks(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window out, int words, int rounds) {
  gin::Context net(comm, 3);
  const uint32_t right = (net.rank() + 1) % net.size(), left = (net.rank() + net.size() - 1) % net.size();
  constexpr uint32_t count = 16;
  uint32_t* source = static_cast<uint32_t*>(src.local());
  const uint32_t* target = static_cast<const uint32_t*>(dst.local());
  for (int round = 1; round <= rounds; ++round) {
    for (int i = threadIdx.x; i < int(count) * words; i += blockDim.x) source[i] = net.rank() * 65537u + round * 271u + i;
    for (uint32_t chunk = 0; chunk < count; ++chunk) {
      net.put(gin::block, right, dst, chunk * words * 4, src, chunk * words * 4, words * 4, gin::signal_inc{chunk});
    }
    for (uint32_t turn = 0; turn < count; ++turn) {
      const uint32_t chunk = count - 1 - turn;  // the last one sent is looked at first
      net.wait(gin::block, chunk, round);
      for (int i = threadIdx.x; i < words; i += blockDim.x) {
        const uint32_t at = chunk * words + i;
        if (target[at] != left * 65537u + round * 271u + at) atomicAdd(static_cast<uint32_t*>(out.local()), 1u);
      }
    }
    net.flush(gin::block);
    if (threadIdx.x == 0) net.signal(left, gin::signal_inc{20});
    net.wait(gin::block, 20, round);
  }
}
"""


@case(
    "order.a_weak_signal_covers_its_own_put",
    promise="rule 1",
    kernel=(CHUNKS, "chunks"),
    ranks=(2, 3),
    hostile=True,
    situations=("NVIDIA/nvshmem#84",),
)
def a_weak_signal_covers_its_own_put(world: World) -> None:
    """Of many puts under way, each one's weak signal covers that one, in whatever order they arrive."""
    words = 500
    dst, src, out = world.window(64 * words), world.window(64 * words), world.window(4)
    world.run(dst, src, out, words, 15, block=64)
    world.equal(out.read(np.uint32), 0, "words read wrong")


VALUES = r"""
#include <gin/gin.cuh>
// Values without a signal, each to its own place, and every tenth with an ordered one: it covers all before it.
extern "C" __global__ void values(gin::Comm comm, gin::Window dst, gin::Window out, int count) {
  gin::Context net(comm, 1);
  const uint32_t right = (net.rank() + 1) % net.size(), left = (net.rank() + net.size() - 1) % net.size();
  for (int value = 0; value < count; ++value) {
    const uint64_t sent = net.rank() * 1000003ull + value;
    if (value % 10 == 9) {
      net.put_value(right, dst, 8 * value, sent, gin::ordered(gin::signal_inc{0}));
    } else {
      net.put_value(right, dst, 8 * value, sent);
    }
  }
  const volatile uint64_t* target = static_cast<const volatile uint64_t*>(dst.local());
  for (int turn = 1; turn <= count / 10; ++turn) {
    net.wait(gin::thread, 0, turn);
    for (int value = 0; value < turn * 10; ++value) {
      if (target[value] != left * 1000003ull + value) *static_cast<uint32_t*>(out.local()) += 1;
    }
  }
}
"""


@case("order.ordered_covers_values", promise="put_value, rule 1", kernel=(VALUES, "values"), ranks=(2, 3), hostile=True)
def ordered_covers_values(world: World) -> None:
    """An ordered signal covers the values that were sent before it without a signal."""
    count = 400
    dst, out = world.window(8 * count), world.window(4)
    world.run(dst, out, count)
    world.equal(out.read(np.uint32), 0, "values that were missing")


QUIET = r"""
#include <gin/gin.cuh>
extern "C" __global__ void quiet(gin::Comm comm, gin::Window dst, gin::Window src, int bytes, int value) {
  gin::Context net(comm, 3);
  unsigned char* source = static_cast<unsigned char*>(src.local());
  for (int i = threadIdx.x; i < bytes; i += blockDim.x) source[i] = value + net.rank();
  __syncthreads();
  for (uint32_t peer = 0; peer < net.size(); ++peer) {
    net.put(gin::block, peer, dst, net.rank() * uint64_t(bytes), src, 0, bytes);
  }
  net.quiet(gin::block);
}
"""


@case("order.quiet", promise="quiet", kernel=(QUIET, "quiet"), needs=("quiet",), ranks=(2, 3, 5), hostile=True)
def quiet(world: World) -> None:
    """After quiet and a meeting of the hosts, what was put without any signal can simply be read."""
    size = 30_000
    dst, src = world.window(world.size * size), world.window(size)
    for turn in range(10):
        world.run(dst, src, size, turn * 7, block=32)
        world.barrier()
        world.equal(dst.read(), np.repeat(turn * 7 + np.arange(world.size), size), f"in turn {turn}")
        world.barrier()
