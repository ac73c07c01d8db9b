"""Ranks that only pretend: what they would have told `gin bench`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gin.bench import sweep
from gin.bench.plan import Plan
from gin.bench.results import ROW_FIELDS, environment
from gin.cli.bench import command as bench

Told = Callable[[Plan, int, sweep.Sink], None]


def rows_of(plan: Plan, ranks: int, wrong: int = 0) -> list[dict[str, Any]]:
    return [
        {
            **dict.fromkeys(ROW_FIELDS, 1.0),
            "test": plan.test,
            "backend": backend,
            "route": route,
            "op": (plan.operations or (plan.definition.operations[0].name,))[0],
            "platform": "host",
            "wire": "shm",
            "scope": "thread",
            "ctas": 1,
            "threads": 1,
            "contexts": 4,
            "bytes": nbytes,
            "ranks": ranks,
            "iterations": 200,
            "warmup": 10,
            "wrong": wrong if plan.verify else None,
        }
        for nbytes in plan.sizes
        for backend in plan.backends
        for route in plan.routes
        if ("thread", 1, 1, 4, ranks, nbytes, backend, route) not in {done[1:] for done in plan.done}
    ]


def told(*, wrong: int = 0, then: BaseException | None = None, failure: str | None = None, after: int = 10**9) -> Told:
    """Ranks that tell `after` rows at most, and then fail if `then` is given."""

    def run(plan: Plan, ranks: int, sink: sweep.Sink) -> None:
        env = {**environment(), "platform": "host", "wire": "shm"}
        rows = rows_of(plan, ranks, wrong)
        sink({"event": "begin", "environment": env, "emulated": True, "total": len(rows)})
        for row in rows[:after]:
            sink({"event": "point", "shape": "put_signal scope=thread", "bytes": row["bytes"]})
            sink({"event": "row", "row": row})
        if failure is not None:
            sink({"event": "failure", "error": failure, "message": "as rank 0 saw it"})
        if then is not None:
            raise then
        sink({"event": "end", "conditions": {"preemptions": 3, "load": 99.0, "cores": 2, "throttles": 1}})

    return run


def call(monkeypatch: pytest.MonkeyPatch, ranks: Told, *arguments: str) -> Result:
    monkeypatch.setattr(sweep, "run_here", ranks)
    return CliRunner().invoke(bench, arguments)
