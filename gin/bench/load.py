"""Reads result files back, and refuses by name what is none: empty, damaged, foreign, of another schema."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gin.bench.results import SCHEMA, Row
from gin.errors import ResultsError

__all__ = ["ResultFile", "load", "parse"]

TEXTS = ("test", "op", "backend", "platform", "wire", "route", "scope")
POSITIVE = ("ranks", "ctas", "threads")
COUNTS = ("bytes", "iterations", "warmup")
TIMES = ("min_us", "median_us", "p90_us", "p99_us", "max_us")
RATES = ("bandwidth_GBps", "rate_Mops")
_LARGEST = 1 << 62  # of whole numbers
_DEPTH = 20  # of what the environment and the remarks hold


@dataclass(frozen=True)
class ResultFile:
    """One file of results, checked."""

    path: str
    tool: str
    command: tuple[str, ...]
    emulated: bool
    complete: bool  # false: the sweep ended before its last row
    environment: Mapping[str, Any]
    rows: tuple[Row, ...]
    started: str | None = None
    remarks: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The file's name without folder and suffix."""
        return "standard input" if self.path == "-" else Path(self.path).stem

    @property
    def wrong(self) -> int:
        """Elements that were wrong, over all rows."""
        return sum(row["wrong"] or 0 for row in self.rows)


def load(path: str) -> ResultFile:
    """The results in a file; `-` is the standard input. Raises ResultsError, which names the file and what is wrong."""
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read: {error.strerror}") from None
    return parse(data, path)


def parse(data: bytes, path: str) -> ResultFile:
    """The results in the text of a file. Raises ResultsError."""
    if not data.strip():
        raise ResultsError(f"{path}: is empty; the sweep that should have written it did not end")
    try:
        document = json.loads(data.decode("utf-8-sig"), parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise ResultsError(f"{path}: is not text; give a file that gin bench --json wrote") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ResultsError(f"{path}: is damaged or no JSON: {error.msg} at {where}") from None
    except (ValueError, RecursionError) as error:
        raise ResultsError(f"{path}: is no result file: {error}") from None
    return _checked(document, path)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _checked(document: Any, path: str) -> ResultFile:
    if not isinstance(document, dict) or "schema" not in document:
        raise ResultsError(f"{path}: is JSON of something else: it has no 'schema'; give a file of gin bench --json")
    if document["schema"] != SCHEMA or isinstance(document["schema"], bool):
        raise ResultsError(
            f"{path}: has schema {document['schema']!r:.40}; this gin reads schema {SCHEMA}. "
            "Use the gin that wrote it, or measure again"
        )
    kinds: tuple[tuple[str, type, str], ...] = (
        ("tool", str, "text"),
        ("command", list, "a list"),
        ("emulated", bool, "true or false"),
        ("environment", dict, "an object"),
        ("rows", list, "a list"),
    )
    for name, kind, told in kinds:
        if not isinstance(document.get(name), kind):
            raise ResultsError(f"{path}: is damaged: '{name}' should be {told}, not {document.get(name)!r:.40}")
    head = {name: document.get(name) for name in ("tool", "command", "environment", "remarks", "started")}
    reason = _defect(head)
    if reason:
        raise ResultsError(f"{path}: is damaged: beside the rows it holds {reason}")
    head = _legible(head)
    for index, row in enumerate(document["rows"]):
        reason = _row_defect(row)
        if reason:
            raise ResultsError(f"{path}: is damaged: row {index}: {reason}")
    return ResultFile(
        path=path,
        tool=head["tool"],
        command=tuple(map(str, head["command"])),
        emulated=document["emulated"],
        complete=document.get("complete", True) is True,
        environment=head["environment"],
        rows=tuple(document["rows"]),
        started=head["started"] if isinstance(head["started"], str) else None,
        remarks=head["remarks"] if isinstance(head["remarks"], dict) else {},
    )


def _legible(value: Any) -> Any:
    """A value in whose texts everything is spelled out that is no visible character, or could steer a terminal."""
    if isinstance(value, str) and not value.isprintable():
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in value)
    if isinstance(value, dict):
        return {_legible(name): _legible(part) for name, part in value.items()}
    return [_legible(part) for part in value] if isinstance(value, list) else value


def _defect(value: Any, depth: int = 0) -> str | None:
    """What keeps a value from being written again, or None."""
    if depth > _DEPTH:
        return "lists or objects inside each other without end"
    if isinstance(value, float):
        return None if math.isfinite(value) else "a number that is too large"
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next(filter(None, (_defect(part, depth + 1) for part in inner)), None)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != "" and value.isprintable()


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _LARGEST


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_number(value: Any) -> bool:
    return _is_finite(value) and value >= 0


def _is_optional_number(value: Any) -> bool:
    return value is None or _is_number(value)


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


_CHECKS: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (TEXTS, _is_text, "text of visible characters"),
    (POSITIVE, lambda value: _is_whole(value, 1), "a whole number of at least 1"),
    (COUNTS, lambda value: _is_whole(value, 0), "a whole number"),
    (TIMES, _is_number, "a time of at least 0"),
    (RATES, _is_optional_number, "a number of at least 0, or null"),
    (("wrong",), lambda value: value is None or _is_whole(value, 0), "a whole number, or null"),
)
_LISTS = ("samples_us", "turns_us", "ends_us")
# Fields that a row may have besides those of the schema.
_OPTIONAL: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (("contexts", "messages", "samples"), lambda value: _is_whole(value, 1), "a whole number of at least 1"),
    (("outliers",), lambda value: _is_whole(value, 0), "a whole number"),
    (
        ("median_low_us", "median_high_us", "step_us", "p999_us", "mean_us", "stdev_us", "transfer_us", "compute_us"),
        _is_optional_number,
        "a time of at least 0, or null",
    ),
    (("overlap_percent",), _is_optional_number, "a number of at least 0, or null"),
    (("drift",), _is_finite, "a number"),
    (("drifted", "steady"), lambda value: value is None or isinstance(value, bool), "true, false or null"),
    (_LISTS, _is_numbers, "a list of times"),
)


def _row_defect(row: Any) -> str | None:
    """What is wrong with a row, or None."""
    if not isinstance(row, dict):
        return f"is not an object but {row!r:.40}"
    for names, fits, told in _CHECKS:
        for name in names:
            if name not in row:
                return f"has no '{name}'"
            if not fits(row[name]):
                return f"'{name}' should be {told}, not {row[name]!r:.40}"
    for names, fits, told in _OPTIONAL:
        for name in names:
            if name in row and not fits(row[name]):
                return f"'{name}' should be {told}, not {row[name]!r:.40}"
    for name, value in row.items():  # fields of later versions are kept, so that they are written again
        reason = None if name in _LISTS else _defect(value)
        if reason:
            return f"'{name}' holds {reason}"
    times = [row[name] for name in TIMES]
    if times != sorted(times):
        return f"its times do not ascend from min_us to max_us: {times}"
    return None
