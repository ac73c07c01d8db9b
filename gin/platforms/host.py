"""The host platform: kernels run on fibers of one thread, over memory that ranks of a host share."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gin import _core
from gin.backends import lacking_macros
from gin.config import Config
from gin.errors import ArgumentError
from gin.platforms.ahead import by_threads
from gin.platforms.base import Module, Platform
from gin.platforms.host_compiler import Compiler
from gin.platforms.losses import open_losses, record_bytes
from gin.ranks import Ranks

__all__ = ["HostPlatform"]


def spins(local_size: int, threads: int) -> int:
    """How often a thread looks before it gives its processor away: seldom where there are more threads than processors.

    local_size  ranks of this host
    threads     busy threads that each of them has
    """
    return 4000 if len(os.sched_getaffinity(0)) >= local_size * threads else 20


class HostPlatform(Platform):
    """A rank's kernels in this process."""

    name = "host"
    emulated = True

    def __init__(self, config: Config, ranks: Ranks, threads: int) -> None:
        """
        threads  busy threads of each rank: kernels, and the progress thread of a proxy
        """
        self._stream = _core.Stream(spins=spins(ranks.local_size, threads))
        self._compiler = Compiler(config, config.backend, tuple(f"-D{macro}" for macro in lacking_macros(config)))
        self._record = np.zeros(record_bytes(config, ranks.size), np.uint8)
        self.losses = open_losses(config, ranks.size, self.record)
        sizes = {
            "epoch": config.contexts * config.signals,
            "base": config.contexts * config.signals,
            "entered": config.contexts * config.barriers * 2,
            "counter": config.contexts * config.counters,
            "counter_base": config.contexts * config.counters,
        }
        self._words = {name: np.zeros(max(1, size), np.uint64) for name, size in sizes.items()}

    @property
    def record(self) -> int:
        """Address of the failure record."""
        return self._record.ctypes.data

    def words(self) -> Mapping[str, int]:
        # This device reads host memory cheaply: `failed` is the record's own state.
        addresses = {name: words.ctypes.data for name, words in self._words.items()}
        return {**addresses, "record": self.record, "failed": self.record}

    def read_record(self) -> dict[str, Any] | None:
        record: dict[str, Any] | None = _core.read_record(self.record)
        return record

    def fail(self, code: int, peer: int) -> None:
        _core.fail(self.record, code, peer)

    def array(self, lease: Any) -> Any:
        return np.asarray(lease)

    def read(self, address: int, nbytes: int) -> bytearray:
        return bytearray((ctypes.c_char * nbytes).from_address(address)) if nbytes else bytearray()

    def write(self, address: int, data: Any) -> None:
        view = memoryview(data)
        if view.nbytes:
            ctypes.memmove(address, (ctypes.c_char * view.nbytes).from_buffer_copy(view), view.nbytes)

    def compile(self, source: str, entry: str, flags: int, beside: Path | None = None) -> Module:
        module: Module = _core.Module(str(self._compiler.compile(source, entry, beside)))
        return module

    def compile_ahead(
        self, kernels: Sequence[tuple[str, str]], flags: int, workers: int, stopped: Callable[[], bool]
    ) -> None:
        by_threads(lambda kernel: self._compiler.compile(*kernel), kernels, workers, stopped)

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
            raise ArgumentError("the host platform has one stream; launch with stream=None")
        self._stream.launch(module, args, grid, block, shared, library, name)

    def synchronize(self, timeout: float | None) -> None:
        self._stream.synchronize(-1.0 if timeout is None else timeout)

    @property
    def idle(self) -> bool:
        return bool(self._stream.pending == 0)

    def captured(self) -> str:
        text: str = self._stream.captured()
        return text

    def close(self, timeout: float) -> None:
        self._stream.close(timeout)

    def abandon(self) -> bool:
        return bool(self._stream.end())
