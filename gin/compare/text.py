"""A comparison as a table for a terminal, as Markdown for a pull request, and as JSON."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from gin.bench.plan import format_size
from gin.bench.table import number
from gin.compare.join import FIELDS, Comparison, Located, Pair
from gin.compare.judge import Verdict, explain
from gin.compare.ratio import METRICS, Estimate, Ratio

__all__ = ["bounds", "markdown", "plain", "ratio_number", "summaries", "to_json"]

_SHOWN = 5  # rows that cross a threshold
_APART = ("test", "op", "route")  # what a mean ratio of several would say nothing about
_ORDER = ("file", "test", "op", "bytes", "backend", "route", "platform", "wire", "ranks", "scope", "ctas", "threads")


def _varying(pairs: Sequence[Pair], dimension: str) -> list[str]:
    """The fields that tell the pairs apart, in the order of the table's columns."""
    names = [name for name in (*_ORDER, *FIELDS) if name != dimension]
    return [name for name in dict.fromkeys(names) if len({pair[name] for pair in pairs}) > 1] or ["bytes"]


def _fixed(pairs: Sequence[Pair], dimension: str) -> str:
    """The fields that all pairs have in common."""
    shown = [name for name in dict.fromkeys((*_ORDER, *FIELDS)) if name != dimension]
    parts = []
    for name in shown:
        values = {pair[name] for pair in pairs}
        if len(values) == 1 and None not in values:
            parts.append(f"{name}={_value(name, values.pop())}")
    return " ".join(parts)


def _value(name: str, value: Any) -> str:
    return format_size(value) if name == "bytes" else str(value)


def ratio_number(value: float) -> str:
    """Three digits after the first that is not 0, as far as a reader needs them, without exponent."""
    if 0 < value < 0.1:
        return f"{value:.{2 - math.floor(math.log10(value))}f}"
    return number(value)


