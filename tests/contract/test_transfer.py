"""put, put_value, get, iput, iget: what arrives, and what a signal that has been seen lets its observer read."""

from __future__ import annotations

import numpy as np
import pytest

import gin

OVERTAKING = True

# The group that calls is a template argument; sizes and offsets vary from launch to launch.
PUT = r"""
#include <gin/gin.cuh>
template <int scope>
__global__ void put(gin::Comm comm, gin::Window dst, gin::Window src, uint64_t dst_off, uint64_t src_off,
                    uint64_t bytes, int peer, int from) {
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

SIZES = [0, 1, 2, 3, 7, 8, 15, 16, 17, 63, 255, 257, 4096, 65537]


@pytest.mark.parametrize(("scope", "block"), [(0, 1), (1, 32), (1, 5), (2, 1), (2, 33), (2, 256)])
def test_put_of_any_size_and_place_arrives_and_nothing_beside_it_changes(world, scope, block):
    def body(comm):
        room = 70000
        src, dst = comm.window(room), comm.window(room)
        kernel = comm.compile(PUT, f"put<{scope}>")
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        source, target = src.array(), dst.array()
        for turn, bytes_ in enumerate(SIZES):
            dst_off, src_off = (turn * 13) % 97, (turn * 29) % 101
            source[:] = (np.arange(room) * 7 + comm.rank * 31 + turn) % 251
            target[:] = 255
            comm.barrier()
            kernel.launch(dst, src, dst_off, src_off, bytes_, right, left, grid=1, block=block)
            comm.synchronize()
            sent = (np.arange(src_off, src_off + bytes_) * 7 + left * 31 + turn) % 251
            assert (target[dst_off : dst_off + bytes_] == sent).all(), bytes_
            assert (target[:dst_off] == 255).all() and (target[dst_off + bytes_ :] == 255).all(), bytes_
            comm.barrier()

    world.run(3, body)


def test_every_peer_is_legal_oneself_included(world, ranks):
    source = PUT

    def body(comm):
        kernel = comm.compile(source, "put<2>")
        for shift in range(comm.size):
            src, dst = comm.window(64), comm.window(64)
            src.array()[:] = comm.rank + 1
            kernel.launch(dst, src, 0, 0, 64, (comm.rank + shift) % comm.size, 0, grid=1, block=64)
            comm.synchronize()
            assert (dst.array() == (comm.rank - shift) % comm.size + 1).all()

    world.run(ranks, body)


def test_put_value_of_each_size(world):
    source = r"""
    #include <gin/gin.cuh>
    template <int n> struct Bytes { unsigned char byte[n]; };
    template <int n>
    __device__ void send(gin::Context& net, gin::Window dst, int peer) {
      Bytes<n> value;
      for (int i = 0; i < n; ++i) value.byte[i] = n * 16 + i;
      net.put_value(peer, dst, n * 16 + n, value, gin::signal_add{1, 1000 + n});
    }
    extern "C" __global__ void values(gin::Comm comm, gin::Window dst) {
      gin::Context net(comm);
      int right = (net.rank() + 1) % net.size();
      send<1>(net, dst, right), send<2>(net, dst, right), send<3>(net, dst, right), send<4>(net, dst, right);
      send<5>(net, dst, right), send<6>(net, dst, right), send<7>(net, dst, right), send<8>(net, dst, right);
      net.put_value(right, dst, 0, -1.5, gin::ordered(gin::signal_inc{0}));
      net.wait(gin::thread, 0, 1);
      net.wait(gin::thread, 1, 8036);
    }"""

    def body(comm):
        dst = comm.window(256)
        comm.compile(source, "values").launch(dst)
        comm.synchronize()
        expected = np.zeros(256, np.uint8)
        for n in range(1, 9):
            expected[n * 16 + n : n * 17 + n] = n * 16 + np.arange(n)
        expected[:8] = np.array([-1.5]).view(np.uint8)
        assert (dst.array() == expected).all()

    world.run(2, body)


GET = r"""
#include <gin/gin.cuh>
extern "C" __global__ void get(gin::Comm comm, gin::Window far, gin::Window near, uint64_t far_off, uint64_t near_off,
                               uint64_t bytes, int how) {
  gin::Context net(comm, 2);
  int left = (net.rank() + net.size() - 1) % net.size();
  net.get(gin::block, left, far, far_off, near, near_off, bytes);
  if (how == 0) {
    net.flush(gin::block);
  } else {
    gin::Ticket ticket = net.flush_async(left);
    net.wait(gin::block, ticket);
  }
}
"""


@pytest.mark.parametrize("how", [0, 1])
def test_get_is_there_after_flush_or_a_waited_ticket(world, ranks, how):
    source = GET

    def body(comm):
        far, near = comm.window(70000), comm.window(70000)
        far.array()[:] = (np.arange(70000) + comm.rank) % 253
        comm.barrier()
        kernel = comm.compile(source, "get")
        left = (comm.rank - 1) % comm.size
        for bytes_ in SIZES:
            near.array()[:] = 255
            kernel.launch(far, near, 5, 3, bytes_, how, block=96)
            comm.synchronize()
            assert (near.array()[3 : 3 + bytes_] == (np.arange(5, 5 + bytes_) + left) % 253).all(), bytes_
            assert (near.array()[3 + bytes_ :] == 255).all(), bytes_
        comm.barrier()

    world.run(ranks, body)


def test_strided_transfers(world):
    source = r"""
    #include <gin/gin.cuh>
    extern "C" __global__ void strided(gin::Comm comm, gin::Window a, gin::Window b, gin::Window c) {
      gin::Context net(comm);
      int right = (net.rank() + 1) % net.size();
      net.iput(gin::block, right, b, 4, 12, a, 0, 4, 4, 50, gin::signal_inc{0});
      net.wait(gin::block, 0, 1);
      net.barrier(gin::block);
      net.iget(gin::block, right, b, 4, 12, c, 0, 8, 4, 50);
      net.flush(gin::block);
    }"""

    def body(comm):
        a, b, c = comm.window(200), comm.window(616), comm.window(400)
        a.array("int32")[:] = np.arange(50) + 100 * comm.rank
        comm.compile(source, "strided").launch(a, b, c, block=17)
        comm.synchronize()
        left = (comm.rank - 1) % comm.size
        assert (b.array("int32")[1::3][:50] == np.arange(50) + 100 * left).all()
        assert (c.array("int32")[::2] == np.arange(50) + 100 * comm.rank).all()
        assert (c.array("int32")[1::2] == 0).all()
        comm.barrier()

    world.run(3, body)


def test_puts_larger_than_a_message_are_split_and_the_signal_covers_all_of_it(world):
    source = PUT

    def body(comm):
        src, dst = comm.window(100_001), comm.window(100_001)
        src.array()[:] = np.arange(100_001) % 251
        kernel = comm.compile(source, "put<2>")
        for bytes_ in (63, 64, 65, 128, 100_001):
            dst.array()[:] = 255
            comm.barrier()
            kernel.launch(dst, src, 0, 0, bytes_, (comm.rank + 1) % comm.size, 0, block=64)
            comm.synchronize()
            assert (dst.array()[:bytes_] == np.arange(bytes_) % 251).all()
            assert (dst.array()[bytes_:] == 255).all()
            comm.barrier()

    world.run(2, body, max_message=64)


def test_offsets_past_four_gibibytes(world):
    source = PUT
    far = 5 << 30

    def body(comm):
        src, dst = comm.window(64), comm.window(far + 4096)
        src.array()[:] = comm.rank + 1
        comm.compile(source, "put<2>").launch(dst, src, far + 1000, 0, 64, (comm.rank + 1) % comm.size, 0, block=64)
        comm.synchronize()
        assert (dst.array()[far + 1000 : far + 1064] == (comm.rank - 1) % comm.size + 1).all()
        assert not dst.array()[1000:1064].any()

    world.run(2, body, heap="6G")


def test_more_puts_in_flight_than_any_queue_holds(world):
    source = r"""
    #include <gin/gin.cuh>
    extern "C" __global__ void many(gin::Comm comm, gin::Window dst, gin::Window src, int count) {
      gin::Context net(comm);
      int right = (net.rank() + 1) % net.size();
      for (int i = threadIdx.x; i < count; i += blockDim.x) {
        net.put(gin::thread, right, dst, 4 * i, src, 4 * i, 4, gin::signal_inc{0});
      }
      net.wait(gin::block, 0, count);
      net.flush(gin::block);
    }"""

    def body(comm):
        count = 10_000
        src, dst = comm.window(4 * count), comm.window(4 * count)
        src.array("int32")[:] = np.arange(count) + comm.rank
        comm.compile(source, "many").launch(dst, src, count, block=64)
        comm.synchronize()
        assert (dst.array("int32") == np.arange(count) + (comm.rank - 1) % comm.size).all()

    world.run(2, body, ring_depth=4)


def test_peer_pointer_is_there_exactly_on_the_direct_route(world):
    source = r"""
    #include <gin/gin.cuh>
    extern "C" __global__ void look(gin::Comm comm, gin::Window window, gin::Window found) {
      gin::Context net(comm);
      for (int peer = 0; peer < net.size(); ++peer) {
        int* there = static_cast<int*>(net.peer_pointer(window, 4, peer));
        static_cast<int*>(found.local())[peer] = there ? *there : -1;
      }
    }"""

    def body(comm):
        window, found = comm.window(8), comm.window(4 * comm.size)
        window.array("int32")[1] = 10 + comm.rank
        comm.barrier()
        comm.compile(source, "look").launch(window, found)
        comm.synchronize()
        comm.barrier()
        return found.array("int32").tolist(), comm.routes()

    for values, routes in world.run(3, body):
        assert values == ([10, 11, 12] if world.route == "direct" else [-1] * 3)
        assert routes == [world.route] * 3


def test_kernels_see_windows_of_different_sizes_and_of_none(world):
    source = r"""
    #include <gin/gin.cuh>
    extern "C" __global__ void last_byte(gin::Comm comm, gin::Window window, gin::Window empty) {
      gin::Context net(comm);
      int right = (net.rank() + 1) % net.size();
      net.put_value(right, window, window.peers[right].bytes - 1, char(net.rank() + 1), gin::signal_inc{0});
      net.put(gin::thread, right, empty, 0, empty, 0, 0, gin::signal_inc{0});
      net.wait(gin::thread, 0, 2);
    }"""

    def body(comm):
        window, empty = comm.window(100 * (comm.rank + 1)), comm.window(0)
        assert window.sizes == tuple(100 * (r + 1) for r in range(comm.size))
        assert empty.array().size == 0
        comm.compile(source, "last_byte").launch(window, empty)
        comm.synchronize()
        assert window.array()[-1] == (comm.rank - 1) % comm.size + 1 and not window.array()[:-1].any()

    world.run(3, body)


def test_registered_arrays_are_windows(world):
    source = PUT
    if world.backend == "nvshmem" or world.route == "direct":

        def refused(comm):
            comm.register(np.zeros(64, np.uint8))

        with pytest.raises(gin.UnsupportedError, match=r"register_memory|route=direct"):
            world.run(2, refused)
        return

    def body(comm):
        mine, theirs = np.zeros(3000, np.uint8), np.arange(3000, dtype=np.uint32) + comm.rank
        dst, src = comm.register(mine), comm.register(theirs)
        comm.compile(source, "put<2>").launch(dst, src, 11, 4, 2500, (comm.rank + 1) % comm.size, 0, block=64)
        comm.synchronize()
        left = (np.arange(3000, dtype=np.uint32) + (comm.rank - 1) % comm.size).view(np.uint8)
        assert (mine[11:2511] == left[4:2504]).all()
        comm.barrier()

    world.run(3, body, route="auto")
    world.run(2, body, route="native")
