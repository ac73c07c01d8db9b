"""The CPU proxy in the simulator: the same rings and engine, stepped by the simulation instead of a thread."""

from __future__ import annotations

from gin.backends.ibrc_proxy import host
from gin.backends.simulated import SimBackend


class Backend(SimBackend, host.Backend):
    """The engine over the simulated network."""

    _added = False

    def start_proxy(self) -> None:
        self.platform.keep(self._proxy)
        self.platform.add_proxy(self._proxy)
        self._added = True

    def close(self, timeout: float) -> None:
        SimBackend.close(self, timeout)
        if self._added:
            self._added = False
            self.platform.remove_proxy(self._proxy)
