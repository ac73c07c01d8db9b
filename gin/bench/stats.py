"""Statistics over all samples of a row; nothing is dropped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


def nearest_rank(ordered: Sequence[float] | npt.NDArray[np.float64], percent: float) -> float:
    """The smallest sample that at least `percent` % of the samples do not exceed.

    `ordered`: samples in ascending order, at least one. `percent`: above 0, up to 100.
    """
    if len(ordered) == 0:
        raise ValueError("a percentile of no samples")
    if not 0 < percent <= 100:
        raise ValueError(f"percentile {percent} is not in (0, 100]")
    # The product is rounded before ceil: 0.1 * 30 must count as 3, not as 3.0000000000000004.
    rank = math.ceil(round(percent / 100 * len(ordered), 9))
    return float(ordered[max(rank, 1) - 1])


@dataclass(frozen=True)
class Summary:
    """What one row says of its samples, in their unit."""

    count: int
    min: float
    median: float
    p90: float
    p99: float
    max: float


def summarize(samples: npt.ArrayLike) -> Summary:
    """Summary of the samples (any shape, at least one). Percentiles are by nearest rank, the median included."""
    ordered = np.sort(np.asarray(samples, dtype=np.float64), axis=None)
    if ordered.size == 0:
        raise ValueError("a summary of no samples")
    return Summary(
        count=int(ordered.size),
        min=float(ordered[0]),
        median=nearest_rank(ordered, 50),
        p90=nearest_rank(ordered, 90),
        p99=nearest_rank(ordered, 99),
        max=float(ordered[-1]),
    )
