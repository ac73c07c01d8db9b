"""What the backends have in common on the cuda platform: regions of GPU memory, and steps of libraries that may hang."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from gin.backends.base import Backend, Region
from gin.errors import ArgumentError, ConfigError, TimeoutError
from gin.platforms.cuda import CudaPlatform
from gin.platforms.cuda_memory import DeviceMemory

__all__ = ["CudaBackend", "end_at_once", "loaded_library", "preload", "within"]

T = TypeVar("T")


class CudaBackend(Backend):
    """A backend whose windows are memory of this rank's GPU."""

    failed = False  # another rank has failed

    @property
    def platform(self) -> CudaPlatform:
        return cast(CudaPlatform, self.job.platform)

    @property
    def max_message(self) -> int:
        return self.job.config.max_message or 1 << 30

    def make_region(
        self, number: int, address: int, nbytes: int, peers: Any, *, handle: int = 0, keep: list[Any] | None = None
    ) -> Region:
        """A region whose table of peers kernels can read. `peers`: one (address or 0, bytes) per rank.

        Memory that atomics do not reach is not loaded and stored either: signals are additions.
        """
        rows = np.array(peers, np.uint64).reshape(self.job.size, 2)
        rows[sorted(self.platform.unshared), 0] = 0
        table = DeviceMemory(self.platform.gpu, rows.nbytes)
        self.platform.gpu.copy_in(table.address, rows)
        return Region(number, address, nbytes, rows, None, handle, [table, *(keep or [])], table=table.address)

    def peer_failed(self, rank: int) -> None:
        self.failed = True

    @property
    def orderly(self) -> bool:
        """Whether nothing has failed anywhere: a library's collective end would wait for ranks that do not come."""
        return not (self.failed or self.platform.lost) and self.platform.read_record() is None


def array_span(array: Any) -> tuple[int, int]:
    """Address and bytes of an array in GPU memory (CuPy, PyTorch, Numba). Raises ArgumentError for any other."""
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None or interface["data"][1] or not _contiguous(interface):
        raise ArgumentError("only a writable C-contiguous array in GPU memory can be registered")
    nbytes = math.prod(interface["shape"]) * np.dtype(interface["typestr"]).itemsize
    if not nbytes:
        raise ArgumentError("an array of no bytes has no memory that could be registered")
    return int(interface["data"][0]), nbytes


def _contiguous(interface: Any) -> bool:
    expected = np.dtype(interface["typestr"]).itemsize
    strides = interface.get("strides") or ()
    for size, stride in zip(reversed(interface["shape"]), reversed(strides), strict=False):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def within(seconds: float, what: str, step: Callable[[], T], enter: Callable[[], None]) -> T:
    """`step()` in a thread of its own, which is left behind when it takes longer. Raises TimeoutError.

    seconds  0 for as long as it takes
    enter    makes the GPU that thread's
    """
    answer: list[T] = []
    error: list[BaseException] = []
    back = threading.Event()  # Thread.join takes a thread for ended when Ctrl-C comes

    def run() -> None:
        try:
            enter()
            answer.append(step())
        except BaseException as caught:
            error.append(caught)
        finally:
            back.set()

    threading.Thread(target=run, name=f"gin {what}", daemon=True).start()
    try:
        back.wait(seconds or None)
    finally:
        if not back.is_set():
            atexit.register(_end_without, back)
    if error:
        raise error[0]
    if not answer:
        raise TimeoutError(
            f"{what} took more than {seconds:g} s; has another rank ended? GIN_CONNECT_TIMEOUT allows more"
        )
    return answer[0]


def _end_without(back: threading.Event) -> None:
    if not back.is_set():
        end_at_once()


def end_at_once() -> None:
    """Lets the process end, with its status, before what libraries do then: that would wait for a thread left in one."""
    c = ctypes.CDLL(None)
    c.fflush(None)
    c.on_exit(c._exit, None)  # comes before what was registered earlier


def preload(package: str, soname: str) -> None:
    """Loads a library from where the user points LD_LIBRARY_PATH, or else from the first nvidia-* package on Python's path:
    bindings that look for it then find this one, and not an older one of the system."""
    places = [Path(place) for place in os.environ.get("LD_LIBRARY_PATH", "").split(":") if place]
    with contextlib.suppress(ImportError):
        import nvidia

        places += [Path(place, package, "lib") for place in nvidia.__path__]
    for place in places:
        if (place / soname).is_file():
            ctypes.CDLL(str(place / soname), mode=ctypes.RTLD_GLOBAL)
            return


def loaded_library(name: str) -> Path:
    """The file that a library of this process was loaded from. Raises ConfigError when it is not loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = Path(line.split(maxsplit=5)[-1])
        if path.name.startswith(name) and path.is_file():
            return path
    raise ConfigError(f"{name} is not loaded; pip install 'gin[cuda13]'")
