"""Signals: what they add up to, who they belong to, several at once, crowds, deadlines."""

from __future__ import annotations

import numpy as np

import gin
from gin.conformance.cases.order import TIGHT
from gin.conformance.registry import case
from gin.conformance.world import World

MIX = r"""
#include <gin/gin.cuh>
extern "C" __global__ void mix(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window out, uint64_t big) {
  gin::Context net(comm, 2);
  const uint32_t right = (net.rank() + 1) % net.size();
  net.signal(right, gin::signal_inc{5});
  net.signal(right, gin::signal_add{5, 0});
  net.signal(right, gin::signal_add{5, big});
  net.signal(right, gin::ordered(gin::signal_inc{5}));
  net.signal(right, gin::ordered(gin::signal_add{5, big + 10}));
  net.put(gin::thread, right, dst, 0, src, 0, 0, gin::signal_inc{5});
  net.put(gin::thread, right, dst, 0, src, 0, 0, gin::ordered(gin::signal_add{5, 100}));
  net.put(gin::thread, right, dst, 0, src, 0, 8, gin::signal_add{5, 1000});
  net.put(gin::thread, right, dst, 8, src, 0, 8, gin::ordered(gin::signal_inc{5}));
  net.put_value(right, dst, 16, uint64_t(7), gin::signal_add{5, 10000});
  net.put_value(right, dst, 24, uint16_t(9), gin::ordered(gin::signal_add{5, 100000}));
  uint64_t* found = static_cast<uint64_t*>(out.local());
  const uint64_t all = 2 * big + 111114;
  found[0] = net.wait(gin::thread, 5, all).ok();
  found[1] = net.read(5);
  found[2] = net.test(5, all) && net.test(5, all - 1) && net.test(5, 0) && !net.test(5, all + 1);
  found[3] = net.epoch(5) == all && net.epoch(4) == 0;
  found[4] = net.read(4) + net.read(6) + gin::Context(comm, 1).read(5) + gin::Context(comm, 3).read(5);
  net.flush(gin::thread);
}
"""


@case("signal.adds_up", promise="signal, put, put_value", kernel=(MIX, "mix"), ranks=(2, 3, 5), hostile=True)
def adds_up(world: World) -> None:
    """Weak and ordered, increments and additions past 2^63, of puts of 0 bytes too, add up on one signal."""
    big = (1 << 62) + 12345  # two of them pass 2^63
    dst, src, out = world.window(64), world.window(64, np.array([77], np.uint64)), world.window(40)
    world.run(dst, src, out, big)
    wanted = np.array([1, 2 * big + 111114, 1, 1, 0], np.uint64)
    world.equal(out.read(np.uint64), wanted, "wait, read, test, epoch, other signals")
    world.equal(dst.read(np.uint64, 4), [77, 77, 7, 9], "what the puts carried")


CONTEXTS = r"""
#include <gin/gin.cuh>
extern "C" __global__ void contexts(gin::Comm comm, gin::Window out, int step) {
  uint64_t* found = static_cast<uint64_t*>(out.local());
  const uint32_t index = blockIdx.x, id = blockIdx.y, id_count = gridDim.y;
  gin::Context net(comm, index);
  const uint64_t value = 1 + 1000 * index + id;
  const uint32_t right = (net.rank() + 1) % net.size();
  if (step == 0) {  // one block for each signal: the value names it
    net.signal(right, gin::signal_add{id, value});
    net.wait(gin::thread, id, value);
  } else {
    found[index * id_count + id] = net.read(id);
  }
}
"""


@case("signal.belongs_to_a_context", promise="rule 2", kernel=(CONTEXTS, "contexts"), hostile=True)
def belongs_to_a_context(world: World) -> None:
    """Every signal of every context is a signal of its own."""
    contexts, signals = world.comm.config.contexts, world.comm.config.signals
    out = world.window(8 * contexts * signals)
    for step in (0, 1):
        world.run(out, step, grid=(contexts, signals))
    sent = 1 + 1000 * np.arange(contexts)[:, None] + np.arange(signals)
    world.equal(out.read(np.uint64), sent.reshape(-1), "the values")


