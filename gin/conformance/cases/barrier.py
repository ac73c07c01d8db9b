"""Barriers: nobody leaves before all have entered, and with drain what was sent before has settled."""

from __future__ import annotations

import numpy as np

import gin
from gin.conformance.registry import case
from gin.conformance.world import World

ROUNDS = r"""
#include <gin/gin.cuh>
// Each block goes through `rounds` barriers of its own index. In `entered` each rank writes the round that it is about to
// enter, as a byte, which nobody can read half of; behind every third barrier, the others get it on another context.
extern "C" __global__ void rounds(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window entered, gin::Window near,
                                  gin::Window out, int rounds, bool drain, int scope, int context, uint32_t first,
                                  uint32_t start, uint32_t stride, uint32_t members, int nap) {
  gin::Context net(comm, context), look(comm, (context + 1) % comm.contexts);
  const gin::Team team{start, stride, members};
  const uint32_t size = net.size(), me = net.rank(), count = members ? members : size;
  if (me < start || (me - start) % stride || (me - start) / stride >= count) return;
  constexpr int words = 16;  // that each rank sends to each other, in turns to one of two places
  const uint32_t slot = blockIdx.x;
  uint32_t* wrong = static_cast<uint32_t*>(out.local());
  uint32_t random = me * 7919 + slot + 1;
  for (uint32_t round = 1; round <= uint32_t(rounds); ++round) {
    const uint64_t own = (uint64_t(slot) * 2 + (round & 1)) * words * 4, half = own * size;
    if (threadIdx.x == 0) {
      random = random * 1664525 + 1013904223;
      if (nap && random >> 29 == 0) __nanosleep(random >> 8 & (nap - 1));
      static_cast<volatile unsigned char*>(entered.local())[slot] = round;
      __threadfence_system();
    }
    if (drain) {
      uint32_t* source = static_cast<uint32_t*>(src.local(own));
      for (int i = threadIdx.x; i < words; i += blockDim.x) source[i] = round * 31 + me * 7 + i;
      __syncthreads();
      for (uint32_t i = threadIdx.x; i < count * words; i += blockDim.x) {
        const uint64_t at = i % words * 4;
        net.put(gin::thread, team.world(i / words), dst, half + me * words * 4 + at, src, own + at, 4);
      }
    }
    gin::Status status;
    if (scope == 2) {
      status = net.barrier(gin::block, team, first + slot, drain);
    } else {
      __syncthreads();
      if (scope == 1 && threadIdx.x < 32) status = net.barrier(gin::warp, team, first + slot, drain);
      if (scope == 0 && threadIdx.x == 0) status = net.barrier(gin::thread, team, first + slot, drain);
      __syncthreads();
    }
    if (__syncthreads_or(!status.ok())) return;
    for (uint32_t i = threadIdx.x; drain && i < count * words; i += blockDim.x) {
      const uint32_t peer = team.world(i / words), word = i % words;
      const uint32_t* from = static_cast<const uint32_t*>(dst.local(half + peer * words * 4));
      if (from[word] != round * 31 + peer * 7 + word) atomicAdd(&wrong[1], 1u);
    }
    if (round % 3 == 0 && threadIdx.x < count) {
      look.get(gin::thread, team.world(threadIdx.x), entered, slot, near, slot * size + threadIdx.x, 1);
    }
    if (round % 3 == 0) look.flush(gin::block);
    if (round % 3 == 0 && threadIdx.x < count) {
      const unsigned char seen = static_cast<const volatile unsigned char*>(near.local())[slot * size + threadIdx.x];
      if (static_cast<unsigned char>(seen - round) > 1) atomicAdd(&wrong[0], 1u);  // one may be in the next round
    }
    if (drain && round % 2 == 0) net.flush(gin::block);
    __syncthreads();
  }
  if (threadIdx.x == 0) atomicAdd(&wrong[2], 1u);
}
"""

KERNEL = (ROUNDS, "rounds")
TEAM_INDEX = 8  # an index serves one team: from here on they are not the world's
NAP = 1 << 16  # ns


def through(
    world: World,
    rounds: int = 50,
    drain: bool = True,
    scope: int = 2,
    context: int = 0,
    blocks: int = 1,
    nap: int = 0,
    first: int = 0,
    team: tuple[int, int, int] = (0, 1, 0),
) -> None:
    """Takes all ranks through the rounds; `team` is start, stride and size (0: all)."""
    start, stride, members = team
    place = 4 * 16 * 2 * blocks
    dst, src = world.window(place * world.size), world.window(place)
    entered, near, out = world.window(blocks), world.window(blocks * world.size), world.window(12)
    ranks = (first, start, stride, members, nap)
    world.run(dst, src, entered, near, out, rounds, drain, scope, context, *ranks, grid=blocks, block=64)
    member = world.rank in range(start, start + stride * (members or world.size), stride)
    found = out.read(np.uint32)
    told = f"team {team}, context {context}: ranks that were not there or ahead, words not settled, blocks at the end"
    world.equal(found, [0, 0, blocks if member else 0], told)
    world.barrier()  # what the ranks still look at stays until all have looked


@case(
    "barrier.a_thousand",
    promise="barrier",
    kernel=KERNEL,
    ranks=(3, 5),
    hostile=True,
    situations=("hw-native-sys/pypto#1829", "NVIDIA/nvshmem#36"),
    variants={"drain": {"drain": True, "rounds": 1000}, "no drain": {"drain": False, "rounds": 300}},
)
def a_thousand(world: World, drain: bool, rounds: int) -> None:
    """{rounds} barriers with random sleeps let nobody ahead; with drain, unsignalled puts have settled behind them."""
    through(world, rounds=rounds, drain=drain, nap=NAP)


