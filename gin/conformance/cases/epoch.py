"""Epochs and reset: counting on over launches without a race."""

from __future__ import annotations

import numpy as np

from gin.conformance.registry import case
from gin.conformance.world import World

EPOCH = r"""
#include <gin/gin.cuh>
// Every rank writes to every other: each value to a place of its own, as nothing orders two writes to one place.
extern "C" __global__ void epoch(gin::Comm comm, gin::Window dst, gin::Window out, int value, int values) {
  gin::Context net(comm, 3);
  for (uint32_t i = 1; i < net.size(); ++i) {
    const uint32_t peer = (net.rank() + i) % net.size();
    net.put_value(peer, dst, 4 * (net.rank() * values + value - 1), value, gin::ordered(gin::signal_inc{9 + net.rank()}));
  }
  int* seen = static_cast<int*>(out.local());
  for (uint32_t peer = 0; peer < net.size(); ++peer) {
    if (peer == net.rank()) continue;
    const uint64_t before = net.epoch(9 + peer);
    if (before != uint64_t(value - 1) || !net.wait(gin::thread, 9 + peer, before + 1).ok()) return;
    const volatile int* from = static_cast<const volatile int*>(dst.local()) + peer * values;
    if (net.epoch(9 + peer) != before + 1 || from[value - 1] != value || from[(value - 1) / 2] != (value + 1) / 2) ++seen[0];
  }
  seen[1] = value;
}
"""


@case(
    "epoch.counts_over_launches",
    promise="rule 4",
    kernel=(EPOCH, "epoch"),
    ranks=(2, 3, 5),
    hostile=True,
    situations=("NVIDIA/nccl#1990",),
)
def counts_over_launches(world: World) -> None:
    """Epochs count over a hundred launches without a reset, also on a rank that looks after its peers have sent."""
    turns = 100
    dst, out = world.window(4 * turns * world.size), world.window(8)
    world.barrier()
    if world.rank == 1:
        world.pause(0.1)  # its peers have sent before its first look at the signal
    for turn in range(1, turns + 1):
        world.kernel.launch(dst, out, turn, turns)
        if turn % 25 == 0:
            world.comm.synchronize()
    world.equal(out.read(np.int32), [0, turns], "turns in which a value was missing, last turn")


RESET = r"""
#include <gin/gin.cuh>
// The others add in chunks, so that the resets meet some of them however the ranks are scheduled.
extern "C" __global__ void reset(gin::Comm comm, gin::Window out, int chunks, int count) {
  gin::Context net(comm);
  if (net.rank() != 0) {
    for (int chunk = 1; chunk <= chunks; ++chunk) {
      net.wait(gin::thread, 9, chunk);
      for (int i = 0; i < count; ++i) net.signal(0, gin::signal_inc{7});
    }
    net.signal(0, gin::ordered(gin::signal_inc{8}));
    return;
  }
  uint64_t sum = 0, resets = 0, caught = 0;
  auto next_chunk = [&] {
    for (uint32_t peer = 1; peer < net.size() && caught < uint64_t(chunks); ++peer) net.signal(peer, gin::signal_inc{9});
  };
  next_chunk();
  const uint64_t start = gin::platform::clock_ns();
  while (!net.test(8, net.size() - 1) && gin::platform::clock_ns() - start < comm.timeout_ns / 4 * 3) {
    const uint64_t was = net.reset(7);
    sum += was, ++resets;
    if (was) ++caught, next_chunk();
    if (resets % 64 == 0) __nanosleep(1000);
  }
  uint64_t* found = static_cast<uint64_t*>(out.local());
  found[0] = sum + net.read(7), found[1] = resets, found[2] = caught, found[3] = net.epoch(7);
  found[4] = net.reset(7) + sum, found[5] = net.read(7);
}
"""


@case(
    "epoch.reset_loses_nothing",
    promise="reset, rule 4",
    kernel=(RESET, "reset"),
    ranks=(2, 3),
    hostile=True,
    situations=("NVIDIA/nccl#2093",),
)
def reset_loses_nothing(world: World) -> None:
    """Resets lose no increment that arrives meanwhile: what they returned, and what is left, is all that was sent."""
    chunks, count = 40, 2000
    out = world.window(48)
    world.run(out, chunks, count)
    if world.rank == 0:
        total, resets, caught, epoch, again, left = out.read(np.uint64).tolist()
        world.equal([total, again], (world.size - 1) * chunks * count, "the sum, and with the last reset")
        world.equal([epoch, left], 0, "epoch and signal after reset")
        world.check(
            resets >= caught >= chunks - 1, f"{resets} resets, of which {caught} took something, {chunks} chunks"
        )


BETWEEN = r"""
#include <gin/gin.cuh>
extern "C" __global__ void between(gin::Comm comm, gin::Window out, int count) {
  gin::Context net(comm, 2);
  const uint32_t right = (net.rank() + 1) % net.size();
  uint64_t* found = static_cast<uint64_t*>(out.local());
  for (int i = 0; i < count; ++i) net.signal(right, gin::signal_inc{21});
  found[0] = net.wait(gin::thread, 21, count).ok() && net.read(21) == uint64_t(count);
  net.barrier(gin::thread);
  found[1] = net.reset(21), found[2] = net.read(21) + net.epoch(21) + net.test(21, 1);
  net.barrier(gin::thread);
}
"""


@case("epoch.reset_between_barriers", promise="rule 4", kernel=(BETWEEN, "between"), ranks=(2, 3), hostile=True)
def reset_between_barriers(world: World) -> None:
    """A reset between barriers takes signal and epoch to 0, time after time."""
    out = world.window(24)
    for turn in range(1, 20):
        world.run(out, turn)
        world.equal(out.read(np.uint64), [1, turn, 0], f"turn {turn}: wait, what reset returned, what was left")
