"""Communicators and windows as the host sees them: opening again, several at once, memory that comes and goes."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import gin
from gin.conformance.registry import case
from gin.conformance.world import World

SHIFT = r"""
#include <gin/gin.cuh>
extern "C" __global__ void shift(gin::Comm comm, gin::Window dst, int value) {
  gin::Context net(comm);
  const uint64_t before = net.epoch(0);
  net.put_value((net.rank() + 1) % net.size(), dst, 0, value, gin::signal_inc{0});
  net.wait(gin::thread, 0, before + 1);
}
"""
KERNEL = (SHIFT, "shift")
SMALL = "2M"  # a heap for windows of a few bytes


def _shift(world: World, comm: gin.Comm, value: int, what: str) -> None:
    """A communicator works: each rank gets the value from its neighbour."""
    window = comm.window(4)
    comm.compile(*KERNEL).launch(window, value)
    comm.synchronize()
    world.equal(window.read(np.int32), value, what)
    window.close()


@case(
    "comm.opened_again",
    promise="init, close",
    kernel=KERNEL,
    ranks=(2,),
    opens=True,
    situations=("NVIDIA/nvshmem#68", "pytorch/pytorch#188567"),
)
def opened_again(world: World) -> None:
    """After close a communicator can be opened again, with other sizes of everything, and the closed one says that it is."""
    for turn in range(3):
        comm = world.open(heap=SMALL)
        window = comm.window(4)  # the first thing that is done with it
        comm.compile(*KERNEL).launch(window, turn)
        comm.synchronize()
        world.equal(window.read(np.int32), turn, f"opened {turn} times before")
        comm.barrier()
        comm.close()
        uses: dict[str, Callable[[], Any]] = {
            "window": partial(comm.window, 4),
            "compile": partial(comm.compile, *KERNEL),
            "barrier": comm.barrier,
            "synchronize": comm.synchronize,
        }
        for what, use in uses.items():
            world.refuses(gin.Error, "closed", use, f"{what} of a closed communicator")
    comm = world.open(heap="4M", contexts=1, signals=1)
    _shift(world, comm, 7, "with other settings")
    comm.barrier()


@case("comm.opened_again_after_a_failure", promise="init, rule 6", kernel=KERNEL, ranks=(2,), opens=True)
def opened_again_after_a_failure(world: World) -> None:
    """After a communicator has failed and was closed, another one works."""
    comm = world.open(heap=SMALL, timeout="200ms")
    window = comm.window(4)
    bad = comm.compile(SHIFT.replace("before + 1", "before + 2"), "shift")

    def wait_in_vain() -> None:
        bad.launch(window, 1)
        comm.synchronize()

    world.refuses(gin.Error, "wait|rank", wait_in_vain, "a wait that nobody ends")
    comm.close()
    comm = world.open(heap=SMALL)
    _shift(world, comm, 3, "after the failure")
    comm.barrier()


@case("comm.alone", promise="init", kernel=KERNEL, ranks=(2,), opens=True)
def alone(world: World) -> None:
    """A rank can open a communicator of itself alone beside the others."""
    comm = world.open(heap=SMALL, rank=0, size=1)
    world.equal([comm.rank, comm.size], [0, 1], "rank and size")
    _shift(world, comm, 5, "to itself")
    comm.close()
    world.gather()


# Each value to a place of its own, as nothing orders two writes to one place.
TURN = (
    SHIFT.replace("shift", "turn")
    .replace("int value", "int turn, int value")
    .replace("dst, 0, value", "dst, 4 * turn, value")
)


@case(
    "comm.two_at_once",
    promise="init",
    kernel=(TURN, "turn"),
    ranks=(2, 3),
    opens=True,
    variants={"of one backend": {"other": False}, "of two backends": {"other": True}},
)
def two_at_once(world: World, other: bool) -> None:
    """Two communicators {variant} at once do not disturb each other, nor does the end of one the other."""
    backend = {"ibrc_proxy": "nccl_gin"}.get(world.backend, "ibrc_proxy") if other else world.backend
    route = "direct" if other else world.route
    one, two = world.open(heap=SMALL), world.open(backend=backend, route=route, heap=SMALL)
    turns = np.arange(20)
    first, second = one.window(4 * len(turns)), two.window(4 * len(turns))
    left, right = one.compile(TURN, "turn"), two.compile(TURN, "turn")
    for turn in turns:
        left.launch(first, turn, turn + 100)
        right.launch(second, turn, -turn)
    two.synchronize()
    one.synchronize()
    world.equal(first.read(np.int32), turns + 100, "what the first one sent")
    world.equal(second.read(np.int32), -turns, "what the second one sent")
    world.refuses(gin.ArgumentError, "another communicator", lambda: left.launch(second, 0, 1), "the other's window")
    one.barrier()  # the neighbour sends again below
    two.close()
    world.refuses(gin.Error, "closed", lambda: two.window(8), "a window of the closed one")
    left.launch(first, 3, 77)
    one.synchronize()
    world.equal(first.read(np.int32, 1, 12), 77, "once the other is closed")
    one.barrier()


@case("comm.settings_of_a_rank", promise="init", kernel=KERNEL, ranks=(2, 3), opens=True)
def settings_of_a_rank(world: World) -> None:
    """Settings that may differ by rank do: depth of the ring, deadline, logging."""
    comm = world.open(ring_depth=4 << world.rank, timeout=f"{20 + world.rank}s", log="error", heap=SMALL)
    _shift(world, comm, 5, "with different settings")
    comm.barrier()


@case("comm.ranks_that_disagree", promise="init", ranks=(2, 3), opens=True)
def ranks_that_disagree(world: World) -> None:
    """Ranks that were given different settings where they must not be all learn of whom and what."""
    others = "rank 0" if world.size == 2 else ", ".join(["ranks 0", *map(str, range(2, world.size))])
    words = f"disagree.*signals: {others}: .*rank 1: "
    world.refuses(
        gin.ConfigError, words, lambda: world.open(signals=65 if world.rank == 1 else 64), "different signals"
    )


@case("comm.memory_used_again", promise="window, close", kernel=KERNEL, ranks=(2,))
def memory_used_again(world: World) -> None:
    """A window's memory is not given to another before every rank has closed it, and is zero when it is."""
    comm, first = world.comm, world.comm.window(64)
    address = first.address
    if world.rank == 0:
        first.close()
        first.close()  # again is nothing
        other = comm.window(64)
        world.check(other.address != address, "memory that rank 1 still uses was given away")
        world.barrier()
        world.barrier()
    else:
        other = comm.window(64)
        world.barrier()
        world.equal(first.read(), 0, "the window that rank 0 has closed")
        first.write(np.full(64, 255, np.uint8))
        first.close()
        world.barrier()
    for turn in range(3):
        world.run(other, 8 + turn)
        world.equal(other.read(np.int32, 1), 8 + turn, "the other window")
        fresh = comm.window(64)
        world.equal(fresh.read(), 0, "a new window")
        fresh.write(np.full(64, 255, np.uint8))
        fresh.close()
    world.barrier()
    other.close()


