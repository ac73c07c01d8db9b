"""flush, tickets, fence, ordered signals, quiet and barriers: what has settled when."""

from __future__ import annotations

import numpy as np
import pytest

import gin

OVERTAKING = True

REUSE = r"""
#include <gin/gin.cuh>
// Sends the same source again and again with other contents, as soon as it says that it may.
extern "C" __global__ void reuse(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window out, int rounds,
                                 int bytes, int how) {
  gin::Context net(comm, 2);
  const uint32_t right = (net.rank() + 1) % net.size();
  unsigned char* source = static_cast<unsigned char*>(src.local());
  int* failures = static_cast<int*>(out.local());
  for (int round = 0; round < rounds; ++round) {
    for (int i = threadIdx.x; i < bytes; i += blockDim.x) source[i] = round * 3 + i;
    net.put(gin::block, right, dst, uint64_t(round) * bytes, src, 0, bytes, gin::signal_inc{0});
    if (how == 0) {
      if (!net.flush(gin::block).ok()) ++failures[0];
    } else {
      __syncthreads();
      if (threadIdx.x == 0) {
        gin::Ticket ticket = net.flush_async(right);
        if (how == 1) {
          if (!net.wait(gin::thread, ticket).ok()) ++failures[0];
        } else {
          while (!net.test(ticket)) __nanosleep(100);
        }
        if (!net.test(ticket) && how == 2) ++failures[0];  // what is done stays done
      }
      __syncthreads();
    }
  }
  net.wait(gin::block, 0, rounds);
}
"""


@pytest.mark.parametrize("how", ["flush", "ticket wait", "ticket test"])
def test_sources_may_be_reused_after_flush_or_a_ticket(world, how):
    how = ["flush", "ticket wait", "ticket test"].index(how)

    def body(comm):
        rounds, size = 60, 1000
        dst, src, out = comm.window(rounds * size), comm.window(size), comm.window(4)
        comm.compile(REUSE, "reuse").launch(dst, src, out, rounds, size, how, block=64)
        comm.synchronize()
        sent = (np.arange(rounds)[:, None] * 3 + np.arange(size)).astype(np.uint8)
        assert (dst.array().reshape(rounds, size) == sent).all()
        assert out.array("i4")[0] == 0

    world.run(3, body, max_message=256)