SEVERAL = r"""
#include <gin/gin.cuh>
// Rank 0 waits for signals 10, 11, 12; rank 1 sends what makes one of them enough, then the others.
extern "C" __global__ void several(gin::Comm comm, gin::Window out) {
  __shared__ uint32_t ids[3], which[3], found;
  __shared__ uint64_t least[3];
  gin::Context net(comm);
  if (net.rank() == 1 && threadIdx.x == 0) {
    net.signal(0, gin::signal_add{11, 4});
    net.signal(0, gin::signal_add{10, 3});
    net.wait(gin::thread, 20, 1);
    net.signal(0, gin::signal_add{12, 4});
    net.signal(0, gin::signal_inc{10});
  }
  if (net.rank() != 0) return;
  for (uint32_t i = threadIdx.x; i < 3; i += blockDim.x) ids[i] = 10 + i, least[i] = 4;
  __syncthreads();
  const gin::Found hit = net.wait_any(gin::block, ids, least, 3);
  uint32_t* seen = static_cast<uint32_t*>(out.local());
  if (!hit.status.ok() || hit.index != 1) atomicAdd(&seen[0], 1u);
  const gin::Status some = net.wait_some(gin::block, ids, least, 3, which, &found);
  if (!some.ok() || found != 1 || which[0] != 1) atomicAdd(&seen[0], 1u);
  if (net.epoch(11) != 4 || net.epoch(10) != 0) atomicAdd(&seen[0], 1u);
  if (threadIdx.x == 0) net.signal(1, gin::signal_add{20, 1});
  if (!net.wait_all(gin::block, ids, least, 3).ok()) atomicAdd(&seen[0], 1u);
  for (uint32_t i = 0; i < 3; ++i) {
    if (net.read(10 + i) != 4 || net.epoch(10 + i) != 4) atomicAdd(&seen[0], 1u);
  }
  if (!net.wait_some(gin::block, ids, least, 3, which, &found).ok() || found != 3) atomicAdd(&seen[0], 1u);
  for (uint32_t i = 0; i < 3; ++i) {
    if (which[i] != i) atomicAdd(&seen[0], 1u);
  }
  if (net.wait_any(gin::block, ids, least, 0).index != 0) atomicAdd(&seen[0], 1u);  // none to wait for
  if (threadIdx.x == 0) seen[1] = 1;
}
"""


@case("signal.several", promise="wait_any/all/some", kernel=(SEVERAL, "several"), ranks=(2,), hostile=True)
def several(world: World) -> None:
    """wait_any finds the one that is enough, wait_some those that are, wait_all returns when all are."""
    out = world.window(8)
    world.run(out, block=40)
    world.equal(out.read(np.uint32), [0, int(world.rank == 0)], "what was wrong, whether it came to the end")


CROWD = r"""
#include <gin/gin.cuh>
extern "C" __global__ void crowd(gin::Comm comm, gin::Window out, int times) {
  gin::Context net(comm);
  net.barrier(gin::block, {}, blockIdx.x);  // all at once
  for (int i = 0; i < times; ++i) net.signal(0, gin::signal_add{1, 1 + (threadIdx.x & 1)});
  if (blockIdx.x == 0 && threadIdx.x == 0 && net.rank() == 0) {
    const uint64_t all = uint64_t(net.size()) * gridDim.x * blockDim.x * times * 3 / 2;
    net.wait(gin::thread, 1, all);
    static_cast<uint64_t*>(out.local())[0] = net.read(1) - all;
    static_cast<uint64_t*>(out.local())[1] = 1;
  }
}
"""


@case("signal.crowd", promise="signal", kernel=(CROWD, "crowd"), ranks=(2, 3, 5), settings=TIGHT, hostile=True)
def crowd(world: World) -> None:
    """A thousand threads of each rank add to one signal, and nothing is lost or counted twice."""
    out = world.window(16)
    world.run(out, 6, grid=4, block=256)
    world.equal(out.read(np.uint64), [0, int(world.rank == 0)], "how much too many, whether they came")


WRAP = r"""
#include <gin/gin.cuh>
// Past 2^32 in steps of one, then with the words past 2^64: what reset took off lies in between.
extern "C" __global__ void wrap(gin::Comm comm, gin::Window out) {
  gin::Context net(comm, 1);
  const uint32_t right = (net.rank() + 1) % net.size(), left = (net.rank() + net.size() - 1) % net.size();
  uint64_t* found = static_cast<uint64_t*>(out.local());
  const uint64_t half = uint64_t(1) << 63, word = uint64_t(1) << 32;
  uint64_t wrong = 0, sum = 0, steps[4] = {word - 2, 1, 1, 1};
  for (int i = 0; i < 4; ++i) {
    net.signal(right, gin::signal_add{8, steps[i]});
    sum += steps[i];
    wrong += !net.wait(gin::thread, 8, sum).ok() + (net.epoch(8) != sum);
    wrong += (net.read(8) < sum) + (net.test(8, sum + 2 * word));
    net.signal(left, gin::signal_inc{9});  // seen
    net.wait(gin::thread, 9, i + 1);
  }
  wrong += net.read(8) != word + 1;
  found[0] = wrong, wrong = 0;
  for (int lap = 0; lap < 3; ++lap) {
    wrong += net.reset(8) != (lap ? half + 5 : word + 1);
    wrong += (net.read(8) != 0) + (net.epoch(8) != 0) + net.test(8, 1);
    net.signal(left, gin::signal_inc{9});  // has been reset
    net.wait(gin::thread, 9, 5 + 2 * lap);
    net.signal(right, gin::signal_add{8, half + 5});
    wrong += !net.wait(gin::thread, 8, half + 5).ok() + (net.read(8) != half + 5) + net.test(8, half + 6);
    net.signal(left, gin::signal_inc{9});
    net.wait(gin::thread, 9, 6 + 2 * lap);
  }
  found[1] = wrong, found[2] = 1;
}
"""


