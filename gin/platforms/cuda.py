"""The cuda platform: kernels run on this rank's GPU, compiled for it when they are first asked for."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gin import _core
from gin.collective import Exchange
from gin.config import Config
from gin.errors import ArgumentError, ConfigError, Error, KernelError, TimeoutError, UnsupportedError
from gin.platforms.ahead import by_processes, by_threads
from gin.platforms.base import Module, Platform
from gin.platforms.cuda_compile import KINDS, CudaCompiler, DeviceCode
from gin.platforms.cuda_memory import (
    INVALID_VALUE,
    LEGACY_STREAM,
    DeviceMemory,
    Gpu,
    PinnedMemory,
    check,
    driver,
    gpu_of,
    library,
)
from gin.platforms.cuda_peers import without_atomics
from gin.platforms.losses import open_losses, record_bytes
from gin.ranks import Ranks
from gin.values import format_ranks

__all__ = ["CudaPlatform"]

LINE = 128  # bytes; words that different agents write do not share one
AFTER_FAILURE_SECONDS = 2.0  # for kernels to see that the job has failed
_MOST_BLOCKS = (2**31 - 1, 65535, 65535)
_MOST_THREADS = (1024, 1024, 64)


@dataclass(frozen=True)
class CudaModule:
    """A loaded kernel."""

    params: list[tuple[str, int, int]]
    function: Any
    library: Any
    most_threads: int


class CudaPlatform(Platform):
    """A rank's kernels on its GPU.

    `device_code` is what kernels are compiled with, set by the backend when it opens; `loaded` and `unloading` are called
    with each library that is loaded and before it goes.
    """

    name = "cuda"
    emulated = False
    array_protocol = "__cuda_array_interface__"

    def __init__(self, config: Config, ranks: Ranks, exchange: Exchange) -> None:
        library("cuda.core")
        rows, self.gpu = _choose_gpu(config, ranks, exchange)
        self._sharers = sum(row["uuid"] == self.gpu.uuid for row in rows)
        self.unshared = without_atomics(self.gpu, rows)
        self.device_code: DeviceCode | None = None
        self.loaded: Callable[[Any], None] = lambda _: None
        self.unloading: Callable[[Any], None] = lambda _: None
        self._config = config
        self._modules: list[CudaModule] = []
        self._stream = self.gpu.stream()
        self._arrays_done = self._event()
        self._ends: dict[int, Any] = {}  # caller's stream -> event after its last launch
        self._ends_lock = threading.Lock()  # one thread may launch while another waits
        self._launched = ""  # the kernel launched last
        self._lost: KernelError | None = None
        self._closed = False
        self._over = False  # closed, and nothing is under way
        self._record = PinnedMemory(self.gpu, record_bytes(config, ranks.size))
        self.losses = open_losses(config, ranks.size, self._record.address)
        sizes = {
            "epoch": config.contexts * config.signals,
            "base": config.contexts * config.signals,
            "entered": config.contexts * config.barriers * 2,
            "counter": config.contexts * config.counters,
            "counter_base": config.contexts * config.counters,
            "failed": 1,
        }
        self._offsets, end = {}, 0
        for name, words in sizes.items():
            self._offsets[name] = end
            end += -(-max(1, words) * 8 // LINE) * LINE
        self._words = DeviceMemory(self.gpu, end)

    def words(self) -> Mapping[str, int]:
        addresses = {name: self._words.address + offset for name, offset in self._offsets.items()}
        return {**addresses, "record": self._record.address}

    def why_far(self, ranks: Sequence[int]) -> str:
        known = self.unshared.intersection(ranks)
        return f" (atomics do not reach the GPUs of {format_ranks(sorted(known))})" if known else ""

    def read_record(self) -> dict[str, Any] | None:
        record: dict[str, Any] | None = _core.read_record(self._record.address)
        return record

    def fail(self, code: int, peer: int) -> None:
        _core.fail(self._record.address, code, peer)
        self.gpu.set_word(self.words()["failed"], 1)

    # -- arrays -----------------------------------------------------------------------------------------------------------

    def array(self, lease: Any) -> Any:
        return library("cupy").asarray(lease)

    def read(self, address: int, nbytes: int) -> bytearray:
        return self.gpu.copy_out(address, nbytes)

    def write(self, address: int, data: Any) -> None:
        self.gpu.copy_in(address, data)

    # -- kernels ----------------------------------------------------------------------------------------------------------

    @property
    def _compiled_by(self) -> tuple[Config, DeviceCode, str]:
        assert self.device_code is not None
        return self._config, self.device_code, self.gpu.arch

    @cached_property
    def _compiler(self) -> CudaCompiler:
        return CudaCompiler(*self._compiled_by)

    def compile_ahead(
        self, kernels: Sequence[tuple[str, str]], flags: int, workers: int, stopped: Callable[[], bool]
    ) -> None:
        if self._compiled_by[1].nvcc:
            by_threads(lambda kernel: self._compiler.compile(*kernel, flags), kernels, workers, stopped)
        else:
            by_processes(self._compiled_by, flags, kernels, workers, stopped)

    def compile(self, source: str, entry: str, flags: int, beside: Path | None = None) -> Module:
        assert not flags & _core.mixed  # the one flag that a window could bring later
        image, symbol = self._compiler.compile(source, entry, flags, beside)
        cu = driver()
        self.gpu.enter()
        what = f"loading kernel {entry}"
        loaded = check(cu.cuLibraryLoadData(image, [], [], 0, [], [], 0), what)
        try:
            function = check(cu.cuKernelGetFunction(check(cu.cuLibraryGetKernel(loaded, symbol.encode()), what)), what)
            address, nbytes = check(cu.cuLibraryGetGlobal(loaded, b"gin_entry"), what)
            table = self.gpu.copy_out(int(address), int(nbytes))
            most = check(
                cu.cuFuncGetAttribute(cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function), what
            )
            self.loaded(loaded)
        except BaseException:
            cu.cuLibraryUnload(loaded)
            raise
        module = CudaModule(_params(bytes(table)), function, loaded, int(most))
        self._modules.append(module)
        return module

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
        assert isinstance(module, CudaModule)
        cu = driver()
        self.gpu.enter()
        together = self._check_shape(module, name, grid, block, shared)
        buffers = [ctypes.create_string_buffer(data, max(1, len(data))) for data in args]
        pointers = (ctypes.c_void_p * max(1, len(buffers)))(*map(ctypes.addressof, buffers))
        self.gpu.enter()  # again: finalisers of array libraries, run by any allocation, may have left another context
        where = self._stream if stream is None else cu.CUstream(_stream_handle(stream))
        if stream is None:
            # What array libraries do on the default stream comes before.
            check(cu.cuEventRecord(self._arrays_done, LEGACY_STREAM), f"launching {name}")
            check(cu.cuStreamWaitEvent(where, self._arrays_done, 0), f"launching {name}")
        call = cu.cuLaunchCooperativeKernel if together else cu.cuLaunchKernel
        rest = () if together else (0,)
        check(
            call(module.function, *grid, *block, shared, where, ctypes.addressof(pointers), *rest), f"launching {name}"
        )
        self._launched = name
        if stream is not None:
            self._mark_end(where)

    def _check_shape(self, module: CudaModule, name: str, grid: Any, block: Any, shared: int) -> bool:
        """Raises ArgumentError for what cannot be launched; returns whether blocks may wait for one another."""
        cu = driver()
        threads, blocks = block[0] * block[1] * block[2], grid[0] * grid[1] * grid[2]
        if threads > module.most_threads:
            raise ArgumentError(f"kernel {name} takes at most {module.most_threads} threads in a block; block={block}")
        for what, shape, most_of in (("grid", grid, _MOST_BLOCKS), ("block", block, _MOST_THREADS)):
            if any(count > most for count, most in zip(shape, most_of, strict=True)):
                raise ArgumentError(f"launch of kernel {name}: {what}={shape}, of which CUDA takes at most {most_of}")
        if shared > 48 << 10:
            attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            answer = cu.cuFuncSetAttribute(module.function, attribute, shared)
            if int(answer[0]) == INVALID_VALUE:
                raise ArgumentError(f"kernel {name}: a block of this GPU has no {shared} bytes of shared memory for it")
            check(answer, f"kernel {name} with {shared} bytes of shared memory in a block")
        each = check(
            cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(module.function, threads, shared), f"launching {name}"
        )
        most = int(each) * self.gpu.multiprocessors // self._sharers
        communicates = any(kind == "comm" for kind, _, _ in module.params)
        if communicates and blocks > most:
            raise ArgumentError(
                f"kernel {name}: a grid of {blocks} blocks of {threads} threads cannot be on this GPU at once, which holds "
                f"{most} ({each} on each of {self.gpu.multiprocessors} multiprocessors"
                + f", shared by {self._sharers} ranks" * (self._sharers > 1)
                + "); blocks that wait for others would never end. Launch fewer blocks and loop"
            )
        return communicates

    def _mark_end(self, stream: Any) -> None:
        cu = driver()
        if int(check(cu.cuStreamIsCapturing(stream), "asking whether a stream is captured")) != 0:
            return  # the graph's launches are the caller's to wait for
        which = int(check(cu.cuStreamGetId(stream), "asking for a stream's number"))  # handles come again
        with self._ends_lock, self.gpu.beside_captures():
            event = self._ends.get(which)
            if event is None:
                event = self._new_end(which)
            check(cu.cuEventRecord(event, stream), "marking the end of a launch")

    def _new_end(self, stream: int) -> Any:
        """The event of a stream that is new, in the place of those whose launches have ended."""
        cu = driver()
        for other, event in [(key, event) for key, event in self._ends.items() if int(cu.cuEventQuery(event)[0]) == 0]:
            cu.cuEventDestroy(event)
            del self._ends[other]
        event = self._ends[stream] = self._event()
        return event

    def _event(self) -> Any:
        self.gpu.enter()
        return check(driver().cuEventCreate(2), "making an event")  # without a time

    # -- waiting and the end ----------------------------------------------------------------------------------------------

    def synchronize(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        looks = 0
        while not self._ended():
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"kernels are still running after {timeout:g} s (the last is {self._launched})")
            looks += 1
            if looks > 200:
                time.sleep(20e-6 if looks < 5000 else 500e-6)

    def _ended(self) -> bool:
        """Whether no launch is under way. Raises KernelError when one broke the GPU's context."""
        if self._lost is not None:
            raise self._lost
        self.gpu.enter()
        with self._ends_lock, self.gpu.beside_captures():
            answers = [query(handle) for query, handle in self._queries()]
        try:
            return all(
                int(answer[0]) != 600 and check(answer, f"kernel {self._launched}") is None for answer in answers
            )
        except KernelError as error:
            self._lost = error
            raise

    def _queries(self) -> list[tuple[Any, Any]]:
        """What to ask whether launches have ended."""
        cu = driver()
        return [(cu.cuStreamQuery, self._stream), *((cu.cuEventQuery, event) for event in self._ends.values())]

    @property
    def lost(self) -> bool:
        """Whether the GPU's context is broken: nothing on it can be given back in order."""
        return self._lost is not None

    @property
    def idle(self) -> bool:
        """Whether no launch is under way, and the GPU's context is whole."""
        try:
            return self._over or self._ended()
        except Error:  # a lost GPU may not even be entered
            return False

    def arrays_settled(self) -> None:
        self.gpu.enter()
        check(driver().cuStreamSynchronize(LEGACY_STREAM), "waiting for work on arrays")

    def close(self, timeout: float) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self.synchronize(timeout)
        except TimeoutError:
            self.fail(_core.code_timeout, -1)  # the record too: without it every wait would look there for a long time
            try:
                self.synchronize(AFTER_FAILURE_SECONDS)
            except TimeoutError:
                self.gpu.leave_unended(self._queries())
                raise
            self._give_back()
            raise
        self._give_back()

    def _give_back(self) -> None:
        """What launches needed, none of which is under way."""
        cu = driver()
        for module in self._modules:
            self.unloading(module.library)
            cu.cuLibraryUnload(module.library)
        self._modules.clear()
        for event in (self._arrays_done, *self._ends.values()):
            cu.cuEventDestroy(event)
        self._ends.clear()
        cu.cuStreamDestroy(self._stream)
        self._over = True


