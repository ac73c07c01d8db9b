"""At the limits: messages, offsets, queues, sizes, and more of everything than fits."""

from __future__ import annotations

import numpy as np

from gin.conformance.cases.order import TIGHT
from gin.conformance.cases.transfer import BLOCK, EMPTY, PUT
from gin.conformance.registry import case
from gin.conformance.world import World
from gin.window import Window

SPLIT = r"""
#include <gin/gin.cuh>
// What the signal covers is looked at as soon as it has been seen, from its beginning: all of it came before.
extern "C" __global__ void split(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window out, uint64_t bytes,
                                 int turn) {
  gin::Context net(comm, 1);
  const uint32_t right = (net.rank() + 1) % net.size(), left = (net.rank() + net.size() - 1) % net.size();
  unsigned char* source = static_cast<unsigned char*>(src.local());
  const unsigned char* target = static_cast<const unsigned char*>(dst.local());
  uint32_t* wrong = static_cast<uint32_t*>(out.local());
  for (uint64_t i = threadIdx.x; i < bytes; i += blockDim.x) source[i] = net.rank() * 31 + turn * 7 + i % 199;
  net.put(gin::block, right, dst, 0, src, 0, bytes, gin::signal_inc{3}, gin::counter_inc{2});
  auto right_at = [&](uint64_t i) { return target[i] == static_cast<unsigned char>(left * 31 + turn * 7 + i % 199); };
  if (threadIdx.x == 0) {
    net.wait(gin::thread, 3, turn);
    for (uint64_t i = 0; i < bytes; i += 61) wrong[0] += !right_at(i);
  }
  net.wait(gin::block, 3, turn);
  for (uint64_t i = threadIdx.x; i < bytes; i += blockDim.x) {
    if (!right_at(i)) atomicAdd(wrong, 1u);
  }
  net.wait_counter(gin::block, 2, turn);
  if (threadIdx.x == 0) wrong[1] += net.read_counter(2) != uint64_t(turn);
  net.flush(gin::block);
}
"""


@case("limits.split", promise="rule 5", kernel=(SPLIT, "split"), ranks=(2,), settings=TIGHT, hostile=True)
def split(world: World) -> None:
    """Puts larger than a message are split; the signal covers all the pieces, and a counter counts them as one."""
    room = 100_001
    src, dst, out = world.window(room), world.window(room), world.window(8)
    for turn, count in enumerate((63, 64, 65, 128, 129, 10_000, room), 1):
        dst.write(np.full(room, EMPTY, np.uint8))
        world.barrier()
        world.run(dst, src, out, count, turn, block=64)
        world.equal(out.read(np.uint32), [0, 0], f"put of {count} bytes: bytes read wrong, counted more than once")
        world.equal(dst.read(np.uint8, offset=count), EMPTY, f"beside a put of {count} bytes")
        world.barrier()


FAR = r"""
#include <gin/gin.cuh>
extern "C" __global__ void far(gin::Comm comm, gin::Window big, gin::Window small, uint64_t there, int step) {
  gin::Context net(comm, 1);
  const uint32_t right = (net.rank() + 1) % net.size();
  if (step == 0) {  // small to big, and a value
    net.put(gin::block, right, big, there, small, 0, 64, gin::signal_inc{0});
    if (threadIdx.x == 0) net.put_value(right, big, there + 100, uint64_t(net.rank() + 77), gin::signal_inc{0});
    net.wait(gin::block, 0, 2);
    net.flush(gin::block);
  } else if (step == 1) {  // from beyond to beyond
    net.put(gin::block, right, big, there + 200, big, there, 64, gin::signal_inc{1});
    net.wait(gin::block, 1, 1);
    net.flush(gin::block);
  } else {  // and back by a get
    net.get(gin::block, right, big, there + 200, small, 64, 64);
    net.flush(gin::block);
  }
}
"""


@case(
    "limits.past_four_gibibytes", promise="sizes are 64-bit", kernel=(FAR, "far"), ranks=(2,), settings={"heap": "6G"}
)
def past_four_gibibytes(world: World) -> None:
    """Offsets past 4 GiB are what they are, in targets and sources of puts, gets and values."""
    far = (5 << 30) + 1000
    small, big = world.window(128, np.full(128, world.rank + 1, np.uint8)), world.window((5 << 30) + 8192)
    for step in range(3):
        world.run(big, small, far, step, block=64)
        world.barrier()
    world.equal(big.read(np.uint8, 64, far), world.left + 1, "what was put")
    world.equal(big.read(np.uint64, 1, far + 100), world.left + 77, "the value")
    world.equal(big.read(np.uint8, 64, far + 200), (world.rank - 2) % world.size + 1, "what was put from there")
    world.equal(small.read(np.uint8, 64, 64), (world.rank - 1) % world.size + 1, "what was got")
    for place in (far % (1 << 32), 0):
        world.equal(big.read(np.uint8, 400, place), 0, f"at {place}, which is nobody's")
    world.barrier()


