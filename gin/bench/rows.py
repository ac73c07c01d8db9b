"""From the times of all ranks to a result row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gin.bench.plan import Plan, Shape
from gin.bench.results import Row
from gin.bench.stats import median_interval, nearest_rank, outliers, summarize, trend
from gin.bench.tests import Operation

__all__ = ["Times", "make_row"]

Array = npt.NDArray[Any]
Turn = tuple[int, Array]
"""The leader of a launch, and its times in nanoseconds, of shape (parts, times)."""


@dataclass(frozen=True)
class Times:
    """The times of a row, launch by launch.

    turns   of the slower end where both were measured in turn, of the slowest rank of each iteration where all were; ns
    order   the median of every launch, in the order of time, as a part of its end's median
    ends    the median of either end, ns; empty where all ranks take times
    """

    turns: list[Array]
    order: list[float]
    ends: list[float]

    @classmethod
    def of(cls, operation: Operation, everyone: Sequence[Sequence[Turn]]) -> Times:
        """From the turns of each rank, in rank order."""
        if operation.timed_by == "all":
            turns = [np.max([times for _, times in turn], axis=0) for turn in zip(*everyone, strict=True)]
            return cls(turns, _relative(turns, turns), [])
        ends = [[times for leader, times in turns if leader == rank] for rank, turns in enumerate(everyone[:2])]
        ends = [end for end in ends if end]
        medians = [nearest_rank(np.sort(np.concatenate([turn[-1] for turn in end])), 50) for end in ends]
        slower = ends[int(np.argmax(medians))]
        order = []
        for index, (leader, _) in enumerate(everyone[0]):
            end = [times for which, times in everyone[leader] if which == leader]
            order += _relative([everyone[leader][index][1]], end)
        return cls(slower, order, medians)


def _relative(turns: Sequence[Array], whole: Sequence[Array]) -> list[float]:
    """The median of each turn as a part of the median of all."""
    median = float(np.median(np.concatenate([turn[-1] for turn in whole])))
    return [float(np.median(turn[-1])) / median if median else 0.0 for turn in turns]


def make_row(
    plan: Plan,
    shape: Shape,
    identity: Row,
    nbytes: int,
    times: Times,
    *,
    warmup: int,
    iterations: int,
    steady: bool | None,
    wrong: int,
    resolution_ns: int,
) -> Row:
    """A result row. `identity`: backend, platform, wire, route, ranks, contexts."""
    made = shape.operation
    scale = 1e-3 / made.divisor / (made.messages(nbytes) * shape.ctas if made.per_message else 1)
    turns = [turn[-1] * scale for turn in times.turns]
    samples = np.concatenate(turns)
    summary = summarize(samples)
    quantum = resolution_ns * scale
    interval = median_interval(turns)
    # No interval is narrower than the step of the clock.
    low = interval and _digits(max(min(interval[0], summary.median - quantum / 2), 0.0))
    high = interval and _digits(max(interval[1], summary.median + quantum / 2))
    count, moved = made.moved(nbytes, identity["ranks"])
    moving = trend(times.order)
    identity = dict(identity)
    contexts = identity.pop("contexts")
    row: Row = {
        "test": plan.test,
        "op": made.name,
        **identity,
        "scope": shape.scope,
        "ctas": shape.ctas,
        "threads": shape.threads,
        "bytes": nbytes,
        "iterations": iterations,
        "warmup": warmup,
        "min_us": _digits(summary.min),
        "median_us": _digits(summary.median),
        "p90_us": _digits(summary.p90),
        "p99_us": _digits(summary.p99),
        "max_us": _digits(summary.max),
        "bandwidth_GBps": _digits(moved / summary.median / 1e3) if summary.median > 0 else None,
        "rate_Mops": _digits(count / summary.median) if summary.median > 0 else None,
        "wrong": wrong if plan.verify else None,
        "contexts": contexts,
        "messages": made.messages(nbytes),
        "samples": summary.count,
        "median_low_us": low,
        "median_high_us": high,
        "step_us": _digits(quantum),
        "mean_us": _digits(summary.mean),
        "stdev_us": _digits(summary.stdev),
        "p999_us": _digits(summary.p999),
        "outliers": outliers(samples, quantum),
        "drift": round(moving.drift, 4),
        "drifted": moving.certain,
        "steady": steady,
    }
    if made.parts > 1:
        row |= _overlap(times.turns)
    row["ends_us"] = [_digits(end * scale) for end in times.ends]
    row["turns_us"] = [_digits(nearest_rank(np.sort(turn), 50)) for turn in turns]
    if plan.samples:
        row["samples_us"] = [_digits(float(sample)) for sample in samples]
    return row


def _digits(value: float) -> float:
    """A number with six significant digits: more than any clock gives."""
    return float(f"{value:.6g}")


def _overlap(turns: Sequence[Array]) -> Row:
    """How much of the shorter of transfer and computation was hidden behind the other."""
    transfer, computation, both = (
        float(np.median(np.concatenate([turn[i] for turn in turns]))) / 1e3 for i in range(3)
    )
    shorter = min(transfer, computation)
    hidden = 100 * (transfer + computation - both) / shorter if shorter > 0 else 0.0
    return {
        "transfer_us": _digits(transfer),
        "compute_us": _digits(computation),
        "overlap_percent": round(min(max(hidden, 0.0), 100.0), 2),
    }
