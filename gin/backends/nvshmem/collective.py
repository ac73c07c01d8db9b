"""NVSHMEM's calls that wait for the other ranks, without Python's lock: nvshmem4py 0.4 keeps it in those that return no
status, and nothing else of the process would run then, a deadline neither."""

from __future__ import annotations

import ctypes
from pathlib import Path

__all__ = ["Collective"]


class Collective:
    """Of a loaded library: every rank makes the same calls."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self._malloc, self._finalize = library.nvshmem_malloc, library.nvshmemx_hostlib_finalize
        self._malloc.argtypes, self._malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
        self._finalize.argtypes, self._finalize.restype = [], None

    def malloc(self, nbytes: int) -> int:
        """Address of zeroed memory of the symmetric heap; 0 where that has not so much."""
        return self._malloc(nbytes) or 0

    def finalize(self) -> None:
        self._finalize()
