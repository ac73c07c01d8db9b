"""The libraries' own calls, measured beside gin's."""

from __future__ import annotations

from typing import Any

import pytest

from gin.bench import sweep
from gin.bench.plan import RAW, Plan

pytestmark = [pytest.mark.two_gpus, pytest.mark.timeout(300)]


@pytest.mark.parametrize("backend", RAW)
@pytest.mark.parametrize(("test", "operations"), [("latency", ("put_signal", "put_value")), ("rate", ("put",))])
def test_raw_rows_stand_beside_gins_and_bring_right_data(backend: str, test: str, operations: tuple[str, ...]) -> None:
    rows: list[dict[str, Any]] = []

    def sink(event: dict[str, Any]) -> None:
        if event["event"] == "row":
            rows.append(event["row"])

    plan = Plan(
        test,
        (backend,),
        True,
        ("native",),
        (8, 4096),
        operations,
        iterations=20,
        warmup=2,
        platform="cuda",
        baseline=True,
    )
    sweep.run_here(plan, 2, sink)
    assert {row["backend"] for row in rows} == {backend, f"{backend}-raw"}
    assert all(row["wrong"] == 0 for row in rows)
