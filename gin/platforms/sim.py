"""The platform sim: kernels of all ranks run under one simulation, in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gin.config import Config
from gin.errors import ArgumentError, KernelError
from gin.platforms.base import Module
from gin.platforms.host import HostPlatform
from gin.platforms.losses import open_losses, record_bytes
from gin.sim.crash import crash_error
from gin.sim.events import WindowPlace
from gin.sim.job import Place
from gin.sim.modules import Modules

__all__ = ["SimPlatform"]


class SimPlatform(HostPlatform):
    """A simulated rank's kernels. Where the host platform waits, this one lets the rest of the job go on."""

    name = "sim"
    emulated = True

    def __init__(self, config: Config, place: Place) -> None:
        self._place = place
        self._job = place.job
        self.simulation = place.job.simulation
        self._modules = Modules.of(place.job, config)
        self._group = place.openings - 1  # which of the job's communicators this is
        self._loads_and_stores = config.route != "native"
        sizes = {
            "epoch": config.contexts * config.signals,
            "base": config.contexts * config.signals,
            "entered": config.contexts * config.barriers * 2,
            "counter": config.contexts * config.counters,
            "counter_base": config.contexts * config.counters,
        }
        starts = np.cumsum([record_bytes(config, place.job.size) // 8, *sizes.values()])
        # One array for all ranks, so that one takes memory only for the words that its kernels touch.
        everybody = place.job.words(self._group, int(starts[-1]) + 1)
        whole = everybody[place.rank]
        self._record = whole[: starts[0]].view(np.uint8)
        self._words = {name: whole[start:] for name, start in zip(sizes, starts, strict=False)}
        self.losses = open_losses(config, place.job.size, self.record)

    def keep(self, *things: Any) -> None:
        """Kernels may use these until the job has ended, whatever becomes of the rank's program."""
        self._job.keep.extend(things)

    # -- for backends ----------------------------------------------------------------------------------------------

    def fabric(self, layout: tuple[int, int, int]) -> Any:
        """The wire of this rank's part of the communicator.

        layout  contexts, signal words of each, and the user's among them
        """
        self._job.layouts[self._group] = layout
        if self._loads_and_stores:
            self.simulation.set_direct()
        fabric = self.simulation.fabric(self._place.rank, self._group)
        self.keep(fabric)
        return fabric

    def name_window(self, region: int, offset: int, nbytes: int) -> None:
        """A new window lies at `offset` of a region of the wire."""
        if self._place.rank == 0:
            number = sum(window.group == self._group for window in self._job.windows) + 1
            self._job.windows.append(WindowPlace(self._group, number, region, offset, nbytes))

    def add_proxy(self, proxy: Any) -> None:
        self.simulation.add_proxy(self._place.rank, proxy)

    def remove_proxy(self, proxy: Any) -> None:
        self.simulation.remove_proxy(self._place.rank, proxy)

    def drain(self) -> None:
        """Lets proxies and the network go on until nothing is in flight."""
        self.simulation.drain()

    def may_allocate(self, tag: str, nbytes: int) -> None:
        """Raises OutOfMemoryError where a fault makes this allocation fail."""
        self._job.faults.allocate(self._place.rank, tag, nbytes)

    # -- Platform --------------------------------------------------------------------------------------------------

    def compile(self, source: str, entry: str, flags: int, beside: Path | None = None) -> Module:
        module: Module = self._modules.module(source, entry, self._place.rank, beside)
        return module

    def compile_ahead(self, *_: Any) -> None:
        """Nothing: modules are the job's, each compiled once."""

    def launch(
        self,
        module: Module,
        name: str,
        args: list[bytes],
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        stream: Any,
        library: int,
    ) -> None:
        if stream is not None:
            raise ArgumentError("the platform sim has one stream; launch with stream=None")
        self.simulation.launch(self._place.rank, module, args, grid, block, shared, library, name)

    def synchronize(self, timeout: float | None) -> None:
        rank = self._place.rank
        self._job.wait_launches(rank)
        try:
            self.simulation.raise_error(rank)
        except KernelError as error:
            crash = self.simulation.crash(rank)
            if crash is None:
                raise
            raise crash_error(rank, str(error), *crash) from None

    @property
    def idle(self) -> bool:
        return True  # kernels run while their rank waits for them

    def captured(self) -> str:
        text: str = self.simulation.captured(self._place.rank)
        return text

    def close(self, timeout: float) -> None:
        self.synchronize(None)

    def abandon(self) -> bool:
        return True
