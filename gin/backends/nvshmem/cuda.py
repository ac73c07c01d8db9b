"""NVSHMEM on GPUs, through nvshmem4py: one allocation of its symmetric heap, windows at equal offsets of it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gin.backends.base import Job, Region
from gin.backends.device_memory import CudaBackend, loaded_library, preload, within
from gin.backends.nvshmem.heap import Heap
from gin.config import format_size, parse_size
from gin.errors import ConfigError, OutOfMemoryError, UnsupportedError
from gin.platforms.cuda_compile import DeviceCode
from gin.platforms.cuda_memory import library

SLACK = 64 << 20  # bytes of NVSHMEM's heap beside our allocation: its own synchronisation words


class Backend(CudaBackend):
    """NVSHMEM can be open once in a process."""

    name = "nvshmem"
    _open: ClassVar[bool] = False

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._places: dict[int, int] = {}  # region number -> heap offset
        self._base = 0
        self._started = False

    def open(self) -> None:
        job, config = self.job, self.job.config
        preload("nvshmem", "libnvshmem_host.so.3")
        self._nvshmem = library("nvshmem.core")
        self._bindings = library("nvshmem.bindings")
        self._set_heap_size()
        uid = job.exchange.gather("nvshmem id", self._make_id)[0]
        job.exchange.agree("nvshmem start", lambda: self._start(bytes.fromhex(uid)))
        self._allocator = Heap(config.heap)
        job.exchange.agree("nvshmem heap", self._allocate)
        self._heaps = [int(self._bindings.ptr(self._base, rank)) for rank in range(job.size)]
        self.regions.take()  # the control window's
        self.control = self._cut(0, self._allocator.place([job.control_bytes]), [job.control_bytes] * job.size)
        self.platform.device_code = self._device_code()
        self.platform.loaded = lambda loaded: self._bindings.culibrary_init(int(loaded))
        self.platform.unloading = lambda loaded: self._bindings.culibrary_finalize(int(loaded))

    def window(self, tag: str, nbytes: int) -> Region:
        sizes, closed = self.release_closed(tag, nbytes)
        for region in closed:
            self._allocator.give_back(self._places.pop(region.number))
        region = self._cut(self.regions.take(), self._allocator.place(sizes), sizes)
        self.job.exchange.agree(f"{tag}: zero", lambda: self.platform.gpu.fill(region.address, nbytes))
        return region

    def register_array(self, tag: str, array: Any) -> Region:
        raise UnsupportedError("backend nvshmem cannot register memory allocated elsewhere")

    def close(self, timeout: float) -> None:
        if not self._started:
            return
        self._started = False
        if self.platform.lost or self.failed:
            return  # its end is collective: left to the end of the process
        try:
            within(timeout, "nvshmem end", self._end, self.platform.gpu.enter)
        except TimeoutError:
            return
        type(self)._open = False

    def _end(self) -> None:
        self._bindings.free(self._base)
        self._nvshmem.finalize()

    def _set_heap_size(self) -> None:
        config = self.job.config
        wanted = config.heap + SLACK
        theirs = os.environ.get("NVSHMEM_SYMMETRIC_SIZE")
        if theirs is None:
            os.environ["NVSHMEM_SYMMETRIC_SIZE"] = str(wanted)
            return
        try:
            size = parse_size(theirs)
        except ValueError:
            return  # NVSHMEM says so itself
        if size < wanted:
            raise ConfigError(
                f"NVSHMEM_SYMMETRIC_SIZE={theirs} has no room for GIN_HEAP={format_size(config.heap)} and "
                f"{format_size(SLACK)} beside it; set one of them to fit the other"
            )

    def _make_id(self) -> str:
        if type(self)._open:
            raise UnsupportedError("NVSHMEM is open in this process already, and it can be only once; close that first")
        return bytes(self._nvshmem.get_unique_id()._data.tobytes()).hex() if self.job.rank == 0 else ""

    def _start(self, uid_bytes: bytes) -> None:
        from cuda.core import Device

        gpu = self.platform.gpu
        uid = self._nvshmem.get_unique_id(empty=True)
        uid._data.view(np.uint8)[:] = np.frombuffer(uid_bytes, np.uint8)

        def start() -> None:
            device = Device(gpu.ordinal)
            device.set_current()
            self._nvshmem.init(
                device=device, uid=uid, rank=self.job.rank, nranks=self.job.size, initializer_method="uid"
            )

        type(self)._open = self._started = True
        within(self.job.config.connect_timeout, "nvshmem start", start, gpu.enter)

    def _allocate(self) -> None:
        heap = self.job.config.heap
        self._base = int(self._bindings.malloc(heap))
        if not self._base:
            raise OutOfMemoryError(
                f"NVSHMEM cannot give {format_size(heap)} of its heap; set GIN_HEAP to less, or give the GPU more room"
            )
        self.platform.gpu.fill(self._base, heap)

    def _device_code(self) -> DeviceCode:
        """Raises ConfigError where the headers are not of the version that is loaded."""
        root = loaded_library("libnvshmem_host.so").parent.parent
        include, device = root / "include", root / "lib" / "libnvshmem_device.a"
        loaded = str(self._nvshmem.get_version().libnvshmem_version)
        found = _header_version(include)
        if found != loaded or not device.is_file():
            raise ConfigError(
                f"NVSHMEM {loaded} is loaded from {root}, whose headers are of version {found or 'unknown'}"
                f"{'' if device.is_file() else ' and which has no libnvshmem_device.a'}; install one whole "
                "nvidia-nvshmem-cu13"
            )
        macros = ("NVSHMEM_ENABLE_ALL_DEVICE_INLINING",)
        return DeviceCode(self.name, (include,), macros, (device,), version=f"nvshmem {loaded}")

    def _cut(self, number: int, offset: int, sizes: list[int]) -> Region:
        """The part of the heap from `offset` as a region."""
        self._places[number] = offset
        peers = [(heap + offset if heap else 0, size) for heap, size in zip(self._heaps, sizes, strict=True)]
        return self.make_region(number, self._base + offset, sizes[self.job.rank], peers)


def _header_version(include: Path) -> str:
    """The version that NVSHMEM's headers state, or nothing."""
    numbers: dict[str, str] = {}
    for path in include.rglob("*version*.h"):
        text = path.read_text(errors="replace")
        numbers.update(re.findall(r"#define NVSHMEM_VENDOR_(MAJOR|MINOR|PATCH)_VERSION +(\d+)", text))
    return ".".join(numbers[part] for part in ("MAJOR", "MINOR", "PATCH") if part in numbers)
