"""Atomics on a peer's window."""

from __future__ import annotations

import numpy as np

from gin.conformance.cases.order import TIGHT
from gin.conformance.registry import case
from gin.conformance.world import World

EVERY = r"""
#include <gin/gin.cuh>
template <class T>
__global__ void every(gin::Comm comm, gin::Window window, gin::Window old, int peer, T a, T b) {
  gin::Context net(comm, 1);
  T* found = static_cast<T*>(old.local());
  const uint64_t at = 3 * sizeof(T);  // one word of several
  found[0] = net.atomic_fetch_add(peer, window, at, a);
  found[1] = net.atomic_fetch_add(peer, window, at, b);
  found[2] = net.atomic_swap(peer, window, at, a);
  found[3] = net.atomic_fetch_and(peer, window, at, b);
  found[4] = net.atomic_fetch_or(peer, window, at, T(a + 1));
  found[5] = net.atomic_fetch_xor(peer, window, at, b);
  found[6] = net.atomic_compare_swap(peer, window, at, T(12345), T(1));  // not equal: nothing happens
  found[7] = net.atomic_compare_swap(peer, window, at, T(((a & b) | T(a + 1)) ^ b), T(-7));  // equal
  found[8] = net.atomic_fetch_add(peer, window, at, T(0));
}
"""
TYPES = {"int32_t": "i4", "uint32_t": "u4", "int64_t": "i8", "uint64_t": "u8"}


def expected(kind: str, a: int, b: int) -> list[int]:
    """The old values, and the last one, in the type's own arithmetic."""
    mask = (1 << 8 * np.dtype(kind).itemsize) - 1
    a, b, values, word = a & mask, b & mask, [], 5
    for new in (
        lambda w: w + a,
        lambda w: w + b,
        lambda w: a,
        lambda w: w & b,
        lambda w: w | (a + 1),
        lambda w: w ^ b,
        lambda w: w,
        lambda w: -7,
        lambda w: w,
    ):
        values.append(word)
        word = new(word) & mask
    found: list[int] = np.array(values, np.uint64).astype(kind.replace("i", "u")).view(kind).tolist()
    return found


def pairs(kind: str) -> list[tuple[int, int]]:
    """Operands: small ones, and those around the type's limits."""
    bits = 8 * np.dtype(kind).itemsize
    common = [(3, 6), ((1 << bits - 1) - 2, 0x5A5A5A5A)]
    return common + ([(-1, -(1 << (bits - 1))), (-100, 99)] if kind[0] == "i" else [((1 << bits) - 1, 2)])


@case(
    "atomic.every_operation",
    promise="atomic",
    kernel=[(EVERY, f"every<{name}>") for name in TYPES],
    needs=("atomics",),
    hostile=True,
)
def every_operation(world: World) -> None:
    """Each operation on each type returns the old value and leaves the new one, at the type's limits, on every peer."""
    turn = 0
    for kernel, (name, kind) in zip(world.kernels, TYPES.items(), strict=True):
        size = np.dtype(kind).itemsize
        for a, b in pairs(kind):
            window, old = world.window(64, np.full(64 // size, 5, kind)), world.window(80)
            world.barrier()
            world.run(window, old, (world.rank + turn) % world.size, a, b, kernel=kernel)  # oneself, too
            world.barrier()
            world.equal(old.read(kind, 9), np.array(expected(kind, a, b), kind), f"{name}: old values with {a} and {b}")
            wanted = np.full(64 // size, 5, kind)
            wanted[3] = np.array(-7).astype(kind)
            world.equal(window.read(kind), wanted, f"{name}: the words with {a} and {b}")
            turn += 1
    world.barrier()


CROWD = r"""
#include <gin/gin.cuh>
template <class T>
__global__ void crowd(gin::Comm comm, gin::Window word, gin::Window old, int times) {
  gin::Context net(comm, blockIdx.x);
  const int me = blockIdx.x * blockDim.x + threadIdx.x;
  net.barrier(gin::block);  // all at once
  for (int i = 0; i < times; ++i) {
    static_cast<T*>(old.local())[me * times + i] = net.atomic_fetch_add(0, word, 8, T(1));
  }
}
"""


@case(
    "atomic.crowd",
    promise="atomic",
    kernel=[(CROWD, f"crowd<{name}>") for name in ("uint32_t", "uint64_t")],
    needs=("atomics",),
    ranks=(2, 3, 5),
    settings=TIGHT,
    hostile=True,
)
def crowd(world: World) -> None:
    """All ranks and many threads on one word, more at once than a context has places for: each old value comes once."""
    times, threads, grid = 20, 128, 2
    each = times * threads * grid
    for kernel, kind in zip(world.kernels, (np.uint32, np.uint64), strict=True):
        word, old = world.window(24), world.window(8 * each)
        world.run(word, old, times, kernel=kernel, grid=grid, block=threads)
        world.barrier()
        values = np.array(world.gather(old.read(kind, each).tolist()))
        world.equal(np.sort(values, axis=None), np.arange(world.size * each), "all old values in order")
        if world.rank == 0:
            at = 8 // np.dtype(kind).itemsize
            words = word.read(kind)
            world.equal(words[at], world.size * each, "the word")
            world.equal(np.delete(words, at), 0, "beside the word")


LOCK = r"""
#include <gin/gin.cuh>
// A lock and what it guards lie on rank 0. The guarded word is read with a get and written with a put.
extern "C" __global__ void lock(gin::Comm comm, gin::Window guarded, gin::Window mine, gin::Window out, int times) {
  gin::Context net(comm);
  uint64_t* value = static_cast<uint64_t*>(mine.local());
  uint64_t* found = static_cast<uint64_t*>(out.local());
  const uint64_t deadline = gin::platform::clock_ns() + comm.timeout_ns / 4 * 3;
  for (int i = 0; i < times; ++i) {
    while (net.atomic_compare_swap(0, guarded, 0, uint64_t(0), uint64_t(net.rank() + 1)) != 0) {
      if (gin::platform::clock_ns() > deadline) return;
      __nanosleep(500);
    }
    net.get(gin::thread, 0, guarded, 8, mine, 0, 8);
    net.flush(gin::thread);
    *value += 1;
    net.put(gin::thread, 0, guarded, 8, mine, 0, 8);
    net.quiet(gin::thread);
    const uint64_t owner = net.atomic_swap(0, guarded, 0, uint64_t(0));
    if (owner != net.rank() + 1) found[1] += 1;
    found[0] += 1;
  }
}
"""


@case(
    "atomic.lock",
    promise="atomic, quiet",
    kernel=(LOCK, "lock"),
    needs=("atomics", "quiet"),
    ranks=(2, 3),
    hostile=True,
)
def lock(world: World) -> None:
    """A lock of compare-and-swap guards what is got and put, and has settled, under it."""
    times = 60
    guarded, mine, out = world.window(16), world.window(8), world.window(16)
    world.run(guarded, mine, out, times)
    world.barrier()
    world.equal(out.read(np.uint64), [times, 0], "times it was held, times it was stolen")
    if world.rank == 0:
        world.equal(guarded.read(np.uint64), [0, world.size * times], "the lock, and what it guards")
