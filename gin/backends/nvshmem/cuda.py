"""NVSHMEM on GPUs, through nvshmem4py: one allocation of its symmetric heap, windows at equal offsets of it."""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from gin.backends.base import Job, Region
from gin.backends.device_memory import CudaBackend, loaded_library, preload, within
from gin.backends.nvshmem.collective import Collective
from gin.backends.nvshmem.heap import Heap
from gin.backends.nvshmem.instance import Block, Instance, joins, joint_block
from gin.config import format_size, parse_size
from gin.errors import ConfigError, OutOfMemoryError, UnsupportedError
from gin.platforms.cuda_compile import DeviceCode
from gin.platforms.cuda_memory import library

T = TypeVar("T")
SLACK = 64 << 20  # bytes of NVSHMEM's heap beside our allocation: its own synchronisation words


class Backend(CudaBackend):
    """NVSHMEM is open once in a process: communicators of the same ranks share it, each with a block of its heap."""

    name = "nvshmem"
    _instance: ClassVar[Instance] = Instance()

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._places: dict[int, int] = {}  # region number -> heap offset
        self._base = 0
        self._block: Block | None = None

    def open(self) -> None:
        job, config = self.job, self.job.config
        preload("nvshmem", "libnvshmem_host.so.3")
        self._nvshmem = library("nvshmem.core")
        self._bindings = library("nvshmem.bindings")
        self._collective = Collective(loaded_library("libnvshmem_host.so"))
        offers = job.exchange.gather("nvshmem", lambda: self._instance.offer(self.platform.gpu.uuid))
        if not joins(offers):
            self._set_variables()
            uid = job.exchange.gather("nvshmem id", self._make_id)[0]
            job.exchange.agree("nvshmem start", lambda: self._start(uid))
        self._allocator = Heap(config.heap)
        job.exchange.agree("nvshmem heap", lambda: self._allocate(joint_block(offers, config.heap)))
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
        if self._block and self.platform.idle:  # a kernel that has not ended may still store there
            self._block.used = False
        if not self.orderly:
            self._instance.broken = True

    def _set_variables(self) -> None:
        """Of its variables, which it reads once: on rank 0 as early as it makes the unique id."""
        # It would decide which of NCCL's plugins this process uses before nccl_gin could; its collectives are not used here.
        os.environ.setdefault("NVSHMEM_DISABLE_NCCL", "1")
        config = self.job.config
        wanted = config.heap + SLACK
        theirs = os.environ.get("NVSHMEM_SYMMETRIC_SIZE")
        if theirs is None or theirs == self._instance.heap_size:
            os.environ["NVSHMEM_SYMMETRIC_SIZE"] = self._instance.heap_size = str(wanted)
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
        return bytes(self._nvshmem.get_unique_id()._data.tobytes()).hex() if self.job.rank == 0 else ""

    def _start(self, uid_text: str) -> None:
        from cuda.core import Device

        gpu = self.platform.gpu
        uid = self._nvshmem.get_unique_id(empty=True)
        uid._data.view(np.uint8)[:] = np.frombuffer(bytes.fromhex(uid_text), np.uint8)

        def start() -> None:
            device = Device(gpu.ordinal)
            device.set_current()
            self._nvshmem.init(
                device=device, uid=uid, rank=self.job.rank, nranks=self.job.size, initializer_method="uid"
            )

        self._wait("nvshmem start", start)
        self._instance.started(uid_text, self.job.rank, self.job.size, gpu.uuid)
        atexit.register(self._instance.end, self._collective.finalize, gpu.enter)

    def _wait(self, what: str, step: Callable[[], T]) -> T:
        """A step that waits for the other ranks; NVSHMEM cannot be used after one that fails."""
        try:
            return within(self.job.config.connect_timeout, what, step, self.platform.gpu.enter)
        except BaseException:
            self._instance.unusable = True
            raise

    def _allocate(self, spare: int | None) -> None:
        """Takes the block of that number, or allocates one."""
        heap, blocks = self.job.config.heap, self._instance.blocks
        if spare is None:
            address = self._wait("nvshmem heap", lambda: self._collective.malloc(heap))
            if not address:
                raise OutOfMemoryError(
                    f"NVSHMEM cannot give {format_size(heap)} of its heap; set GIN_HEAP to less, or give the GPU more room"
                )
            blocks.append(Block(address, heap))
            spare = len(blocks) - 1
        self._block = blocks[spare]
        self._block.used = True
        self._base = self._block.address
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
        """The part of the heap from `offset` as a region. Collective."""
        self._places[number] = offset
        peers = [(heap + offset if heap else 0, size) for heap, size in zip(self._heaps, sizes, strict=True)]
        made: list[Region] = []

        def make() -> None:
            made.append(self.make_region(number, self._base + offset, sizes[self.job.rank], peers))

        self.job.exchange.agree(f"region {number}: table", make)
        return made[0]


def _header_version(include: Path) -> str:
    """The version that NVSHMEM's headers state, or nothing."""
    numbers: dict[str, str] = {}
    for path in include.rglob("*version*.h"):
        text = path.read_text(errors="replace")
        numbers.update(re.findall(r"#define NVSHMEM_VENDOR_(MAJOR|MINOR|PATCH)_VERSION +(\d+)", text))
    return ".".join(numbers[part] for part in ("MAJOR", "MINOR", "PATCH") if part in numbers)
