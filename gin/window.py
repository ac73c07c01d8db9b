"""Windows: registered memory that kernels of every rank address as (window, offset)."""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gin.errors import ArgumentError, Error

if TYPE_CHECKING:
    import numpy.typing as npt

    from gin.backends.base import Region
    from gin.comm import Comm

__all__ = ["Window"]


class _Lease:
    """Keeps a region open. Held by its window and by every array made from it, so that what an array shows is never
    given to another window."""

    def __init__(self, comm: Comm, region: Region) -> None:
        self.region = region
        self._comm = weakref.ref(comm)
        interface = {"shape": (region.nbytes,), "typestr": "|u1", "data": (region.address, False), "version": 3}
        setattr(self, comm._platform.array_protocol, interface)

    def __del__(self) -> None:
        comm = self._comm()
        if comm is not None:
            comm._forget(self.region)


def _element(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """An element type of plain bytes. Raises ArgumentError."""
    try:
        kind = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"dtype: {dtype!r} is no element type: {error}") from None
    if kind.hasobject or kind.itemsize == 0 or kind.subdtype is not None:
        raise ArgumentError(f"dtype: {kind} is no element of a fixed number of plain bytes")
    return kind


def _whole(name: str, value: object) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentError(f"{name}: {value!r} is no whole number") from None


def _dimensions(shape: int | Sequence[int]) -> tuple[int, ...]:
    try:
        sizes = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    except TypeError:
        raise ArgumentError(f"shape: {shape!r} is neither a whole number nor a sequence of them") from None
    return tuple(_whole("shape", size) for size in sizes)


class Window:
    """One rank's part of a window. Passed to kernels, which see it as `gin::Window`.

    `nbytes` is the size on this rank and `sizes[r]` the size on rank r, in bytes. Arrays made from a window keep its
    memory alive; closing and garbage collection are local and never wait for other ranks.
    """

    def __init__(self, comm: Comm, region: Region) -> None:
        self._comm = comm
        self._lease: _Lease | None = _Lease(comm, region)
        self.nbytes: int = region.nbytes
        self.sizes: tuple[int, ...] = tuple(region.sizes)

    @property
    def region(self) -> Region:
        """The backend's side of the window. Raises gin.Error when the window is closed."""
        return self._open().region

    def _open(self) -> _Lease:
        if self._lease is None:
            raise Error(f"this window of {self.nbytes} bytes is closed")
        return self._lease

    @property
    def comm(self) -> Comm:
        """The communicator that the window belongs to."""
        return self._comm

    @property
    def address(self) -> int:
        """Address of this rank's first byte."""
        return self.region.address

    def array(self, dtype: npt.DTypeLike = np.uint8, shape: int | Sequence[int] | None = None) -> Any:
        """This rank's memory as an array, without a copy: NumPy's, or CuPy's where the memory is a GPU's.

        dtype   element type
        shape   dimensions; by default one, with as many elements as the window holds

        Raises ArgumentError when the elements do not fit the window, or do not fill it and no shape is given, and for what
        is no type or shape.
        """
        kind = _element(dtype)
        memory = self._comm._array(self._open())
        if shape is None:
            if self.nbytes % kind.itemsize:
                raise ArgumentError(
                    f"a window of {self.nbytes} bytes is not a whole number of {kind} ({kind.itemsize} bytes each); "
                    "give a shape"
                )
            return memory.view(kind)
        dimensions = _dimensions(shape)
        needed = math.prod(dimensions) * kind.itemsize
        if needed > self.nbytes or any(n < 0 for n in dimensions):
            raise ArgumentError(f"shape {dimensions} of {kind} takes {needed} bytes; the window has {self.nbytes}")
        return memory[:needed].view(kind).reshape(dimensions)

    def read(self, dtype: npt.DTypeLike = np.uint8, count: int | None = None, offset: int = 0) -> npt.NDArray[Any]:
        """A copy of this rank's memory as a one-dimensional NumPy array, on every platform.

        count   elements; by default all after `offset`
        offset  bytes

        Raises ArgumentError when that is more than the window holds, or no whole number of elements.
        """
        kind = _element(dtype)
        rest = self.nbytes - _whole("offset", offset)
        if count is None:
            if rest < 0 or rest % kind.itemsize:
                raise ArgumentError(f"the {rest} bytes from {offset} are not a whole number of {kind}; give a count")
            count = rest // kind.itemsize
        nbytes = self._span(offset, _whole("count", count) * kind.itemsize)
        return np.frombuffer(self._comm._platform.read(self.address + offset, nbytes), kind)

    def write(self, values: npt.ArrayLike, offset: int = 0) -> None:
        """Copies a NumPy array, or what makes one, to this rank's memory at `offset` bytes, on every platform.

        Done when it returns. Raises ArgumentError when it does not fit.
        """
        try:
            data = np.ascontiguousarray(values)
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"values: not to be made an array: {error}") from None
        if data.dtype.hasobject:
            raise ArgumentError(f"a window holds bytes; values are of type {data.dtype}, which is no plain one")
        self._span(offset, data.nbytes)
        self._comm._platform.write(self.address + offset, data.reshape(-1).view(np.uint8))

    def _span(self, offset: int, nbytes: int) -> int:
        if _whole("offset", offset) < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise ArgumentError(f"{nbytes} bytes at {offset} are not inside the window's {self.nbytes}")
        return nbytes

    def __dlpack__(self, **options: Any) -> Any:
        return self.array().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self.array().__dlpack_device__()
        return device

    @property
    def __array_interface__(self) -> dict[str, Any]:
        interface: dict[str, Any] = self.array().__array_interface__
        return interface

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        interface: dict[str, Any] = self.array().__cuda_array_interface__
        return interface

    def close(self) -> None:
        """Gives this rank's part back. Local: memory is reused when no rank has the window or an array of it.

        What kernels put without a flush may still be under way: ibrc_proxy waits for that before memory is reused, and on
        GPUs the libraries of the other backends have to be asked, by flush or quiet.
        """
        self._lease = None

    def __repr__(self) -> str:
        return f"<gin.Window of {self.nbytes} bytes on rank {self._comm.rank}{'' if self._lease else ', closed'}>"
