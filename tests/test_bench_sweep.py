"""How a sweep goes through backends, routes and sizes, on communicators that only pretend."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gin
from gin.bench import sweep
from gin.bench.measure import _GUARD_BYTE
from gin.bench.plan import Plan
from gin.errors import ConfigError, TimeoutError, UnsupportedError


class Window:
    def __init__(self, nbytes: int) -> None:
        self.memory = np.zeros(nbytes, np.uint8)

    @property
    def nbytes(self) -> int:
        return self.memory.size

    def array(self, dtype: str) -> Any:
        return self.memory.view(dtype)

    def write(self, values: Any, offset: int = 0) -> None:
        self.memory[offset : offset + values.nbytes] = values

    def read(self, dtype: str, count: int | None = None, offset: int = 0) -> Any:
        return np.frombuffer(self.memory[offset:].tobytes(), dtype, -1 if count is None else count)


class Comm:
    """Rank 0 of two, whose launches take no time and do what `behave` does to their windows."""

    platform = "host"
    rank, size = 0, 2

    def __init__(self, log: list[Any], behave: Callable[..., None], backend: str, route: str) -> None:
        self.log, self.behave, self.backend, self.route = log, behave, backend, route
        self.config = SimpleNamespace(wire="shm")
        self._exchange = SimpleNamespace(gather=lambda tag, make: [make(), make()])
        self.closed = False

    def routes(self) -> list[str]:
        return ["direct", self.route if self.route != "auto" else "direct"]

    def window(self, nbytes: int) -> Window:
        return Window(nbytes)

    def compile(self, source: str, name: str) -> Any:
        def launch(source: Window, target: Window, out: Window, *numbers: int, grid: int, block: int) -> None:
            nbytes, _, serial, _, warmup, iterations, _ = numbers
            self.log.append((self.backend, self.route, nbytes, warmup, iterations, serial))
            words = out.array("uint64")
            assert not words.any()
            words[9 : 9 + 2 * grid * iterations : 2] = 4000
            self.behave(target, words)

        return SimpleNamespace(launch=launch)

    def barrier(self) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def well(target: Window, words: Any) -> None:
    del target, words


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What was launched, the communicators opened, how launches behave, and what refuses to open."""
    state = SimpleNamespace(log=[], comms=[], behave=well, refuse={}, settings=[])

    def init(backend: str, route: str, **settings: Any) -> Comm:
        state.settings.append(settings)
        if (backend, route) in state.refuse:
            raise state.refuse[backend, route]
        state.comms.append(Comm(state.log, lambda *a: state.behave(*a), backend, route))
        return state.comms[-1]

    monkeypatch.setitem(vars(gin), "init", init)
    monkeypatch.setenv("GIN_RANK", "0")
    monkeypatch.setenv("GIN_SIZE", "2")
    return state


def run(plan: Plan) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    sweep.run(plan, events.append)
    return events


def make_plan(**fields: Any) -> Plan:
    base: dict[str, Any] = {
        "test": "latency",
        "backends": ("nvshmem", "ibrc_proxy"),
        "required": False,
        "routes": ("native", "direct"),
        "sizes": (8, 16),
        "iterations": 6,
        "warmup": 2,
    }
    return Plan(**{**base, **fields})


def rows(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event["row"] for event in events if event["event"] == "row"]


def test_backends_take_turns_within_a_size(world: Any) -> None:
    events = run(make_plan())
    order = [(backend, route, nbytes) for backend, route, nbytes, *_ in world.log]
    pairs = [(b, r) for b in ("nvshmem", "ibrc_proxy") for r in ("native", "direct")]
    assert order == [(b, r, n) for n in (8, 16) for _ in range(3) for b, r in pairs]
    assert events[0]["event"] == "begin"
    assert events[0]["total"] == 8
    assert events[0]["emulated"] is True
    assert [(r["backend"], r["route"], r["bytes"]) for r in rows(events)] == [
        (b, r, n) for n in (8, 16) for b, r in pairs
    ]
    assert {(r["iterations"], r["warmup"], r["median_us"], r["wrong"]) for r in rows(events)} == {(6, 6, 2.0, 0)}
    assert all(comm.closed for comm in world.comms)


def test_no_two_launches_of_a_communicator_share_a_message(world: Any) -> None:
    run(make_plan(routes=("native",), backends=("nvshmem",)))
    spans = [(serial, serial + warmup + iterations) for *_, warmup, iterations, serial in world.log]
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))


