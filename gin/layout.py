"""How many words parts of a communicator take, without what it takes to open one."""

from __future__ import annotations

__all__ = ["barrier_rounds"]


def barrier_rounds(size: int) -> int:
    """Signal words of one barrier index among `size` ranks: two that take turns, and ceil(log2(size)) rounds."""
    return 2 + max(0, (size - 1).bit_length())
