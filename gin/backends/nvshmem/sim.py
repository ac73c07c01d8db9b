"""NVSHMEM in the simulator."""

from __future__ import annotations

from gin.backends.base import Region
from gin.backends.nvshmem import host
from gin.backends.simulated import Arena, SimBackend


class Backend(SimBackend, host.Backend):
    """The emulated library over the simulated network. All ranks' heaps are one arena, of which windows are cuts."""

    def open(self) -> None:
        super().open()
        self.platform.keep(self._library)

    def wire_place(self, region: Region) -> tuple[int, int]:
        return self._heap.number, self._places[region.number]

    def _cut(self, number: int, offset: int, sizes: list[int]) -> Region:
        self._places[number] = offset
        heap: Arena = self._heap.keep[0]
        cut: Arena = self.job.exchange.reduce(f"cut {number}", lambda: None, lambda _: heap.cut(offset, sizes))
        memory = self._heap.memory[offset : offset + sizes[self.job.rank]]
        return self.region(number, cut, memory, [self._heap])
