"""Signals and counters: what they add up to, what they cover, epochs, reset, deadlines."""

from __future__ import annotations

import time

import numpy as np
import pytest

import gin

OVERTAKING = True

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
}
"""


def test_weak_and_ordered_incs_and_adds_of_any_size_add_up_on_one_signal(world, ranks):
    big = (1 << 62) + 12345  # two of them pass 2^63

    def body(comm):
        dst, src, out = comm.window(64), comm.window(64), comm.window(40)
        src.array("u8")[0] = 77
        comm.compile(MIX, "mix").launch(dst, src, out, big)
        comm.synchronize()
        assert out.array("u8").tolist() == [1, 2 * big + 111114, 1, 1, 0]
        assert dst.array("u8")[:4].tolist() == [77, 77, 7, 9]

    world.run(ranks, body)


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


def test_every_signal_of_every_context_is_a_signal_of_its_own(world):
    def body(comm):
        out = comm.window(8 * comm.config.contexts * comm.config.signals)
        kernel = comm.compile(CONTEXTS, "contexts")
        for step in (0, 1):
            kernel.launch(out, step, grid=(comm.config.contexts, comm.config.signals))
            comm.synchronize()
        found = out.array("u8").reshape(comm.config.contexts, comm.config.signals)
        sent = 1 + 1000 * np.arange(comm.config.contexts)[:, None] + np.arange(comm.config.signals)
        assert (found == sent).all()

    world.run(3, body)


GROUP = r"""
#include <gin/gin.cuh>
// Each group of each block has a slice of the window and a signal of its own; `rounds` times it sends the slice on,
// waits for the left neighbour's, and every thread reads all of it.
template <bool whole_block>
__global__ void group(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window wrong, int words, int rounds) {
  gin::Context net(comm, 1);
  const uint32_t right = (net.rank() + 1) % net.size(), left = (net.rank() + net.size() - 1) % net.size();
  const uint32_t group = whole_block ? 0 : threadIdx.x / 32, lane = whole_block ? threadIdx.x : threadIdx.x % 32;
  const uint32_t width = whole_block ? blockDim.x : 32;
  const uint64_t begin = uint64_t(group) * words * 4;
  uint32_t* out = static_cast<uint32_t*>(src.local(begin));
  const uint32_t* in = static_cast<const uint32_t*>(dst.local(begin));
  auto go = [&](auto coop) {
    for (int round = 0; round < rounds; ++round) {
      for (int i = lane; i < words; i += width) out[i] = net.rank() * 1000003u + round * 7919u + i;
      net.put(coop, right, dst, begin, src, begin, words * 4, gin::signal_inc{group});
      net.wait(coop, group, round + 1);
      for (int i = 0; i < words; ++i) {
        const int at = (i + lane) % words;
        if (in[at] != left * 1000003u + round * 7919u + at) atomicAdd(static_cast<uint32_t*>(wrong.local()), 1u);
      }
      net.flush(coop);
      coop.sync();  // all have read
      if (coop.leader()) net.signal(left, gin::signal_inc{32 + group});
      net.wait(coop, 32 + group, round + 1);
    }
  };
  if constexpr (whole_block) {
    go(gin::block);
  } else {
    go(gin::warp);
  }
}
"""


@pytest.mark.parametrize("scope", ["block", "warp"])
def test_what_a_signal_covers_is_visible_to_every_thread_of_the_group_that_waited(world, scope):
    def body(comm):
        words, groups = 96, 1 if scope == "block" else 8
        src, dst, wrong = comm.window(4 * words * groups), comm.window(4 * words * groups), comm.window(4)
        kernel = comm.compile(GROUP, f"group<{'true' if scope == 'block' else 'false'}>")
        kernel.launch(dst, src, wrong, words, 40, block=256)
        comm.synchronize()
        assert wrong.array("u4")[0] == 0

    world.run(2, body)


SEVERAL = r"""
#include <gin/gin.cuh>
// Rank 0 waits for signals 10, 11, 12; the others send what the host says, and when.
extern "C" __global__ void any(gin::Comm comm, gin::Window out) {
  __shared__ uint32_t ids[3], which[3], found;
  __shared__ uint64_t least[3];
  gin::Context net(comm);
  for (int i = threadIdx.x; i < 3; i += blockDim.x) ids[i] = 10 + i, least[i] = 4;
  __syncthreads();
  const gin::Found hit = net.wait_any(gin::block, ids, least, 3);
  uint32_t* seen = static_cast<uint32_t*>(out.local());
  if (!hit.status.ok() || hit.index != 1) atomicAdd(&seen[0], 1u);
  const gin::Status some = net.wait_some(gin::block, ids, least, 3, which, &found);
  if (!some.ok() || found != 1 || which[0] != 1) atomicAdd(&seen[0], 1u);
  if (net.epoch(11) != 4 || net.epoch(10) != 0) atomicAdd(&seen[0], 1u);
  if (threadIdx.x == 0) net.signal((net.rank() + 1) % net.size(), gin::signal_add{20, 1});
  if (!net.wait_all(gin::block, ids, least, 3).ok()) atomicAdd(&seen[0], 1u);
  for (int i = 0; i < 3; ++i) {
    if (net.read(10 + i) != 4 || net.epoch(10 + i) != 4) atomicAdd(&seen[0], 1u);
  }
  if (!net.wait_some(gin::block, ids, least, 3, which, &found).ok() || found != 3) atomicAdd(&seen[0], 1u);
  for (int i = 0; i < 3; ++i) {
    if (which[i] != i) atomicAdd(&seen[0], 1u);
  }
  seen[1] = 1;
}
extern "C" __global__ void send(gin::Comm comm) {
  gin::Context net(comm);
  net.signal(0, gin::signal_add{11, 4});
  net.signal(0, gin::signal_add{10, 3});
  net.wait(gin::thread, 20, 1);
  net.signal(0, gin::signal_add{12, 4});
  net.signal(0, gin::signal_inc{10});
}
"""


def test_wait_any_some_and_all(world):
    def body(comm):
        out = comm.window(8)
        if comm.rank == 0:
            comm.compile(SEVERAL, "any").launch(out, block=40)
        else:
            comm.compile(SEVERAL, "send").launch()
        comm.synchronize()
        return out.array("u4").tolist()

    assert world.run(2, body)[0] == [0, 1]


EPOCH = r"""
#include <gin/gin.cuh>
// One signal for each sender, and ordered: a later value must not be overtaken by an earlier one.
extern "C" __global__ void epoch(gin::Comm comm, gin::Window dst, gin::Window out, int value) {
  gin::Context net(comm, 3);
  for (int i = 1; i < net.size(); ++i) {
    const uint32_t peer = (net.rank() + i) % net.size();
    net.put_value(peer, dst, 4 * net.rank(), value, gin::ordered(gin::signal_inc{9 + net.rank()}));
  }
  int* seen = static_cast<int*>(out.local());
  for (uint32_t peer = 0; peer < net.size(); ++peer) {
    if (peer == net.rank()) continue;
    const uint64_t before = net.epoch(9 + peer);
    if (before != value - 1 || !net.wait(gin::thread, 9 + peer, before + 1).ok()) return;
    if (net.epoch(9 + peer) != before + 1 || static_cast<volatile int*>(dst.local())[peer] < value) ++seen[0];
  }
  seen[1] = value;
}
"""


def test_epochs_count_over_a_hundred_launches_without_a_reset(world, ranks):
    def body(comm):
        dst, out = comm.window(4 * comm.size), comm.window(8)
        kernel = comm.compile(EPOCH, "epoch")
        if comm.rank == 1:
            time.sleep(0.1)  # its peers have sent before its first look at the signal
        for turn in range(1, 101):
            kernel.launch(dst, out, turn)
            if turn % 25 == 0:
                comm.synchronize()
        comm.synchronize()
        assert out.array("i4").tolist() == [0, 100]

    world.run(ranks, body)


RESET = r"""
#include <gin/gin.cuh>
// In chunks, so that the resets meet some of them however the processes are scheduled.
extern "C" __global__ void increment(gin::Comm comm, int chunks, int count) {
  gin::Context net(comm);
  for (int chunk = 1; chunk <= chunks; ++chunk) {
    net.wait(gin::thread, 9, chunk);
    for (int i = 0; i < count; ++i) net.signal(0, gin::signal_inc{7});
  }
  net.signal(0, gin::ordered(gin::signal_inc{8}));
}
extern "C" __global__ void reset(gin::Comm comm, gin::Window out, int chunks) {
  gin::Context net(comm);
  uint64_t sum = 0, resets = 0, caught = 0;
  auto next_chunk = [&] {
    for (int peer = 1; peer < net.size() && caught < chunks; ++peer) net.signal(peer, gin::signal_inc{9});
  };
  next_chunk();
  const uint64_t start = gin::platform::clock_ns();
  while (!net.test(8, net.size() - 1) && gin::platform::clock_ns() - start < 15000000000ull) {
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


def test_reset_loses_no_increment_that_arrives_meanwhile(world):
    chunks, count = 40, 5000

    def body(comm):
        out = comm.window(48)
        if comm.rank == 0:
            comm.compile(RESET, "reset").launch(out, chunks)
        else:
            comm.compile(RESET, "increment").launch(chunks, count)
        comm.synchronize()
        return out.array("u8").tolist()

    total, resets, caught, epoch, again, left = world.run(3, body)[0]
    assert total == again == 2 * chunks * count
    assert resets >= caught >= chunks - 1 and epoch == 0 and left == 0


CROWD = r"""
#include <gin/gin.cuh>
extern "C" __global__ void crowd(gin::Comm comm, gin::Window out, int times) {
  gin::Context net(comm);
  net.barrier(gin::block, {}, blockIdx.x);  // all at once
  for (int i = 0; i < times; ++i) net.signal(0, gin::signal_add{1, 1 + (threadIdx.x & 1)});
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    const uint64_t all = uint64_t(net.size()) * gridDim.x * blockDim.x * times * 3 / 2;
    if (net.rank() == 0) {
      net.wait(gin::thread, 1, all);
      static_cast<uint64_t*>(out.local())[0] = net.read(1) - all;
      static_cast<uint64_t*>(out.local())[1] = 1;
    }
  }
}
"""


def test_thousands_of_threads_of_all_ranks_add_to_one_signal(world, ranks):
    def body(comm):
        out = comm.window(16)
        comm.compile(CROWD, "crowd").launch(out, 10, grid=4, block=256)
        comm.synchronize()
        return out.array("u8").tolist()

    assert world.run(ranks, body, ring_depth=64)[0] == [0, 1]


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


def test_counters_say_when_a_source_may_be_reused(world):
    def body(comm):
        rounds = 50
        dst, src, out = comm.window(256 * rounds), comm.window(256), comm.window(28)
        comm.compile(COUNTER, "counter").launch(dst, src, out, rounds, block=48)
        comm.synchronize()
        assert out.array("u4").tolist() == [rounds + 1, 1, 0, rounds + 1, 0, 0, 1]
        sent = np.arange(rounds)[:, None] * 100 + np.arange(64)
        assert (dst.array("u4").reshape(rounds, 64) == sent).all()

    world.run(2, body)


DEADLINE = r"""
#include <gin/gin.cuh>
extern "C" __global__ void patient(gin::Comm comm, gin::Window out, uint64_t timeout_ns) {
  gin::Context net(comm);
  uint64_t* seen = static_cast<uint64_t*>(out.local());
  const uint64_t start = gin::platform::clock_ns();
  const gin::Status status = net.wait(gin::block, 0, 1, timeout_ns);
  if (threadIdx.x == 0) seen[0] = uint64_t(status.code), seen[1] = gin::platform::clock_ns() - start;
  seen[2 + threadIdx.x] = uint64_t(status.code);
}
extern "C" __global__ void send(gin::Comm comm) { gin::Context(comm).signal(0, gin::signal_inc{0}); }
"""


def test_a_wait_can_have_a_deadline_of_its_own(world):
    def body(comm):
        out = comm.window(8 * 34)
        comm.compile(DEADLINE, "patient")
        comm.barrier()
        if comm.rank == 1:
            time.sleep(0.6)
            comm.compile(DEADLINE, "send").launch()
            comm.synchronize()
        else:
            comm.compile(DEADLINE, "patient").launch(out, 0, block=32)  # without one
            comm.synchronize()
            assert out.array("u8")[0] == 0 and out.array("u8")[1] > 300e6
        comm.barrier()
        if comm.rank == 0:
            comm.compile(DEADLINE.replace("wait(gin::block, 0, 1", "wait(gin::block, 0, 3"), "patient").launch(
                out, 50_000_000, block=32
            )
            with pytest.raises(gin.TimeoutError, match=r"50ms|0\.05s"):
                comm.synchronize()
            assert 50e6 <= out.array("u8")[1] < 10e9
            assert (out.array("u8")[2:] == 1).all()  # every thread of the group learns
        else:
            comm.compile(DEADLINE, "patient").launch(out, 10**10, block=32)  # ends with its peer's failure
            with pytest.raises(gin.RemoteError, match="rank 0"):
                comm.synchronize()
            assert (out.array("u8")[2:] == 2).all()

    world.run(2, body, timeout="300ms")
