"""What a backend owes to a communicator, whatever the platform."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gin import _core
from gin.backends import effective, others_with
from gin.collective import Exchange
from gin.errors import OutOfMemoryError, UnsupportedError

if TYPE_CHECKING:
    import numpy.typing as npt

    from gin.config import Config
    from gin.platforms.base import Platform

__all__ = ["Backend", "Job", "Region", "Regions"]

SETTLE_SECONDS = 5.0  # that a collective step waits for what is still under way to closed windows


@dataclass(frozen=True)
class Job:
    """What a backend is opened with."""

    rank: int
    size: int
    local_size: int  # ranks of this host
    config: Config
    exchange: Exchange
    platform: Platform
    rounds: int  # signal words of one barrier index
    local_rank: int = 0  # this rank's place among those of its host

    @property
    def ids(self) -> int:
        """Signal words of one context: the user's, then the barriers'."""
        return self.config.signals + self.config.barriers * self.rounds

    @property
    def control_bytes(self) -> int:
        """Size of the control window."""
        size: int = _core.control_bytes(self.config.contexts, self.ids, self.size)
        return size


@dataclass(eq=False)
class Region:
    """One rank's part of registered memory, and what it knows of the others' parts.

    `peers` has one row (address where it is mapped here or 0, size in bytes) per rank, as gin::PeerWindow; `memory` is
    this rank's part as bytes; `keep` holds what has to live as long.
    """

    number: int
    address: int
    nbytes: int
    peers: npt.NDArray[np.uint64]
    memory: Any  # numpy.uint8 of `nbytes`, None where this CPU does not load and store it
    handle: int = 0
    keep: list[Any] = field(default_factory=list)
    table: int = 0  # address of `peers` as kernels see it, where that is not its own
    in_use: int = 0  # launches that have been given this region and not been waited for

    @property
    def sizes(self) -> list[int]:
        return [int(row[1]) for row in self.peers]

    @property
    def fields(self) -> tuple[int, int, int, int, list[int]]:
        """(base, bytes, handle, peers, near), the fields of gin::Window."""
        near: list[int] = self.peers[: _core.near_ranks, 0].tolist()
        return self.address, self.nbytes, self.handle, self.table or self.peers.ctypes.data, near

    def pod(self) -> bytes:
        """gin::Window."""
        pod: bytes = _core.window_bytes(*self.fields)
        return pod


class Regions:
    """Numbers of regions: equal on all ranks, and used again once every rank has closed a region."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._next = 0
        self._free: list[int] = []
        self._open: dict[int, Region] = {}
        self._dropped: list[Region] = []  # a list, as the garbage collector may add to it at any time
        self._closed: dict[int, Region] = {}

    def open(self, region: Region) -> None:
        """Holds a region until all ranks have closed it: requests for it may be under way without any launch."""
        self._open[region.number] = region

    def closed(self) -> list[int]:
        """The regions that this rank could give up now."""
        while self._dropped:
            region = self._dropped.pop()
            self._closed[region.number] = self._open.pop(region.number)
        return sorted(number for number, region in self._closed.items() if not region.in_use)

    def close(self, region: Region) -> None:
        """This rank uses the region no more. Any thread, also while garbage is collected."""
        self._dropped.append(region)

    def release(self, closed: list[list[int]]) -> list[Region]:
        """Takes every rank's `closed()`; returns the regions that all have closed, whose numbers are now free."""
        common = sorted(set(closed[0]).intersection(*closed[1:]))
        self._free += common
        return [self._closed.pop(number) for number in common]

    def every(self) -> list[Region]:
        """The regions that some rank has not closed."""
        return [*self._open.values(), *self._closed.values()]

    def take(self) -> int:
        """The next number. Raises OutOfMemoryError at the backend's limit."""
        if self._free:
            return self._free.pop(0)
        if self._next == self._limit:
            raise OutOfMemoryError(f"{self._limit} windows are registered, the most this backend takes; close some")
        self._next += 1
        return self._next - 1


class Backend(ABC):
    """A backend of one communicator on one platform. `open`, `window` and `register` are collective.

    `control` is the control window once the backend is open. `mixed` is true when some window cannot be loaded and
    stored though the memory of its rank can.
    """

    name: ClassVar[str]
    windows_limit: ClassVar[int] = 1 << 20
    control: Region

    def __init__(self, job: Job) -> None:
        self.job = job
        self.regions = Regions(self.windows_limit)
        self.mixed = False

    @classmethod
    def threads(cls, config: Config) -> int:
        """Busy threads of a rank while kernels run."""
        return 1

    @classmethod
    def lacks(cls, config: Config) -> Mapping[str, str]:
        """Capabilities of the backend that it does not have as configured on this platform, each with what is in the way."""
        return {}

    @property
    def about(self) -> str:
        """What this rank uses of the machine, in words; empty where there is nothing to say."""
        return ""

    @property
    def device_state(self) -> int:
        """What Comm::backend points to, 0 for nothing."""
        return 0

    @property
    def library(self) -> int:
        """What the library's device code finds through the launch, 0 for nothing."""
        return 0

    @property
    @abstractmethod
    def max_message(self) -> int:
        """The largest put or get in bytes that is not split."""

    @abstractmethod
    def open(self) -> None:
        """Makes `control` and whatever kernels need. Collective."""

    @abstractmethod
    def window(self, tag: str, nbytes: int) -> Region:
        """New zeroed memory. Collective."""

    def register(self, tag: str, array: Any) -> Region:
        """Memory that exists already. Collective. Raises UnsupportedError where the backend or the route cannot."""
        if not effective(self.job.config)["register_memory"]:
            others = " or ".join(others_with("register_memory", self.job.config))
            why = self.lacks(self.job.config).get("register_memory", "")
            raise UnsupportedError(
                f"backend {self.name} cannot register memory allocated elsewhere (capability 'register_memory') "
                f"{why}".rstrip()
                + "; allocate with comm.window and copy"
                + (f", or use {others}" if others else "")
            )
        return self.register_array(tag, array)

    @abstractmethod
    def register_array(self, tag: str, array: Any) -> Region:
        """`register`, where it can be done."""

    def forget(self, region: Region) -> None:
        """This rank has closed a region. Local."""
        self.regions.close(region)

    def peer_failed(self, rank: int) -> None:  # noqa: B027 - most have nothing under way
        """Another rank has failed: what is still to be sent there may be dropped. Any thread."""

    def settled(self, timeout: float) -> bool:
        """Whether what this rank's ended launches sent has settled, within `timeout` seconds.

        True where nobody goes on with it: then only what a library may still do is left, which its users flush.
        """
        return True

    def close(self, timeout: float) -> None:  # noqa: B027 - most run nothing
        """Stops whatever runs, within `timeout` seconds. Local."""

    def release_closed(self, tag: str, nbytes: int) -> tuple[list[int], list[Region]]:
        """Every rank's `nbytes`, and the regions that all ranks have closed. Collective."""

        def offer() -> list[Any]:
            closed = self.regions.closed()
            return [nbytes, closed if closed and self.settled(SETTLE_SECONDS) else []]

        answers = self.job.exchange.gather(tag, offer)
        return [answer[0] for answer in answers], self.regions.release([answer[1] for answer in answers])
