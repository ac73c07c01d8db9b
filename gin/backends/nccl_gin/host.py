"""NCCL GIN on the host platform: a registered window per allocation, of its own size on each rank."""

from __future__ import annotations

from gin import _core
from gin.backends import shared_memory
from gin.backends.base import Region


class Backend(shared_memory.HostBackend):
    """Each window is a region of the wire; the emulated library names it by a handle."""

    name = "nccl_gin"

    def open(self) -> None:
        self.control = self.share("control window", self.regions.take(), self.job.control_bytes)
        near = self.control.peers[:, 0] != 0
        first = int(near.argmax())
        counters = self.job.config.counters
        self._library = _core.EmulatedNccl(self.fabric, self.setup(), counters, first, int(near.sum()))
        self.control.handle = self._library.control
        self.connect()

    @property
    def device_state(self) -> int:
        address: int = self._library.address
        return address

    def name_region(self, region: Region) -> None:
        region.handle = self._library.window(region.number, region.address, region.nbytes, region.peers.ctypes.data)
