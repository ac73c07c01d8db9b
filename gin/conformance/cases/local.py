"""flush, tickets, counters: when a source may be written again."""

from __future__ import annotations

import numpy as np

from gin.conformance.cases.order import TIGHT
from gin.conformance.registry import case
from gin.conformance.world import World

REUSE = r"""
#include <gin/gin.cuh>
// Sends the same source again and again with other contents, as soon as it says that it may.
extern "C" __global__ void reuse(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window out, int rounds, int bytes,
                                 int how) {
  gin::Context net(comm, 2);
  const uint32_t right = (net.rank() + 1) % net.size();
  unsigned char* source = static_cast<unsigned char*>(src.local());
  int* failures = static_cast<int*>(out.local());
  const uint64_t deadline = gin::platform::clock_ns() + comm.timeout_ns / 4 * 3;
  for (int round = 0; round < rounds; ++round) {
    for (int i = threadIdx.x; i < bytes; i += blockDim.x) source[i] = round * 3 + i;
    net.put(gin::block, right, dst, uint64_t(round) * bytes, src, 0, bytes, gin::signal_inc{0});
    if (how == 0) {
      if (!net.flush(gin::block).ok()) atomicAdd(failures, 1);
    } else {
      __syncthreads();
      if (threadIdx.x == 0) {
        gin::Ticket ticket = net.flush_async(right);
        if (how == 1) {
          if (!net.wait(gin::thread, ticket).ok()) ++failures[0];
        } else {
          while (!net.test(ticket) && gin::platform::clock_ns() < deadline) __nanosleep(10000);
          if (!net.test(ticket)) ++failures[0];  // what is done stays done
        }
      }
      __syncthreads();
    }
  }
  net.wait(gin::block, 0, rounds);
}
"""


@case(
    "local.source_reused",
    promise="flush, flush_async",
    kernel=(REUSE, "reuse"),
    settings=TIGHT,
    hostile=True,
    variants={"flush": {"how": 0}, "ticket waited for": {"how": 1}, "ticket tested": {"how": 2}},
)
def source_reused(world: World, how: int) -> None:
    """A source may be written again after a flush, or after a ticket that was waited for or tested."""
    rounds, size = 60, 1000
    dst, src, out = world.window(rounds * size), world.window(size), world.window(4)
    world.run(dst, src, out, rounds, size, how, block=64)
    sent = (np.arange(rounds)[:, None] * 3 + np.arange(size)).astype(np.uint8)
    world.equal(dst.read(), sent.reshape(-1), "what arrived")
    world.equal(out.read(np.int32), 0, "waits that failed")


COUNTER = r"""
#include <gin/gin.cuh>
extern "C" __global__ void counter(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window out, int rounds) {
  gin::Context net(comm, 1);
  const uint32_t right = (net.rank() + 1) % net.size();
  uint32_t* words = static_cast<uint32_t*>(src.local());
  uint32_t* seen = static_cast<uint32_t*>(out.local());
  for (int round = 0; round < rounds; ++round) {
    for (int i = threadIdx.x; i < 64; i += blockDim.x) words[i] = round * 100 + i;
    net.put(gin::block, right, dst, 256 * round, src, 0, 256, gin::none, gin::counter_inc{4});
    net.wait_counter(gin::block, 4, round + 1);  // then the source may be written again
  }
  net.put(gin::block, right, dst, 0, src, 0, 0, gin::none, gin::counter_inc{4});
  net.wait_counter(gin::block, 4, rounds + 1);
  if (threadIdx.x == 0) {
    net.signal(right, gin::ordered(gin::signal_inc{0}));
    seen[0] = net.read_counter(4), seen[1] = net.test_counter(4, rounds + 1), seen[2] = net.test_counter(4, rounds + 2);
    seen[3] = net.reset_counter(4), seen[4] = net.read_counter(4), seen[5] = net.read_counter(3);
  }
  net.put(gin::block, right, dst, 0, src, 0, 0, gin::none, gin::counter_inc{4});
  net.wait_counter(gin::block, 4, 1);
  if (threadIdx.x == 0) seen[6] = net.read_counter(4) + gin::Context(comm, 0).read_counter(4);
  net.wait(gin::block, 0, 1);
}
"""


@case("local.counter", promise="counter waits", kernel=(COUNTER, "counter"), ranks=(2,), hostile=True)
def counter(world: World) -> None:
    """A counter says when a source may be written again, counts puts of 0 bytes, can be reset, and is its own."""
    rounds = 50
    dst, src, out = world.window(256 * rounds), world.window(256), world.window(28)
    world.run(dst, src, out, rounds, block=48)
    world.equal(
        out.read(np.uint32),
        [rounds + 1, 1, 0, rounds + 1, 0, 0, 1],
        "read, test, test of more, reset, read after it, another counter, read after one more",
    )
    sent = np.arange(rounds)[:, None] * 100 + np.arange(64)
    world.equal(dst.read(np.uint32), sent.reshape(-1), "what arrived")


