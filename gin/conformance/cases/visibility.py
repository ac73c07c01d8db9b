"""Message passing: what may be read once a signal was seen, by whom, and by which way of looking."""

from __future__ import annotations

import numpy as np

from gin.conformance.registry import case
from gin.conformance.world import World

GROUP = r"""
#include <gin/gin.cuh>
// Each group of the block has a slice of the window and a signal of its own; `rounds` times it sends the slice on,
// waits for the left neighbour's, and every thread reads all of it.
extern "C" __global__ void group(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window wrong, int words, int rounds,
                                 bool whole_block) {
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
  if (whole_block) {
    go(gin::block);
  } else {
    go(gin::warp);
  }
}
"""


@case(
    "visibility.group",
    promise="wait, rule 3",
    kernel=(GROUP, "group"),
    ranks=(2,),
    hostile=True,
    situations=("NVIDIA/nvshmem#75",),
    variants={"block": {"whole": True}, "warp": {"whole": False}},
)
def group(world: World, whole: bool) -> None:
    """What the group wrote to a source is sent, and what a signal covers is visible to every thread that waited."""
    words, groups = 96, 1 if whole else 8
    src, dst, wrong = world.window(4 * words * groups), world.window(4 * words * groups), world.window(4)
    world.run(dst, src, wrong, words, 40, whole, block=256)
    world.equal(wrong.read(np.uint32), 0, "words that a thread read wrong")


LARGE = r"""
#include <gin/gin.cuh>
// Ranks take turns. A block sends much at once; at the receiver one thread waits, and looks at once at what the last threads
// may copy.
extern "C" __global__ void large(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window out, int words, int rounds) {
  gin::Context net(comm, 2);
  const uint32_t right = (net.rank() + 1) % net.size(), left = (net.rank() + net.size() - 1) % net.size();
  uint32_t* source = static_cast<uint32_t*>(src.local());
  const volatile uint32_t* target = static_cast<const volatile uint32_t*>(dst.local());
  uint64_t sent = 0, received = 0;
  for (uint32_t round = 1; round <= uint32_t(rounds); ++round) {
    if ((net.rank() + round) % 2 == 0) {
      for (int i = threadIdx.x; i < words; i += blockDim.x) source[i] = net.rank() * 69069u + round * 5u + i;
      net.put(gin::block, right, dst, 0, src, 0, uint64_t(words) * 4, gin::signal_inc{0});
      net.wait(gin::block, 1, ++sent);
      net.flush(gin::block);
    }
    if ((left + round) % 2 == 0 && threadIdx.x == 0) {
      uint32_t wrong = 0;
      net.wait(gin::thread, 0, ++received);
      for (int i = words - 1; i >= 0; i -= 61) wrong += target[i] != left * 69069u + round * 5u + i;
      static_cast<uint32_t*>(out.local())[0] += wrong;
      net.signal(left, gin::signal_inc{1});
    }
    __syncthreads();
  }
}
"""


@case("visibility.large_payload", promise="put, rule 3", kernel=(LARGE, "large"), ranks=(2,), hostile=True)
def large_payload(world: World) -> None:
    """The signal of a large put comes after the bytes of every thread of the block that copied."""
    words = 1 << 20
    src, dst, out = world.window(4 * words), world.window(4 * words), world.window(4)
    world.run(dst, src, out, words, 10, block=128)
    world.equal(out.read(np.uint32), 0, "words read wrong")


LOOK = r"""
#include <gin/gin.cuh>
// Every thread looks for the signal by itself, and then reads the payload by itself.
extern "C" __global__ void look(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window out, int words, int rounds,
                                int how) {
  gin::Context net(comm, 3);
  const uint32_t right = (net.rank() + 1) % net.size(), left = (net.rank() + net.size() - 1) % net.size();
  uint32_t* source = static_cast<uint32_t*>(src.local());
  const uint32_t* target = static_cast<const uint32_t*>(dst.local());
  uint32_t* wrong = static_cast<uint32_t*>(out.local());
  const uint64_t deadline = gin::platform::clock_ns() + comm.timeout_ns / 4 * 3;
  for (int round = 1; round <= rounds; ++round) {
    for (int i = threadIdx.x; i < words; i += blockDim.x) source[i] = net.rank() * 40503u + round * 977u + i;
    net.put(gin::block, right, dst, 0, src, 0, words * 4, gin::signal_inc{6});
    auto seen = [&] { return how == 0 ? net.read(6) >= uint64_t(round) : net.test(6, round); };
    bool there = seen();
    while (!there && gin::platform::clock_ns() < deadline) {
      __nanosleep(200000);
      there = seen();
    }
    if (!there) atomicAdd(&wrong[1], 1u);
    for (int i = 0; i < words; ++i) {
      const int at = (i + threadIdx.x) % words;
      if (target[at] != left * 40503u + round * 977u + at) atomicAdd(&wrong[0], 1u);
    }
    net.flush(gin::block);  // all have read
    if (threadIdx.x == 0) net.signal(left, gin::signal_inc{7});
    net.wait(gin::block, 7, round);
    if (wrong[1]) return;
  }
}
"""


