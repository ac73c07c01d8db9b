"""Ratios of two measurements, with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gin.bench.results import Row
from gin.bench.stats import student_95

__all__ = ["HIGHER_IS_BETTER", "METRICS", "Estimate", "Ratio", "estimate", "ratio_of"]

METRICS = {
    "median_us": "median us",
    "min_us": "min us",
    "mean_us": "mean us",
    "p90_us": "p90 us",
    "p99_us": "p99 us",
    "p999_us": "p99.9 us",
    "max_us": "max us",
    "bandwidth_GBps": "bandwidth GB/s",
    "rate_Mops": "rate Mmsg/s",
    "overlap_percent": "overlap %",
}
HIGHER_IS_BETTER = ("bandwidth_GBps", "rate_Mops", "overlap_percent")
_BY_TIME = ("bandwidth_GBps", "rate_Mops")  # an amount divided by the median time
_LEAST_TURNS = 4  # of which a spread is worth stating


@dataclass(frozen=True)
class Estimate:
    """A metric of a row. `low` and `high`: its 95 % interval, None where the row does not say."""

    value: float
    low: float | None = None
    high: float | None = None


def estimate(row: Row, metric: str) -> Estimate | None:
    """A row's metric, or None where it was not measured. Bandwidth and rate have the interval of the median time."""
    value = row.get(metric)
    if value is None:
        return None
    low, high, median = row.get("median_low_us"), row.get("median_high_us"), row["median_us"]
    if not low or not high or not median:
        return Estimate(float(value))
    if metric == "median_us":
        return Estimate(float(value), float(low), float(high))
    if metric in _BY_TIME:
        return Estimate(float(value), value * median / high, value * median / low)
    return Estimate(float(value))


@dataclass(frozen=True)
class Ratio:
    """One metric divided by another, and the 95 % interval of that where it is known."""

    value: float
    low: float | None = None
    high: float | None = None

    def verdict(self, metric: str) -> str:
        """`faster`, `slower`, `same` when the interval holds 1, or nothing when there is no interval."""
        if self.low is None or self.high is None:
            return ""
        if self.low <= 1 <= self.high:
            return "same"
        return "faster" if (self.value > 1) == (metric in HIGHER_IS_BETTER) else "slower"


def ratio_of(above: Row, below: Row, metric: str, *, interleaved: bool) -> Ratio | None:
    """`metric` of `above` divided by that of `below`; None where one of them was not measured or is 0.

    interleaved  the two took turns in one sweep: the turns' ratios then say how sure the ratio is, without what hit both
                 alike. The interval is that of their geometric mean, and reaches as far as the ratio itself and half a
                 step of the clock to either side. Otherwise the intervals of the two are combined, as of independent
                 estimates on a logarithmic scale.
    """
    one, other = estimate(above, metric), estimate(below, metric)
    if one is None or other is None or one.value <= 0 or other.value <= 0:
        return None
    value = one.value / other.value
    if interleaved and (metric == "median_us" or metric in _BY_TIME):
        found = _turns_interval(above.get("turns_us", ()), below.get("turns_us", ()))
        if found is not None:
            # Amounts divided by times: the times' ratio turned round, and what differs in the amounts.
            scale = value / (above["median_us"] / below["median_us"]) ** (-1 if metric in _BY_TIME else 1)
            low, high = found if metric == "median_us" else (1 / found[1], 1 / found[0])
            step = math.exp(math.hypot(_half_step(above), _half_step(below)))
            return Ratio(value, min(value / step, low * scale), max(value * step, high * scale))
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return Ratio(value)
    down = math.hypot(math.log(one.value / one.low), math.log(other.high / other.value))
    up = math.hypot(math.log(one.high / one.value), math.log(other.value / other.low))
    return Ratio(value, value * math.exp(-down), value * math.exp(up))


def _half_step(row: Row) -> float:
    """Half a step of the clock, as a part of the median."""
    return float(row.get("step_us") or 0) / 2 / float(row["median_us"])


def _turns_interval(above: Sequence[float], below: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the geometric mean of the turns' ratios, or None with too few turns."""
    if len(above) != len(below) or len(above) < _LEAST_TURNS or min(*above, *below) <= 0:
        return None
    logs = np.log(np.asarray(above) / np.asarray(below))
    half = float(student_95(len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs)))
    return math.exp(float(logs.mean()) - half), math.exp(float(logs.mean()) + half)
