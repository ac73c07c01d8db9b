"""Windows: registered memory that kernels of every rank address as (window, offset)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gin.errors import ArgumentError, Error

if TYPE_CHECKING:
    import numpy.typing as npt

    from gin.backends.base import Region
    from gin.comm import Comm

__all__ = ["Window"]


class Window:
    """One rank's part of a window. Passed to kernels, which see it as `gin::Window`.

    `nbytes` is the size on this rank and `sizes[r]` the size on rank r, in bytes. Arrays made from a window keep its
    memory alive; closing and garbage collection are local and never wait for other ranks.
    """

    def __init__(self, comm: Comm, region: Region) -> None:
        self._comm = comm
        self._region: Region | None = region
        self.nbytes: int = region.nbytes
        self.sizes: tuple[int, ...] = tuple(region.sizes)

    @property
    def region(self) -> Region:
        """The backend's side of the window. Raises gin.Error when the window is closed."""
        if self._region is None:
            raise Error(f"this window of {self.nbytes} bytes is closed")
        return self._region

    @property
    def comm(self) -> Comm:
        """The communicator that the window belongs to."""
        return self._comm

    @property
    def address(self) -> int:
        """Address of this rank's first byte."""
        return self.region.address

    def array(self, dtype: npt.DTypeLike = np.uint8, shape: int | Sequence[int] | None = None) -> npt.NDArray[Any]:
        """This rank's memory as an array, without a copy.

        dtype   element type
        shape   dimensions; by default one, with as many elements as the window holds

        Raises ArgumentError when the elements do not fit the window, or do not fill it and no shape is given.
        """
        kind = np.dtype(dtype)
        memory = self.region.memory
        if shape is None:
            if kind.itemsize == 0 or self.nbytes % kind.itemsize:
                raise ArgumentError(
                    f"a window of {self.nbytes} bytes is not a whole number of {kind} ({kind.itemsize} bytes each); "
                    "give a shape"
                )
            return memory.view(kind)
        dimensions = (shape,) if isinstance(shape, int) else tuple(shape)
        needed = math.prod(dimensions) * kind.itemsize
        if needed > self.nbytes or any(n < 0 for n in dimensions):
            raise ArgumentError(f"shape {dimensions} of {kind} takes {needed} bytes; the window has {self.nbytes}")
        return memory[:needed].view(kind).reshape(dimensions)

    def __dlpack__(self, **options: Any) -> Any:
        return self.array().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self.array().__dlpack_device__()
        return device

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self.array().__array_interface__

    def close(self) -> None:
        """Gives this rank's part back. Local: memory is reused once every rank has closed the window."""
        if self._region is not None:
            region, self._region = self._region, None
            self._comm._forget(region)

    def __repr__(self) -> str:
        return f"<gin.Window of {self.nbytes} bytes on rank {self._comm.rank}{'' if self._region else ', closed'}>"