@case(
    "visibility.look",
    promise="read, test",
    kernel=(LOOK, "look"),
    ranks=(2, 3),
    hostile=True,
    variants={"read": {"how": 0}, "test": {"how": 1}},
)
def look(world: World, how: int) -> None:
    """What a signal covers may be read by every thread that has seen it by `read` or `test`, without any wait."""
    words = 64
    src, dst, out = world.window(4 * words), world.window(4 * words), world.window(8)
    world.run(dst, src, out, words, 8, how, block=64)
    world.equal(out.read(np.uint32), [0, 0], "words read wrong, threads that never saw the signal")


SEVERAL = r"""
#include <gin/gin.cuh>
// Four pieces with a signal each; each of the three waits lets the whole block read what it has waited for.
extern "C" __global__ void several(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window out, int words) {
  __shared__ uint32_t ids[4], which[4], found;
  __shared__ uint64_t least[4];
  gin::Context net(comm);
  const uint32_t right = (net.rank() + 1) % net.size(), left = (net.rank() + net.size() - 1) % net.size();
  uint32_t* source = static_cast<uint32_t*>(src.local());
  const uint32_t* target = static_cast<const uint32_t*>(dst.local());
  uint32_t* wrong = static_cast<uint32_t*>(out.local());
  auto check = [&](uint32_t piece) {
    for (int i = 0; i < words; ++i) {
      const uint32_t at = piece * words + (i + threadIdx.x) % words;
      if (target[at] != left * 31337u + at) atomicAdd(wrong, 1u);
    }
  };
  for (uint32_t i = threadIdx.x; i < 4; i += blockDim.x) ids[i] = 40 + i, least[i] = 1;
  for (int i = threadIdx.x; i < 4 * words; i += blockDim.x) source[i] = net.rank() * 31337u + i;
  for (uint32_t piece = 0; piece < 4; ++piece) {
    net.put(gin::block, right, dst, piece * words * 4, src, piece * words * 4, words * 4, gin::signal_inc{40 + piece});
  }
  const gin::Found any = net.wait_any(gin::block, ids, least, 4);
  check(any.index);
  net.wait_some(gin::block, ids, least, 4, which, &found);
  for (uint32_t i = 0; i < found; ++i) check(which[i]);
  net.wait_all(gin::block, ids, least, 4);
  for (uint32_t piece = 0; piece < 4; ++piece) check(piece);
  net.flush(gin::block);
  if (threadIdx.x == 0) wrong[1] = any.status.ok() && found >= 1 && found <= 4;
}
"""


@case("visibility.several", promise="wait_any/all/some", kernel=(SEVERAL, "several"), ranks=(2, 3), hostile=True)
def several(world: World) -> None:
    """What the signals that wait_any, wait_some and wait_all found cover may be read by the whole group."""
    words = 50
    src, dst, out = world.window(16 * words), world.window(16 * words), world.window(8)
    world.run(dst, src, out, words, block=96)
    world.equal(out.read(np.uint32), [0, 1], "words read wrong, waits that ended well")


TO_ONESELF = r"""
#include <gin/gin.cuh>
extern "C" __global__ void to_oneself(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window out, int rounds) {
  gin::Context net(comm, 2);
  uint32_t* source = static_cast<uint32_t*>(src.local());
  const volatile uint32_t* target = static_cast<const volatile uint32_t*>(dst.local());
  uint32_t* wrong = static_cast<uint32_t*>(out.local());
  for (int round = 1; round <= rounds; ++round) {
    source[threadIdx.x] = round * 257u + threadIdx.x;
    net.put(gin::block, net.rank(), dst, 0, src, 0, blockDim.x * 4, gin::signal_inc{0});
    net.wait(gin::block, 0, round);
    if (target[threadIdx.x] != round * 257u + threadIdx.x) atomicAdd(wrong, 1u);
    net.flush(gin::block);
    if (threadIdx.x == 0) net.put_value(net.rank(), dst, 4096, uint64_t(round), gin::signal_inc{1});
    net.wait(gin::block, 1, round);
    if (*reinterpret_cast<const volatile uint64_t*>(target + 1024) != uint64_t(round)) atomicAdd(wrong, 1u);
    __syncthreads();
  }
}
"""


@case("visibility.to_oneself", promise="rule 5", kernel=(TO_ONESELF, "to_oneself"), ranks=(1, 2), least=1, hostile=True)
def to_oneself(world: World) -> None:
    """A rank reads what it put to itself once its own signal came."""
    src, dst, out = world.window(4096), world.window(4104), world.window(4)
    world.run(dst, src, out, 50, block=70)
    world.equal(out.read(np.uint32), 0, "values read wrong")


