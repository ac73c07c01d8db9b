"""put, put_value, get, iput, iget: what arrives, and that nothing beside it changes."""

from __future__ import annotations

import numpy as np

from gin.conformance.registry import case
from gin.conformance.world import World

EMPTY = 255  # what a target holds before: no byte that is sent

# Sizes and offsets vary from launch to launch.
PUT = r"""
#include <gin/gin.cuh>
extern "C" __global__ void put(gin::Comm comm, gin::Window dst, gin::Window src, uint64_t dst_off, uint64_t src_off,
                               uint64_t bytes, int peer, int scope) {
  gin::Context net(comm, 1);
  auto go = [&](auto coop) {
    const uint64_t expected = net.epoch(3) + 1;
    net.put(coop, peer, dst, dst_off, src, src_off, bytes, gin::signal_inc{3}, gin::counter_inc{2});
    net.wait(coop, 3, expected);
    net.wait_counter(coop, 2, expected);
    net.flush(coop);
  };
  if (scope == 0) go(gin::thread);
  if (scope == 1) go(gin::warp);
  if (scope == 2) go(gin::block);
}
"""
THREAD, WARP, BLOCK = 0, 1, 2

SIZES = (0, 1, 2, 3, 7, 8, 15, 16, 17, 63, 255, 257, 4096, 65537)


@case(
    "transfer.put",
    promise="put",
    kernel=(PUT, "put"),
    hostile=True,
    variants={
        "thread": {"scope": THREAD, "block": 1},
        "warp": {"scope": WARP, "block": 32},
        "part of a warp": {"scope": WARP, "block": 5},
        "block of 1": {"scope": BLOCK, "block": 1},
        "block of 33": {"scope": BLOCK, "block": 33},
        "block of 256": {"scope": BLOCK, "block": 256},
    },
)
def put(world: World, scope: int, block: int) -> None:
    """A put of 0 to 65537 bytes at any offset arrives, and nothing beside it changes."""
    room = 70000
    src, dst = world.window(room), world.window(room)
    places = np.arange(room)
    for turn, count in enumerate(SIZES):
        to, at = (turn * 13) % 97, (turn * 29) % 101
        src.write(((places * 7 + world.rank * 31 + turn) % 251).astype(np.uint8))
        dst.write(np.full(room, EMPTY, np.uint8))
        world.barrier()
        world.run(dst, src, to, at, count, world.right, scope, block=block)
        wanted = np.full(room, EMPTY)
        wanted[to : to + count] = (places[at : at + count] * 7 + world.left * 31 + turn) % 251
        world.equal(dst.read(), wanted, f"after a put of {count} bytes")
        world.barrier()


EVERY_LENGTH = r"""
#include <gin/gin.cuh>
__device__ uint64_t place(uint64_t n, uint64_t step) { return n * 400 + n * step % 64; }
// All lengths at once, each to a place of its own, by puts or by gets.
extern "C" __global__ void every_length(gin::Comm comm, gin::Window dst, gin::Window src, int last, int scope, bool get) {
  gin::Context net(comm, 2);
  const uint32_t right = (net.rank() + 1) % net.size(), left = (net.rank() + net.size() - 1) % net.size();
  auto go = [&](auto coop, int first, int step) {
    for (int n = first; n <= last; n += step) {
      if (get) {
        net.get(coop, left, src, place(n, 11), dst, place(n, 7), n);
      } else {
        net.put(coop, right, dst, place(n, 7), src, place(n, 11), n, gin::signal_inc{0});
      }
    }
  };
  if (scope == 0) go(gin::thread, threadIdx.x, blockDim.x);
  if (scope == 1) go(gin::warp, threadIdx.x / 32, blockDim.x / 32);
  if (scope == 2) go(gin::block, 0, 1);
  if (!get) net.wait(gin::block, 0, last + 1);
  net.flush(gin::block);
}
"""


