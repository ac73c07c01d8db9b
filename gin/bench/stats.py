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
    p999: float
    max: float
    mean: float
    stdev: float  # of the samples, not of the mean; 0 for one sample


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
        p999=nearest_rank(ordered, 99.9),
        max=float(ordered[-1]),
        mean=float(ordered.mean()),
        stdev=float(ordered.std(ddof=1)) if ordered.size > 1 else 0.0,
    )


_STUDENT_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_NORMAL_95 = 1.95996
_LEAST_SAMPLES = 6  # the least and the largest of fewer hold the median with less than 95 %
_PIECES = 5  # that a single turn is cut into


def student_95(degrees: int) -> float:
    """The two-sided 95 % quantile of Student's t distribution, to three digits."""
    if degrees < 1:
        raise ValueError(f"{degrees} degrees of freedom")
    if degrees <= len(_STUDENT_95):
        return _STUDENT_95[degrees - 1]
    return _NORMAL_95 + 2.37 / degrees + 2.8 / degrees**2


def median_interval(turns: Sequence[npt.ArrayLike]) -> tuple[float, float] | None:
    """The 95 % interval of the median of all turns' samples: two of the samples, by their ranks. None with fewer than six
    samples, which have no such interval.

    Samples of one turn resemble each other more than those of another turn, so that the ranks do not come from the number
    of samples alone. How far the turns disagree about the share of samples below the median is measured, and the ranks lie
    as far apart as that, and never closer than for independent samples. A single turn is cut into pieces; how far another
    one would lie from it, it cannot say.
    """
    batches = _batches([np.asarray(turn, dtype=np.float64).ravel() for turn in turns])
    ordered = np.sort(np.concatenate(batches)) if batches else np.empty(0)
    if ordered.size == 0:
        raise ValueError("an interval of no samples")
    if ordered.size < _LEAST_SAMPLES:
        return None
    median = nearest_rank(ordered, 50)
    half = _NORMAL_95 * 0.5 / math.sqrt(ordered.size)
    if len(batches) > 1:
        shares = np.array([(np.mean(batch < median) + np.mean(batch <= median)) / 2 for batch in batches])
        half = max(half, student_95(len(shares) - 1) * float(shares.std(ddof=1)) / math.sqrt(len(shares)))
    low = math.floor((0.5 - half) * ordered.size)
    high = math.ceil((0.5 + half) * ordered.size)
    return float(ordered[max(low, 1) - 1]), float(ordered[min(high, ordered.size - 1)])


def _batches(turns: list[npt.NDArray[np.float64]]) -> list[npt.NDArray[np.float64]]:
    """The turns, or the pieces of a single one, where there are samples for that."""
    turns = [turn for turn in turns if turn.size]
    if len(turns) == 1 and turns[0].size >= 2 * _PIECES:
        return list(np.array_split(turns[0], _PIECES))
    return turns


def outliers(samples: npt.ArrayLike, quantum: float = 0.0) -> int:
    """Samples that lie more than three interquartile ranges outside of the quartiles. They are counted, not dropped.

    quantum  the clock's resolution: quartiles closer than that are taken to lie this far apart
    """
    ordered = np.sort(np.asarray(samples, dtype=np.float64), axis=None)
    low, high = nearest_rank(ordered, 25), nearest_rank(ordered, 75)
    reach = 3 * max(high - low, quantum)
    return int(np.count_nonzero((ordered < low - reach) | (ordered > high + reach)))


@dataclass(frozen=True)
class Trend:
    """How the medians of a row's turns moved. `drift`: of the last third of them against the first, 0.1 for 10 % more."""

    drift: float
    certain: bool  # more than chance makes of turns in any order (Mann-Kendall, 95 %)


def trend(medians: Sequence[float]) -> Trend:
    """The trend of turns in the order in which they ran; none with fewer than six."""
    values = np.asarray(medians, dtype=np.float64)
    count = values.size
    if count < 6 or values.min() <= 0:
        return Trend(0.0, False)
    third = count // 3
    drift = float(np.median(values[-third:]) / np.median(values[:third]) - 1)
    later, earlier = np.triu_indices(count, 1)[::-1]
    ascents = float(np.sign(values[later] - values[earlier]).sum())
    chance = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    return Trend(drift, abs(ascents) > _NORMAL_95 * chance)
