"""The CPU proxy on GPUs: rings in pinned host memory, a progress thread, and copy engines or RDMA NICs as the wire.

Windows are GPU memory that the other ranks of the host map. Over copy engines native signal words lie in host memory that
all ranks share, where any rank's progress thread adds to them. Over RDMA they lie in the GPU's memory like the payload:
what a NIC writes there arrives in order, and a signal in host memory could be seen before what it tells of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gin import _core
from gin.backends import lacking_macros
from gin.backends.base import Job, Region
from gin.backends.connection import connect, verbs_lacks, wire_options
from gin.backends.device_memory import CudaBackend, array_span
from gin.config import Config
from gin.errors import Error, UnsupportedError
from gin.platforms.cuda_compile import DeviceCode
from gin.platforms.cuda_memory import DeviceMemory, PeerMemory, PinnedMemory, export, kept, require_rdma
from gin.platforms.host import spins
from gin.platforms.losses import proxy_arguments
from gin.values import format_ranks

_RDMA_GRANULE = 2 << 20  # bytes; what a NIC is told of are whole pages, of this memory alone then


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
        gpu = self.platform.gpu
        self._rdma = job.config.wire == "verbs"
        self._near = False  # another rank is on this host
        self._unmapped: set[int] = set()  # ranks whose memory this one does not map
        options = wire_options(job)
        if self._rdma:
            require_rdma(gpu)
            options["gpu"] = gpu.bus_id
        gpu.enter()
        self._fabric: Any = _core.Fabric(job.config.wire, job.rank, job.size, options)
        self._proxy: Any = None

    @classmethod
    def lacks(cls, config: Config) -> Mapping[str, str]:
        if config.wire == "cuda" and config.route == "native":
            return {"atomics": "by the wire cuda, as copy engines have none; use route=auto or direct"}
        return verbs_lacks(config)

    @property
    def about(self) -> str:
        text: str = self._fabric.about
        return text

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
        job = self.job
        number = self.regions.take()
        self._find_near()
        allocate = self._allocate(job.control_bytes)
        self.control = self._share("control window", number, allocate, wired=self._rdma)
        macros = lacking_macros(job.config)
        if self._rdma:
            macros += ("GIN_IBRC_SYSTEM_SOURCES=1",)  # the NIC reads them
        else:
            self._share_signals(number)
        self.platform.device_code = DeviceCode(self.name, macros=macros)
        job.exchange.agree("proxy", self._make_proxy)
        connect(job, self._fabric)
        self._proxy.start()

    def window(self, tag: str, nbytes: int) -> Region:
        self._give_back(tag, nbytes)
        return self._share(tag, self.regions.take(), self._allocate(nbytes))

    def register_array(self, tag: str, array: Any) -> Region:
        """The array's memory has to come from cudaMalloc: every rank of the host maps it, so it is loaded and stored too."""

        def offer() -> tuple[Place, dict[str, Any]]:
            address, nbytes = array_span(array)
            self.platform.gpu.require_own(address)
            return Place(address, nbytes), export(self.platform.gpu, address) if self._near or not self._rdma else {}

        return self._share(tag, self.regions.take(), offer)

    def settled(self, timeout: float) -> bool:
        settled: bool = self._proxy.settled(timeout)
        return settled

    def peer_failed(self, rank: int) -> None:
        super().peer_failed(rank)
        proxy = self._proxy  # this is another thread's call, and `close` may come meanwhile
        if proxy is not None:
            proxy.give_up(rank)

    def close(self, timeout: float) -> None:
        if self._proxy is not None:
            self._proxy.stop(0.0 if self.platform.lost else timeout)
        if self._rdma and self.platform.read_record() is None:
            self._fabric.leave(timeout)
        if self.platform.idle:
            opened = [self.control] if hasattr(self, "control") else []
            for region in (*opened, *self.regions.every()):
                self._fabric.remove_region(region.number)
                _unmap(region.keep)
        if self.platform.gpu.stuck:
            kept.append((self._fabric, self._proxy))  # whose memory a kernel may still reach

    def _give_back(self, tag: str, nbytes: int) -> None:
        """Gives back what all ranks have closed: nobody's memory before the others have unmapped it. Collective."""
        _, closed = self.release_closed(tag, nbytes)

        def unmap() -> None:
            for region in closed:
                self._fabric.remove_region(region.number)
                _unmap(region.keep)

        if closed:
            self.job.exchange.agree(f"{tag}: unmap", unmap)

    def _allocate(self, nbytes: int) -> Callable[[], tuple[DeviceMemory, dict[str, Any]]]:
        def allocate() -> tuple[DeviceMemory, dict[str, Any]]:
            memory = DeviceMemory(self.platform.gpu, nbytes, _RDMA_GRANULE if self._rdma else 1)
            if self._rdma:
                self.platform.gpu.order_copies(memory.address)
            return memory, memory.export()

        return allocate

    def _share(
        self, tag: str, number: int, make: Callable[[], tuple[DeviceMemory | Place, dict[str, Any]]], wired: bool = True
    ) -> Region:
        """Makes this rank's part of a region and maps the others'. Collective.

        make   this rank's memory, and what makes it known to the others
        wired  whether the wire reaches it too
        """
        gpu, rank = self.platform.gpu, self.job.rank
        memory: DeviceMemory | Place | None = None
        made: list[Region] = []
        keep: list[Any] = []

        def offer() -> dict[str, Any]:
            nonlocal memory
            memory, exported = make()
            keep.append(memory)
            wire = self._fabric.add_region(number, memory.address, memory.nbytes).hex() if wired else ""
            return {"bytes": memory.nbytes, "wire": wire, "memory": exported}

        def reach() -> None:
            assert memory is not None
            peers = np.zeros((self.job.size, 2), np.uint64)
            for peer, other in enumerate(offers):
                mapped = memory if peer == rank else self._map(peer, other["memory"])
                keep.append(mapped)
                address = mapped.address if mapped else 0
                peers[peer] = address, other["bytes"]
                if wired:
                    self._fabric.import_region(number, peer, bytes.fromhex(other["wire"]), address)
            made.append(self.make_region(number, memory.address, memory.nbytes, peers, handle=number, keep=keep))

        try:
            offers = self.job.exchange.gather(f"{tag}: allocate", offer)
            gpu.enter()
            self.job.exchange.agree(f"{tag}: map", reach)
        except BaseException:
            self._fabric.remove_region(number)
            _unmap(keep)
            raise
        return made[0]

    def _find_near(self) -> None:
        """Of which ranks the memory is not mapped: those of other hosts. Collective. Raises UnsupportedError where the wire
        needs all."""
        host = _core.host_id()
        hosts = self.job.exchange.gather("hosts", lambda: host)
        self._unmapped = {rank for rank, other in enumerate(hosts) if other != host}
        self._near = len(self._unmapped) < self.job.size - 1
        if self._unmapped and not self._rdma:
            raise UnsupportedError(
                f"rank {self.job.rank} and {format_ranks(sorted(self._unmapped))} are on different hosts, which wire "
                f"{self.job.config.wire} does not join; use wire=verbs"
            )

    def _map(self, peer: int, exported: dict[str, Any]) -> PeerMemory | None:
        """A rank's memory as this GPU loads and stores it; None where the NICs reach it alone."""
        if peer in self._unmapped:
            return None
        try:
            return PeerMemory(self.platform.gpu, exported)
        except Error as error:
            # Of another kind than memory that ran out, or a kernel that broke the context: these GPUs have no peer access.
            if type(error) is not Error or not self._rdma or hasattr(self, "control"):
                raise
            self._unmapped.add(peer)  # which the first region shows
            return None

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
            self._pinned_signals = PinnedMemory(self.platform.gpu, nbytes, self._signals.address, self._signals)

        self.job.exchange.agree("signals: map", reach)
        self._signals.seal()

    def _make_proxy(self) -> None:
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
            signals=0 if self._rdma else self._signals.address,
            device_words=self._words.address,
            **proxy_arguments(self.platform.losses),
        )
        address, nbytes = self._proxy.memory
        self._pinned_rings = PinnedMemory(gpu, nbytes, address, self._proxy)
        rings = self._proxy.rings
        self._state = DeviceMemory(gpu, len(rings))
        gpu.copy_in(self._state.address, rings)


def _unmap(keep: list[Any]) -> None:
    for item in keep:
        if isinstance(item, PeerMemory):
            item.close()
