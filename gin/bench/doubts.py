"""What makes figures less sure than they look, as far as the rows themselves say it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gin.bench.results import Row

__all__ = ["of_row", "of_rows", "samples_of", "span"]

_FEW = 100  # samples, below which p99 is close to the maximum
_MANY_OUTLIERS = 0.01  # of a row's samples
_DRIFT = 0.1
_STEPS = 10  # of the clock


def of_row(row: Row, resolution_us: float = 0.0) -> list[str]:
    """In words that follow a figure, such as `not steady`; nothing about how few samples there are.

    resolution_us  a step of the clock, 0 where it is not known
    """
    found = []
    if _scattered(row) > _MANY_OUTLIERS:
        found.append("outliers")
    if row.get("steady") is False:
        found.append("not steady")
    if _drifting(row):
        found.append("drift")
    if _coarse(row, resolution_us):
        found.append("few steps of the clock")
    return found


def of_rows(rows: Sequence[Row], resolution_us: float = 0.0) -> Iterator[str]:
    """Of a whole sweep, a line for each kind of doubt."""
    few = [samples_of(row) for row in rows if samples_of(row) < _FEW]
    if few:
        yield f"p99 of fewer than {_FEW} samples is close to the maximum ({len(few)} rows of {span(few)} samples)"
    many = [_scattered(row) for row in rows if _scattered(row) > _MANY_OUTLIERS]
    if many:
        yield f"outliers (beyond three interquartile ranges): more than 1 % in {len(many)} rows, at most {max(many):.1%}"
    restless = sum(row.get("steady") is False for row in rows)
    if restless:
        yield f"not steady when measuring began: {restless} of {len(rows)} rows"
    drifts = [row["drift"] for row in rows if _drifting(row)]
    if drifts:
        told = f"{min(drifts):+.0%} to {max(drifts):+.0%}"
        yield f"drift of more than {_DRIFT:.0%} while measuring: {len(drifts)} rows, {told}"
    coarse = sum(_coarse(row, resolution_us) for row in rows)
    if coarse:
        yield f"less than ten steps of the clock: {coarse} rows"


def samples_of(row: Mapping[str, Any]) -> int:
    return int(row.get("samples") or row["iterations"])


def span(values: Sequence[Any]) -> str:
    """The values in short: their range if they are numbers, else all of them."""
    if not values:
        return "-"
    if any(isinstance(value, str) for value in values):
        return ",".join(dict.fromkeys(map(str, values)))
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"


def _scattered(row: Row) -> float:
    return (row.get("outliers") or 0) / max(samples_of(row), 1)


def _drifting(row: Row) -> bool:
    return bool(row.get("drifted")) and abs(row["drift"]) > _DRIFT


def _coarse(row: Row, resolution_us: float) -> bool:
    step = row.get("step_us") or resolution_us  # of the figure itself, which may be half a round trip
    return bool(row["test"] == "latency" and 0 < row["median_us"] < _STEPS * step)
