"""What results say: which is faster for what, by how much, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from gin.bench import doubts
from gin.bench.load import ResultFile
from gin.bench.plan import format_size
from gin.bench.results import Row
from gin.bench.tests import TESTS
from gin.compare.ratio import HIGHER_IS_BETTER, METRICS, Ratio, estimate, ratio_of
from gin.compare.text import bounds, ratio_number

__all__ = ["findings"]

_GROUP = ("test", "op", "route", "platform", "wire", "ranks", "scope", "ctas", "threads", "contexts")
_SHOWN = 60  # at most
_LEVEL = 0.02  # of a figure: what is nearer to the best is level with it


@dataclass(frozen=True)
class _Ranking:
    """What one size of a test says: its rows by name, the best first, and who is in front: the best, and those that are
    level with it."""

    nbytes: int
    metric: str
    rows: dict[str, Row]
    leaders: frozenset[str]


def findings(files: Sequence[ResultFile], names: Sequence[str]) -> list[dict[str, str]]:
    """Which backend is best for each test, operation and route of each file: a line for each range of sizes with the same
    ones in front.

    Each is a row of a table: `file`, `what`, `bytes`, `best` with its figure, `level` (what is level with it: cannot be told
    from it, or is within 2 %), `next` (the others) and `doubt` (why the figures are less sure than they look). Where several
    geometries were measured, it is about the one with most rows.
    """
    found: list[dict[str, str]] = []
    for name, file in zip(names, files, strict=True):
        step = file.environment.get("clock", {}).get("resolution_ns", 0) / 1e3
        for rows in _groups(file.rows):
            for _, same in groupby(_rankings(rows), key=lambda ranking: ranking.leaders):
                found.append({"file": name, **_line(list(same), step)})
    return found[:_SHOWN]


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each test, operation and route that have the commonest geometry."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name) for name in _GROUP), []).append(row)
    best: dict[tuple[Any, ...], list[Row]] = {}
    for key, members in groups.items():
        if len(members) > len(best.get(key[:3], [])):
            best[key[:3]] = members
    return list(best.values())


def _rankings(rows: Sequence[Row]) -> Iterator[_Ranking]:
    """By size."""
    test = rows[0]["test"]
    metric = TESTS[test].columns[0] if test in TESTS else "median_us"
    metric = metric if metric in METRICS else "median_us"
    for nbytes in sorted({row["bytes"] for row in rows}):
        ranked = [row for row in rows if row["bytes"] == nbytes and not row["wrong"] and _is_measured(row, metric)]
        if not ranked:
            continue
        ranked.sort(key=lambda row: row[metric], reverse=metric in HIGHER_IS_BETTER)
        named: dict[str, Row] = {}
        for row in ranked:
            named.setdefault(row["backend"], row)
        leaders = frozenset(name for name, row in named.items() if _level(row, ranked[0], metric))
        yield _Ranking(nbytes, metric, named, leaders)


def _level(row: Row, best: Row, metric: str) -> bool:
    ratio = ratio_of(row, best, metric, interleaved=True)
    return row is best or (ratio is not None and (ratio.verdict(metric) == "same" or abs(ratio.value - 1) <= _LEVEL))


def _is_measured(row: Row, metric: str) -> bool:
    found = estimate(row, metric)
    return found is not None and found.value > 0


def _line(same: Sequence[_Ranking], step: float) -> dict[str, str]:
    first, last = same[0], same[-1]
    sizes = [first.nbytes] if first is last else [first.nbytes, last.nbytes]
    best = next(iter(first.rows))
    ratios: dict[str, list[Ratio]] = {}
    for ranking in same:
        for name, row in ranking.rows.items():
            ratio = ratio_of(row, ranking.rows[best], first.metric, interleaved=True) if name != best else None
            if ratio is not None:
                ratios.setdefault(name, []).append(ratio)
    told = {name: _told(name, found) for name, found in ratios.items()}
    return {
        "bytes": " to ".join(map(format_size, sizes)),
        "what": "{test} {op}, {route}".format(**first.rows[best]),
        "best": f"{best}: {_amounts([ranking.rows[best] for ranking in same], first.metric)}",
        "level": "; ".join(text for name, text in told.items() if name in first.leaders),
        "next": "; ".join(text for name, text in told.items() if name not in first.leaders),
        "doubt": _doubt([row for one in same for row in one.rows.values()], step),
    }


def _amounts(rows: Sequence[Row], metric: str) -> str:
    """One row's figure with its interval; of several rows the least and the greatest."""
    unit = METRICS[metric].split()[-1]
    found = [made for row in rows if (made := estimate(row, metric))]
    if len(found) > 1:
        values = [made.value for made in found]
        ends = dict.fromkeys(f"{value:.4g}" for value in (min(values), max(values)))
        return f"{' to '.join(ends)} {unit}"
    one = found[0]
    interval = "" if one.low is None or one.high is None else f" ({one.low:.4g} to {one.high:.4g})"
    return f"{one.value:.4g} {unit}{interval}"


def _told(name: str, ratios: Sequence[Ratio]) -> str:
    """How far behind, over all sizes: the least and the greatest ratio, and in brackets as far as the intervals reach."""
    least, most = min(ratio.value for ratio in ratios), max(ratio.value for ratio in ratios)
    told = (
        ratio_number(least)
        if ratio_number(least) == ratio_number(most)
        else " to ".join(map(ratio_number, (least, most)))
    )
    known = [(ratio.low, ratio.high) for ratio in ratios if ratio.low is not None and ratio.high is not None]
    reach = " to ".join(bounds(min(low for low, _ in known), max(high for _, high in known))) if known else ""
    return f"{name}: {told} times" + (f" ({reach})" if reach else "")


def _doubt(rows: Sequence[Row], step: float) -> str:
    """What is doubtful of the figures that a line is about, and of how many."""
    counts: dict[str, int] = {}
    for row in rows:
        for kind in doubts.of_row(row, step):
            counts[kind] = counts.get(kind, 0) + 1
    return "; ".join(f"{kind}: {count} of {len(rows)} rows" for kind, count in counts.items())
