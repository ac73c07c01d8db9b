"""Which cores ranks measure on: those of a host that may all run on the same cores get a share of them each."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gin.rendezvous.hosts import host_identity

__all__ = ["Cores", "Place", "bound_to", "here", "in_order", "share_for", "share_of", "text"]

Cores = tuple[int, ...]
Place = tuple[str, list[int]]
"""A rank's host, and the cores that it may run on in the order in which they are shared out. JSON can say it."""


def here(system: Path = Path("/sys")) -> Place:
    """This process's place. Without cores where the system does not bind processes."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return host_identity(), in_order(cores, system)


def in_order(cores: Iterable[int], system: Path = Path("/sys")) -> list[int]:
    """Cores by package and physical core: the hyperthreads of one are neighbours, so that two ranks seldom share it."""

    def position(core: int) -> tuple[int, int, int]:
        folder = system / f"devices/system/cpu/cpu{core}/topology"
        with contextlib.suppress(OSError, ValueError):
            return int((folder / "physical_package_id").read_text()), int((folder / "core_id").read_text()), core
        return 0, core, core

    return sorted(cores, key=position)


def share_of(cores: Sequence[int], index: int, count: int) -> Cores:
    """The cores of number `index` of `count` sharers: neighbours, as many as the others get or one more or fewer.

    With fewer cores than sharers each gets one, which others have too.
    """
    total = len(cores)
    if total < count:
        return (cores[index % total],)
    return tuple(cores[index * total // count : (index + 1) * total // count])


def share_for(rank: int, places: Sequence[Place]) -> Cores:
    """The cores that `rank` measures on, ascending, from every rank's place; none where the system binds nothing.

    Ranks of equal host and cores share these out. A rank that is alone with its cores was given them, and keeps them; what
    another one may run on that has fewer is left to that one, where something remains.
    """
    host, mine = places[rank][0], tuple(places[rank][1])
    near = [(other, tuple(cores)) for other, (where, cores) in enumerate(places) if where == host]
    alike = [other for other, cores in near if cores == mine]
    theirs = {core for _, cores in near if len(cores) < len(mine) for core in cores}
    own = tuple(core for core in mine if core not in theirs) or mine
    return tuple(sorted(share_of(own, alike.index(rank), len(alike)))) if own else ()


@contextlib.contextmanager
def bound_to(cores: Iterable[int]) -> Iterator[None]:
    """While the block runs, threads of this process run on `cores` alone: all that may run on just what the caller may.

    Threads with cores of their own are left alone, and so is everything where `cores` are none or the system refuses.
    """
    wanted = set(cores)
    before = os.sched_getaffinity(0) if wanted else set()
    if wanted == before:
        yield
        return
    _move(before, wanted)
    try:
        yield
    finally:
        _move(wanted, before)


def _move(before: set[int], after: set[int]) -> None:
    """Moves all threads that may run on exactly `before`; those that start meanwhile inherit the cores of one of them."""
    for name in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # a thread that has ended
            if os.sched_getaffinity(int(name)) == before:
                os.sched_setaffinity(int(name), after)


def text(cores: Iterable[int]) -> str:
    """Cores as the system's tools write them: 0-3,8."""
    ranges: list[list[int]] = []
    for core in sorted(cores):
        if ranges and core == ranges[-1][1] + 1:
            ranges[-1][1] = core
        else:
            ranges.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
