"""The contract's tests run on every backend and route; GIN_TEST_BACKENDS and GIN_TEST_ROUTES narrow that down."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import gin

BACKENDS = os.environ.get("GIN_TEST_BACKENDS", "nvshmem,nccl_gin,ibrc_proxy").split(",")
ROUTES = os.environ.get("GIN_TEST_ROUTES", "direct,native").split(",")


@dataclass(frozen=True)
class World:
    """A backend and a route to run ranks on."""

    backend: str
    route: str

    def run(self, ranks: int, body: Callable[[Any], Any], *, seconds: float = 100, **settings: Any) -> list[Any]:
        """`body(comm)` on every rank; its results by rank."""
        backend, route = self.backend, self.route

        def rank_main() -> Any:
            with gin.init(backend=backend, **{"route": route, "timeout": "20s", "check": True} | settings) as comm:
                return body(comm)

        return gin.spawn(ranks, rank_main, timeout=seconds)


@pytest.fixture(params=[f"{backend}-{route}" for backend in BACKENDS for route in ROUTES])
def world(request: pytest.FixtureRequest) -> World:
    backend, route = request.param.split("-")
    return World(backend, route)


@pytest.fixture(params=[2, 3, 5])
def ranks(request: pytest.FixtureRequest) -> int:
    return int(request.param)
