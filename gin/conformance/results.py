"""What comes of a case, and the document of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gin._version import __version__

__all__ = ["FAIL", "PASS", "REFUSED", "SKIPPED", "Result", "document", "to_json"]

SCHEMA = 1

PASS, FAIL, REFUSED, SKIPPED = "pass", "fail", "refused", "skipped"


@dataclass(frozen=True)
class Result:
    """One case on one backend and route with so many ranks.

    outcome     pass; fail; refused: by name, for want of `capability`; skipped: it cannot be run here
    reason      why, unless it passed
    capability  what the backend or this machine lacks, when refused
    """

    case: str
    promise: str
    backend: str
    platform: str
    wire: str
    route: str
    ranks: int
    outcome: str
    reason: str = ""
    capability: str = ""
    seconds: float = 0.0


def document(
    results: Sequence[Result], *, command: Sequence[str], emulated: bool, env: Mapping[str, Any], complete: bool
) -> dict[str, Any]:
    """The JSON document of a run. `complete` is false when it ended before its last case."""
    return {
        "schema": SCHEMA,
        "tool": f"gin {__version__}",
        "command": list(command),
        "emulated": emulated,
        "complete": complete,
        "environment": dict(env),
        "results": [asdict(result) for result in results],
    }


def to_json(results: Mapping[str, Any]) -> str:
    """Text of a document: one line per result, strict JSON."""
    head = {key: value for key, value in results.items() if key != "results"}
    lines = [json.dumps(row, allow_nan=False) for row in results["results"]]
    opening = json.dumps(head, indent=1, allow_nan=False)[:-2]
    body = ",\n  ".join(lines)
    return f'{opening},\n "results": [' + (f"\n  {body}\n ]" if lines else "]") + "\n}\n"