COUNTERS = r"""
#include <gin/gin.cuh>
// Each thread has a counter and a place of its own, to every peer in turn.
extern "C" __global__ void counters(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window out, int rounds) {
  gin::Context net(comm, 3);
  const uint32_t me = threadIdx.x, n = net.size();
  uint32_t* source = static_cast<uint32_t*>(src.local(64 * me));
  for (int round = 0; round < rounds; ++round) {
    const uint32_t peer = (net.rank() + round) % n;
    for (uint32_t i = 0; i < 16; ++i) source[i] = net.rank() * 4099u + round * 31u + me * 7u + i;
    const uint64_t to = ((uint64_t(net.rank()) * rounds + round) * blockDim.x + me) * 64;
    net.put(gin::thread, peer, dst, to, src, 64 * me, 64, gin::signal_inc{0}, gin::counter_inc{me});
    if (!net.wait_counter(gin::thread, me, round + 1).ok()) atomicAdd(static_cast<uint32_t*>(out.local()), 1u);
  }
  __syncthreads();
  uint64_t due = 0;  // a rank gets a put of each sender for each round that falls to it
  for (uint32_t sender = 0; sender < n; ++sender) {
    for (int round = 0; round < rounds; ++round) due += (sender + round) % n == net.rank();
  }
  net.wait(gin::block, 0, due * blockDim.x);
}
"""


@case("local.counters_of_many", promise="counter waits", kernel=(COUNTERS, "counters"), ranks=(2, 3), hostile=True)
def counters_of_many(world: World) -> None:
    """Counters of many threads, for puts to all peers, count each its own puts."""
    rounds, threads, size = 30, world.comm.config.counters, world.size
    dst, src, out = world.window(size * rounds * threads * 64), world.window(64 * threads), world.window(4)
    world.run(dst, src, out, rounds, block=threads)
    sender, turn, me, word = np.ogrid[:size, :rounds, :threads, :16]
    sent = sender * 4099 + turn * 31 + me * 7 + word
    wanted = np.where((sender + turn) % size == world.rank, sent, 0)
    world.equal(dst.read(np.uint32), wanted.reshape(-1), "what arrived")
    world.equal(out.read(np.uint32), 0, "waits that failed")


GETS = r"""
#include <gin/gin.cuh>
// Fifty gets under way at once from every peer, then one flush; or a ticket for each peer, waited for in turn.
extern "C" __global__ void gets(gin::Comm comm, gin::Window far, gin::Window near, gin::Window out, int each, bool tickets) {
  gin::Context net(comm, 1);
  uint32_t* wrong = static_cast<uint32_t*>(out.local());
  const uint32_t* landed = static_cast<const uint32_t*>(near.local());
  auto check = [&](uint32_t peer) {
    for (int i = threadIdx.x; i < each * 4; i += blockDim.x) {
      if (landed[peer * each * 4 + i] != peer * 8191u + i) atomicAdd(wrong, 1u);
    }
  };
  for (uint32_t peer = 0; peer < net.size(); ++peer) {
    for (int i = threadIdx.x; i < each; i += blockDim.x) {
      net.get(gin::thread, peer, far, i * 16, near, (peer * each + i) * 16, 16);
    }
  }
  __syncthreads();
  if (tickets) {
    for (uint32_t peer = 0; peer < net.size(); ++peer) {
      const gin::Ticket ticket = net.flush_async(peer);
      if (!net.wait(gin::block, ticket).ok()) atomicAdd(wrong, 1u);
      check(peer);
    }
  } else {
    if (!net.flush(gin::block).ok()) atomicAdd(wrong, 1u);
    for (uint32_t peer = 0; peer < net.size(); ++peer) check(peer);
  }
}
"""


@case(
    "local.gets_landed",
    promise="get, flush, flush_async",
    kernel=(GETS, "gets"),
    ranks=(2, 3, 5),
    hostile=True,
    variants={"flush": {"tickets": False}, "tickets": {"tickets": True}},
)
def gets_landed(world: World, tickets: bool) -> None:
    """Many gets of many threads have landed after one flush, or peer by peer after its ticket."""
    each = 50
    far = world.window(16 * each, (world.rank * 8191 + np.arange(4 * each)).astype(np.uint32))
    near, out = world.window(16 * each * world.size), world.window(4)
    world.barrier()
    world.run(far, near, out, each, tickets, block=32)
    world.equal(out.read(np.uint32), 0, "words read wrong, waits that failed")
    world.barrier()
