"""Goes on with a sweep that ended early."""

from __future__ import annotations

from dataclasses import replace

from gin.bench import results
from gin.bench.load import ResultFile
from gin.bench.plan import Identity, Plan
from gin.bench.results import Row
from gin.errors import ResultsError

__all__ = ["identity_of", "resumed"]

_SAME = ("gin", "python", "numpy", "system", "kernel", "machine", "cpu", "cores")


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
        _require_same(before, name, before.environment.get(name), here[name])
    variables = before.environment.get("variables")
    variables = variables if isinstance(variables, dict) else {}
    for name in sorted({*variables, *here["variables"]}):
        _require_same(before, name, variables.get(name, "unset"), here["variables"].get(name, "unset"))
    verified = {row["wrong"] is not None for row in before.rows}
    if verified - {plan.verify}:
        raise ResultsError(f"{before.path}: payloads were {'' if True in verified else 'not '}verified; go on likewise")
    iterations = {row["iterations"] for row in before.rows} - {plan.iterations}
    if plan.iterations is not None and iterations:
        raise ResultsError(f"{before.path}: was measured with {iterations.pop()} iterations, not {plan.iterations}")
    places = {(row["platform"], row["wire"]) for row in before.rows}
    if len(places) > 1:
        raise ResultsError(f"{before.path}: holds results of several platforms or wires")
    done = frozenset(identity_of(row) for row in before.rows)
    gpus, binding = _names(before, "gpus"), _names(before, "binding")
    return replace(plan, done=done, place=next(iter(places), None), gpus=gpus, binding=binding)


def _names(before: ResultFile, field: str) -> tuple[str, ...] | None:
    found = before.environment.get(field)
    return tuple(map(str, found)) if isinstance(found, list) else None


def _require_same(before: ResultFile, name: str, then: object, now: object) -> None:
    if then != now:
        raise ResultsError(
            f"{before.path}: was measured with {name} {then}, here it is {now}: "
            "one file holds results of one machine, version and setting; measure into a new file"
        )