def interval(ratio: Ratio | None) -> str:
    """The interval of a ratio, `-` when it has none."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return "-"
    return "-".join(bounds(ratio.low, ratio.high))


def bounds(low: float, high: float) -> tuple[str, str]:
    """The ends of an interval, with the digits it takes to see on which side of 1 they lie."""

    def shown(value: float) -> str:
        text = ratio_number(value)
        for digits in range(4, 8):
            if value == 1 or float(text) != 1:
                break
            text = f"{value:.{digits}f}"
        return text

    return shown(low), shown(high)


def _cells(pair: Pair, names: Sequence[str], several: bool) -> list[str]:
    ratio = pair.ratio
    cells = [_value(name, pair[name]) for name in names]
    if several:
        cells.append(pair.above_name)
    marks = ["!" if row.row["wrong"] else "" for row in (pair.above, pair.below)]
    return [
        *cells,
        number(pair.above.row.get(pair.metric)) + marks[0],
        number(pair.below.row.get(pair.metric)) + marks[1],
        ratio_number(ratio.value) if ratio else "-",
        interval(ratio),
        ratio.verdict(pair.metric) if ratio else "wrong data" if pair.wrong else "",
    ]


def _groups(comparison: Comparison) -> list[tuple[str, list[Pair]]]:
    """Pairs by metric: one table each."""
    metrics = dict.fromkeys(pair.metric for pair in comparison.pairs)
    return [(metric, [pair for pair in comparison.pairs if pair.metric == metric]) for metric in metrics]


def _heads(comparison: Comparison, names: Sequence[str], several: bool) -> list[str]:
    above = "value" if several else comparison.others[0]
    dimension = [comparison.dimension] if several else []
    return [*names, *dimension, above, comparison.base, "ratio", "95 %", ""]


def summaries(comparison: Comparison) -> list[str]:
    """A sentence for each metric, other value, test, operation and route: the mean ratio, and how many rows are surely on
    which side."""
    found = []
    for metric, pairs in _groups(comparison):
        apart = [name for name in _APART if name != comparison.dimension and len({pair[name] for pair in pairs}) > 1]
        parts: dict[tuple[str, ...], list[Ratio]] = {}
        for pair in pairs:
            if pair.ratio:
                key = (pair.above_name, *(f"{name}={pair[name]}" for name in apart))
                parts.setdefault(key, []).append(pair.ratio)
        for (other, *where), ratios in sorted(parts.items(), key=lambda part: comparison.others.index(part[0][0])):
            found.append(
                " ".join([f"{METRICS.get(metric, metric)}, {other} / {comparison.base}", *where])
                + f": geometric mean {_mean(ratios)} over {len(ratios)} rows; {_sides(ratios, metric)}"
            )
    return found


def _mean(ratios: Sequence[Ratio]) -> str:
    return ratio_number(math.exp(sum(math.log(ratio.value) for ratio in ratios) / len(ratios)))


def _sides(ratios: Sequence[Ratio], metric: str) -> str:
    counts = {word: sum(ratio.verdict(metric) == word for ratio in ratios) for word in ("faster", "same", "slower")}
    return (
        ", ".join(f"{count} {word}" for word, count in counts.items()) if any(counts.values()) else "without intervals"
    )


def plain(comparison: Comparison, width: int) -> str:
    """Tables as plain text, no line longer than `width` where 40 columns suffice."""
    parts = []
    several = len(comparison.others) > 1
    for metric, pairs in _groups(comparison):
        names = _varying(pairs, comparison.dimension)
        fixed = _fixed(pairs, comparison.dimension)
        parts += [f"# {METRICS.get(metric, metric)}, {_ratio_name(comparison)}"]
        parts += textwrap.wrap(fixed, max(width, 40) - 2, initial_indent="# ", subsequent_indent="#   ")
        parts.append(_table([_heads(comparison, names, several)] + [_cells(p, names, several) for p in pairs], width))
    return "\n".join(parts)


def _ratio_name(comparison: Comparison) -> str:
    above = comparison.others[0] if len(comparison.others) == 1 else f"each {comparison.dimension}"
    return f"{above} / {comparison.base}"


def _table(lines: list[list[str]], width: int) -> str:
    """The lines in columns; what is least needed is left out until they fit: the values, then the interval."""
    columns = len(lines[0])
    for dropped in ((), (-4, -5), (-4, -5, -1), (-4, -5, -1, -2)):
        kept = [i for i in range(columns) if i - columns not in dropped]
        widths = [max(len(line[i]) for line in lines) for i in kept]
        if sum(widths) + 2 * (len(kept) - 1) <= width:
            break
    gap = "  " if sum(widths) + 2 * (len(kept) - 1) <= width else " "
    names = columns - 5
    text = []
    for line in lines:
        cells = [
            line[i].ljust(w) if (i < names and not line[i][:1].isdigit() and line[i] != "bytes") or i == columns - 1
            else line[i].rjust(w)
            for i, w in zip(kept, widths, strict=True)
        ]  # fmt: skip
        text.append(gap.join(cells).rstrip())
    return "\n".join(text) + "\n"


def markdown(
    comparison: Comparison | None,
    verdicts: Sequence[Verdict],
    remarks: Sequence[str],
    rows: Sequence[Located],
    limit: int = 200,
) -> str:
    """The comparison for a pull request: verdicts first, then remarks, then the tables, folded.

    rows   those that were compared
    limit  rows of a table that are shown; the rest is counted
    """
    alarms = [text for text in remarks if text.startswith("WRONG DATA")]
    parts = ["### gin compare", "", *(f"- **{_escape(text)}**" for text in alarms)]
    for verdict in verdicts:
        mark = "**crossed**" if verdict.crossings else "kept" if verdict.tested else "**not tested**"
        counted = verdict.kept_by if mark == "kept" else verdict.counts
        parts.append(f"- {mark}: <code>{_escape(str(verdict.threshold))}</code> ({counted})")
        parts += [f"  - {_escape(line)}" for line in crossings(verdict, rows)]
    parts += [f"- {_escape(text)}" for text in (summaries(comparison) if comparison else [])]
    parts += [f"- {_escape(text)}" for text in remarks if text not in alarms]
    if comparison is None:
        return "\n".join(parts) + "\n"
    several = len(comparison.others) > 1
    for metric, pairs in _groups(comparison):
        names = _varying(pairs, comparison.dimension)
        title = f"{METRICS.get(metric, metric)}, {_ratio_name(comparison)}"
        fixed = _fixed(pairs, comparison.dimension)
        parts += ["", f"<details><summary>{_escape(title)} ({len(pairs)} rows)</summary>", "", _escape(fixed), ""]
        heads = _heads(comparison, names, several)
        parts.append(f"| {' | '.join(map(_escape, heads))} |")
        parts.append("|" + "".join(" --- |" if i < len(heads) - 5 else " ---: |" for i in range(len(heads))))
        parts += [f"| {' | '.join(map(_escape, _cells(pair, names, several)))} |" for pair in pairs[:limit]]
        if len(pairs) > limit:
            parts.append(f"\n{len(pairs) - limit} more rows are not shown.")
        parts += ["", "</details>"]
    return "\n".join(parts) + "\n"


def crossings(verdict: Verdict, rows: Sequence[Located]) -> list[str]:
    """The rows that cross a threshold, one line each, as far as a reader needs them."""
    lines = [f"{value.value:.4g}{_reach(value)}  {explain(key, rows)}" for key, value in verdict.crossings[:_SHOWN]]
    more = len(verdict.crossings) - _SHOWN
    return [*lines, f"and {more} more"] if more > 0 else lines


def _reach(value: Ratio | Estimate) -> str:
    return "" if value.low is None or value.high is None else f" ({value.low:.4g}-{value.high:.4g})"


def _escape(text: str) -> str:
    for sign in "\\`*_<>|#[]":
        text = text.replace(sign, f"\\{sign}" if sign not in "<>" else {"<": "&lt;", ">": "&gt;"}[sign])
    return text


def to_json(comparison: Comparison | None, verdicts: Sequence[Verdict], remarks: Iterable[str]) -> str:
    """Everything as JSON."""
    pairs = []
    for pair in comparison.pairs if comparison else ():
        ratio = pair.ratio
        pairs.append(
            {
                **dict(pair.key),
                comparison.dimension if comparison else "": pair.above_name,
                "base": pair.below_name,
                "metric": pair.metric,
                "value": pair.above.row.get(pair.metric),
                "base_value": pair.below.row.get(pair.metric),
                "ratio": ratio and ratio.value,
                "ratio_low": ratio and ratio.low,
                "ratio_high": ratio and ratio.high,
                "verdict": ratio.verdict(pair.metric) if ratio else "",
                "wrong": pair.wrong,
            }
        )
    document = {
        "schema": 1,
        "dimension": comparison and comparison.dimension,
        "base": comparison and comparison.base,
        "remarks": list(remarks),
        "thresholds": [
            {
                "threshold": str(verdict.threshold),
                "crossed": bool(verdict.crossings),
                "tested": verdict.tested,
                "unsure": verdict.unsure,
                "untested": verdict.untested,
                "crossings": [{**dict(key), "value": value.value} for key, value in verdict.crossings],
            }
            for verdict in verdicts
        ],
        "pairs": pairs,
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"
