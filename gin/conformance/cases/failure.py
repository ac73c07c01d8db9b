"""Rule 6: every wait ends, and the first failure is told to everybody, with who waited for what."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gin
from gin.conformance.registry import case
from gin.conformance.world import World

WAIT = r"""
#include <gin/gin.cuh>
extern "C" __global__ void wait_for(gin::Comm comm, uint32_t id, uint64_t least, uint64_t timeout_ns, bool send_first) {
  gin::Context net(comm, 1);
  if (send_first && threadIdx.x == 0) net.signal(1, gin::signal_inc{id});
  net.wait(gin::block, id, least, timeout_ns);
}
"""
KERNEL = (WAIT, "wait_for")


def _run(world: World, *args: Any, block: int = 64) -> Callable[[], None]:
    def run() -> None:
        world.kernel.launch(*args, block=block)
        world.comm.synchronize()

    return run


@case(
    "failure.is_told_to_everybody",
    promise="rule 6",
    kernel=KERNEL,
    ranks=(2, 3),
    alone=True,
    situations=("deepseek-ai/DeepEP#708", "vllm-project/vllm#46509"),
)
def is_told_to_everybody(world: World) -> None:
    """A signal that is missing: the waiter tells who waited for what and what it saw, the others whose failure it was."""
    comm = world.comm
    patience = int(0.6e9) if world.rank == 1 else int(20e9)
    waiting = _run(world, 7, 2, patience, world.rank == 0)
    error, seconds = world.raised(waiting, "a wait for two signals of which one is sent")
    assert isinstance(error, gin.Error)
    record = error.record or {}
    if world.rank == 1:
        world.check(isinstance(error, gin.TimeoutError), f"{type(error).__name__}, not TimeoutError")
        wanted = {"rank": 1, "operation": "wait", "context": 1, "id": 7, "expected": 2}
        seen = {key: record.get(key) for key in wanted}
        world.check(seen == wanted, f"the record says {seen}, not {wanted}")
        for words in ("rank 1", "wait on signal 7", "expected at least 2", "0.6s", "GIN_TIMEOUT"):
            world.check(words in str(error), f"{words!r} is not in {error}")
        least = 0.0 if world.platform == "sim" else 0.5
        world.check(least <= seconds < 10 * world.patience, f"it took {seconds:.1f} s")
    else:
        world.check(isinstance(error, gin.RemoteError), f"{type(error).__name__}, not RemoteError")
        world.check(str(error).startswith("rank 1 failed") and record.get("peer") == 1, f"peer 1 is not named: {error}")
        world.check("wait on signal 7" in str(error), f"the reason is not passed on: {error}")
    for what, call in {
        "launch": _run(world, 7, 1, 0, False),
        "synchronize": comm.synchronize,
        "barrier": comm.barrier,
        "window": lambda: comm.window(8),
    }.items():
        again, seconds = world.raised(call, f"{what} afterwards")
        world.check(type(again) is type(error) and str(again) == str(error), f"{what} says {again}, not {error}")
        world.check(seconds < world.patience, f"{what} took {seconds:.1f} s to say so")
    start = time.monotonic()
    comm.close()
    closing = time.monotonic() - start
    world.check(closing < 6 * world.patience, f"closing took {closing:.1f} s")


@case("failure.of_the_program", promise="rule 6", kernel=KERNEL, ranks=(2, 3), alone=True)
def of_the_program(world: World) -> None:
    """A rank whose own program raises is named, with its error, to those whose kernels wait for it."""
    if world.rank == 1:
        world.gather()
        world.pause(0.1)
        mistake = LookupError("the program's own mistake")
        world.comm.__exit__(LookupError, mistake, None)
        return
    world.kernel.launch(0, 1, 20_000_000_000, False, block=64)
    world.gather()
    error, seconds = world.raised(world.comm.synchronize, "a wait for the rank that raises")
    world.check(isinstance(error, gin.RemoteError), f"{type(error).__name__}, not RemoteError")
    for words in ("rank 1", "the program's own mistake"):
        world.check(words in str(error), f"{words!r} is not in {error}")
    world.check(seconds < 10 * world.patience, f"it took {seconds:.1f} s")


MORE = r"""
#include <gin/gin.cuh>
// A second wait, and everything else, returns at once and with the same status once the first one has ended badly.
extern "C" __global__ void more(gin::Comm comm, gin::Window out) {
  gin::Context net(comm, 2);
  uint64_t* seen = static_cast<uint64_t*>(out.local());
  const gin::Status first = net.wait(gin::block, 3, 1);
  const uint64_t start = gin::platform::clock_ns();
  const gin::Status again = net.wait(gin::block, 4, 1, 0);  // without a deadline
  const gin::Status barrier = net.barrier(gin::block);
  const gin::Status counter = net.wait_counter(gin::block, 0, 1);
  if (threadIdx.x == 0) {
    seen[0] = uint64_t(first.code), seen[1] = uint64_t(again.code), seen[2] = uint64_t(barrier.code);
    seen[3] = uint64_t(counter.code), seen[4] = gin::platform::clock_ns() - start;
  }
}
"""


@case(
    "failure.ends_later_waits",
    promise="rule 6",
    kernel=(MORE, "more"),
    ranks=(2,),
    settings={"timeout": "300ms"},
    alone=True,
)
def ends_later_waits(world: World) -> None:
    """Once a wait has passed its deadline, later waits of the kernel return at once with a status that says so."""
    out = world.window(40)
    world.barrier()
    world.raised(lambda: world.run(out, block=32), "a wait for nobody")
    first, *later, taken = out.read("uint64").tolist()
    world.check(first in (1, 2), f"the first wait's status is {first}")
    world.check(all(code in (1, 2) for code in later), f"later waits: {later}")
    world.check(taken < 3e9 * world.patience, f"later waits took {taken / 1e9:.1f} s")


PEER = r"""
#include <gin/gin.cuh>
// A wait for each rank, of which one never sends. seen: how they ended, to the first and the last thread of the block.
extern "C" __global__ void others(gin::Comm comm, gin::Window box, gin::Window out, uint64_t number, uint32_t silent) {
  gin::Context net(comm, 1);
  uint64_t* seen = static_cast<uint64_t*>(out.local());
  const uint32_t size = net.size(), me = net.rank();
  for (uint32_t peer = 0; peer < size && me != silent && threadIdx.x == 0; ++peer) {
    net.put_value(peer, box, 8 * me, number, gin::signal_inc{me});
  }
  for (uint32_t peer = 0; peer < size; ++peer) {
    const gin::Status status = net.wait(gin::block, peer, number, gin::from{peer});
    if (threadIdx.x == 0) seen[peer] = uint64_t(status.code);
    if (threadIdx.x == blockDim.x - 1) seen[size + peer] = uint64_t(status.code);
  }
  const gin::Status together = net.barrier(gin::block);
  if (threadIdx.x == 0) seen[2 * size] = uint64_t(together.code), seen[2 * size + 1] = net.alive(silent);
}
"""


@case(
    "failure.of_one_peer",
    promise="rule 6, on_peer_failure=peer",
    kernel=(PEER, "others"),
    ranks=(3, 5),
    least=3,
    needs=("peer_failure",),
    settings={"on_peer_failure": "peer"},
    alone=True,
)
def of_one_peer(world: World) -> None:
    """A rank that fails is lost to the others: waits for it end, all else goes on, and the host knows who and why."""
    comm, size, silent = world.comm, world.size, 1
    box, out = world.window(8 * size), world.window(8 * (2 * size + 2))
    world.barrier()
    if world.rank == silent:
        world.gather()
        world.pause(0.1)
        comm.__exit__(LookupError, LookupError("the program's own mistake"), None)
        world.gather()
        return
    world.kernel.launch(box, out, 1, silent, block=64)
    world.gather()
    comm.synchronize()
    for number in (2, 3):  # those that are left go on
        world.kernel.launch(box, out, number, silent, block=64)
        comm.synchronize()
    came, seen = box.read("uint64").tolist(), out.read("uint64").tolist()
    remote = [2 * (peer == silent) for peer in range(size)]
    world.check(seen[: 2 * size] == remote * 2, f"the waits for each rank ended with {seen[: 2 * size]}")
    world.check(seen[2 * size :] == [2, 0], f"the barrier of all and alive({silent}): {seen[2 * size :]}")
    world.check(came == [3 * (peer != silent) for peer in range(size)], f"{came} came of the ranks in round 3")
    lost = comm.lost
    world.check(list(lost) == [silent], f"ranks {list(lost)} are lost, not {silent}")
    for words in (f"rank {silent}", "the program's own mistake"):
        world.check(words in str(lost[silent]), f"{words!r} is not in {lost[silent]}")
    error, seconds = world.raised(comm.barrier, "a collective call")
    world.check(isinstance(error, gin.RemoteError) and f"rank {silent}" in str(error), f"it raised {error!r}")
    world.check(seconds < 10, f"the collective call took {seconds:.1f} s to say so")
    world.gather()
