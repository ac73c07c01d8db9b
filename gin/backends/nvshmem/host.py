"""NVSHMEM on the host platform: a symmetric heap in shared memory, windows at equal offsets of it on every rank."""

from __future__ import annotations

import numpy as np

from gin import _core
from gin.backends import shared_memory
from gin.backends.base import Job, Region
from gin.backends.nvshmem.heap import Heap


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
        self.control = self._cut(self._heap.number, self._allocator.place([size]), [size] * self.job.size)
        peers = [int(address) for address in self._heap.peers[:, 0]]
        self._library = _core.EmulatedNvshmem(self.fabric, self.setup(), self._heap.address, heap_bytes, peers)
        self.connect()

    @property
    def library(self) -> int:
        address: int = self._library.address
        return address

    def window(self, tag: str, nbytes: int) -> Region:
        sizes, closed = self.release_closed(tag, nbytes)
        for region in closed:
            self._allocator.give_back(self._places.pop(region.number))
        fresh = self._allocator.fresh
        offset = self._allocator.place(sizes)
        region = self._cut(self.regions.take(), offset, sizes)
        region.memory[: max(0, fresh - offset)] = 0  # the rest has never been written
        self.job.exchange.agree(f"{tag}: zero", lambda: None)
        return region

    def _cut(self, number: int, offset: int, sizes: list[int]) -> Region:
        """The part of the heap from `offset` as a region."""
        self._places[number] = offset
        peers = np.array([[0, size] for size in sizes], np.uint64)
        for rank, (heap, _) in enumerate(self._heap.peers):
            peers[rank, 0] = heap + np.uint64(offset) if heap else 0
        nbytes = sizes[self.job.rank]
        memory = self._heap.memory[offset : offset + nbytes]
        return Region(number, self._heap.address + offset, nbytes, peers, memory, keep=[self._heap])
