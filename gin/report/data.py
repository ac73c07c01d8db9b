"""What a report holds: the rows as columns, small enough to open at once, and what can be said of them in words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from gin._version import __version__
from gin.bench import conditions, doubts
from gin.bench.load import ResultFile
from gin.bench.plan import ROUTES
from gin.bench.results import Row
from gin.bench.stats import nearest_rank
from gin.bench.table import UNITS
from gin.bench.tests import TESTS
from gin.compare.fit import disagreements, warnings, wrong_data
from gin.compare.join import file_names, located
from gin.report.findings import findings

__all__ = ["NUMBERS", "TEXTS", "payload", "to_json"]

TEXTS = ("file", "test", "op", "backend", "platform", "wire", "route", "scope")
NUMBERS = (
    "ranks",
    "ctas",
    "threads",
    "contexts",
    "messages",
    "bytes",
    "iterations",
    "warmup",
    "samples",
    "median_us",
    "median_low_us",
    "median_high_us",
    "min_us",
    "mean_us",
    "stdev_us",
    "p90_us",
    "p99_us",
    "p999_us",
    "max_us",
    "bandwidth_GBps",
    "rate_Mops",
    "transfer_us",
    "compute_us",
    "overlap_percent",
    "outliers",
    "drift",
    "steady",
    "wrong",
)
_MANY = 2000  # rows, past which distributions are given by fewer points
_FINE = (0.1, 1, 2, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 85, 90, 95, 98, 99, 99.9)
_COARSE = (1, 10, 25, 50, 75, 95)
_MOST = 20_000  # rows, past which distributions are left out


def payload(files: Sequence[ResultFile], title: str) -> dict[str, Any]:
    """Everything that the page shows."""
    names = file_names(files)
    rows = [(name, row) for name, file in zip(names, files, strict=True) for row in file.rows]
    texts: dict[str, list[str]] = {}
    columns: dict[str, Any] = {}
    for field in TEXTS:
        values = [name if field == "file" else str(row[field]) for name, row in rows]
        texts[field] = list(dict.fromkeys(values))
        places = {value: index for index, value in enumerate(texts[field])}
        columns[field] = _short([places[value] for value in values])
    for field in NUMBERS:
        numbers = [_number(row.get(field)) for _, row in rows]
        if any(number is not None for number in numbers):
            columns[field] = _short(numbers)
    levels, quantiles = _distributions([row for _, row in rows])
    return {
        "title": title,
        "tool": f"gin {__version__}",
        "count": len(rows),
        "files": [_file(name, file) for name, file in zip(names, files, strict=True)],
        "texts": texts,
        "columns": columns,
        "levels": levels,
        "quantiles": quantiles,
        "units": {field: " ".join(unit) for field, unit in UNITS.items() if field != "spread"},
        "tests": {
            test.name: {
                "main": test.columns[0],
                "operations": {made.name: made.definition for made in test.operations},
            }
            for test in TESTS.values()
        },
        "findings": findings(files, names),
        "routes": {name: about for name, about in ROUTES.items() if name in texts["route"]},
        "warnings": _warnings(files, names) if files else [],
    }


def _warnings(files: Sequence[ResultFile], names: Sequence[str]) -> list[str]:
    metrics = {test.name: test.columns[0] for test in TESTS.values()}
    wrong, _ = wrong_data(located(files), None)
    return [*wrong, *warnings(files, names), *disagreements(files, names, metrics), *_doubts(files, names)]


def _doubts(files: Sequence[ResultFile], names: Sequence[str]) -> list[str]:
    """What makes the files' figures less sure than they look: what `gin bench` says above its table."""
    found = []
    for name, file in zip(names, files, strict=True):
        step = file.environment.get("clock", {}).get("resolution_ns", 0) / 1e3
        told = [*doubts.of_rows(file.rows, step)]
        if file.environment.get("platform") != "sim":
            ranks = max((row["ranks"] for row in file.rows), default=1)
            told += conditions.warnings(file.remarks.get("conditions") or {}, ranks, file.emulated)
        found += [f"{name}: {text}" for text in told]
    return found


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    return value


def _short(values: list[Any]) -> Any:
    """A column, or its one value when all are alike."""
    return values if any(value != values[0] for value in values) or not values else {"all": values[0]}


def _distributions(rows: Sequence[Row]) -> tuple[tuple[float, ...], list[list[float] | None]]:
    """Percentiles of each row that has its samples, and their levels."""
    if len(rows) > _MOST or not any(row.get("samples_us") for row in rows):
        return (), []
    levels = _FINE if len(rows) <= _MANY else _COARSE
    found: list[list[float] | None] = []
    for row in rows:
        samples = row.get("samples_us")
        if not samples:
            found.append(None)
            continue
        ordered = np.sort(np.asarray(samples, dtype=np.float64))
        found.append([float(f"{nearest_rank(ordered, level):.4g}") for level in levels])
    return levels, found


def _file(name: str, file: ResultFile) -> dict[str, Any]:
    return {
        "name": name,
        "path": file.path,
        "tool": file.tool,
        "command": list(file.command),
        "emulated": file.emulated,
        "complete": file.complete,
        "rows": len(file.rows),
        "wrong": file.wrong,
        "environment": dict(file.environment),
        "remarks": dict(file.remarks),
    }


def to_json(value: Any) -> str:
    """JSON that may stand inside a script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    for sign, spelled in (("<", "\\u003c"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029")):
        text = text.replace(sign, spelled)
    return text
