"""What the backends have in common on the host platform: a wire, and memory that ranks of one host share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gin import _core
from gin.backends.base import Backend, Job, Region
from gin.backends.connection import connect, verbs_lacks, wire_options
from gin.config import Config
from gin.errors import ArgumentError, UnsupportedError

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["HostBackend"]


class HostBackend(Backend):
    """A backend whose windows are regions of a wire, each in a segment of its own."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.fabric: Any = self.make_fabric()

    @classmethod
    def lacks(cls, config: Config) -> Mapping[str, str]:
        return verbs_lacks(config)

    @property
    def about(self) -> str:
        text: str = self.fabric.about if self.fabric is not None else ""
        return text

    def make_fabric(self) -> Any:
        """This rank's side of the wire."""
        job = self.job
        return _core.Fabric(job.config.wire, job.rank, job.size, wire_options(job))

    def connect(self) -> None:
        """Connects this rank's endpoints, all of which exist, with the peers'. Collective."""
        connect(self.job, self.fabric)

    @property
    def record(self) -> int:
        """Address of the failure record."""
        return self.job.platform.words()["record"]

    @property
    def max_message(self) -> int:
        limit: int = self.fabric.max_message
        return limit

    def name_region(self, region: Region) -> None:
        """Sets the handle that device code knows a new region by: here its number."""
        region.handle = region.number

    def window(self, tag: str, nbytes: int) -> Region:
        _, closed = self.release_closed(tag, nbytes)
        for region in closed:
            self.fabric.remove_region(region.number)
        region = self.share(tag, self.regions.take(), nbytes)
        self.name_region(region)
        return region

    def register_array(self, tag: str, array: npt.NDArray[Any]) -> Region:
        if self.job.config.route == "direct":
            raise UnsupportedError(
                f"{tag}: memory allocated elsewhere is not loaded and stored by other ranks, as route=direct demands; "
                "use route=auto"
            )
        data = array_bytes(array)
        if self.job.config.wire == "shm":
            _core.allow_attach()
        region = self.share(tag, self.regions.take(), data.nbytes, data)
        self.name_region(region)
        return region

    def share(self, tag: str, number: int, nbytes: int, array: npt.NDArray[Any] | None = None) -> Region:
        """Makes this rank's part of a region and reaches the others'. Collective.

        number  of the region on the wire
        nbytes  size of this rank's part
        array   memory that exists already; otherwise a new segment
        """
        segment: Any = None
        local = np.empty(0, np.uint8) if array is None else array

        def offer() -> dict[str, Any]:
            nonlocal segment, local
            if array is None:
                segment = _core.Segment(nbytes, f"gin {tag}")
                local = segment.view()
            exported = self.fabric.add_region(number, local.ctypes.data, nbytes)
            return {
                "bytes": nbytes,
                "wire": exported.hex(),
                "host": _core.host_id(),
                "segment": None if segment is None else segment.export(),
            }

        offers = self.job.exchange.gather(f"{tag}: allocate", offer)
        address = local.ctypes.data if segment is None else segment.address
        peers = np.zeros((self.job.size, 2), np.uint64)
        keep: list[Any] = [segment]

        def reach() -> None:
            for rank, other in enumerate(offers):
                mapped = address if rank == self.job.rank else 0
                near = other["host"] == _core.host_id()
                if rank != self.job.rank and near and other["segment"] is not None:
                    mapping = _core.Segment.open(other["segment"])
                    keep.append(mapping)
                    mapped = mapping.address
                peers[rank] = mapped, other["bytes"]
                self.fabric.import_region(number, rank, bytes.fromhex(other["wire"]), mapped)

        self.job.exchange.agree(f"{tag}: map", reach)
        if segment is not None:
            segment.seal()
        if any(other["segment"] is None for other in offers):
            self.mixed = True
        return Region(number, address, nbytes, peers, local, keep=keep)

    def close(self, timeout: float) -> None:
        """Waits until no peer sends here any more, unless the job has failed, and gives the wire back."""
        fabric, self.fabric = self.fabric, None
        if fabric is not None and self.job.platform.read_record() is None:
            fabric.leave(timeout)

    def setup(self) -> dict[str, Any]:
        """What the emulated libraries are given."""
        job = self.job
        return {
            "rank": job.rank,
            "size": job.size,
            "contexts": job.config.contexts,
            "ids": job.ids,
            "control": self.control.fields,
            "record": self.record,
            "failed": self.record,
            "timeout_ns": round(job.config.timeout * 1e9),
        }


def array_bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """A writable contiguous array as bytes, without a copy. Raises ArgumentError for any other."""
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous or not array.flags.writeable:
        raise ArgumentError("only a writable C-contiguous NumPy array can be registered")
    return array.reshape(-1).view(np.uint8)