THIRD = r"""
#include <gin/gin.cuh>
// The first rank sends to the second, and the last one reads there what it cannot have been told of.
extern "C" __global__ void third(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window wrong, int words,
                                 int rounds) {
  gin::Context net(comm);
  int* values = static_cast<int*>(src.local());
  for (int round = 1; round <= rounds; ++round) {
    if (net.rank() == 0) {
      for (int i = threadIdx.x; i < words; i += blockDim.x) values[i] = round * 1000 + i;
      net.put(gin::block, 1, dst, 0, src, 0, words * sizeof(int));
    }
    if (!net.barrier(gin::block).ok()) return;
    if (net.rank() == net.size() - 1) {
      net.get(gin::block, 1, dst, 0, src, 0, words * sizeof(int));
      net.flush(gin::block);
      for (int i = threadIdx.x; i < words; i += blockDim.x) {
        if (values[i] != round * 1000 + i) atomicAdd(static_cast<int*>(wrong.local()), 1);
      }
    }
    if (!net.barrier(gin::block).ok()) return;
  }
}
"""


@case("barrier.drains_for_others", promise="barrier", kernel=(THIRD, "third"), ranks=(3,), least=3, hostile=True)
def drains_for_others(world: World) -> None:
    """With drain, what a rank sent to another is there for a third one that reads it behind the barrier."""
    words = 513
    dst, src, wrong = world.window(words * 4), world.window(words * 4), world.window(4)
    world.run(dst, src, wrong, words, 20, block=64)
    world.equal(wrong.read(np.int32), 0, "elements that the last rank found wrong")
    world.barrier()


@case(
    "barrier.of_nine",
    promise="barrier",
    kernel=KERNEL,
    ranks=(9,),
    least=9,
    variants={f"{name}, context {context}": {"drain": name == "drain", "context": context}
              for name in ("drain", "no drain") for context in (0, 1)},
)  # fmt: skip
def of_nine(world: World, drain: bool, context: int) -> None:
    """Barriers of more ranks than exchange signals with everybody."""
    through(world, rounds=60, drain=drain, context=context)


@case(
    "barrier.by",
    promise="barrier, rule 3",
    kernel=KERNEL,
    ranks=(2, 3, 5),
    hostile=True,
    variants={
        "thread": {"scope": 0, "blocks": 1, "drain": True},
        "warp": {"scope": 1, "blocks": 1, "drain": True},
        "block": {"scope": 2, "blocks": 1, "drain": True},
        "8 blocks": {"scope": 2, "blocks": 8, "drain": True},
        "a warp of 8 blocks, no drain": {"scope": 1, "blocks": 8, "drain": False},
    },
)
def by(world: World, scope: int, blocks: int, drain: bool) -> None:
    """Threads, warps and blocks can meet, and several blocks at once on indices of their own."""
    through(world, scope=scope, blocks=blocks, drain=drain, context=scope)


@case(
    "barrier.of_teams",
    promise="barrier, teams",
    kernel=KERNEL,
    ranks=(2, 5),
    hostile=True,
    variants={"drain": {"drain": True}, "no drain": {"drain": False}},
)
def of_teams(world: World, drain: bool) -> None:
    """Every second rank, the others, one alone, the last two: a team's barrier is for its members."""
    n = world.size
    teams = [(0, 2, (n + 1) // 2), (1, 2, n // 2), (n // 2, 1, 1), (n - 2, 1, 2)]
    for context, team in enumerate(teams):
        through(world, drain=drain, context=context, first=TEAM_INDEX, team=team)


SIDES = r"""
#include <gin/gin.cuh>
// Two teams are in barriers of different indices at the same time, and a barrier of all follows at once.
extern "C" __global__ void sides(gin::Comm comm, gin::Window out, uint32_t first) {
  gin::Context net(comm);
  const uint32_t side = net.rank() % 2, members = (net.size() + 1 - side) / 2;
  for (int round = 0; round < 100; ++round) {
    if (!net.barrier(gin::warp, gin::Team{side, 2, members}, first + side).ok()) return;
    if (round % 10 == 0 && !net.barrier(gin::warp).ok()) return;
  }
  if (threadIdx.x == 0) *static_cast<int*>(out.local()) = 1;
}
"""


@case("barrier.two_teams_at_once", promise="barrier, teams", kernel=(SIDES, "sides"), ranks=(2, 5), hostile=True)
def two_teams_at_once(world: World) -> None:
    """Two teams meet at the same time on indices of their own, and all ranks in between."""
    out = world.window(4)
    world.run(out, TEAM_INDEX + 1, block=7)
    world.equal(out.read(np.int32), 1, "whether it came to the end")


ENTER = r"""
#include <gin/gin.cuh>
extern "C" __global__ void enter(gin::Comm comm, gin::Window out) {
  gin::Context net(comm);
  *static_cast<int*>(out.local()) = 1 + int(net.barrier(gin::thread, {}, 5).code);
}
"""


@case(
    "barrier.not_entered",
    promise="barrier, rule 6",
    kernel=(ENTER, "enter"),
    ranks=(2, 3),
    settings={"timeout": "400ms"},
    alone=True,
)
def not_entered(world: World) -> None:
    """A barrier that one rank does not enter lets nobody through, and ends at the deadline."""
    out = world.window(4)
    if world.rank == 1:  # the others wait for nothing else
        world.refuses(gin.RemoteError, "rank", world.barrier, "the host's barrier")
        return
    world.kernel.launch(out)
    who = "|".join(str(rank) for rank in range(world.size) if rank != 1)
    world.refuses(gin.Error, rf"barrier index 5|rank ({who})", world.comm.synchronize, "the kernel's barrier")
    world.check(int(out.read(np.int32)[0]) in (2, 3), "the status is neither a timeout nor a failed peer's")