@case(
    "transfer.every_length",
    promise="put, get",
    kernel=(EVERY_LENGTH, "every_length"),
    hostile=True,
    variants={
        f"{name} by {group}s": {"get": name == "get", "scope": scope}
        for name in ("put", "get")
        for group, scope in (("thread", THREAD), ("warp", WARP), ("block", BLOCK))
    },
)
def every_length(world: World, get: bool, scope: int) -> None:
    """Lengths 0 to 257 at unaligned offsets on both sides arrive, all under way at once."""
    last = 257
    lengths = np.arange(last + 1)
    to, at = lengths * 400 + lengths * 7 % 64, lengths * 400 + lengths * 11 % 64
    room = (last + 1) * 400 + 64
    source = (np.arange(room) * 13 + world.rank * 57) % 251
    src, dst = world.window(room, source.astype(np.uint8)), world.window(room, np.full(room, EMPTY, np.uint8))
    world.barrier()
    world.run(dst, src, last, scope, get, block=96)
    wanted, sent = np.full(room, EMPTY), (np.arange(room) * 13 + world.left * 57) % 251
    for n in lengths:
        wanted[to[n] : to[n] + n] = sent[at[n] : at[n] + n]
    world.equal(dst.read(), wanted, "the target")
    world.barrier()


@case("transfer.every_peer", promise="rule 5", kernel=(PUT, "put"), ranks=(2, 3, 5, 8, 9), least=1, hostile=True)
def every_peer(world: World) -> None:
    """Every rank is a legal peer of every rank, itself included."""
    for shift in range(world.size):
        src, dst = world.window(64, np.full(64, world.rank + 1, np.uint8)), world.window(64)
        world.run(dst, src, 0, 0, 64, (world.rank + shift) % world.size, BLOCK, block=64)
        world.equal(dst.read(), (world.rank - shift) % world.size + 1, f"from {shift} ranks away")


VALUES = r"""
#include <gin/gin.cuh>
template <int n>
struct Bytes {
  unsigned char byte[n];
};
template <int n>
__device__ void send(const gin::Context& net, const gin::Window& dst, int peer) {
  Bytes<n> value;
  for (int i = 0; i < n; ++i) value.byte[i] = n * 16 + i;
  net.put_value(peer, dst, n * 16 + n, value, gin::signal_add{1, 1000 + n});
}
extern "C" __global__ void values(gin::Comm comm, gin::Window dst) {
  gin::Context net(comm);
  const int right = (net.rank() + 1) % net.size();
  send<1>(net, dst, right), send<2>(net, dst, right), send<3>(net, dst, right), send<4>(net, dst, right);
  send<5>(net, dst, right), send<6>(net, dst, right), send<7>(net, dst, right), send<8>(net, dst, right);
  net.put_value(right, dst, 0, -1.5, gin::ordered(gin::signal_inc{0}));
  net.wait(gin::thread, 0, 1);
  net.wait(gin::thread, 1, 8036);
}
"""


@case("transfer.put_value", promise="put_value", kernel=(VALUES, "values"), ranks=(2,), hostile=True)
def put_value(world: World) -> None:
    """Values of 1 to 8 bytes arrive at unaligned places, and nothing beside them changes."""
    dst = world.window(256)
    world.run(dst)
    wanted = np.zeros(256, np.uint8)
    for n in range(1, 9):
        wanted[n * 16 + n : n * 17 + n] = n * 16 + np.arange(n)
    wanted[:8] = np.array([-1.5]).view(np.uint8)
    world.equal(dst.read(), wanted, "the target")


GET = r"""
#include <gin/gin.cuh>
extern "C" __global__ void get(gin::Comm comm, gin::Window far, gin::Window near, uint64_t far_off, uint64_t near_off,
                               uint64_t bytes, int how) {
  gin::Context net(comm, 2);
  const uint32_t left = (net.rank() + net.size() - 1) % net.size();
  net.get(gin::block, left, far, far_off, near, near_off, bytes);
  if (how == 0) {
    net.flush(gin::block);
  } else {
    gin::Ticket ticket = net.flush_async(left);
    net.wait(gin::block, ticket);
  }
}
"""


@case(
    "transfer.get",
    promise="get",
    kernel=(GET, "get"),
    ranks=(2, 3, 5),
    hostile=True,
    variants={"flush": {"how": 0}, "ticket": {"how": 1}},
)
def get(world: World, how: int) -> None:
    """What a get fetches is there after a flush or a waited ticket, and nothing beside it changes."""
    room = 70000
    places = np.arange(room)
    far, near = world.window(room, ((places + world.rank) % 253).astype(np.uint8)), world.window(room)
    world.barrier()
    for count in SIZES:
        near.write(np.full(room, EMPTY, np.uint8))
        world.run(far, near, 5, 3, count, how, block=96)
        wanted = np.full(room, EMPTY)
        wanted[3 : 3 + count] = (places[5 : 5 + count] + world.left) % 253
        world.equal(near.read(), wanted, f"after a get of {count} bytes")
    world.barrier()


