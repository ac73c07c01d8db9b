"""The CPU proxy: kernels write descriptors to a ring, a progress thread posts them to the wire."""

from __future__ import annotations

from gin import _core
from gin.backends import shared_memory


class Backend(shared_memory.HostBackend):
    """Each window is a region of the wire; a descriptor names it by its number."""

    name = "ibrc_proxy"
    windows_limit = _core.max_windows
    threads = 2

    def open(self) -> None:
        self.control = self.share("control window", self.regions.take(), self.job.control_bytes)
        job, config = self.job, self.job.config
        options = {"depth": config.ring_depth}
        if config.proxy_cpu is not None:
            options["cpu"] = config.proxy_cpu
        layout = (config.contexts, job.ids, job.size)
        self._proxy = _core.Proxy(self.fabric, layout, config.counters, self.record, options)
        self._proxy.start()

    @property
    def device_state(self) -> int:
        address: int = self._proxy.device_state
        return address

    def peer_failed(self, rank: int) -> None:
        self._proxy.give_up(rank)

    def close(self, timeout: float) -> None:
        self._proxy.stop(timeout)
