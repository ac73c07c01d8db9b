"""Whether files may be compared at all, and what a reader has to know of how they differ."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from gin.bench.load import ResultFile
from gin.compare.join import Located, compare
from gin.errors import ResultsError

__all__ = ["disagreements", "require_fit", "warnings", "wrong_data"]

_MACHINE = ("gin", "cpu", "cores", "binding", "machine", "system", "kernel", "gpus", "driver")


def require_fit(files: Sequence[ResultFile], names: Sequence[str], ignore: Sequence[str]) -> None:
    """Raises ResultsError when emulated times would be compared with those of hardware and nobody said that they may."""
    kinds = {file.emulated for file in files if file.rows}
    if len(kinds) < 2 or "emulated" in ignore:
        return
    emulated = [name for file, name in zip(files, names, strict=True) if file.emulated]
    measured = [name for file, name in zip(files, names, strict=True) if not file.emulated]
    fields = ["emulated"]
    for name in ("platform", "wire"):
        one = {row[name] for file in files if file.emulated for row in file.rows}
        other = {row[name] for file in files if not file.emulated for row in file.rows}
        if not one & other:
            fields.append(name)
    raise ResultsError(
        f"not comparable: {', '.join(emulated)} is emulated, {', '.join(measured)} was measured on hardware. "
        f"To compare nevertheless: --ignore {','.join(fields)}"
    )


def warnings(files: Sequence[ResultFile], names: Sequence[str]) -> list[str]:
    """What weakens a comparison of these files, in words, and where they come from different machines."""
    found = []
    kinds = {file.emulated for file in files}
    if kinds == {True}:
        found.append("EMULATION: times of neither side are hardware times")
    elif len(kinds) == 2:
        emulated = ", ".join(name for file, name in zip(files, names, strict=True) if file.emulated)
        found.append(f"EMULATION COMPARED WITH HARDWARE: {emulated} is emulated")
    for file, name in zip(files, names, strict=True):
        if not file.complete:
            found.append(f"{name} is not complete: its sweep ended early")
    unverified = [any(row["wrong"] is None for row in file.rows) for file in files]
    if any(unverified):
        told = ", ".join(name for name, flag in zip(names, unverified, strict=True) if flag)
        found.append(f"payloads were not verified in {told}")
    return found + _differences(files, names)


def disagreements(files: Sequence[ResultFile], names: Sequence[str], metrics: dict[str, str]) -> list[str]:
    """Where files from machines and settings alike measured the same, and differ by more than their intervals.

    metrics  as `compare` takes them
    """
    found = []
    for (one, first), (other, second) in combinations(zip(names, files, strict=True), 2):
        if first.emulated != second.emulated or _differences((first, second), (one, other)):
            continue
        rows = [Located(row, name) for name, file in ((one, first), (other, second)) for row in file.rows]
        try:
            pairs = compare(rows, "file", base=one, metrics=metrics).pairs
        except ResultsError:  # they have nothing in common
            continue
        ratios = [
            pair.ratio for pair in pairs if pair.ratio and pair.ratio.verdict(pair.metric) in ("faster", "slower")
        ]
        if ratios:
            most = max(max(ratio.value, 1 / ratio.value) for ratio in ratios)
            found.append(
                f"{one} and {other} measured {len(pairs)} rows alike; {len(ratios)} of them differ by more than their "
                f"intervals, up to {most:.3g} times: one run does not show how much runs differ"
            )
    return found


def wrong_data(rows: Sequence[Located], base: str | None) -> tuple[list[str], bool]:
    """What has to be said of wrong data in these rows, and whether it fails the comparison: in the file that the others are
    compared with, it may be what they mend.

    base  that file, None where files are not what is compared
    """
    wrong = {file: [row for row in rows if row.file == file and row["wrong"]] for file in {row.file: 0 for row in rows}}
    fails = any(found for file, found in wrong.items() if file != base)
    told = []
    for file, found in wrong.items():
        if found:
            elements = sum(row["wrong"] for row in found)
            counted = f"{elements} elements in {len(found)} row{'s' * (len(found) > 1)}"
            excused = "; in the base alone: it fails nothing" if not fails else ""
            told.append(f"WRONG DATA in {file}: {counted}, marked with !; no ratio is given{excused}")
    return told, fails


def _differences(files: Sequence[ResultFile], names: Sequence[str]) -> list[str]:
    found = []
    first = files[0].environment
    for file, name in zip(files[1:], names[1:], strict=True):
        parts = [
            f"{field} {_short(first[field])} / {_short(file.environment[field])}"
            for field in _MACHINE
            if field in first and field in file.environment and first[field] != file.environment[field]
        ]
        parts += _variables(first.get("variables"), file.environment.get("variables"))
        if parts:
            found.append(f"{names[0]} / {name} differ in {'; '.join(parts)}")
    return found


def _variables(one: Any, other: Any) -> list[str]:
    if not isinstance(one, dict) or not isinstance(other, dict):
        return []
    return [
        f"{name}={_short(one.get(name, 'unset'))} / {_short(other.get(name, 'unset'))}"
        for name in sorted(set(one) | set(other))
        if one.get(name) != other.get(name)
    ]


def _short(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
