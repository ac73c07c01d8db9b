"""The CPU proxy on GPUs: rings in pinned host memory, a progress thread, and copy engines as the wire.

Windows are GPU memory that the other ranks map. Native signal words lie in host memory that all ranks share, where any
rank's progress thread adds to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gin import _core
from gin.backends import lacking_macros
from gin.backends.base import Job, Region
from gin.backends.device_memory import CudaBackend, array_span
from gin.config import Config
from gin.platforms.cuda_compile import DeviceCode
from gin.platforms.cuda_memory import DeviceMemory, PeerMemory, PinnedMemory, export
from gin.platforms.host import spins
from gin.platforms.losses import proxy_arguments


@dataclass(frozen=True)
class Place:
    """GPU memory that somebody else owns."""

    address: int
    nbytes: int


class Backend(CudaBackend):
    """Each window is a region of the wire; a descriptor names it by its number."""

    name = "ibrc_proxy"
    windows_limit = _core.max_windows

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        config = job.config
        options = {"max_message": str(config.max_message)} if config.max_message else {}
        self.platform.gpu.enter()
        self._fabric = _core.Fabric(config.wire, job.rank, job.size, options)
        self._proxy: Any = None

    @classmethod
    def lacks(cls, config: Config) -> Mapping[str, str]:
        if config.wire == "cuda" and config.route == "native":
            return {"atomics": "by the wire cuda, as copy engines have none; use route=auto or direct"}
        return {}

    @classmethod
    def threads(cls, config: Config) -> int:
        return 1  # kernels run elsewhere

    @property
    def max_message(self) -> int:
        limit: int = self._fabric.max_message
        return limit

    @property
    def device_state(self) -> int:
        return self._state.address

    def open(self) -> None:
        number = self.regions.take()
        self.control = self._share("control window", number, self._allocate(self.job.control_bytes), wired=False)
        self._share_signals(number)
        self.platform.device_code = DeviceCode(self.name, macros=lacking_macros(self.job.config))
        self.job.exchange.agree("proxy", self._start)

    def window(self, tag: str, nbytes: int) -> Region:
        self._give_back(tag, nbytes)
        return self._share(tag, self.regions.take(), self._allocate(nbytes))

    def register_array(self, tag: str, array: Any) -> Region:
        """The array's memory has to come from cudaMalloc: every rank of the host maps it, so it is loaded and stored too."""

        def offer() -> tuple[Place, dict[str, Any]]:
            address, nbytes = array_span(array)
            return Place(address, nbytes), export(self.platform.gpu, address)

        return self._share(tag, self.regions.take(), offer)

    def peer_failed(self, rank: int) -> None:
        super().peer_failed(rank)
        proxy = self._proxy  # this is another thread's call, and `close` may come meanwhile
        if proxy is not None:
            proxy.give_up(rank)

    def close(self, timeout: float) -> None:
        if self._proxy is not None:
            self._proxy.stop(0.0 if self.platform.lost else timeout)
        if self.platform.idle:
            for region in (self.control, *self.regions.every()):
                _unmap(region)

    def _give_back(self, tag: str, nbytes: int) -> None:
        """Gives back what all ranks have closed: nobody's memory before the others have unmapped it. Collective."""
        _, closed = self.release_closed(tag, nbytes)

        def unmap() -> None:
            for region in closed:
                self._fabric.remove_region(region.number)
                _unmap(region)

        if closed:
            self.job.exchange.agree(f"{tag}: unmap", unmap)

    def _allocate(self, nbytes: int) -> Callable[[], tuple[DeviceMemory, dict[str, Any]]]:
        def allocate() -> tuple[DeviceMemory, dict[str, Any]]:
            memory = DeviceMemory(self.platform.gpu, nbytes)
            return memory, memory.export()

        return allocate

    def _share(
        self, tag: str, number: int, make: Callable[[], tuple[DeviceMemory | Place, dict[str, Any]]], wired: bool = True
    ) -> Region:
        """Makes this rank's part of a region and maps the others'. Collective.

        make   this rank's memory, and what makes it known to the others
        wired  whether the wire reaches it too
        """
        gpu = self.platform.gpu
        rank = self.job.rank
        memory: DeviceMemory | Place | None = None

        def offer() -> dict[str, Any]:
            nonlocal memory
            memory, exported = make()
            wire = self._fabric.add_region(number, memory.address, memory.nbytes).hex() if wired else ""
            return {"bytes": memory.nbytes, "wire": wire, "memory": exported}

        offers = self.job.exchange.gather(f"{tag}: allocate", offer)
        assert memory is not None
        keep: list[Any] = [memory]
        peers = np.zeros((self.job.size, 2), np.uint64)

        def reach() -> None:
            assert memory is not None
            for peer, other in enumerate(offers):
                mapped = memory if peer == rank else PeerMemory(gpu, other["memory"])
                keep.append(mapped)
                peers[peer] = mapped.address, other["bytes"]
                if wired:
                    self._fabric.import_region(number, peer, bytes.fromhex(other["wire"]), mapped.address)

        self.job.exchange.agree(f"{tag}: map", reach)
        return self.make_region(number, memory.address, memory.nbytes, peers, handle=number, keep=keep)

    def _share_signals(self, number: int) -> None:
        """The control window once more in host memory, of which the native signal words are used. Collective."""
        nbytes = self.job.control_bytes
        self._signals = _core.Segment(nbytes, "gin signals")
        self._segments: list[Any] = [self._signals]

        def offer() -> dict[str, Any]:
            wire = self._fabric.add_region(number, self._signals.address, nbytes)
            return {"wire": wire.hex(), "segment": self._signals.export()}

        offers = self.job.exchange.gather("signals: allocate", offer)

        def reach() -> None:
            for peer, other in enumerate(offers):
                mapped = self._signals if peer == self.job.rank else _core.Segment.open(other["segment"])
                self._segments.append(mapped)
                self._fabric.import_region(number, peer, bytes.fromhex(other["wire"]), mapped.address)
            self._pinned_signals = PinnedMemory(self.platform.gpu, nbytes, self._signals.address)

        self.job.exchange.agree("signals: map", reach)
        self._signals.seal()

    def _start(self) -> None:
        job, config, gpu = self.job, self.job.config, self.platform.gpu
        gpu.enter()
        words = _core.proxy_device_words
        self._words = DeviceMemory(gpu, words * config.contexts)
        for context in range(config.contexts):
            # Free result slots: all.
            gpu.copy_in(self._words.address + context * words + 2 * words // 3, b"\xff" * 8)
        options = {"depth": config.ring_depth, "spin": spins(job.local_size, 2)}
        if config.proxy_cpu is not None:
            options["cpu"] = config.proxy_cpu
        addresses = self.platform.words()
        self._proxy = _core.Proxy(
            self._fabric,
            (config.contexts, job.ids, job.size),
            config.counters,
            addresses["record"],
            options,
            failed=addresses["failed"],
            signals=self._signals.address,
            device_words=self._words.address,
            **proxy_arguments(self.platform.losses),
        )
        address, nbytes = self._proxy.memory
        self._pinned_rings = PinnedMemory(gpu, nbytes, address)
        rings = self._proxy.rings
        self._state = DeviceMemory(gpu, len(rings))
        gpu.copy_in(self._state.address, rings)
        self._proxy.start()


def _unmap(region: Region) -> None:
    for item in region.keep:
        if isinstance(item, PeerMemory):
            item.close()
