"""Where the contract's tests run: a backend, a route, and the faults of the wire."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gin
from gin.conformance.wire import faulty

BACKENDS = os.environ.get("GIN_TEST_BACKENDS", "nvshmem,nccl_gin,ibrc_proxy").split(",")
ROUTES = os.environ.get("GIN_TEST_ROUTES", "direct,native").split(",")


@dataclass(frozen=True)
class World:
    """A backend and a route to run ranks on."""

    backend: str
    route: str
    faults: Mapping[str, int] = field(default_factory=dict)

    def run(
        self,
        ranks: int,
        body: Callable[[Any], Any],
        *,
        seconds: float = 100,
        faults: Mapping[str, int] | None = None,
        **settings: Any,
    ) -> list[Any]:
        """`body(comm)` on every rank; its results by rank."""
        backend, route = self.backend, self.route
        faults = self.faults if faults is None else faults

        def rank_main() -> Any:
            with (
                faulty(faults),
                gin.init(backend=backend, **{"route": route, "timeout": "20s", "check": True} | settings) as comm,
            ):
                return body(comm)

        return gin.spawn(ranks, rank_main, timeout=seconds)
