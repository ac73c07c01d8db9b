"""NCCL GIN in the simulator."""

from __future__ import annotations

from gin.backends.nccl_gin import host
from gin.backends.simulated import SimBackend


class Backend(SimBackend, host.Backend):
    """The emulated library over the simulated network."""

    def open(self) -> None:
        super().open()
        self.platform.keep(self._library)
