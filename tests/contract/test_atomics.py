"""Atomics on a peer's window."""

from __future__ import annotations

import numpy as np
import pytest

import gin

OVERTAKING = True

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
  found[7] = net.atomic_compare_swap(peer, window, at, T((a & b | T(a + 1)) ^ b), T(-7));  // equal
  found[8] = net.atomic_fetch_add(peer, window, at, T(0));
}
"""
TYPES = {"int32_t": "i4", "uint32_t": "u4", "int64_t": "i8", "uint64_t": "u8"}


@pytest.fixture
def atomic_world(world):
    from gin import backends

    if not backends.capabilities(world.backend)["atomics"]:
        pytest.skip(f"{world.backend} has no atomics, see the test that it refuses them")
    return world


def expected(kind, a, b):
    """The old values, and the last one, in the type's own arithmetic."""
    mask = (1 << 8 * np.dtype(kind).itemsize) - 1
    a, b, values, word = a & mask, b & mask, [], 5
    for new in (
        lambda w: w + a, lambda w: w + b, lambda w: a, lambda w: w & b, lambda w: w | (a + 1), lambda w: w ^ b,
        lambda w: w, lambda w: -7, lambda w: w,
    ):  # fmt: skip
        values.append(word)
        word = new(word) & mask
    return np.array(values, np.uint64).astype(kind.replace("i", "u")).view(kind).tolist()


def test_every_operation_in_every_type_on_every_peer(atomic_world):
    def body(comm):
        turn = 0
        for name, kind in TYPES.items():
            kernel = comm.compile(EVERY, f"every<{name}>")
            bits = 8 * np.dtype(kind).itemsize
            pairs = [(3, 6), ((1 << bits - 1) - 2, 0x5A5A5A5A)]
            if kind[0] == "i":
                pairs += [(-1, -(1 << (bits - 1))), (-100, 99)]
            else:
                pairs += [((1 << bits) - 1, 2)]
            for a, b in pairs:
                turn += 1
                window, old = comm.window(64), comm.window(80)
                window.array(kind)[:] = 5
                comm.barrier()
                kernel.launch(window, old, (comm.rank + turn) % comm.size, a, b)  # oneself, too
                comm.synchronize()
                comm.barrier()
                assert old.array(kind)[:9].tolist() == expected(kind, a, b), (name, a, b)
                assert window.array(kind)[3] == -7 % (1 << bits) if kind[0] == "u" else window.array(kind)[3] == -7
                assert (np.delete(window.array(kind), 3) == 5).all()
        comm.barrier()

    atomic_world.run(3, body)


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


@pytest.mark.parametrize("kind", ["u4", "u8"])
def test_all_ranks_and_many_threads_on_one_word_get_each_old_value_once(atomic_world, ranks, kind):
    name = "uint32_t" if kind == "u4" else "uint64_t"
    times, threads, grid = 20, 128, 2  # more of a context in flight than there are places for results

    def body(comm):
        word, old = comm.window(24), comm.window(8 * times * threads * grid)
        comm.compile(CROWD, f"crowd<{name}>").launch(word, old, times, grid=grid, block=threads)
        comm.synchronize()
        comm.barrier()
        return old.array(kind)[: times * threads * grid].tolist(), word.array(kind).tolist()

    results = atomic_world.run(ranks, body, ring_depth=64)
    count = ranks * times * threads * grid
    assert sorted(value for values, _ in results for value in values) == list(range(count))
    at = 8 // np.dtype(kind).itemsize
    assert results[0][1] == [count if i == at else 0 for i in range(24 // np.dtype(kind).itemsize)]


LOCK = r"""
#include <gin/gin.cuh>
// A lock and what it guards lie on rank 0. The guarded word is read with a get and written with a put.
extern "C" __global__ void lock(gin::Comm comm, gin::Window guarded, gin::Window mine, gin::Window out, int times) {
  gin::Context net(comm);
  uint64_t* value = static_cast<uint64_t*>(mine.local());
  uint64_t* spins = static_cast<uint64_t*>(out.local());
  for (int i = 0; i < times; ++i) {
    while (net.atomic_compare_swap(0, guarded, 0, uint64_t(0), uint64_t(net.rank() + 1)) != 0) {
      ++*spins;
      __nanosleep(500);
    }
    net.get(gin::thread, 0, guarded, 8, mine, 0, 8);
    net.flush(gin::thread);
    *value += 1;
    net.put(gin::thread, 0, guarded, 8, mine, 0, 8);
    net.quiet(gin::thread);
    const uint64_t owner = net.atomic_swap(0, guarded, 0, uint64_t(0));
    if (owner != net.rank() + 1) spins[1] += 1;
  }
}
"""


def test_a_lock_of_compare_swap_guards_what_is_read_and_written_under_it(atomic_world):
    times = 60

    def body(comm):
        guarded, mine, out = comm.window(16), comm.window(8), comm.window(16)
        comm.compile(LOCK, "lock").launch(guarded, mine, out, times)
        comm.synchronize()
        comm.barrier()
        return guarded.array("u8").tolist(), out.array("u8")[1]

    results = atomic_world.run(3, body)
    assert results[0][0] == [0, 3 * times] and all(stolen == 0 for _, stolen in results)


REFUSED = r"""#include <gin/gin.cuh>
extern "C" __global__ void add(gin::Comm comm, gin::Window window) {
  gin::Context net(comm);
  net.atomic_fetch_add(0, window, 0, %s);
}
"""


def test_what_a_backend_or_the_api_has_not_is_refused_at_compile_time(world):
    def body(comm):
        def message(value):
            with pytest.raises(gin.CompileError) as caught:
                comm.compile(REFUSED % value, "add")
            return str(caught.value)

        if not comm.capabilities["atomics"]:
            text = message("1")
            assert "this backend has no atomics" in text and "kernel.cu:4" in text
            return
        comm.compile(REFUSED % "1", "add")
        assert "atomics take 4 or 8 bytes" in message("short(1)")
        assert "atomics take integers" in message("1.0")

    world.run(1, body)
    if world.backend == "nccl_gin":
        with pytest.raises(gin.UnsupportedError, match=r"nccl_gin cannot do 'atomics'.*nvshmem.*ibrc_proxy"):
            world.run(1, body, require=["quiet", "atomics"])