@case("signal.wraps_around", promise="wait, rule 4", kernel=(WRAP, "wrap"), ranks=(2, 3), hostile=True)
def wraps_around(world: World) -> None:
    """Values pass 2^32 without a jump, and the words under a signal pass 2^64, after resets, without anybody noticing."""
    out = world.window(24)
    world.run(out)
    world.equal(out.read(np.uint64), [0, 0, 1], "wrong past 2^32, wrong past 2^64, whether it came to the end")


GROWS = r"""
#include <gin/gin.cuh>
extern "C" __global__ void grows(gin::Comm comm, gin::Window out, int count) {
  gin::Context net(comm);
  const uint64_t all = uint64_t(net.size()) * count, deadline = gin::platform::clock_ns() + comm.timeout_ns / 4 * 3;
  uint64_t* found = static_cast<uint64_t*>(out.local());
  if (blockIdx.x == 1) {  // everybody sends to everybody
    for (int i = 0; i < count; ++i) {
      for (uint32_t peer = 0; peer < net.size(); ++peer) net.signal(peer, gin::signal_inc{17});
    }
    return;
  }
  uint64_t before = 0, back = 0;
  while (before < all && gin::platform::clock_ns() < deadline) {
    const uint64_t now = net.read(17);
    back += now < before;
    before = now;
    __nanosleep(10000);
  }
  found[0] = back, found[1] = before, found[2] = net.wait(gin::thread, 17, all).ok();
  found[3] = net.wait(gin::thread, 18, 0).ok() && net.test(18, 0) && !net.test(18, 1) && net.epoch(18) == 0;
}
"""


@case("signal.only_grows", promise="read, rule 4", kernel=(GROWS, "grows"), ranks=(2, 3), hostile=True)
def only_grows(world: World) -> None:
    """A signal that is looked at while it is added to never goes back; to wait for 0 is done at once."""
    count = 2000
    out = world.window(32)
    world.run(out, count, grid=2)
    world.equal(out.read(np.uint64), [0, world.size * count, 1, 1], "steps back, last value, wait, wait for 0")


DEADLINE = r"""
#include <gin/gin.cuh>
extern "C" __global__ void patient(gin::Comm comm, gin::Window out, uint64_t least, uint64_t timeout_ns) {
  gin::Context net(comm);
  uint64_t* seen = static_cast<uint64_t*>(out.local());
  if (threadIdx.x == 0 && net.rank() == 0) net.signal(1, gin::signal_inc{1});
  const uint64_t start = gin::platform::clock_ns();
  const gin::Status status = net.wait(gin::block, 0, least, timeout_ns);
  if (threadIdx.x == 0) seen[0] = uint64_t(status.code), seen[1] = gin::platform::clock_ns() - start;
  seen[2 + threadIdx.x] = uint64_t(status.code);
}
extern "C" __global__ void send(gin::Comm comm, uint64_t after_ns) {
  gin::Context net(comm);
  if (!net.wait(gin::thread, 1, 1, 10000000000).ok()) return;  // until the peer waits
  const uint64_t start = gin::platform::clock_ns();
  while (gin::platform::clock_ns() - start < after_ns) __nanosleep(100000);
  net.signal(0, gin::signal_inc{0});
}
"""


@case(
    "signal.deadline",
    promise="wait, rule 6",
    kernel=((DEADLINE, "patient"), (DEADLINE, "send")),
    ranks=(2,),
    most=2,
    settings={"timeout": "300ms"},
    alone=True,
)
def deadline(world: World) -> None:
    """A wait can have a deadline of its own, or none; all of the group learn how it ended, and so does the peer."""
    out = world.window(8 * 34)
    patient, send = world.kernels
    world.barrier()
    if world.rank == 1:
        world.run(600_000_000, kernel=send)
    else:
        world.run(out, 1, 0, block=32)  # without one
        code, waited = out.read(np.uint64, 2).tolist()
        world.check(code == 0 and waited > 300e6, f"without a deadline: code {code} after {waited} ns")
    world.barrier()
    if world.rank == 0:
        patient.launch(out, 3, 50_000_000, block=32)
        world.refuses(gin.TimeoutError, r"50ms|0\.05s", world.comm.synchronize, "a wait of 50 ms")
        waited = int(out.read(np.uint64)[1])
        world.check(50e6 <= waited < 10e9, f"a wait of 50 ms took {waited} ns")
        world.equal(out.read(np.uint64)[2:], 1, "what each thread learnt")
    else:
        patient.launch(out, 3, 10**10, block=32)  # ends with its peer's failure
        world.refuses(gin.RemoteError, "rank 0", world.comm.synchronize, "a wait of 10 s")
        world.equal(out.read(np.uint64)[2:], 2, "what each thread learnt")
