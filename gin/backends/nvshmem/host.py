"""NVSHMEM on the host platform: a symmetric heap in shared memory, windows at equal offsets of it on every rank."""

from __future__ import annotations

import numpy as np

from gin import _core
from gin.backends import shared_memory
from gin.backends.base import Job, Region
from gin.config import format_size
from gin.errors import OutOfMemoryError

ALIGNMENT = 256  # bytes; wide accesses of different windows never share a line


class Heap:
    """First fit over one range of bytes. Every rank makes the same calls, so offsets are equal everywhere."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._used: dict[int, int] = {}  # offset -> size

    @property
    def free(self) -> int:
        return self.nbytes - sum(self._used.values())

    def take(self, nbytes: int) -> int | None:
        """An aligned offset, or None when no gap is large enough."""
        size = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        at = 0
        for offset, used in sorted(self._used.items()):
            if offset - at >= size:
                break
            at = offset + used
        if at + size > self.nbytes:
            return None
        self._used[at] = size
        return at

    def give_back(self, offset: int) -> None:
        del self._used[offset]


class Backend(shared_memory.HostBackend):
    """The emulated library has region 0 of the wire, its heap; windows are places in it."""

    name = "nvshmem"

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._places: dict[int, int] = {}  # region number -> heap offset

    def open(self) -> None:
        heap_bytes = self.job.config.heap
        self._heap = self.share("nvshmem heap", self.regions.take(), heap_bytes)
        self._allocator = Heap(heap_bytes)
        size = self.job.control_bytes
        self.control = self._cut(self._heap.number, self._place(size, [size]), [size] * self.job.size)
        peers = [int(address) for address in self._heap.peers[:, 0]]
        self._library = _core.EmulatedNvshmem(self.fabric, self.setup(), self._heap.address, heap_bytes, peers)

    @property
    def library(self) -> int:
        address: int = self._library.address
        return address

    def window(self, tag: str, nbytes: int) -> Region:
        sizes, closed = self.release_closed(tag, nbytes)
        for region in closed:
            self._allocator.give_back(self._places.pop(region.number))
        region = self._cut(self.regions.take(), self._place(max(sizes), sizes), sizes)
        region.memory[:] = 0
        self.job.exchange.agree(f"{tag}: zero", lambda: None)
        return region

    def _place(self, nbytes: int, sizes: list[int]) -> int:
        offset = self._allocator.take(nbytes)
        if offset is None:
            raise OutOfMemoryError(
                f"the symmetric heap has no room for {nbytes} bytes on every rank (the largest of {sizes}): "
                f"{self._allocator.free} of {self._allocator.nbytes} bytes are free; set GIN_HEAP (now "
                f"{format_size(self.job.config.heap)}) to more, or close windows"
            )
        return offset

    def _cut(self, number: int, offset: int, sizes: list[int]) -> Region:
        """The part of the heap from `offset` as a region."""
        self._places[number] = offset
        peers = np.array([[0, size] for size in sizes], np.uint64)
        for rank, (heap, _) in enumerate(self._heap.peers):
            peers[rank, 0] = heap + np.uint64(offset) if heap else 0
        nbytes = sizes[self.job.rank]
        memory = self._heap.memory[offset : offset + nbytes]
        return Region(number, self._heap.address + offset, nbytes, peers, memory, keep=[self._heap])
