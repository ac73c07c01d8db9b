"""The table of a run: a line per case, a column per backend and route, and below it what did not pass and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from gin.conformance.results import FAIL, PASS, REFUSED, SKIPPED, Result

__all__ = ["cell", "cells", "render", "summary"]

_SHOWN = {PASS: "pass", FAIL: "FAIL", REFUSED: "refused", SKIPPED: "-"}
_WORST = (FAIL, PASS, REFUSED, SKIPPED)

Column = tuple[str, str]
"""Backend and route."""


def cells(results: Iterable[Result]) -> dict[str, dict[Column, str]]:
    """Case -> (backend, route) -> the outcome that counts of those with different numbers of ranks."""
    found: dict[str, dict[Column, str]] = {}
    for result in results:
        row = found.setdefault(result.case, {})
        column = result.backend, result.route
        row[column] = min(row.get(column, SKIPPED), result.outcome, key=_WORST.index)
    return found


def cell(outcome: str | None) -> str:
    """How an outcome is shown."""
    return _SHOWN[outcome or SKIPPED]


def render(results: Sequence[Result]) -> str:
    """The table and what follows it, as plain text."""
    rows = cells(results)
    columns = list(dict.fromkeys((result.backend, result.route) for result in results))
    if not rows:
        return "no cases\n"
    left = max(len("case"), *map(len, rows))
    widths = [max(len(backend), len(route), len("refused")) for backend, route in columns]
    lines = [_line("", left, [backend for backend, _ in columns], widths)]
    lines.append(_line("case", left, [route for _, route in columns], widths))
    lines += [_line(name, left, [cell(row.get(column)) for column in columns], widths) for name, row in rows.items()]
    lines += ["", *_told(results), summary(results)]
    return "\n".join(lines) + "\n"


def summary(results: Iterable[Result]) -> str:
    """How many runs of cases ended how, in one line."""
    count = Counter(result.outcome for result in results)
    text = f"{count[PASS]} passed, {count[FAIL]} failed, {count[REFUSED]} refused"
    return text + (f", {count[SKIPPED]} do not apply" if count[SKIPPED] else "")


def _line(name: str, left: int, words: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(
        [name.ljust(left), *(word.ljust(width) for word, width in zip(words, widths, strict=True))]
    ).rstrip()


def _told(results: Sequence[Result]) -> list[str]:
    """Each failure, and each reason to refuse with the cases that it concerns."""
    lines = []
    for result in results:
        if result.outcome == FAIL:
            where = f"{result.backend} {result.route}, {result.ranks} rank{'s' if result.ranks > 1 else ''}"
            lines += [f"FAIL {result.case} ({where})", f"     {result.reason}"]
    refusals: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        if result.outcome == REFUSED:
            refusals.setdefault((result.backend, result.route, result.capability), []).append(result)
    for (backend, route, capability), group in refusals.items():
        names = list(dict.fromkeys(result.case for result in group))
        some = ", ".join(names) if len(names) < 8 else f"{len(names)} cases"
        lines += [
            f"refused by {backend} {route}, for want of {capability or 'what it says'}: {some}",
            f"     {group[0].reason}",
        ]
    return [*lines, ""] if lines else []
