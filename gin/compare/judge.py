"""Holds thresholds against results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gin.compare.join import FIELDS, Key, Located, compare, describe
from gin.compare.ratio import METRICS, Estimate, Ratio, estimate
from gin.compare.threshold import Threshold
from gin.errors import ResultsError

__all__ = ["Verdict", "judge"]

_NAMED = ("backend", "route", "wire", "platform", "scope", "op", "file")  # fields whose values operands name


@dataclass(frozen=True)
class Verdict:
    """What a threshold found: how many rows it was held against, and those that cross it."""

    threshold: Threshold
    tested: int
    crossings: tuple[tuple[Key, Ratio | Estimate], ...]
    unsure: int = 0  # rows whose value crosses it and whose interval does not

    def __str__(self) -> str:
        state = f"CROSSED by {len(self.crossings)}" if self.crossings else "kept by all"
        text = f"{self.threshold}: {state} of {self.tested} rows"
        return text + (f", {self.unsure} more within their interval" if self.unsure else "")


def judge(
    threshold: Threshold,
    rows: Sequence[Located],
    files: Sequence[str],
    *,
    sure: bool = False,
    ignore: Sequence[str] = (),
) -> Verdict:
    """Holds a threshold against all rows that it concerns.

    files  the names of the files: the first is `base`, every other one `new`
    sure   a row crosses the threshold only with its whole interval; a value without an interval counts as it is

    Raises ResultsError when there is no such row: a threshold that is never tested protects nothing.
    """
    metric = threshold.metric
    if metric not in METRICS:
        raise ResultsError(f"{threshold}: {metric} is no metric; there is {', '.join(METRICS)}")
    for condition in threshold.conditions:
        if condition.field not in (*FIELDS, "iterations", "file") and all(row[condition.field] is None for row in rows):
            raise ResultsError(f"{threshold}: rows have no field {condition.field}; there is {', '.join(FIELDS)}")
    concerned = [row for row in rows if threshold.concerns({**row.row, "file": row.file})]
    if not concerned:
        raise ResultsError(f"{threshold}: matches no row. {_tests(rows)}")
    values = _values(threshold, concerned, files, ignore)
    if not values:
        raise ResultsError(f"{threshold}: no row that it concerns has a {metric}")
    crossings, unsure = [], 0
    for key, value in values:
        if not threshold.crossed(value.value):
            continue
        known = value.low is not None and value.high is not None
        if sure and known and not threshold.crossed_by_all(value.low, value.high):  # type: ignore[arg-type]
            unsure += 1
            continue
        crossings.append((key, value))
    return Verdict(threshold, len(values), tuple(crossings), unsure)


def _tests(rows: Sequence[Located]) -> str:
    tests = ", ".join(dict.fromkeys(row["test"] for row in rows))
    sizes = [row["bytes"] for row in rows]
    return f"There are rows of {tests} with {min(sizes)} to {max(sizes)} bytes" if rows else "There are no rows"


def _values(
    threshold: Threshold, rows: Sequence[Located], files: Sequence[str], ignore: Sequence[str]
) -> list[tuple[Key, Ratio | Estimate]]:
    dimension, left, right = _operands(threshold, rows, files)
    if right is None:
        return _absolute(threshold, [row for row in rows if str(row[dimension]) in left])
    chosen = [row for row in rows if str(row[dimension]) in (*left, right)]
    try:
        found = compare(chosen, dimension, base=right, ignore=ignore, metric=threshold.metric)
    except ResultsError as error:
        raise ResultsError(f"{threshold}: {error}") from None
    several = len(left) > 1
    named = [((*pair.key, (dimension, pair.above_name)) if several else pair.key, pair) for pair in found.pairs]
    return [(key, pair.ratio) for key, pair in named if pair.ratio is not None]


def _absolute(threshold: Threshold, rows: Sequence[Located]) -> list[tuple[Key, Ratio | Estimate]]:
    found: list[tuple[Key, Ratio | Estimate]] = []
    for row in rows:
        value = estimate(row.row, threshold.metric)
        if value is not None:
            key = tuple((name, row[name]) for name in ("file", *FIELDS) if row[name] is not None)
            found.append((key, value))
    return found


def _operands(
    threshold: Threshold, rows: Sequence[Located], files: Sequence[str]
) -> tuple[str, tuple[str, ...], str | None]:
    """The field that the operands are values of, the values on the left, and the one on the right."""
    left, right = threshold.left, threshold.right
    names = [left] if right is None else [left, right]
    if {"new", "base"} & set(names):
        if len(files) < 2:
            raise ResultsError(f"{threshold}: new and base are files, and there is one only")
        spelled = {"new": files[1:], "base": files[:1]}
        below = None if right is None else spelled.get(right, [right])
        if below is not None and len(below) > 1:
            raise ResultsError(f"{threshold}: new is {len(below)} files here; divide by base or by a file's name")
        for name in names:
            if name not in spelled and name not in files:
                raise ResultsError(f"{threshold}: {name} is none of the files {', '.join(files)}")
        return "file", tuple(spelled.get(left, [left])), None if below is None else below[0]
    for dimension in _NAMED:
        values = {str(row[dimension]) for row in rows}
        if all(name in values for name in names):
            return dimension, (left,), right
    there = "; ".join(f"{name}: {', '.join(sorted({str(row[name]) for row in rows}))}" for name in _NAMED)
    raise ResultsError(f"{threshold}: no row has {' and '.join(names)}. There is {there}")


def explain(key: Key, rows: Sequence[Located]) -> str:
    """A key in words, without the fields that are the same in all rows."""
    telling = {name for name in ("file", *FIELDS) if len({row[name] for row in rows}) > 1}
    return describe(tuple(item for item in key if item[0] in telling)) or "all rows"
