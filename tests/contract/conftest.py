"""The contract's tests run on every backend and route; GIN_TEST_BACKENDS and GIN_TEST_ROUTES narrow that down.

A module with OVERTAKING = True also runs over a wire on which later requests overtake earlier ones wherever they may.
"""

from __future__ import annotations

import os

import pytest
from worlds import World

BACKENDS = os.environ.get("GIN_TEST_BACKENDS", "nvshmem,nccl_gin,ibrc_proxy").split(",")
ROUTES = os.environ.get("GIN_TEST_ROUTES", "direct,native").split(",")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" not in metafunc.fixturenames:
        return
    worlds = [World(backend, route) for backend in BACKENDS for route in ROUTES]
    if getattr(metafunc.module, "OVERTAKING", False) and "ibrc_proxy" in BACKENDS and "native" in ROUTES:
        worlds.append(World("ibrc_proxy", "native", {"overtake": 300}))
    metafunc.parametrize(
        "world", worlds, ids=[f"{w.backend}-{w.route}{'-overtaking' if w.faults else ''}" for w in worlds]
    )


@pytest.fixture(params=[2, 3, 5])
def ranks(request: pytest.FixtureRequest) -> int:
    return int(request.param)
