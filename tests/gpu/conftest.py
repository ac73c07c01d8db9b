"""Tests that need GPUs: each starts one rank per GPU, at most two; with GIN_SHARE_GPU=1 and MPS running, both on one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

import gin

BACKENDS = ["nvshmem", "nccl_gin", "ibrc_proxy"]


def count_gpus() -> int:
    """How many GPUs this process could use; 0 without a driver or without cuda-python."""
    try:
        from cuda.bindings import driver
    except ImportError:
        return 0
    try:
        return int(driver.cuDeviceGetCount()[1]) if int(driver.cuInit(0)[0]) == 0 else 0
    except RuntimeError:  # no driver
        return 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    own = [item for item in items if item.path.parent.name == "gpu"]
    gpus = count_gpus() if own else 0
    shared = os.environ.get("GIN_SHARE_GPU") == "1"
    for item in own:
        needed = 2 if item.get_closest_marker("two_gpus") and not shared else 1
        if gpus < needed:
            item.add_marker(pytest.mark.skip(reason=f"needs {needed} GPU(s) and cuda-python; this machine has {gpus}"))


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def run(backend: str) -> Callable[..., list[Any]]:
    """`run(ranks, body, **settings)`: `body(comm)` on ranks of this backend; their results. A tuple: a setting by rank."""

    def go(ranks: int, body: Callable[[Any], Any], **settings: Any) -> list[Any]:
        def rank_main() -> Any:
            rank = int(os.environ["GIN_RANK"])
            own = {name: value[rank] if isinstance(value, tuple) else value for name, value in settings.items()}
            with gin.init(backend=backend, **{"platform": "cuda", "heap": "256M", "timeout": "10s"} | own) as comm:
                return body(comm)

        return gin.spawn(ranks, rank_main, timeout=120)

    return go
