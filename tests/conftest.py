"""Fixtures for all tests."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from meeting import close_stores, new_address, open_stores

from gin.launch.nursery import Nursery
from gin.rendezvous.store import Store

LAUNCHERS = ("GIN_", "OMPI_", "PMIX_", "PMI_", "MPI_LOCAL", "MV2_", "SLURM_", "TORCHELASTIC_", "MASTER_")
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def pytest_configure() -> None:
    """Undoes that SIGINT and SIGHUP are ignored, as in background jobs and under nohup: what tests start inherits it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)  # this process goes on; those it starts begin with the default


@pytest.fixture
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No setting and no launcher's variable is set."""
    for name in list(os.environ):
        if name.startswith(LAUNCHERS) or name in TORCHRUN:
            monkeypatch.delenv(name)
    return monkeypatch


def open_descriptors() -> set[str]:
    """What this process's descriptors refer to, those of epoll and the listing itself apart."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
    return found


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fails when the test leaves threads or descriptors behind."""
    Nursery.current()  # stays for later tests
    gc.collect()
    threads, descriptors = set(threading.enumerate()), len(open_descriptors())
    yield
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        gc.collect()
        if set(threading.enumerate()) <= threads and len(open_descriptors()) <= descriptors:
            return
        time.sleep(0.02)
    pytest.fail(f"left: {set(threading.enumerate()) - threads}, {sorted(open_descriptors())}")


@pytest.fixture(params=["unix", "tcp"])
def address(request: pytest.FixtureRequest) -> str:
    return new_address(request.param)


@pytest.fixture
def stores(nothing_left: None) -> Iterator[Callable[..., list[Store]]]:
    opened: list[list[Store]] = []

    def make(size: int, address: str = "", **more: Any) -> list[Store]:
        opened.append(open_stores(size, address or new_address("unix"), **more))
        return opened[-1]

    yield make
    for group in opened:
        close_stores(group)