MANY = r"""
#include <gin/gin.cuh>
extern "C" __global__ void __launch_bounds__(1024) many(gin::Comm comm, gin::Window dst, gin::Window src, int count) {
  gin::Context net(comm);
  const uint32_t right = (net.rank() + 1) % net.size();
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    net.put(gin::thread, right, dst, 4 * i, src, 4 * i, 4, gin::signal_inc{0});
  }
  net.wait(gin::block, 0, count);
  net.flush(gin::block);
}
"""


SHALLOW = {"ring_depth": 4}


@case(
    "limits.more_than_a_queue_holds",
    promise="put",
    kernel=(MANY, "many"),
    ranks=(2,),
    settings=SHALLOW,
    hostile=True,
    situations=("NVIDIA/nccl#2119", "NVIDIA/nccl#2353"),
)
def more_than_a_queue_holds(world: World) -> None:
    """Ten thousand puts through a queue of four: none is dropped and nobody is stuck."""
    _many(world, 10_000, 64)


@case(
    "limits.a_thousand_pushers",
    promise="put",
    kernel=(MANY, "many"),
    ranks=(2,),
    settings=SHALLOW,
    situations=("microsoft/mscclpp#242",),
)
def a_thousand_pushers(world: World) -> None:
    """A queue of four that a thousand threads push to at once loses nothing and lets all of them through."""
    _many(world, 8_192, 1024)


def _many(world: World, count: int, block: int) -> None:
    source = np.arange(count, dtype=np.int32)
    src, dst = world.window(4 * count, source + world.rank), world.window(4 * count)
    world.run(dst, src, count, block=block)
    world.equal(dst.read(np.int32), source + world.left, "the target")


MINGLED = r"""
#include <gin/gin.cuh>
// Neighbouring lanes use different contexts, and every third message adds something other than 1 to its signal.
extern "C" __global__ void mingled(gin::Comm comm, gin::Window dst, int count) {
  const uint32_t contexts = comm.contexts, mine = threadIdx.x % contexts;
  const uint32_t right = (comm.rank + 1) % comm.size;
  gin::Context net(comm, mine);
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    net.put_value(right, dst, 4 * i, 7 * i + int(comm.rank), gin::signal_add{0, uint64_t(i % 3 ? 1 : 5)});
  }
  if (threadIdx.x < contexts) {
    uint64_t least = 0;
    for (int i = 0; i < count; ++i) {
      if (uint32_t(i % int(blockDim.x)) % contexts == mine) least += i % 3 == 0 ? 5 : 1;
    }
    net.wait(gin::thread, 0, least);
  }
}
"""


@case(
    "limits.a_warp_in_several_queues",
    promise="put_value",
    kernel=(MINGLED, "mingled"),
    ranks=(2,),
    settings=SHALLOW,
)
def a_warp_in_several_queues(world: World) -> None:
    """The lanes of a warp push what takes more room or less, each to one of several queues of four."""
    count = 3000
    dst = world.window(4 * count)
    world.run(dst, count, block=96)
    world.equal(dst.read(np.int32), 7 * np.arange(count, dtype=np.int32) + world.left, "the target")


EVERYTHING = r"""
#include <gin/gin.cuh>
// All contexts, all peers and both directions at once; then everything is waited for.
extern "C" __global__ void everything(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window back, int count) {
  gin::Context net(comm, blockIdx.x);
  const uint32_t n = net.size(), me = net.rank();
  const uint64_t row = uint64_t(count) * 4, mine = (uint64_t(blockIdx.x) * n + me) * row;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    for (uint32_t peer = 0; peer < n; ++peer) {
      const uint64_t theirs = (uint64_t(blockIdx.x) * n + peer) * row;
      net.put(gin::thread, peer, dst, mine + 4 * i, src, 4 * i, 4, gin::signal_inc{me}, gin::counter_inc{0});
      net.get(gin::thread, peer, src, 4 * i, back, theirs + 4 * i, 4);
    }
  }
  net.wait_counter(gin::block, 0, uint64_t(count) * n);
  for (uint32_t peer = 0; peer < n; ++peer) net.wait(gin::block, peer, count);
  net.flush(gin::block);
}
"""


@case(
    "limits.everything_at_once",
    promise="put, get",
    kernel=(EVERYTHING, "everything"),
    ranks=(2, 3),
    settings=TIGHT,
    hostile=True,
)
def everything_at_once(world: World) -> None:
    """Puts and gets of all contexts to and from all peers at once, through small queues, lose nothing."""
    count, contexts = 300, world.comm.config.contexts
    source = np.arange(count, dtype=np.int32) * 3 + world.rank * 100_000
    whole = 4 * count * world.size * contexts
    src, dst, back = world.window(4 * count, source), world.window(whole), world.window(whole)
    world.barrier()
    world.run(dst, src, back, count, grid=contexts, block=64)
    world.barrier()
    everyone = np.arange(count)[None, :] * 3 + np.arange(world.size)[:, None] * 100_000
    wanted = np.broadcast_to(everyone, (contexts, world.size, count)).reshape(-1)
    world.equal(dst.read(np.int32), wanted, "what was put")
    world.equal(back.read(np.int32), wanted, "what was got")
    world.barrier()


