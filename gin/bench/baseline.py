"""What this machine does without gin, measured by the C++ in csrc/baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gin.bench.stats import nearest_rank

MEMCPY_BYTES = 4 << 20
MEMCPY_SLOTS = 2  # as many places as gin bench bandwidth uses for this size
RING_DESCRIPTORS = 5_000_000
RING_DEPTH = 4096


@dataclass(frozen=True)
class Figure:
    """One number with its unit."""

    name: str
    value: float
    unit: str


def _core() -> Any:
    from gin import _core

    return _core.baseline


def flag_pingpong_us(iterations: int = 20_000) -> float:
    """Median half round trip of a flag between two processes, microseconds."""
    return nearest_rank(sorted(_core().flag_pingpong(iterations, iterations // 10)), 50) / 1e3


def memcpy_GBps(  # noqa: N802
    nbytes: int = MEMCPY_BYTES, slots: int = MEMCPY_SLOTS, *, touched: bool = True, iterations: int = 100
) -> float:
    """Median bandwidth of memcpy into another process's memory, GB/s.

    `touched`: the data is written here before and read there after each copy, as in verified sweeps.
    """
    samples = _core().memcpy_between(nbytes, slots, touched, iterations, iterations // 10)
    return nbytes / nearest_rank(sorted(samples), 50)


def ring_Mops(count: int = RING_DESCRIPTORS, depth: int = RING_DEPTH) -> float:  # noqa: N802
    """Descriptors of 32 bytes through a bare ring between two threads, millions per second."""
    return float(_core().ring_rate(count, depth)) / 1e6


def measure() -> list[Figure]:
    """All baselines."""
    return [
        Figure("8-byte flag ping-pong between two processes, one way", flag_pingpong_us(), "us"),
        Figure("memcpy of 4M of new data between two processes' memory", memcpy_GBps(), "GB/s"),
        Figure("memcpy of 4M of data that nobody touches otherwise", memcpy_GBps(touched=False), "GB/s"),
        Figure("32-byte descriptors through a ring between two threads", ring_Mops(), "M/s"),
    ]
