"""Goes on with a sweep that ended early."""

from __future__ import annotations

from dataclasses import replace

from gin.bench import results
from gin.bench.load import ResultFile
from gin.bench.plan import Identity, Plan
from gin.bench.results import Row
from gin.errors import ResultsError

__all__ = ["identity_of", "resumed"]

_SAME = ("gin", "cpu", "cores", "machine", "kernel")


def identity_of(row: Row) -> Identity:
    """What tells a row from all others of its sweep."""
    geometry = (row["scope"], row["ctas"], row["threads"], row.get("contexts") or 0, row["ranks"], row["bytes"])
    return (row["op"], *geometry, row["backend"], row["route"])


def resumed(plan: Plan, before: ResultFile) -> Plan:
    """The plan without what was measured before. Raises ResultsError when both would not be one sweep."""
    tests = {row["test"] for row in before.rows} - {plan.test}
    if tests:
        raise ResultsError(f"{before.path}: holds results of {', '.join(sorted(tests))}, not of {plan.test}")
    here = results.environment()
    for name in _SAME:
        if name in before.environment and before.environment[name] != here[name]:
            raise ResultsError(
                f"{before.path}: was measured with {name} {before.environment[name]}, here it is {here[name]}: "
                "one file holds results of one machine and version; measure into a new file"
            )
    places = {(row["platform"], row["wire"]) for row in before.rows}
    if len(places) > 1:
        raise ResultsError(f"{before.path}: holds results of several platforms or wires")
    done = frozenset(identity_of(row) for row in before.rows)
    return replace(plan, done=done, place=next(iter(places), None))