STRIDED = r"""
#include <gin/gin.cuh>
extern "C" __global__ void strided(gin::Comm comm, gin::Window a, gin::Window b, gin::Window c) {
  gin::Context net(comm);
  const int right = (net.rank() + 1) % net.size();
  net.iput(gin::block, right, b, 4, 12, a, 0, 4, 4, 50, gin::signal_inc{0});
  net.wait(gin::block, 0, 1);
  net.barrier(gin::block);
  net.iget(gin::block, right, b, 4, 12, c, 0, 8, 4, 50);
  net.flush(gin::block);
}
"""


@case("transfer.strided", promise="iput, iget", kernel=(STRIDED, "strided"), hostile=True)
def strided(world: World) -> None:
    """Strided puts and gets move each element to its place; a put's signal covers all of them."""
    a = world.window(200, np.arange(50, dtype=np.int32) + 100 * world.rank)
    b, c = world.window(616), world.window(400)
    world.run(a, b, c, block=17)
    found, back = b.read(np.int32), c.read(np.int32)
    world.equal(found[1::3][:50], np.arange(50) + 100 * world.left, "what was put")
    world.equal(np.delete(found, np.s_[1:150:3]), 0, "beside what was put")
    world.equal(back[::2], np.arange(50) + 100 * world.rank, "what was got")
    world.equal(back[1::2], 0, "between what was got")
    world.barrier()


LOOK = r"""
#include <gin/gin.cuh>
extern "C" __global__ void look(gin::Comm comm, gin::Window window, gin::Window found) {
  gin::Context net(comm);
  for (uint32_t peer = 0; peer < net.size(); ++peer) {
    const int* there = static_cast<const int*>(net.peer_pointer(window, 4, peer));
    static_cast<int*>(found.local())[peer] = there ? *there : -1;
  }
}
"""


@case("transfer.peer_pointer", promise="peer_pointer", kernel=(LOOK, "look"))
def peer_pointer(world: World) -> None:
    """A peer's memory has a pointer exactly on the direct route, and it leads there."""
    window, found = world.window(8, np.array([0, 10 + world.rank], np.int32)), world.window(4 * world.size)
    world.barrier()
    world.run(window, found)
    world.barrier()
    routes = world.comm.routes()
    wanted = [10 + peer if route == "direct" else -1 for peer, route in enumerate(routes)]
    world.equal(found.read(np.int32), wanted, "through the pointers")
    world.check(world.route == "auto" or routes == [world.route] * world.size, f"the routes are {routes}")


REGISTERED = (PUT, "put")


def _registered(world: World) -> None:
    mine = world.array(np.zeros(3000, np.uint8))
    theirs = world.array(np.arange(3000, dtype=np.uint32) + world.rank)
    dst, src = world.comm.register(mine), world.comm.register(theirs)
    world.run(dst, src, 11, 4, 2500, world.right, BLOCK, block=64)
    sent = (np.arange(3000, dtype=np.uint32) + world.left).view(np.uint8)
    world.equal(dst.read(np.uint8, 2500, 11), sent[4:2504], "what arrived")
    world.equal(dst.read(np.uint8, 11), 0, "before it")
    world.equal(dst.read(np.uint8, 489, 2511), 0, "after it")
    world.barrier()


@case(
    "transfer.registered",
    promise="register",
    kernel=REGISTERED,
    needs=("register_memory",),
    ranks=(2,),
    routes=("native",),
)
def registered(world: World) -> None:
    """Memory allocated elsewhere is a window like others."""
    _registered(world)


@case(
    "transfer.registered_among_direct",
    promise="register",
    kernel=REGISTERED,
    needs=("register_memory",),
    routes=("native",),
    settings={"route": "auto"},
)
def registered_among_direct(world: World) -> None:
    """Memory allocated elsewhere is a window like others also where peers are else loaded and stored."""
    _registered(world)