@case(
    "comm.windows_come_and_go",
    promise="window, close",
    kernel=KERNEL,
    ranks=(2,),
    settings={"heap": "1M"},
    situations=("NVIDIA/nvshmem#109",),
)
def windows_come_and_go(world: World) -> None:
    """Three hundred windows, one after the other, in a heap that would not hold them all at once."""
    for turn in range(300):
        window = world.comm.window(20_000 + turn % 7)
        if turn % 50 == 3:
            world.run(window, turn)
            found = window.read(np.int32, 2)
            world.equal(found, [turn, 0], f"window {turn}")
        if turn % 2:
            window.close()
        del window  # is as good
    world.barrier()


@case(
    "comm.zero_before_others_send",
    promise="window",
    kernel=KERNEL,
    ranks=(2, 3),
    hostile=True,
    situations=("pytorch/pytorch#196546",),
)
def zero_before_others_send(world: World) -> None:
    """A window is zero everywhere before any rank has it: what the first sender puts at once is not zeroed again."""
    size = 1 << 18
    for turn in range(1, 16):
        if world.rank == turn % world.size:
            world.pause(0.002)  # one that comes late has most to do
        window = world.window(size)
        world.run(window, turn)
        found = window.read(np.int32)
        world.equal(found[0], turn, "what was put at once")
        world.equal(found[1:], 0, "the rest")
        window.write(np.full(size, 255, np.uint8))
        world.barrier()
        window.close()