FENCE = r"""
#include <gin/gin.cuh>
template <int how>
__global__ void fence(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window out, int rounds, int pieces,
                      int bytes) {
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
    } else {  // a put with an ordered signal
      net.put(gin::block, right, dst, pieces * bytes, src, 0, 4, gin::ordered(gin::signal_add{3, 1}));
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


@pytest.mark.parametrize("how", ["fence, signal", "fence, put", "ordered signal", "put with ordered signal"])
def test_a_fence_or_an_ordered_signal_covers_a_hundred_earlier_puts(world, how):
    index = ["fence, signal", "fence, put", "ordered signal", "put with ordered signal"].index(how)

    def body(comm):
        pieces, size = 100, 64
        dst, src, out = comm.window(pieces * size + 4), comm.window(pieces * size), comm.window(4)
        kernel = comm.compile(FENCE, f"fence<{index}>")
        kernel.launch(dst, src, out, 20, pieces, size, block=32)
        comm.synchronize()
        assert out.array("i4")[0] == 0

    world.run(2, body, max_message=24, ring_depth=64)


QUIET = r"""
#include <gin/gin.cuh>
extern "C" __global__ void quiet(gin::Comm comm, gin::Window dst, gin::Window src, int bytes, int value) {
  gin::Context net(comm, 3);
  unsigned char* source = static_cast<unsigned char*>(src.local());
  for (int i = threadIdx.x; i < bytes; i += blockDim.x) source[i] = value + net.rank();
  __syncthreads();
  for (int peer = 0; peer < net.size(); ++peer) {
    net.put(gin::block, peer, dst, net.rank() * uint64_t(bytes), src, 0, bytes);
  }
  net.quiet(gin::block);
}
"""


def test_after_quiet_and_a_host_barrier_memory_can_simply_be_read(world, ranks):
    def body(comm):
        assert comm.capabilities["quiet"]
        size = 30_000
        dst, src = comm.window(comm.size * size), comm.window(size)
        kernel = comm.compile(QUIET, "quiet")
        for turn in range(10):
            kernel.launch(dst, src, size, turn * 7, block=32)
            comm.synchronize()
            comm.barrier()
            sent = np.repeat(turn * 7 + np.arange(comm.size), size)
            assert (dst.array() == sent).all()
            comm.barrier()

    world.run(ranks, body)


BARRIER = r"""
#include <gin/gin.cuh>
// Each block goes through `rounds` barriers of its own index. `entered` is memory of the host that all ranks share:
// what it says does not depend on what is tested.
extern "C" __global__ void rounds(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window out, uint32_t* entered,
                                  int rounds, bool drain, int scope, int context, uint32_t start, uint32_t stride,
                                  uint32_t members, int nap) {
  gin::Context net(comm, context);
  const gin::Team team{start, stride, members};
  const uint32_t size = net.size(), me = net.rank(), index = blockIdx.x, count = members ? members : size;
  if ((me - start) % stride || (me - start) / stride >= count || me < start) return;
  constexpr int words = 16;  // that each rank sends to each other, in turns to one of two places
  uint32_t* wrong = static_cast<uint32_t*>(out.local());
  uint32_t random = me * 7919 + index + 1;
  for (uint32_t round = 1; round <= rounds; ++round) {
    const uint64_t own = (uint64_t(index) * 2 + (round & 1)) * words * 4, half = own * size;
    if (threadIdx.x == 0) {
      random = random * 1664525 + 1013904223;
      if (nap && random >> 29 == 0) __nanosleep(random >> 8 & (nap - 1));
      __atomic_store_n(&entered[index * size + me], round, __ATOMIC_SEQ_CST);
    }
    if (drain) {
      uint32_t* source = static_cast<uint32_t*>(src.local(own));
      for (int i = threadIdx.x; i < words; i += blockDim.x) source[i] = round * 31 + me * 7 + i;
      for (uint32_t i = 0; i < count; ++i) {
        net.put(gin::block, team.world(i), dst, half + me * words * 4, src, own, words * 4);
      }
    }
    gin::Status status;
    if (scope == 2) {
      status = net.barrier(gin::block, team, index, drain);
    } else {
      __syncthreads();
      if (scope == 1 && threadIdx.x < 32) status = net.barrier(gin::warp, team, index, drain);
      if (scope == 0 && threadIdx.x == 0) status = net.barrier(gin::thread, team, index, drain);
      __syncthreads();
    }
    if (!status.ok()) return;
    if (threadIdx.x < count) {
      const uint32_t peer = team.world(threadIdx.x);
      const uint32_t seen = __atomic_load_n(&entered[index * size + peer], __ATOMIC_SEQ_CST);
      if (seen < round || seen > round + 1) atomicAdd(&wrong[0], 1u);
      const uint32_t* from = static_cast<const uint32_t*>(dst.local(half + peer * words * 4));
      for (int i = 0; drain && i < words; ++i) {
        if (from[i] != round * 31 + peer * 7 + i) atomicAdd(&wrong[1], 1u);
      }
    }
    __syncthreads();
    if (drain && round % 2 == 0) net.flush(gin::block);
  }
  if (threadIdx.x == 0) atomicAdd(&wrong[2], 1u);
}
"""


def barriers(world, ranks, tmp_path, cases, **settings):
    """Runs the rounds of each case, a dictionary of arguments."""
    file = str(tmp_path / "entered")
    np.zeros(64 * 16 * len(cases), np.uint32).tofile(file)

    def body(comm):
        shared = np.memmap(file, np.uint32, "r+").reshape(len(cases), -1)
        kernel = comm.compile(BARRIER, "rounds")
        for number, case in enumerate(cases):
            case = {"rounds": 50, "drain": True, "scope": 2, "context": number % 4, "blocks": 1, "nap": 0} | case
            start, stride, members = case.get("team", (0, 1, 0))
            place = 4 * 16 * 2 * case["blocks"]
            dst, src, out = comm.window(place * comm.size), comm.window(place), comm.window(12)
            kernel.launch(
                dst, src, out, shared[number], case["rounds"], case["drain"], case["scope"], case["context"], start,
                stride, members, case["nap"], grid=case["blocks"], block=64,
            )  # fmt: skip
            comm.synchronize()
            member = comm.rank in range(start, start + stride * (members or comm.size), stride)
            assert out.array("u4").tolist() == [0, 0, case["blocks"] if member else 0], (number, case)

    world.run(ranks, body, **settings)


@pytest.mark.parametrize("ranks", [3, 5])
def test_a_thousand_barriers_with_random_sleeps_let_nobody_ahead(world, ranks, tmp_path):
    naps = {"nap": 1 << 16}
    barriers(world, ranks, tmp_path, [naps | {"rounds": 1000}, naps | {"rounds": 300, "drain": False}])


def test_barriers_of_nine_ranks_with_and_without_draining(world, tmp_path):
    barriers(world, 9, tmp_path, [{"rounds": 60}, {"rounds": 60, "drain": False}, {"context": 0, "drain": False}, {}])


def test_barriers_of_threads_warps_blocks_and_of_several_blocks_at_once(world, ranks, tmp_path):
    cases = [{"scope": 0}, {"scope": 1}, {"scope": 2}, {"blocks": 8}, {"blocks": 8, "scope": 1, "drain": False}]
    barriers(world, ranks, tmp_path, cases)


def test_barriers_of_teams(world, tmp_path):
    evens, odds, one, last = (0, 2, 3), (1, 2, 2), (2, 1, 1), (3, 1, 2)
    cases = [{"team": team, "drain": drain} for team in (evens, odds, one, last) for drain in (True, False)]
    # An index of a context serves one team.
    barriers(world, 5, tmp_path, [case | {"context": number // 2} for number, case in enumerate(cases)], barriers=1)


SIDES = r"""
#include <gin/gin.cuh>
// Two teams are in barriers of different indices at the same time, and a barrier of all follows at once.
extern "C" __global__ void sides(gin::Comm comm, gin::Window out) {
  gin::Context net(comm);
  const uint32_t side = net.rank() % 2, members = (net.size() + 1 - side) / 2;
  for (int round = 0; round < 100; ++round) {
    if (!net.barrier(gin::warp, gin::Team{side, 2, members}, 1 + side).ok()) return;
    if (round % 10 == 0 && !net.barrier(gin::warp).ok()) return;
  }
  if (threadIdx.x == 0) *static_cast<int*>(out.local()) = 1;
}
"""


def test_two_teams_at_once_and_all_between(world):
    def body(comm):
        out = comm.window(4)
        comm.compile(SIDES, "sides").launch(out, block=7)
        comm.synchronize()
        assert out.array("i4")[0] == 1

    world.run(5, body)


def test_a_barrier_that_a_rank_does_not_enter_lets_nobody_through(world):
    source = r"""
    #include <gin/gin.cuh>
    extern "C" __global__ void enter(gin::Comm comm, gin::Window out) {
      gin::Context net(comm);
      *static_cast<int*>(out.local()) = 1 + int(net.barrier(gin::thread, {}, 5).code);
    }"""

    def body(comm):
        out = comm.window(4)
        if comm.rank != 1:
            comm.compile(source, "enter").launch(out)
            with pytest.raises((gin.TimeoutError, gin.RemoteError), match=r"barrier index 5|rank [02]"):
                comm.synchronize()
            assert out.array("i4")[0] in (2, 3)  # ended late, or with the other's failure
            return "refused"
        with pytest.raises(gin.RemoteError, match="rank"):  # the others wait for nothing else
            comm.barrier()
        return "told"

    assert "refused" in world.run(3, body, timeout="400ms")


BUSY = r"""
#include <gin/gin.cuh>
extern "C" __global__ void busy(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window back, int count) {
  gin::Context net(comm);
  const uint32_t right = (net.rank() + 1) % net.size();
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    net.put(gin::thread, right, dst, 4 * i, src, 4 * i, 4, gin::signal_inc{0}, gin::counter_inc{0});
  }
  net.wait_counter(gin::block, 0, count);
  net.quiet(gin::block);
  net.barrier(gin::block, {}, 1);
  for (int i = threadIdx.x; i < count; i += blockDim.x) net.get(gin::thread, right, dst, 4 * i, back, 4 * i, 4);
  net.flush(gin::block);
  net.wait(gin::block, 0, count);
}
"""


def test_a_wire_that_takes_little_and_answers_late_and_in_any_order_loses_nothing(world):
    def body(comm):
        count = 2000
        dst, src, back = comm.window(4 * count), comm.window(4 * count), comm.window(4 * count)
        src.array("i4")[:] = np.arange(count) + comm.rank
        comm.compile(BUSY, "busy").launch(dst, src, back, count, block=64)
        comm.synchronize()
        assert (dst.array("i4") == np.arange(count) + (comm.rank - 1) % comm.size).all()
        assert (back.array("i4") == src.array("i4")).all()

    world.run(3, body, ring_depth=4, faults={"accept": 1, "refuse": 3, "reverse": 1, "settle_after": 50})
