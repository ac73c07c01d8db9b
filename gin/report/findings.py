"""What results say: which is faster for what, by how much, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gin.bench.load import ResultFile
from gin.bench.plan import format_size
from gin.bench.results import Row
from gin.bench.tests import TESTS
from gin.compare.ratio import HIGHER_IS_BETTER, METRICS, Ratio, estimate, ratio_of
from gin.compare.text import ratio_number

__all__ = ["findings"]

_GROUP = ("test", "op", "platform", "wire", "ranks", "scope", "ctas", "threads", "contexts")
_SHOWN = 60  # at most


def findings(files: Sequence[ResultFile], names: Sequence[str]) -> list[dict[str, str]]:
    """What is best at the smallest and at the largest size of each test and operation of each file.

    Each is a row of a table: `file`, `what`, `bytes`, `best` with its figure, `level` (what cannot be told from it) and
    `next` (the first that can). Where several geometries were measured, it is about the one with most rows.
    """
    found: list[dict[str, str]] = []
    for name, file in zip(names, files, strict=True):
        for rows in _groups(file.rows):
            sizes = sorted({row["bytes"] for row in rows})
            for nbytes in dict.fromkeys((sizes[0], sizes[-1])):
                line = _line([row for row in rows if row["bytes"] == nbytes])
                if line:
                    found.append({"file": name, "bytes": format_size(nbytes), **line})
    return found[:_SHOWN]


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each test and operation that have the commonest geometry."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name) for name in _GROUP), []).append(row)
    best: dict[tuple[Any, ...], list[Row]] = {}
    for key, members in groups.items():
        if len(members) > len(best.get(key[:2], [])):
            best[key[:2]] = members
    return list(best.values())


def _line(rows: Sequence[Row]) -> dict[str, str] | None:
    right = [row for row in rows if not row["wrong"]]
    if not right:
        return None
    test = right[0]["test"]
    metric = TESTS[test].columns[0] if test in TESTS else "median_us"
    metric = metric if metric in METRICS else "median_us"
    ranked = [row for row in right if (found := estimate(row, metric)) and found.value > 0]
    if not ranked:
        return None
    ranked.sort(key=lambda row: row[metric], reverse=metric in HIGHER_IS_BETTER)
    best = ranked[0]
    level, after = [], ""
    for row in ranked[1:]:
        ratio = ratio_of(row, best, metric, interleaved=True)
        if ratio is None:
            continue
        told = f"{_name(row)}: {ratio_number(ratio.value)} times{_interval(ratio)}"
        if ratio.low is not None and ratio.high is not None and ratio.low <= 1 <= ratio.high:
            level.append(told)
        elif not after:
            after = told
    return {
        "what": f"{test} {best['op']}",
        "best": f"{_name(best)}: {_amount(best, metric)}",
        "level": "; ".join(level),
        "next": after,
    }


def _name(row: Row) -> str:
    return f"{row['backend']} {row['route']}"


def _amount(row: Row, metric: str) -> str:
    found = estimate(row, metric)
    assert found is not None
    unit = METRICS[metric].split()[-1]
    interval = "" if found.low is None or found.high is None else f" ({found.low:.4g} to {found.high:.4g})"
    return f"{found.value:.4g} {unit}{interval}"


def _interval(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return ""
    return f" ({ratio_number(ratio.low)} to {ratio_number(ratio.high)})"
