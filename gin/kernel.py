"""Kernels: compiled entry points, and the launches that give them their arguments."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gin.errors import ArgumentError
from gin.window import Window

if TYPE_CHECKING:
    from gin.comm import Comm

__all__ = ["Kernel"]

Dim = int | Sequence[int]


class Kernel:
    """A kernel of one communicator. Made by `Comm.compile`."""

    def __init__(self, comm: Comm, module: Any, name: str) -> None:
        self._comm = comm
        self.module = module
        self.name = name
        self._params: list[tuple[str, int, int]] = [tuple(param) for param in module.params]

    def launch(self, *args: Any, grid: Dim = 1, block: Dim = 1, shared: int = 0, stream: Any = None) -> None:
        """Starts the kernel and returns; `Comm.synchronize` waits for it and raises what went wrong.

        args    one for each parameter of the kernel, except gin::Comm, which is supplied: windows, Python or NumPy
                scalars (converted to the parameter's own type), arrays or addresses for pointers, bytes for structures
        grid    blocks: a number, or up to three dimensions
        block   threads of a block, likewise
        shared  dynamic shared memory of a block, bytes
        stream  where to run; launches of one stream run in order. The host platform has one stream

        Raises ArgumentError for arguments that do not fit, gin.Error when the communicator has failed or is closed.
        """
        self._comm._check_usable()
        packed, held = self._pack(args)
        self._comm._launch(self, packed, held, _dim("grid", grid), _dim("block", block), _size(shared), stream)

    def _pack(self, args: tuple[Any, ...]) -> tuple[list[bytes], list[Any]]:
        """The arguments as the kernel takes them, and what must live until it has run."""
        expected = sum(kind != "comm" for kind, _, _ in self._params)
        if len(args) != expected:
            kinds = ", ".join(kind for kind, _, _ in self._params if kind != "comm")
            raise ArgumentError(
                f"kernel {self.name} takes {expected} arguments ({kinds}), not counting gin::Comm; got {len(args)}"
            )
        packed, held = [], []
        rest = iter(args)
        position = 0
        for kind, size, _ in self._params:
            if kind == "comm":
                packed.append(self._comm._pod())
                continue
            value = next(rest)
            try:
                data, keep = _PACK[kind](self._comm, value, size)
            except (TypeError, ValueError, OverflowError, struct.error) as error:
                raise ArgumentError(
                    f"argument {position} of kernel {self.name} is {_describe(value)}; the parameter is a {kind} of "
                    f"{size} bytes: {error}"
                ) from None
            packed.append(data)
            held.append(keep)
            position += 1
        return packed, held

    def __repr__(self) -> str:
        return f"<gin.Kernel {self.name}({', '.join(kind for kind, _, _ in self._params)})>"


def _describe(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def _size(value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 31:
        raise ArgumentError(f"shared={value!r} is not a number of bytes")
    return number


def _dim(name: str, value: Any) -> tuple[int, int, int]:
    numbers = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    try:
        numbers = tuple(operator.index(number) for number in numbers)
    except TypeError:
        numbers = ()
    if not 1 <= len(numbers) <= 3 or any(not 0 < number < 1 << 31 for number in numbers):
        raise ArgumentError(f"{name}={value!r}: one to three whole numbers of at least 1")
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z


Packed = tuple[bytes, Any]


def _pack_window(comm: Comm, value: Any, _size: int) -> Packed:
    if not isinstance(value, Window):
        raise TypeError("pass what comm.window or comm.register returned")
    if value.comm is not comm:
        raise ValueError("the window belongs to another communicator")
    return value.region.pod(), value.region


def _pack_integer(value: Any, size: int, signed: bool) -> bytes:
    if isinstance(value, (bool, np.bool_)):
        raise TypeError("pass a whole number")
    number = operator.index(value)
    try:
        return number.to_bytes(size, "little", signed=signed)
    except OverflowError:
        low, high = (-(1 << (8 * size - 1)), (1 << (8 * size - 1)) - 1) if signed else (0, (1 << (8 * size)) - 1)
        raise ValueError(f"it takes {low} to {high}") from None


def _pack_float(_comm: Comm, value: Any, size: int) -> Packed:
    if isinstance(value, (str, bytes, bool)):
        raise TypeError("pass a number")
    return struct.pack({2: "<e", 4: "<f", 8: "<d"}[size], float(value)), None


def _pack_bool(_comm: Comm, value: Any, size: int) -> Packed:
    if not isinstance(value, (bool, np.bool_)) and not (isinstance(value, int) and value in (0, 1)):
        raise TypeError("pass True or False")
    return int(bool(value)).to_bytes(size, "little"), None


def _pack_pointer(_comm: Comm, value: Any, size: int) -> Packed:
    if value is None:
        return bytes(size), None
    if isinstance(value, Window):
        return value.address.to_bytes(size, "little"), value.region
    if isinstance(value, np.ndarray):
        return value.ctypes.data.to_bytes(size, "little"), value
    return _pack_integer(value, size, signed=False), value


def _pack_struct(_comm: Comm, value: Any, size: int) -> Packed:
    data = bytes(value.tobytes() if isinstance(value, (np.generic, np.ndarray)) else memoryview(value))
    if len(data) != size:
        raise ValueError(f"got {len(data)} bytes")
    return data, None


_PACK: dict[str, Callable[[Any, Any, int], Packed]] = {
    "window": _pack_window,
    "signed": lambda _, value, size: (_pack_integer(value, size, signed=True), None),
    "unsigned": lambda _, value, size: (_pack_integer(value, size, signed=False), None),
    "float": _pack_float,
    "bool": _pack_bool,
    "pointer": _pack_pointer,
    "struct": _pack_struct,
}
