"""Result documents made up for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gin.bench.load import ResultFile, parse

ROW: dict[str, Any] = {
    "test": "latency",
    "op": "put_signal",
    "backend": "nvshmem",
    "platform": "host",
    "wire": "shm",
    "route": "native",
    "ranks": 2,
    "scope": "thread",
    "ctas": 1,
    "threads": 1,
    "bytes": 8,
    "iterations": 100,
    "warmup": 10,
    "min_us": 0.5,
    "median_us": 1.0,
    "p90_us": 2.0,
    "p99_us": 3.0,
    "max_us": 9.0,
    "bandwidth_GBps": 0.008,
    "rate_Mops": 1.0,
    "wrong": 0,
}


def row(us: float = 1.0, **fields: Any) -> dict[str, Any]:
    """A row whose median is `us` microseconds, the rest in proportion."""
    nbytes = fields.get("bytes", 8)
    times = {name: ROW[name] * us for name in ("min_us", "median_us", "p90_us", "p99_us", "max_us")}
    return {**ROW, **times, "bandwidth_GBps": nbytes / us / 1e3, "rate_Mops": 1 / us, **fields}


def document(*rows: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "tool": "gin 0.1.0",
        "command": ["gin", "bench", "latency"],
        "emulated": True,
        "complete": True,
        "environment": {"gin": "0.1.0", "cpu": "Sixteen Cores", "cores": 16, "variables": {}},
        "rows": list(rows),
        **fields,
    }


def results(*rows: dict[str, Any], name: str = "made", **fields: Any) -> ResultFile:
    return parse(json.dumps(document(*rows, **fields)).encode(), f"{name}.json")


def written(path: Path, *rows: dict[str, Any], **fields: Any) -> str:
    path.write_text(json.dumps(document(*rows, **fields)))
    return str(path)