def test_iterations_are_found_by_a_trial_that_does_not_count(world: Any) -> None:
    events = run(make_plan(iterations=None, backends=("nvshmem",), routes=("native",), sizes=(8,)))
    trial, *launches = world.log
    assert trial[3] == 0
    assert rows(events)[0]["iterations"] == sum(launch[4] for launch in launches) >= 20


def test_wrong_elements_of_all_ranks_and_launches_are_counted(world: Any) -> None:
    def behave(target: Window, words: Any) -> None:
        words[0] = 5

    world.behave = behave
    events = run(make_plan(backends=("nvshmem",), routes=("native",), sizes=(8,)))
    assert rows(events)[0]["wrong"] == 5 * 3 * 2


def test_bytes_written_past_the_last_message_are_wrong(world: Any) -> None:
    def behave(target: Window, words: Any) -> None:
        assert (target.memory[64:128] == _GUARD_BYTE).all()
        target.memory[64] = 0

    world.behave = behave
    events = run(make_plan(backends=("nvshmem",), routes=("native",), sizes=(8,)))
    assert rows(events)[0]["wrong"] == 3 * 2


def test_what_cannot_run_is_left_out_and_said(world: Any) -> None:
    world.refuse["nvshmem", "native"] = world.refuse["nvshmem", "direct"] = UnsupportedError("no heap")
    events = run(make_plan())
    assert [e["reason"] for e in events if e["event"] == "unavailable"] == ["no heap"] * 2
    assert {row["backend"] for row in rows(events)} == {"ibrc_proxy"}


def test_a_named_backend_that_cannot_run_is_an_error(world: Any) -> None:
    world.refuse["nvshmem", "native"] = world.refuse["nvshmem", "direct"] = UnsupportedError("no heap")
    with pytest.raises(UnsupportedError, match="nvshmem cannot run here: no heap"):
        run(make_plan(required=True))
    assert world.log == []


def test_one_route_of_a_named_backend_is_enough(world: Any) -> None:
    world.refuse["nvshmem", "direct"] = UnsupportedError("far apart")
    assert len(rows(run(make_plan(required=True)))) == 2 * 3


def test_nothing_that_can_run_is_an_error(world: Any) -> None:
    for backend in ("nvshmem", "ibrc_proxy"):
        for route in ("native", "direct"):
            world.refuse[backend, route] = UnsupportedError("no")
    with pytest.raises(UnsupportedError, match="gin info"):
        run(make_plan())


@pytest.mark.parametrize("error", [TimeoutError("late"), ConfigError("disagree")])
def test_a_failure_is_told_and_ends_the_sweep(world: Any, error: Exception) -> None:
    def behave(target: Window, words: Any) -> None:
        if len(world.log) > 12:
            raise error

    world.behave = behave
    events: list[dict[str, Any]] = []
    with pytest.raises(type(error)):
        sweep.run(make_plan(), events.append)
    assert events[-1] == {"event": "failure", "error": type(error).__name__, "message": str(error)}
    assert len(rows(events)) == 4
    assert all(comm.closed for comm in world.comms)


def test_the_automatic_route_is_reported_as_what_was_taken(world: Any) -> None:
    events = run(make_plan(routes=("auto",)))
    assert {row["route"] for row in rows(events)} == {"direct"}


def test_large_sweeps_ask_for_what_they_need(world: Any) -> None:
    run(
        make_plan(backends=("nvshmem",), routes=("native",), test="bandwidth", ctas=400, sizes=(8 << 20,), iterations=1)
    )
    settings = world.settings[0]
    assert settings["heap"] > 2 * 100 * (8 << 20)
    assert settings["signals"] >= 3 * 25
    assert settings["barriers"] >= 25
    assert set(settings) == {"timeout", "platform", "wire", "heap", "signals", "barriers"}


def test_only_rank_0_tells(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIN_RANK", "1")
    monkeypatch.setattr(Comm, "rank", 1)
    assert run(make_plan()) == []


def test_events_of_spawned_ranks_arrive_while_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def spawn(ranks: int, function: Callable[..., None], plan: Plan, path: str) -> None:
        import time

        with open(path, "a", encoding="utf-8") as file:
            file.write('{"event": "fir')
            file.flush()
            time.sleep(0.2)
            file.write('st"}\n')
            file.flush()
            deadline = time.monotonic() + 10
            while not seen and time.monotonic() < deadline:
                time.sleep(0.01)
            seen.append("spawn ends")
            file.write('{"event": "last"}\n')

    monkeypatch.setitem(vars(gin), "spawn", spawn)
    sweep.run_here(make_plan(), 2, lambda event: seen.append(event["event"]))
    assert seen == ["first", "spawn ends", "last"]
