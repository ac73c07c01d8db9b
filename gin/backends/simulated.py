"""What the backends have in common in the simulator: all ranks' memory is this process's, and one table serves all."""

from __future__ import annotations

import mmap
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gin.backends.base import Region
from gin.backends.shared_memory import HostBackend, array_bytes
from gin.errors import Error, OutOfMemoryError, RemoteError

if TYPE_CHECKING:
    import numpy.typing as npt

    from gin.platforms.sim import SimPlatform

__all__ = ["SimBackend", "SimRegion"]

_PAGE = mmap.PAGESIZE
_SMALL = 1 << 33  # bytes that every process can map
_NORESERVE = 0x4000  # MAP_NORESERVE: a heap takes memory where it is touched


class SimRegion(Region):
    """A region whose table of peers is that of all ranks."""

    all_sizes: tuple[int, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.all_sizes


@dataclass(eq=False)
class Arena:
    """Every rank's part of one region: `peers` has (address, bytes) per rank, as gin::PeerWindow."""

    peers: npt.NDArray[np.uint64]
    bases: list[int]
    sizes: tuple[int, ...]
    memory: Any = None  # all parts, or None where they were not allocated here
    keep: list[Any] = field(default_factory=list)
    errors: dict[int, Error] = field(default_factory=dict)  # of ranks whose part could not be registered

    @classmethod
    def allocate(cls, sizes: list[int]) -> Arena:
        """Zeroed memory, each part on pages of its own."""
        ends = np.cumsum([-(-max(size, 1) // _PAGE) * _PAGE for size in sizes], dtype=np.uint64)
        try:
            pages = mmap.mmap(-1, int(ends[-1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
        except (OSError, ValueError, OverflowError) as error:
            raise OutOfMemoryError(
                f"{int(ends[-1])} bytes for the windows of {len(sizes)} simulated ranks: {error}"
            ) from None
        memory = np.frombuffer(pages, np.uint8)
        starts = np.concatenate([[np.uint64(0)], ends[:-1]])
        peers = np.stack([starts + np.uint64(memory.ctypes.data), np.array(sizes, np.uint64)], axis=1)
        return cls(np.ascontiguousarray(peers), peers[:, 0].tolist(), tuple(sizes), memory)

    @classmethod
    def over(cls, arrays: list[npt.NDArray[np.uint8]]) -> Arena:
        """Memory that exists already, an array per rank. Other ranks do not load and store it."""
        sizes = tuple(array.nbytes for array in arrays)
        peers = np.array([(0, nbytes) for nbytes in sizes], np.uint64)
        return cls(peers, [array.ctypes.data for array in arrays], sizes, keep=arrays)

    def known_to(self, simulation: Any) -> None:
        """Before the memory goes, whatever becomes of its ranks, the simulation lets go of it."""
        parts = zip(self.bases, self.sizes, strict=True)
        for base, size in parts if self.memory is None else [(self.bases[0], self.memory.nbytes)]:
            weakref.finalize(self, simulation.forget_memory, base, size).atexit = False

    def add_to(self, number: int, fabrics: list[Any]) -> None:
        """Registers every rank's part as a region of its wire."""
        for rank, fabric in enumerate(fabrics):
            try:
                fabric.add_region(number, self.bases[rank], self.sizes[rank])
            except Error as error:
                self.errors[rank] = error

    def part(self, rank: int) -> npt.NDArray[np.uint8]:
        """One rank's bytes."""
        start = self.bases[rank] - self.bases[0]
        part: npt.NDArray[np.uint8] = self.memory[start : start + self.sizes[rank]]
        return part

    def cut(self, offset: int, sizes: list[int]) -> Arena:
        """What lies at `offset` in every part."""
        peers = np.stack([self.peers[:, 0] + np.uint64(offset), np.array(sizes, np.uint64)], axis=1)
        bases: list[int] = peers[:, 0].tolist()
        return Arena(np.ascontiguousarray(peers), bases, tuple(sizes), self.memory)


def _check_possible(tag: str, rank: int, nbytes: int) -> None:
    """Raises OutOfMemoryError for a part that this process cannot have even alone."""
    if nbytes < _SMALL:
        return
    try:
        mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE).close()
    except (OSError, ValueError, OverflowError) as error:
        raise OutOfMemoryError(f"{tag}: rank {rank} cannot have {nbytes} bytes: {error}") from None


class SimBackend(HostBackend):
    """A backend whose wire is the simulated network."""

    def make_fabric(self) -> Any:
        config = self.job.config
        return self.platform.fabric((config.contexts, self.job.ids, config.signals))

    @property
    def platform(self) -> SimPlatform:
        return cast("SimPlatform", self.job.platform)

    def wire_place(self, region: Region) -> tuple[int, int]:
        """The region of the wire that a window lies in, and its offset there."""
        return region.number, 0

    def window(self, tag: str, nbytes: int) -> Region:
        return self._named(super().window(tag, nbytes))

    def register_array(self, tag: str, array: npt.NDArray[Any]) -> Region:
        return self._named(super().register_array(tag, array))

    def _named(self, region: Region) -> Region:
        self.platform.name_window(*self.wire_place(region), max(region.sizes))
        return region

    def connect(self) -> None:
        """Simulated endpoints are connected."""

    def share(self, tag: str, number: int, nbytes: int, array: npt.NDArray[Any] | None = None) -> Region:
        rank = self.job.rank
        given = None if array is None else array_bytes(array)

        def offer() -> tuple[Any, Any]:
            self.platform.may_allocate(tag, nbytes)
            if given is None:
                _check_possible(tag, rank, nbytes)
            return (nbytes if given is None else given), self.fabric

        def make(parts: list[tuple[Any, Any]]) -> Arena:
            """Once for all ranks, so that no kernel can send to a part that is not there yet."""
            theirs = [part for part, _ in parts]
            made = Arena.allocate(theirs) if given is None else Arena.over(theirs)
            made.known_to(self.platform.simulation)
            made.add_to(number, [fabric for _, fabric in parts])
            return made

        arena: Arena = self.job.exchange.reduce(f"{tag}: allocate", offer, make)
        for failed, error in arena.errors.items():
            if failed == rank:
                raise error
            raise RemoteError(f"{tag}: rank {failed} failed: {error}", record={"rank": failed})
        memory = arena.part(rank) if given is None else given
        if given is not None:
            self.mixed = True
        return self.region(number, arena, memory, [given])

    def region(self, number: int, arena: Arena, memory: Any, keep: list[Any]) -> SimRegion:
        """This rank's side of an arena."""
        rank = self.job.rank
        address, nbytes = arena.bases[rank], arena.sizes[rank]
        region = SimRegion(number, address, nbytes, arena.peers, memory, keep=[arena, *keep])
        region.all_sizes = arena.sizes
        return region

    def settled(self, timeout: float) -> bool:
        self.platform.drain()
        return True

    def close(self, timeout: float) -> None:
        """Lets what is under way settle, unless the job has failed."""
        if self.fabric is not None and self.platform.read_record() is None:
            self.platform.drain()
        self.fabric = None