@case("comm.collected_while_another_waits", promise="window, close", ranks=(2,), situations=("pytorch/pytorch#195500",))
def collected_while_another_waits(world: World) -> None:
    """A window that the garbage collector finds waits for no other rank, which is in a barrier meanwhile."""
    window = world.comm.window(4096)
    cycle: list[object] = [window]
    cycle.append(cycle)
    del window
    if world.rank == 1:
        world.pause(0.2)
        cycle = []
        gc.collect()  # must not wait for rank 0, which is not there
        world.pause(0.05)
    world.barrier()
    del cycle
    world.equal(world.comm.window(64).nbytes, 64, "the next window")


@case(
    "comm.out_of_memory",
    promise="window",
    kernel=KERNEL,
    ranks=(2,),
    settings={"heap": "1M"},
    situations=("pytorch/pytorch#160603",),
)
def out_of_memory(world: World) -> None:
    """More memory than there is: a typed error with the numbers, on all ranks, and the communicator goes on."""
    comm = world.comm
    error = world.refuses(
        gin.OutOfMemoryError, r"140737488355328|128 ?TiB|131072", lambda: comm.window(1 << 47), "128 TiB"
    )
    if world.backend == "nvshmem":
        for word in ("GIN_HEAP", str(1 << 20), "free"):
            world.check(word in str(error), f"{word} is not in {error}")
    else:  # on one rank only: the others are told
        wanted = gin.OutOfMemoryError if world.rank == 1 else gin.RemoteError
        words = "allocate" if world.rank == 1 else "allocate.*rank 1|rank 1.*allocate"
        world.refuses(wanted, words, lambda: comm.window(1 << 47 if world.rank == 1 else 64), "128 TiB on rank 1")
    sizes: tuple[Any, ...] = (-1, 1.5, "64", None, 1 << 48, 1 << 50, 1 << 64, -(1 << 70), b"8", float("nan"))
    for size in sizes:
        world.refuses(gin.ArgumentError, r"window\(", partial(comm.window, size), f"window({size!r})")
    world.equal(world.window(np.int64(8)).nbytes, 8, "bytes of a window of 8")  # type: ignore[arg-type]
    window = world.window(64)
    world.run(window, 3)
    world.equal(window.read(np.int32, 1), 3, "afterwards")
    world.barrier()


@case(
    "comm.calls_that_do_not_meet",
    promise="collective calls",
    ranks=(2,),
    most=2,
    alone=True,
    situations=("pytorch/pytorch#195501",),
    variants={
        "window and barrier": {"calls": ("window", "barrier")},
        "barrier and window": {"calls": ("barrier", "window")},
    },
)
def calls_that_do_not_meet(world: World, calls: tuple[str, str]) -> None:
    """Ranks in different collective calls each get an error that names both calls and both ranks."""
    name = calls[world.rank]
    call = world.barrier if name == "barrier" else lambda: world.window(64)
    error = world.refuses(gin.Error, "", call, name)
    for word in (*calls, "rank 0", "rank 1"):
        world.check(word in str(error), f"{word!r} is not in {error}")


@case(
    "comm.a_rank_that_does_not_come",
    promise="collective calls",
    ranks=(3,),
    settings={"connect_timeout": "2s"},
    alone=True,
    situations=("pytorch/pytorch#195501",),
)
def a_rank_that_does_not_come(world: World) -> None:
    """A rank that does not come to a collective call is named, with the call, after the deadline."""
    if world.rank != 1:
        world.refuses(
            gin.Error, "rank 1.*window|window.*rank 1", lambda: world.comm.window(64), "a window without rank 1"
        )
    world.gather()


WAITS = SHIFT.replace("gin::Window dst, int value", "gin::Window dst")
WAITS = WAITS[: WAITS.index("  net.put_value")] + "  net.wait(gin::thread, 0, before + 1);\n}\n"


@case(
    "comm.closed_while_another_waits",
    promise="close, rule 6",
    kernel=(WAITS, "shift"),
    ranks=(2,),
    settings={"timeout": "700ms"},
    alone=True,
)
def closed_while_another_waits(world: World) -> None:
    """A rank that closes while another waits for its signal is named by the error that ends the wait."""
    window = world.window(4)
    if world.rank == 1:
        window.close()
        world.comm.close()
        return

    def wait() -> None:
        world.kernel.launch(window)
        world.comm.synchronize()

    world.refuses(gin.Error, "rank 1.*(closed|left)|(closed|left).*rank 1", wait, "the wait")
