"""The table of a sweep: one line per size, the backends and routes side by side as far as the width allows."""

from __future__ import annotations

from collections.abc import Sequence

from gin.bench.plan import format_size
from gin.bench.results import Row

UNITS = {
    "median_us": ("median", "us"),
    "min_us": ("min", "us"),
    "p90_us": ("p90", "us"),
    "p99_us": ("p99", "us"),
    "max_us": ("max", "us"),
    "bandwidth_GBps": ("bandwidth", "GB/s"),
    "rate_Mops": ("rate", "Mmsg/s"),
    "transfer_us": ("transfer", "us"),
    "overlap_percent": ("overlap", "%"),
    "spread": ("95 %", "+-%"),
}
_SHAPE = ("op", "ranks", "scope", "ctas", "threads", "contexts")
_GAP = 2


def number(value: float | None) -> str:
    """Four significant digits without exponent; `-` for nothing."""
    if value is None:
        return "-"
    for limit, digits in ((10, 3), (100, 2), (1000, 1)):
        if abs(value) < limit:
            return f"{value:.{digits}f}"
    return f"{value:.0f}"


def spread(row: Row) -> float | None:
    """How far the 95 % interval of the median reaches from it at most, in per cent of it."""
    low, high, median = row.get("median_low_us"), row.get("median_high_us"), row["median_us"]
    if low is None or high is None or not median:
        return None
    return float(100 * max(high - median, median - low) / median)


def render_all(rows: Sequence[Row], columns: Sequence[str], width: int) -> str:
    """A table for each operation and geometry among the rows, under a line that says which, where there are several."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name) for name in _SHAPE), []).append(row)
    if len(groups) < 2:
        return render(rows, columns, width)
    keys = list(groups)
    varying = [i for i, _ in enumerate(_SHAPE) if len({key[i] for key in keys}) > 1]
    parts = []
    for key, members in groups.items():
        title = " ".join(f"{_SHAPE[i]}={key[i]}" for i in varying)
        parts.append(f"{title}\n{render(members, columns, width)}")
    return "\n".join(parts)


def render(rows: Sequence[Row], columns: Sequence[str], width: int) -> str:
    """The table as plain text, no line longer than `width` where 40 columns suffice.

    `columns`: row fields with a unit, the most important first. A row with wrong data is marked with `!`.
    """
    if not rows:
        return "no rows\n"
    pairs = list(dict.fromkeys((row["backend"], row["route"]) for row in rows))
    sizes = list(dict.fromkeys(row["bytes"] for row in rows))
    cells = {(row["bytes"], row["backend"], row["route"]): row for row in rows}
    for shown in range(len(columns), 0, -1):
        text = _side_by_side(cells, sizes, pairs, columns[:shown])
        if max(map(len, text)) <= width:
            return "\n".join(text) + "\n"
    return "\n".join(_one_below_the_other(cells, sizes, pairs, columns[0])) + "\n"


def _cell(row: Row | None, column: str) -> str:
    if row is None:
        return "-"
    if column == "spread":
        value = spread(row)
        return "-" if value is None else ">999" if value > 999 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
    return number(row.get(column)) + ("!" if row["wrong"] else "")


def _side_by_side(
    cells: dict[tuple[int, str, str], Row], sizes: list[int], pairs: list[tuple[str, str]], columns: Sequence[str]
) -> list[str]:
    blocks = []
    for backend, route in pairs:
        grid = [[" ".join(UNITS[column]) for column in columns]]
        grid += [[_cell(cells.get((size, backend, route)), column) for column in columns] for size in sizes]
        widths = [max(len(line[i]) for line in grid) for i in range(len(columns))]
        lines = ["  ".join(text.rjust(w) for text, w in zip(line, widths, strict=True)) for line in grid]
        inner = max(len(lines[0]), len(backend), len(route))
        blocks.append([backend.rjust(inner), route.rjust(inner), *(line.rjust(inner) for line in lines)])
    labels = ["", "", "bytes", *(format_size(size) for size in sizes)]
    first = max(map(len, labels))
    gap = " " * _GAP
    return [gap.join([label.rjust(first), *parts]) for label, *parts in zip(labels, *blocks, strict=True)]


def _one_below_the_other(
    cells: dict[tuple[int, str, str], Row], sizes: list[int], pairs: list[tuple[str, str]], column: str
) -> list[str]:
    lines = [("bytes", "backend", "route", " ".join(UNITS[column]))]
    for size in sizes:
        for backend, route in pairs:
            row = cells.get((size, backend, route))
            if row is not None:
                lines.append((format_size(size), backend, route, _cell(row, column)))
    widths = [max(len(line[i]) for line in lines) for i in range(4)]
    return [
        f"{size:>{widths[0]}} {backend:<{widths[1]}} {route:<{widths[2]}} {value:>{widths[3]}}"
        for size, backend, route, value in lines
    ]