def _params(table: bytes) -> list[tuple[str, int, int]]:
    """gin::entry::Table as (kind, size, alignment) per parameter."""
    (count,) = struct.unpack_from("<I", table)
    rows = struct.iter_unpack("<III", table[4 : 4 + 12 * count])
    return [(KINDS[kind], size, align) for kind, size, align in rows]


def _stream_handle(stream: Any) -> int:
    """The driver's handle of a stream of cuda.core, CuPy or PyTorch, or a handle itself."""
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int((protocol() if callable(protocol) else protocol)[1])
    for name in ("ptr", "cuda_stream"):
        if (value := getattr(stream, name, None)) is not None:
            return int(value)
    try:
        return int(stream)
    except (TypeError, ValueError):
        raise ArgumentError(f"stream={stream!r} is not a stream of cuda.core, CuPy or PyTorch, nor a handle") from None


def _choose_gpu(config: Config, ranks: Ranks, exchange: Exchange) -> tuple[list[dict[str, Any]], Gpu]:
    """What each rank's GPU is, and this rank's: that of its number on its host unless the setting `device` says otherwise.
    Collective."""
    gpu: Gpu | None = None

    def choose() -> dict[str, Any]:
        nonlocal gpu
        cu = driver()
        queues = 8 if config.share_gpu else 32  # of the hardware, which has some 100: kernels wait for other streams
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", str(queues))
        try:
            check(cu.cuInit(0), "starting CUDA")
            count = int(check(cu.cuDeviceGetCount(), "counting GPUs"))
        except RuntimeError as error:  # cuda.bindings found no driver
            raise UnsupportedError(
                f"NVIDIA's driver cannot be loaded ({error}); use platform=host without a GPU"
            ) from None
        if not count:
            raise UnsupportedError("this process sees no GPU; use platform=host, or set CUDA_VISIBLE_DEVICES")
        ordinal = ranks.local_rank % count if config.device is None else config.device
        if ordinal >= count:
            raise ConfigError(f"device={ordinal} (from {config.origin('device')}), but this process sees {count} GPUs")
        gpu = gpu_of(ordinal)
        return {"uuid": gpu.uuid, "bus": gpu.bus_id, "host": _core.host_id(), "ordinal": ordinal, "count": count}

    found = exchange.gather("GPUs", choose)
    assert gpu is not None
    owners: dict[str, int] = {}
    for rank, row in enumerate(found):
        first = owners.setdefault(row["uuid"], rank)
        if first != rank and not config.share_gpu:
            raise ConfigError(
                f"ranks {first} and {rank} would share the GPU at {row['bus']}: rank {rank} sees {row['count']} GPUs. Start "
                "one rank per GPU, set GIN_DEVICE, or allow it with share_gpu (GIN_SHARE_GPU=1): kernels of two processes "
                "take turns then, milliseconds each, unless NVIDIA's MPS runs"
            )
    return found, gpu