ENDS = r"""
#include <gin/gin.cuh>
extern "C" __global__ void ends(gin::Comm comm, gin::Window window, gin::Window empty) {
  gin::Context net(comm);
  const uint32_t right = (net.rank() + 1) % net.size();
  net.put_value(right, window, window.peers[right].bytes - 1, char(net.rank() + 1), gin::signal_inc{0});
  net.put(gin::thread, right, empty, 0, empty, 0, 0, gin::signal_inc{0});  // 0 bytes where there are none
  net.put(gin::thread, right, window, window.peers[right].bytes, window, window.bytes, 0, gin::signal_inc{0});
  net.wait(gin::thread, 0, 3);
}
"""


@case(
    "limits.uneven_and_empty_windows",
    promise="rule 5",
    kernel=(ENDS, "ends"),
    ranks=(2, 3),
    hostile=True,
    situations=("pytorch/pytorch#160603",),
)
def uneven_and_empty_windows(world: World) -> None:
    """Windows may differ by rank and be empty; kernels see each peer's size, and 0 bytes may lie at the very end."""
    window, empty = world.window(100 * (world.rank + 1)), world.window(0)
    world.equal(window.sizes, [100 * (rank + 1) for rank in range(world.size)], "the sizes")
    world.equal(empty.read().size, 0, "bytes of the empty window")
    world.run(window, empty)
    found = window.read()
    world.equal(found[-1], world.left + 1, "the last byte")
    world.equal(found[:-1], 0, "the bytes before it")
    world.barrier()


CUT = r"""
#include <gin/gin.cuh>
// From each window to the next, with offsets relative to the windows' own beginnings.
extern "C" __global__ void cut(gin::Comm comm, gin::Window a, gin::Window b, gin::Window c) {
  gin::Context net(comm, 1);
  const uint32_t right = (net.rank() + 1) % net.size();
  net.put(gin::block, right, b, 3, a, 5, 50, gin::signal_inc{0});
  net.put(gin::block, right, c, 0, a, 0, 7, gin::signal_inc{0});
  if (threadIdx.x == 0) net.put_value(right, a, 92, uint64_t(net.rank() + 1), gin::signal_inc{0});
  net.get(gin::block, right, a, 60, c, 20, 30);
  net.wait(gin::block, 0, 3);
  net.flush(gin::block);
}
"""


def _cut(world: World, a: Window, b: Window, c: Window) -> None:
    sent = (np.arange(100) * 3 + np.arange(world.size)[:, None] * 17) % 200  # by rank
    a.write(sent[world.rank].astype(np.uint8))
    world.barrier()
    world.run(a, b, c, block=32)
    world.barrier()
    in_b, in_c = np.zeros(100, int), np.zeros(100, int)
    in_b[3:53] = sent[world.left, 5:55]
    in_c[:7], in_c[20:50] = sent[world.left, :7], sent[world.right, 60:90]
    world.equal(a.read(np.uint8, 92), sent[world.rank, :92], "the first window before the value")
    world.equal(a.read(np.uint64, 1, 92), world.left + 1, "the value")
    world.equal(b.read(), in_b, "the second window")
    world.equal(c.read(), in_c, "the third window")
    world.barrier()


@case("limits.windows_side_by_side", promise="(window, offset)", kernel=(CUT, "cut"), ranks=(2, 3), hostile=True)
def windows_side_by_side(world: World) -> None:
    """Offsets are relative to each window's own beginning."""
    _cut(world, world.window(100), world.window(100), world.window(100))


@case(
    "limits.windows_of_one_allocation",
    promise="(window, offset), register",
    kernel=(CUT, "cut"),
    needs=("register_memory",),
    ranks=(2, 3),
    routes=("native",),
    situations=("NVIDIA/nccl#2198",),
)
def windows_of_one_allocation(world: World) -> None:
    """Offsets are relative to each window's own beginning also where windows are cut from one array, at odd places."""
    whole = world.array(np.zeros(1000, np.uint8))
    _cut(world, *(world.comm.register(whole[at : at + 100]) for at in (100, 203, 306)))
    found = whole if world.platform != "cuda" else whole.get()
    for begin, end in ((0, 100), (200, 203), (303, 306), (406, 1000)):
        world.equal(found[begin:end], 0, f"bytes {begin} to {end}, between the windows")


@case("limits.many_windows", promise="(window, offset)", kernel=(PUT, "put"), ranks=(2,))
def many_windows(world: World) -> None:
    """Two hundred windows at once are two hundred windows."""
    src = world.window(64, np.full(64, world.rank + 1, np.uint8))
    windows = [world.window(64 + number % 5) for number in range(200)]
    for number in range(0, 200, 19):
        world.run(windows[number], src, number % 5, 0, 60, world.right, BLOCK, block=32)
    for number, window in enumerate(windows):
        wanted = np.zeros(window.nbytes)
        if number % 19 == 0:
            wanted[number % 5 : number % 5 + 60] = world.left + 1
        world.equal(window.read(), wanted, f"window {number}")
    world.barrier()
