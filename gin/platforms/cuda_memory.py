"""Memory of one GPU: allocations, pinned host memory, and what other processes of the host map of it."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from gin.errors import ArgumentError, Error, KernelError, OutOfMemoryError, UnsupportedError

__all__ = [
    "EXTRA",
    "DeviceMemory",
    "Gpu",
    "PeerMemory",
    "PinnedMemory",
    "check",
    "driver",
    "gpu_of",
    "kept",
    "library",
    "require_rdma",
]

PIN_PORTABLE_MAPPED = 3  # CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP, and the same of cuMemHostRegister
NON_BLOCKING = 1
INVALID_VALUE, NOT_READY = 1, 600
LEGACY_STREAM = 1
DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
URGENT = -100  # clamped to the highest priority there is
RDMA_ORDERED_FOR_OWNER = 100  # CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER

EXTRA = "pip install 'gin[cuda13]'"


def library(name: str) -> Any:
    """A Python package that the cuda platform needs. Raises UnsupportedError that names the extra when it is not there."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UnsupportedError(
            f"the cuda platform needs the package {name}, which does not load ({error}); {EXTRA}"
        ) from None


def driver() -> Any:
    """cuda.bindings.driver."""
    return library("cuda.bindings.driver")


def check(answer: tuple[Any, ...], what: str) -> Any:
    """The value of a driver call's answer. Raises OutOfMemoryError, UnsupportedError, KernelError or gin.Error."""
    code = int(answer[0])
    if code == 0:
        return answer[1] if len(answer) == 2 else answer[1:] or None
    cu = driver()
    name, text = (cu.cuGetErrorName(answer[0])[1], cu.cuGetErrorString(answer[0])[1])
    message = f"{what}: {_text(name)} ({_text(text)})"
    if code == 2:
        raise OutOfMemoryError(message)
    if code == 100:
        raise UnsupportedError(f"{message}: this process sees no GPU; use platform=host, or set CUDA_VISIBLE_DEVICES")
    if code in (3, 34, 35, 803, 804):
        raise UnsupportedError(f"{message}: NVIDIA's driver is not there or too old for CUDA 13; update the driver")
    if code in _LOST:
        raise KernelError(f"{message}: a kernel broke the GPU's context; only a new process gets another")
    raise Error(message)


_LOST = frozenset({700, 702, 710, 714, 715, 716, 717, 718, 719})  # illegal address, trap and their like


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


kept: list[Any] = []  # what a kernel that does not end may still reach, until the process ends


@cache
def gpu_of(ordinal: int) -> Gpu:
    """The device of that number; one for all communicators of the process, as its context is."""
    return Gpu(ordinal)


