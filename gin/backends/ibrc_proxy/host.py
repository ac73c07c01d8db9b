"""The CPU proxy: kernels write descriptors to a ring, a progress thread posts them to the wire."""

from __future__ import annotations

from typing import Any

from gin import _core
from gin.backends import shared_memory
from gin.config import Config
from gin.platforms.host import spins
from gin.platforms.losses import proxy_arguments

_SELDOM_US = 1000  # how long the progress thread sleeps where only windows without a direct way need it


class Backend(shared_memory.HostBackend):
    """Each window is a region of the wire; a descriptor names it by its number."""

    name = "ibrc_proxy"
    windows_limit = _core.max_windows

    _proxy: Any = None

    @classmethod
    def threads(cls, config: Config) -> int:
        # The progress thread sleeps while nothing comes by the ring.
        return 2 if config.route == "native" else 1

    def open(self) -> None:
        self.control = self.share("control window", self.regions.take(), self.job.control_bytes)
        job, config = self.job, self.job.config
        options = {"depth": config.ring_depth, "spin": spins(job.local_size, self.threads(config))}
        if config.route == "direct":
            options["sleep_us"] = _SELDOM_US
        if config.proxy_cpu is not None:
            options["cpu"] = config.proxy_cpu
        layout = (config.contexts, job.ids, job.size)
        losses = proxy_arguments(job.platform.losses)
        self._proxy = _core.Proxy(self.fabric, layout, config.counters, self.record, options, **losses)
        self.connect()
        self.start_proxy()

    def start_proxy(self) -> None:
        """From here on somebody serves the rings."""
        self._proxy.start()

    @property
    def device_state(self) -> int:
        address: int = self._proxy.device_state
        return address

    def settled(self, timeout: float) -> bool:
        settled: bool = self._proxy.settled(timeout)
        return settled

    def peer_failed(self, rank: int) -> None:
        proxy = self._proxy  # this is another thread's call, and `close` may come meanwhile
        if proxy is not None:
            proxy.give_up(rank)

    def close(self, timeout: float) -> None:
        if self._proxy is not None:
            self._proxy.stop(timeout)
        super().close(timeout)
        if self.job.platform.idle:
            self._proxy = None  # and the rings, which kernels write to
