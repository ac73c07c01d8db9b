"""Places in a symmetric heap."""

from __future__ import annotations

from gin.config import format_size
from gin.errors import OutOfMemoryError

__all__ = ["Heap"]

ALIGNMENT = 256  # bytes; wide accesses of different windows never share a line


class Heap:
    """First fit over one range of bytes. Every rank makes the same calls, so offsets are equal everywhere.

    `fresh` is the offset from which on nothing has ever been taken.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.fresh = 0
        self._used: dict[int, int] = {}  # offset -> size

    @property
    def free(self) -> int:
        return self.nbytes - sum(self._used.values())

    def take(self, nbytes: int) -> int | None:
        """An aligned offset, or None when no gap is large enough."""
        size = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        at = 0
        for offset, used in sorted(self._used.items()):
            if offset - at >= size:
                break
            at = offset + used
        if at + size > self.nbytes:
            return None
        self._used[at] = size
        self.fresh = max(self.fresh, at + size)
        return at

    def place(self, sizes: list[int]) -> int:
        """Room for the largest of every rank's sizes. Raises OutOfMemoryError."""
        offset = self.take(max(sizes))
        if offset is None:
            raise OutOfMemoryError(
                f"the symmetric heap has no room for {max(sizes)} bytes on every rank (the largest of {sizes}): "
                f"{self.free} of {self.nbytes} bytes are free; set GIN_HEAP (now {format_size(self.nbytes)}) to more, or "
                "close windows"
            )
        return offset

    def give_back(self, offset: int) -> None:
        del self._used[offset]
