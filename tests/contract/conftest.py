"""The contract's tests run on every backend and route; GIN_TEST_BACKENDS and GIN_TEST_ROUTES narrow that down."""

from __future__ import annotations

import pytest
from worlds import BACKENDS, ROUTES, World


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" in metafunc.fixturenames:
        worlds = [World(backend, route) for backend in BACKENDS for route in ROUTES]
        metafunc.parametrize("world", worlds, ids=[f"{world.backend}-{world.route}" for world in worlds])