CHAIN = r"""
#include <gin/gin.cuh>
// The payload goes two ranks on, the word of it by the rank between. What has settled is there, whoever says so.
extern "C" __global__ void chain(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window out, int words, int rounds) {
  gin::Context net(comm, 1);
  const uint32_t n = net.size(), next = (net.rank() + 1) % n, after = (net.rank() + 2) % n;
  const uint32_t from = (net.rank() + 2 * n - 2) % n;
  uint32_t* source = static_cast<uint32_t*>(src.local());
  const uint32_t* target = static_cast<const uint32_t*>(dst.local());
  for (int round = 1; round <= rounds; ++round) {
    for (int i = threadIdx.x; i < words; i += blockDim.x) source[i] = net.rank() * 7001u + round * 13u + i;
    net.put(gin::block, after, dst, 0, src, 0, words * 4);
    net.quiet(gin::block);
    if (threadIdx.x == 0) net.signal(next, gin::signal_inc{0});
    net.wait(gin::block, 0, round);
    if (threadIdx.x == 0) net.signal(next, gin::signal_inc{1});  // passed on for the rank before
    net.wait(gin::block, 1, round);
    for (int i = threadIdx.x; i < words; i += blockDim.x) {
      if (target[i] != from * 7001u + round * 13u + i) atomicAdd(static_cast<uint32_t*>(out.local()), 1u);
    }
    net.barrier(gin::block);
  }
}
"""


@case(
    "visibility.across_peers", promise="quiet", kernel=(CHAIN, "chain"), needs=("quiet",), ranks=(2, 3, 5), hostile=True
)
def across_peers(world: World) -> None:
    """After quiet, a peer may read the payload on the word of a third rank."""
    words = 70
    src, dst, out = world.window(4 * words), world.window(4 * words), world.window(4)
    world.run(dst, src, out, words, 25, block=64)
    world.equal(out.read(np.uint32), 0, "words read wrong")


ACROSS = r"""
#include <gin/gin.cuh>
extern "C" __global__ void across(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window out, int words, int rounds) {
  gin::Context data(comm, 0), word(comm, 1);
  const uint32_t right = (data.rank() + 1) % data.size(), left = (data.rank() + data.size() - 1) % data.size();
  uint32_t* source = static_cast<uint32_t*>(src.local());
  const uint32_t* target = static_cast<const uint32_t*>(dst.local());
  for (int round = 1; round <= rounds; ++round) {
    for (int i = threadIdx.x; i < words; i += blockDim.x) source[i] = data.rank() * 7001u + round * 13u + i;
    data.put(gin::block, right, dst, 0, src, 0, words * 4);
    data.quiet(gin::block);
    if (threadIdx.x == 0) word.signal(right, gin::signal_inc{0});
    word.wait(gin::block, 0, round);
    for (int i = threadIdx.x; i < words; i += blockDim.x) {
      if (target[i] != left * 7001u + round * 13u + i) atomicAdd(static_cast<uint32_t*>(out.local()), 1u);
    }
    __syncthreads();
    if (threadIdx.x == 0) word.signal(left, gin::signal_inc{1});
    word.wait(gin::block, 1, round);
  }
}
"""


@case(
    "visibility.across_contexts",
    promise="quiet, rule 2",
    kernel=(ACROSS, "across"),
    needs=("quiet",),
    ranks=(2,),
    hostile=True,
)
def across_contexts(world: World) -> None:
    """Nothing orders contexts but what has settled on one: after quiet, a signal of another context may tell of it."""
    words = 70
    src, dst, out = world.window(4 * words), world.window(4 * words), world.window(4)
    world.run(dst, src, out, words, 40, block=64)
    world.equal(out.read(np.uint32), 0, "words read wrong")


FETCH = r"""
#include <gin/gin.cuh>
// The owner writes its memory and tells its neighbour, which gets it; the whole block reads what has landed.
extern "C" __global__ void fetch(gin::Comm comm, gin::Window own, gin::Window near, gin::Window out, int words, int rounds) {
  gin::Context net(comm, 2);
  const uint32_t right = (net.rank() + 1) % net.size(), left = (net.rank() + net.size() - 1) % net.size();
  uint32_t* mine = static_cast<uint32_t*>(own.local());
  const uint32_t* landed = static_cast<const uint32_t*>(near.local());
  for (int round = 1; round <= rounds; ++round) {
    for (int i = threadIdx.x; i < words; i += blockDim.x) mine[i] = net.rank() * 509u + round * 17u + i;
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) net.signal(right, gin::signal_inc{0});
    net.wait(gin::block, 0, round);
    net.get(gin::block, left, own, 0, near, 0, words * 4);
    net.flush(gin::block);
    for (int i = 0; i < words; ++i) {
      const int at = (i + threadIdx.x) % words;
      if (landed[at] != left * 509u + round * 17u + at) atomicAdd(static_cast<uint32_t*>(out.local()), 1u);
    }
    __syncthreads();
    if (threadIdx.x == 0) net.signal(left, gin::signal_inc{1});
    net.wait(gin::block, 1, round);
  }
}
"""


@case("visibility.get_after_signal", promise="get, wait", kernel=(FETCH, "fetch"), ranks=(2, 3), hostile=True)
def get_after_signal(world: World) -> None:
    """A get that follows the owner's word fetches what the owner wrote, and the whole group may read it after a flush."""
    words = 80
    own, near, out = world.window(4 * words), world.window(4 * words), world.window(4)
    world.run(own, near, out, words, 25, block=64)
    world.equal(out.read(np.uint32), 0, "words read wrong")
