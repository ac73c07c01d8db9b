"""The rendezvous: dead ranks, forks, leaks, and other libraries as bootstrap."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from meeting import close_stores, new_address, open_stores, together

from gin.config import Config
from gin.errors import BootstrapError, ConfigError, RemoteError
from gin.launch.spawn import spawn
from gin.rendezvous import join

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("bare_environment")]

# Death


def die_at(phase: str, victim: int) -> None:
    """On every rank: `victim` is killed at a phase; the others write down what they see and after how many seconds."""
    config = Config.from_sources(connect_timeout="20s")
    if int(os.environ["GIN_RANK"]) == victim and phase == "before hello":
        os.kill(os.getpid(), signal.SIGKILL)
    store = join(config)
    store.allgather("first", b"")
    killed = time.monotonic() + (0.2 if phase == "in a call" else 0.1)
    if store.rank == victim:
        if phase == "in a call":
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
            store.allgather("second", b"", group=[victim, (victim + 1) % store.size])
        time.sleep(0.1)  # rank 0 serves the others' first call before
        os.kill(os.getpid(), signal.SIGKILL)
    failed = threading.Event()
    store.on_failure(lambda rank, reason: failed.set())
    with pytest.raises(RemoteError) as caught:
        store.allgather("second", b"")
    seconds = time.monotonic() - killed
    assert failed.wait(2)
    assert caught.value.record == {"rank": victim}
    Path(os.environ["GIN_TEST_RESULTS"], str(store.rank)).write_text(json.dumps([str(caught.value), seconds]))
    store.close()


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("phase", ["in a call", "between calls"])
def test_a_killed_rank_is_named(tmp_path: Path, phase: str, victim: int) -> None:
    with pytest.raises(RemoteError, match=f"rank {victim} of 3 was killed by SIGKILL"):
        spawn(3, die_at, phase, victim, timeout=20, env={"GIN_TEST_RESULTS": str(tmp_path)})
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1", "2"} - {str(victim)}
    for path in tmp_path.iterdir():
        message, seconds = json.loads(path.read_text())
        assert f"rank {victim}" in message
        assert "died or lost its connection" in message
        assert seconds < 1.0


def test_killed_before_hello(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(RemoteError, match="rank 1 of 3 was killed by SIGKILL before its function returned"):
        spawn(3, die_at, "before hello", 1, timeout=30, env={"GIN_TEST_RESULTS": str(tmp_path)})
    assert time.monotonic() - began < 10


def test_an_exception_is_told_at_exit() -> None:
    def work() -> None:
        store = join(Config.from_sources())
        store.barrier("x")
        if store.rank == 1:
            raise ValueError("wrong shape")
        store.barrier("y")

    with pytest.raises(ValueError, match="wrong shape") as caught:
        spawn(3, work, timeout=20)
    notes = "\n".join(caught.value.__notes__)
    assert "rank 0 of 3 also failed: RemoteError" in notes
    assert "failed: ValueError: wrong shape" in notes


def test_a_forked_child_does_not_hide_its_parents_death() -> None:
    def work() -> str:
        store = join(Config.from_sources())
        store.barrier("x")
        if store.rank == 1:
            if os.fork() == 0:
                time.sleep(20)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(RemoteError):
            store.barrier("y")
        assert time.monotonic() - began < 3
        return "seen"

    with pytest.raises(RemoteError, match="rank 1 of 2 was killed by SIGKILL") as caught:
        spawn(2, work, timeout=20)
    assert not any("rank 0" in note for note in getattr(caught.value, "__notes__", []))


def test_open_and_close_leave_nothing(nothing_left: None) -> None:
    address = new_address("unix")
    for turn in range(100):
        close_stores(open_stores(2, address if turn % 2 else new_address("tcp")))


# Other libraries' bootstrap


class FakeMpi:
    """The part of an mpi4py communicator that is used, between threads."""

    def __init__(self, size: int) -> None:
        self.size, self.barrier, self.slots = size, threading.Barrier(size), [""] * size

    def on(self, rank: int) -> Any:
        outer = self

        class Communicator:
            Get_rank = staticmethod(lambda: rank)
            Get_size = staticmethod(lambda: outer.size)

            @staticmethod
            def allgather(text: str) -> list[str]:
                outer.slots[rank] = text
                outer.barrier.wait(10)
                texts = list(outer.slots)
                outer.barrier.wait(10)
                return texts

        return Communicator()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_mpi_communicator_as_bootstrap(nothing_left: None, size: int) -> None:
    world = FakeMpi(size)
    for _ in range(2):
        ranks = together(size, lambda rank: join(Config.from_sources(), world.on(rank)))
        assert [store.rank for store in ranks] == list(range(size))
        assert together(size, lambda rank, at=ranks: at[rank].allgather("x", b"1")) == [[b"1"] * size] * size
        close_stores(ranks)


def test_bootstrap_error_of_rank_zero_reaches_all(nothing_left: None) -> None:
    world = FakeMpi(3)
    config = Config.from_sources(rendezvous="203.0.113.7:4000")
    for result in together(3, lambda rank: join(config, world.on(rank))):
        assert isinstance(result, BootstrapError)
        assert "not an address of this host" in str(result)


def test_unknown_bootstrap() -> None:
    with pytest.raises(ConfigError, match="neither an mpi4py communicator nor torch"):
        join(Config.from_sources(), object())
