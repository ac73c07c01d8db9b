"""Holds thresholds against results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gin.compare.join import FIELDS, Key, Located, compare, describe
from gin.compare.ratio import METRICS, Estimate, Ratio, estimate
from gin.compare.threshold import Condition, Threshold
from gin.errors import ResultsError

__all__ = ["Verdict", "judge", "require_fields"]

_NAMED = ("backend", "route", "wire", "platform", "scope", "op", "file")  # fields whose values operands name


@dataclass(frozen=True)
class Verdict:
    """What a threshold found: how many rows it was held against, and those that cross it."""

    threshold: Threshold
    tested: int
    crossings: tuple[tuple[Key, Ratio | Estimate], ...]
    unsure: int = 0  # rows whose value crosses it and whose interval does not
    untested: int = (
        0  # rows, or pairs of rows, that it concerns and that have no value: wrong data, or nothing measured
    )

    @property
    def kept_by(self) -> str:
        """Of a threshold that no row crosses: by how many it is kept."""
        rows = f"all {self.tested} rows" if self.tested > 1 else "the only row"
        return rows + self._not_sure + self._without_a_value

    @property
    def counts(self) -> str:
        """How many rows crossed it, of how many."""
        text = f"{len(self.crossings)} of {self.tested} rows"
        return text + self._not_sure + self._without_a_value

    @property
    def _not_sure(self) -> str:
        """Rows that would cross it without `sure`."""
        return f", {self.unsure}{' more' * bool(self.crossings)} crossed by value only" if self.unsure else ""

    @property
    def _without_a_value(self) -> str:
        return f", {self.untested} more without a value" if self.untested else ""

    def __str__(self) -> str:
        if not self.tested:
            return f"{self.threshold}: NOT TESTED, {self.untested} rows without a value"
        if self.crossings:
            return f"{self.threshold}: CROSSED by {self.counts}"
        return f"{self.threshold}: kept by {self.kept_by}"


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
    require_fields(threshold.conditions, rows, str(threshold))
    concerned = [row for row in rows if threshold.concerns({**row.row, "file": row.file})]
    if not concerned:
        raise ResultsError(f"{threshold}: matches no row. {_tests(rows)}")
    found = _values(threshold, concerned, files, ignore)
    values = [(key, value) for key, value in found if value is not None]
    if not values and not any(row["wrong"] for row in concerned):
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
    return Verdict(threshold, len(values), tuple(crossings), unsure, len(found) - len(values))


def require_fields(conditions: Sequence[Condition], rows: Sequence[Located], what: str) -> None:
    """Raises ResultsError when a condition is on a field that no row has, or compares with a value of another kind."""
    for condition in conditions:
        values = [value for row in rows if (value := row[condition.field]) is not None]
        if not values and condition.field not in (*FIELDS, "iterations", "file"):
            raise ResultsError(f"{what}: rows have no field {condition.field}; there is file, {', '.join(FIELDS)}")
        if values and not any(map(condition.fits, values)):
            raise ResultsError(f"{what}: {condition.field} is such as {values[0]!r:.30}; {condition} can never tell")


def _tests(rows: Sequence[Located]) -> str:
    tests = ", ".join(dict.fromkeys(row["test"] for row in rows))
    sizes = [row["bytes"] for row in rows]
    return f"There are rows of {tests} with {min(sizes)} to {max(sizes)} bytes" if rows else "There are no rows"


def _values(
    threshold: Threshold, rows: Sequence[Located], files: Sequence[str], ignore: Sequence[str]
) -> list[tuple[Key, Ratio | Estimate | None]]:
    """What the threshold is held against; None where there is no value, or one of wrong data."""
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
    return [(key, pair.ratio) for key, pair in named]


def _absolute(threshold: Threshold, rows: Sequence[Located]) -> list[tuple[Key, Ratio | Estimate | None]]:
    found: list[tuple[Key, Ratio | Estimate | None]] = []
    for row in rows:
        key = tuple((name, row[name]) for name in ("file", *FIELDS) if row[name] is not None)
        found.append((key, None if row["wrong"] else estimate(row.row, threshold.metric)))
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
        for word, meant in spelled.items():
            if word in names and word in files and list(meant) != [word]:
                raise ResultsError(
                    f"{threshold}: base is the first file, new every other one, but a file is called {word}, which is "
                    f"not what {word} means here; give the files in the order base, new"
                )
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