class Gpu:
    """One device and its primary context, with a stream for copies that waits for no kernel."""

    _unended: tuple[tuple[Any, Any], ...] = ()

    def __init__(self, ordinal: int) -> None:
        cu = driver()
        self._cu = cu
        self.ordinal = ordinal
        self.handle = check(cu.cuDeviceGet(ordinal), f"opening GPU {ordinal}")
        self.context = check(cu.cuDevicePrimaryCtxRetain(self.handle), f"opening a context on GPU {ordinal}")
        self.enter()
        self.name = _text(check(cu.cuDeviceGetName(100, self.handle), "asking for the GPU's name")).split("\0")[0]
        self.uuid = bytes(check(cu.cuDeviceGetUuid(self.handle), "asking for the GPU's identity").bytes).hex()
        self.bus_id = _text(check(cu.cuDeviceGetPCIBusId(32, self.handle), "asking for the bus id")).split("\0")[0]
        attribute = cu.CUdevice_attribute
        major = self.attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        minor = self.attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
        self.arch = f"sm_{major}{minor}"
        self.multiprocessors = self.attribute(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        # Streams of one priority share a few hardware queues; what a kernel waits for must not stand behind it.
        self.copies = self.stream(URGENT)
        self.words = self.stream(URGENT)  # sets words while copies are under way

    def leave_unended(self, queries: Sequence[tuple[Any, Any]]) -> None:
        """Kernels do not end: until they have, by these queries of streams and events, nothing is freed: that would wait."""
        self._unended = (*self._unended, *queries)

    @property
    def stuck(self) -> bool:
        """Whether some kernel still does not end."""
        if self._unended:
            self._unended = tuple(
                (query, handle) for query, handle in self._unended if int(query(handle)[0]) == NOT_READY
            )
        return bool(self._unended)

    def attribute(self, which: Any) -> int:
        return int(check(driver().cuDeviceGetAttribute(which, self.handle), "asking for a property of the GPU"))

    def enter(self) -> None:
        """Makes the GPU the calling thread's."""
        check(driver().cuCtxSetCurrent(self.context), "entering the GPU's context")

    @contextlib.contextmanager
    def beside_captures(self) -> Iterator[None]:
        """What is asked meanwhile is answered, and harms nobody, while another thread captures a stream of its own."""
        cu = driver()
        _, mode = cu.cuThreadExchangeStreamCaptureMode(cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
        try:
            yield
        finally:
            cu.cuThreadExchangeStreamCaptureMode(mode)

    @contextlib.contextmanager
    def finalising(self) -> Iterator[Any]:
        """The driver, with this GPU the thread's meanwhile; None when Python ends or a kernel does not: the process's end
        gives everything back.

        Finalisers run between any two lines of a thread that may be about to use another GPU, whose context it keeps, or to
        capture a stream, which they do not disturb.
        """
        if sys.is_finalizing():
            yield None
            return
        cu = self._cu
        code, before = cu.cuCtxGetCurrent()
        cu.cuCtxSetCurrent(self.context)
        _, mode = cu.cuThreadExchangeStreamCaptureMode(cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
        try:
            yield None if self.stuck else cu
        finally:
            cu.cuThreadExchangeStreamCaptureMode(mode)
            if int(code) == 0:
                cu.cuCtxSetCurrent(before)

    def stream(self, priority: int = 0) -> Any:
        """A new stream that waits for no other."""
        self.enter()
        return check(driver().cuStreamCreateWithPriority(NON_BLOCKING, priority), "making a stream")

    def wait_copies(self) -> None:
        check(driver().cuStreamSynchronize(self.copies), "copying between GPU and host memory")

    def copy_in(self, address: int, data: Any) -> None:
        """Writes a buffer's bytes to the GPU's memory, whatever runs; done when it returns."""
        view = memoryview(data).cast("B")
        if not view.nbytes:
            return
        self.enter()
        source = (ctypes.c_char * view.nbytes).from_buffer_copy(view)
        check(
            driver().cuMemcpyHtoDAsync(address, ctypes.addressof(source), view.nbytes, self.copies),
            f"copying {view.nbytes} bytes to the GPU",
        )
        self.wait_copies()

    def copy_out(self, address: int, nbytes: int) -> bytearray:
        """Bytes of the GPU's memory, whatever runs."""
        data = bytearray(nbytes)
        if nbytes:
            self.enter()
            target = ctypes.addressof(ctypes.c_char.from_buffer(data))
            check(
                driver().cuMemcpyDtoHAsync(target, address, nbytes, self.copies), f"copying {nbytes} bytes from the GPU"
            )
            self.wait_copies()
        return data

    def fill(self, address: int, nbytes: int, byte: int = 0) -> None:
        """Sets every byte; done when it returns."""
        if nbytes:
            self.enter()
            check(driver().cuMemsetD8Async(address, byte, nbytes, self.copies), f"setting {nbytes} bytes of the GPU")
            self.wait_copies()

    def require_own(self, address: int) -> None:
        """Raises ArgumentError where an address is of another GPU's memory, or of none."""
        self.enter()
        found = _gpu_at(address)
        if found != self.ordinal:
            whose = "not a GPU's" if found is None else f"of GPU {found}"
            raise ArgumentError(f"the memory at {address:#x} is {whose}; this rank's is GPU {self.ordinal}")

    def order_copies(self, address: int) -> None:
        """Synchronous copies to and from an allocation end before the call does, as a NIC reads and writes it too."""
        which = driver().CUpointer_attribute.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
        check(driver().cuPointerSetAttribute(1, which, address), "ordering copies of GPU memory")

    def set_word(self, address: int, value: int) -> None:
        """Sets a 32-bit word of the GPU's memory while kernels run. Any thread; says nothing when the GPU is lost."""
        cu = driver()
        cu.cuCtxSetCurrent(self.context)
        cu.cuStreamWriteValue32(self.words, address, value, 0)


def _gpu_at(address: int) -> int | None:
    """The number of the GPU whose memory an address is in. Not by cuda-bindings, which in 13.3 says 0 of each."""
    number = ctypes.c_int(-1)
    ask = ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute
    failed = ask(ctypes.byref(number), DEVICE_ORDINAL, ctypes.c_uint64(address))
    return None if failed or number.value < 0 else number.value


def require_rdma(gpu: Gpu) -> None:
    """Raises UnsupportedError unless NICs may write to the GPU's memory and kernels see it in order."""
    which = driver().CUdevice_attribute
    ways = (which.CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, which.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED)
    told = f"GPU {gpu.ordinal} ({gpu.name}): wire verbs needs GPUDirect RDMA, and NVIDIA's driver "
    if not any(gpu.attribute(way) for way in ways):
        raise UnsupportedError(told + "offers it for this GPU neither by dma-buf nor by nvidia-peermem; use wire=cuda")
    ordering = gpu.attribute(which.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING)
    if ordering < RDMA_ORDERED_FOR_OWNER:
        raise UnsupportedError(
            told + f"says that kernels may see a NIC's writes out of order (ordering {ordering}, needed "
            f"{RDMA_ORDERED_FOR_OWNER}); use wire=cuda"
        )


class DeviceMemory:
    """Zeroed memory of a GPU, given back when nothing refers to it."""

    def __init__(self, gpu: Gpu, nbytes: int, granule: int = 1) -> None:
        """
        granule  bytes of which a multiple is allocated
        """
        cu = driver()
        gpu.enter()
        self._gpu = gpu
        self.nbytes = nbytes
        try:
            whole = -(-max(nbytes, 1) // granule) * granule
            self.address = int(check(cu.cuMemAlloc(whole), "allocating GPU memory"))
        except OutOfMemoryError:
            free, total = check(cu.cuMemGetInfo(), "asking for free memory")
            raise OutOfMemoryError(
                f"GPU {gpu.ordinal} ({gpu.name}) cannot allocate {nbytes} bytes: {int(free)} of its {int(total)} are free; "
                "ask for less, close windows, or free what else uses the GPU"
            ) from None
        gpu.fill(self.address, nbytes)

    def export(self) -> dict[str, Any]:
        """What `PeerMemory` of another process of this host takes, as JSON."""
        return export(self._gpu, self.address)

    def __del__(self) -> None:
        if address := getattr(self, "address", 0):
            with self._gpu.finalising() as cu:
                if cu:
                    cu.cuMemFree(address)


def export(gpu: Gpu, address: int) -> dict[str, Any]:
    """A place in memory from cuMemAlloc or cudaMalloc, for `PeerMemory` of another process of this host, as JSON.

    Raises UnsupportedError for memory of another kind, which CUDA exports otherwise or not at all.
    """
    cu = driver()
    gpu.enter()
    base = int(check(cu.cuMemGetAddressRange(address), "finding an allocation's start")[0])
    answer = cu.cuIpcGetMemHandle(address)
    if int(answer[0]) == INVALID_VALUE:
        raise UnsupportedError(
            f"GPU memory at {address:#x} cannot be shared with other processes: it does not come from cudaMalloc (a memory "
            "pool with cudaMallocAsync, or PyTorch's expandable segments); allocate with comm.window"
        )
    return {"handle": bytes(check(answer, "exporting GPU memory").reserved).hex(), "offset": address - base}


class PeerMemory:
    """Another process's `DeviceMemory`, mapped here until `close`, or until nothing refers to it."""

    def __init__(self, gpu: Gpu, exported: dict[str, Any]) -> None:
        cu = driver()
        gpu.enter()
        handle = cu.CUipcMemHandle()
        handle.reserved = bytes.fromhex(exported["handle"])
        self._gpu = gpu
        self._base = int(check(cu.cuIpcOpenMemHandle(handle, 1), "mapping another rank's GPU memory"))
        self.address = self._base + int(exported["offset"])

    def close(self) -> None:
        """Unmaps. The owner gives the memory back only then: what it allocates there next could not be mapped otherwise."""
        if base := getattr(self, "_base", 0):
            self._base = 0
            with self._gpu.finalising() as cu:
                if cu:
                    cu.cuIpcCloseMemHandle(base)

    __del__ = close


class PinnedMemory:
    """Host memory that the GPU loads and stores at the same address: new and zeroed, or some that exists."""

    def __init__(self, gpu: Gpu, nbytes: int, address: int = 0, owner: Any = None) -> None:
        """
        address  of memory that exists, on a page's start
        owner    what that memory is given back with, kept as long
        """
        cu = driver()
        gpu.enter()
        self._gpu = gpu
        self._owner = owner
        self._registered = address != 0
        if address:
            check(cu.cuMemHostRegister(address, nbytes, PIN_PORTABLE_MAPPED), f"pinning {nbytes} bytes of host memory")
            self.address = address
        else:
            self.address = int(check(cu.cuMemHostAlloc(nbytes, PIN_PORTABLE_MAPPED), f"pinning {nbytes} bytes"))
            ctypes.memset(self.address, 0, nbytes)
        seen = int(check(cu.cuMemHostGetDevicePointer(self.address, 0), "finding pinned memory on the GPU"))
        if seen != self.address:
            raise UnsupportedError(
                "the GPU sees pinned host memory at an address of its own, which gin does not support"
            )

    def __del__(self) -> None:
        if address := getattr(self, "address", 0):
            with self._gpu.finalising() as cu:
                if cu and self._registered:
                    cu.cuMemHostUnregister(address)
                elif cu:
                    cu.cuMemFreeHost(address)
                else:
                    kept.append(getattr(self, "_owner", None))
