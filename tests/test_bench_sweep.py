"""How a sweep goes through backends, routes and sizes, on communicators that only pretend."""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gin
from gin.bench import binding, sweep
from gin.bench.measure import _GUARD_BYTE
from gin.bench.plan import Plan
from gin.bench.resume import identity_of
from gin.errors import ConfigError, TimeoutError, UnsupportedError


class Window:
    address = 0x7000

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
        self.config = SimpleNamespace(wire="shm", contexts=4)
        self.capabilities = {"atomics": backend != "nccl_gin", "quiet": True}
        self._exchange = SimpleNamespace(gather=lambda tag, make: [make(), make()])
        self.closed = False
        self.places: list[tuple[int, ...]] = []  # of each launch: offsets and signals

    def routes(self) -> list[str]:
        return ["direct", self.route if self.route != "auto" else "direct"]

    def window(self, nbytes: int) -> Window:
        return Window(nbytes)

    def compile(self, source: str, name: str) -> Any:
        def launch(source: Window, target: Window, out: Window, plan: bytes, *, grid: int, block: int) -> None:
            numbers = struct.unpack("<4Q10I", plan)
            nbytes, _, serial, _, _, warmup, iterations, _, leader, _ = numbers[:10]
            words = out.array("uint64")
            assert not words.any()
            words[9 : 9 + 2 * grid * iterations : 2] = 4000
            if name != "clock_readings":
                self.log.append((self.backend, self.route, nbytes, leader, warmup, iterations, serial))
                self.places.append(numbers[10:])
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
    order = [(backend, route, nbytes, leader) for backend, route, nbytes, leader, *_ in world.log]
    pairs = [(b, r) for b in ("nvshmem", "ibrc_proxy") for r in ("native", "direct")]
    assert order == [(b, r, n, turn % 2) for n in (8, 16) for turn in range(6) for b, r in pairs]
    assert events[0]["event"] == "begin"
    assert events[0]["total"] == 8
    assert events[0]["emulated"] is True
    assert events[0]["environment"]["clock"]["resolution_ns"] == 4000
    assert events[-1]["event"] == "end"
    assert [(r["backend"], r["route"], r["bytes"]) for r in rows(events)] == [
        (b, r, n) for n in (8, 16) for b, r in pairs
    ]
    assert {(r["iterations"], r["warmup"], r["median_us"], r["wrong"]) for r in rows(events)} == {(6, 12, 2.0, 0)}
    assert {r["steady"] for r in rows(events)} == {None}
    assert all(comm.closed for comm in world.comms)


def test_no_two_launches_of_a_communicator_share_a_message(world: Any) -> None:
    run(make_plan(routes=("native",), backends=("nvshmem",), iterations=None, warmup=None))
    spans = [(serial, serial + warmup + iterations) for *_, warmup, iterations, serial in world.log]
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))


def test_iterations_are_found_by_launches_that_do_not_count(world: Any) -> None:
    (row,) = rows(run(make_plan(iterations=None, backends=("nvshmem",), routes=("native",), sizes=(8,))))
    trial, *launches = world.log
    assert trial[4] == 0
    assert row["iterations"] == sum(launch[5] for launch in launches) >= 20


def test_warm_up_goes_on_until_two_launches_agree(world: Any) -> None:
    times = iter([90_000, 30_000, 10_000, 9_500])

    def behave(target: Window, words: Any) -> None:
        words[9::2] = np.where(words[9::2] > 0, next(times, 9_500), 0)

    world.behave = behave
    (row,) = rows(run(make_plan(warmup=None, backends=("nvshmem",), routes=("native",), sizes=(8,), iterations=20)))
    assert row["steady"] is True
    before = [launch[5] for launch in world.log[:4]]
    assert [launch[4] for launch in world.log[:5]] == [0, 0, 0, 0, 10]
    assert row["warmup"] == sum(before) + 10 * 10
    assert row["max_us"] == 4.75


def test_what_never_settles_is_measured_and_said(world: Any) -> None:
    times = itertools.count(1)

    def behave(target: Window, words: Any) -> None:
        words[9::2] = np.where(words[9::2] > 0, 1000 * 2 ** (next(times) % 9), 0)

    world.behave = behave
    (row,) = rows(run(make_plan(warmup=None, backends=("nvshmem",), routes=("native",), sizes=(8,))))
    assert row["steady"] is False


def test_operations_that_a_backend_lacks_are_left_out_and_said(world: Any) -> None:
    plan = make_plan(backends=("nvshmem", "nccl_gin"), routes=("native",), operations=("put_signal", "atomic"))
    events = run(plan)
    assert [e["reason"] for e in events if e["event"] == "unavailable"] == [
        "atomic: backend nccl_gin lacks the capability atomics"
    ]
    assert [(r["op"], r["backend"], r["bytes"]) for r in rows(events)] == [
        *(("put_signal", b, n) for n in (8, 16) for b in ("nvshmem", "nccl_gin")),
        ("atomic", "nvshmem", 8),
    ]
    assert next(e for e in events if e["event"] == "begin")["total"] == 5
    with pytest.raises(UnsupportedError, match="none of these backends"):
        run(make_plan(backends=("nccl_gin",), operations=("atomic",)))


def test_computation_takes_no_simulated_time(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Comm, "platform", "sim")
    events: list[dict[str, Any]] = []
    with pytest.raises(UnsupportedError, match="none of these backends"):
        sweep.run(make_plan(test="overlap"), events.append)
    assert "takes no simulated time" in events[0]["reason"]


def test_what_was_measured_before_is_not_measured_again(world: Any) -> None:
    done = frozenset(identity_of(row) for row in rows(run(make_plan())) if row["bytes"] == 8)
    world.log.clear()
    events = run(make_plan(done=done, place=("host", "shm")))
    assert {row["bytes"] for row in rows(events)} == {16}
    assert events[0]["total"] == 4
    assert {launch[2] for launch in world.log} == {16}
    few = frozenset(list(done)[:3])  # one backend of the size is missing: all take turns again
    assert len(rows(run(make_plan(done=few, place=("host", "shm"))))) == 8


def test_a_sweep_is_not_continued_elsewhere(world: Any) -> None:
    with pytest.raises(ConfigError, match="--platform and --wire as before"):
        run(make_plan(place=("cuda", "shm")))


def test_wrong_elements_of_all_ranks_and_launches_are_counted(world: Any) -> None:
    def behave(target: Window, words: Any) -> None:
        words[0] = 5

    world.behave = behave
    events = run(make_plan(backends=("nvshmem",), routes=("native",), sizes=(8,)))
    assert rows(events)[0]["wrong"] == 5 * 6 * 2


def test_bytes_written_past_the_last_message_are_wrong(world: Any) -> None:
    def behave(target: Window, words: Any) -> None:
        end = world.comms[0].places[-1][0] + 64
        assert (target.memory[end : end + 64] == _GUARD_BYTE).all()
        target.memory[end] = 0

    world.behave = behave
    events = run(make_plan(backends=("nvshmem",), routes=("native",), sizes=(8,)))
    assert rows(events)[0]["wrong"] == 6 * 2


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
            world.refuse[backend, route] = UnsupportedError("no GPU")
    with pytest.raises(UnsupportedError, match="no backend can run here: no GPU"):
        run(make_plan())
    world.refuse["nvshmem", "native"] = UnsupportedError("no library")
    with pytest.raises(UnsupportedError, match="gin info"):
        run(make_plan())


@pytest.mark.parametrize("error", [TimeoutError("late"), ConfigError("disagree")])
def test_a_failure_is_told_and_ends_the_sweep(world: Any, error: Exception) -> None:
    def behave(target: Window, words: Any) -> None:
        if len(world.log) > 24:
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
        make_plan(
            backends=("nvshmem",), routes=("native",), test="bandwidth", ctas=(400,), sizes=(8 << 20,), iterations=1
        )
    )
    settings = world.settings[0]
    assert settings["heap"] > 2 * 100 * (8 << 20)
    assert settings["signals"] >= 3 * 25
    assert settings["barriers"] >= 25
    assert set(settings) == {"timeout", "platform", "wire", "heap", "signals", "barriers"}


def test_launches_move_over_places_that_all_backends_share(world: Any) -> None:
    run(make_plan(sizes=(8, 1 << 20), iterations=64 * 20))
    small = world.comms[0].places[:64]
    assert len({place[:2] for place in small}) == len({place[2:] for place in small}) == 32
    assert small[::2] == small[1::2]
    large = world.comms[0].places[64:]
    assert {place[:2] for place in large} == {(0, 0)}
    assert all(comm.places == world.comms[0].places for comm in world.comms)
    run(make_plan(operations=("get",), iterations=64 * 20))
    assert all(place[0] == place[1] and place[2] == place[3] for place in world.comms[-1].places)


def test_ranks_measure_on_their_share_of_the_cores(world: Any) -> None:
    before = os.sched_getaffinity(0)
    cores = binding.share_for(0, [binding.here()] * 2)
    seen: list[set[int]] = []
    world.behave = lambda target, words: seen.append(os.sched_getaffinity(0))
    events = run(make_plan())
    assert seen == [set(cores)] * 48
    assert os.sched_getaffinity(0) == before
    environment = events[0]["environment"]
    assert environment["binding"] == [binding.text(binding.share_for(rank, [binding.here()] * 2)) for rank in (0, 1)]
    assert environment["cores"] == len(before) == events[-1]["conditions"]["cores"]


def test_a_sweep_that_fails_leaves_the_cores_as_they_were(world: Any) -> None:
    before = os.sched_getaffinity(0)

    def behave(target: Window, words: Any) -> None:
        raise TimeoutError("late")

    world.behave = behave
    with pytest.raises(TimeoutError):
        run(make_plan())
    assert os.sched_getaffinity(0) == before


def test_simulated_ranks_are_not_bound(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Comm, "platform", "sim")
    before = os.sched_getaffinity(0)
    world.behave = lambda target, words: seen.append(os.sched_getaffinity(0))
    seen: list[set[int]] = []
    events = run(make_plan())
    assert seen == [before] * 48
    assert "binding" not in events[0]["environment"]


def test_only_rank_0_tells(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIN_RANK", "1")
    monkeypatch.setattr(Comm, "rank", 1)
    assert run(make_plan()) == []


def test_events_of_spawned_ranks_arrive_while_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def spawn(ranks: int, function: Callable[..., None], plan: Plan, path: str, **settings: Any) -> None:
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


def test_events_that_cannot_be_taken_are_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    def spawn(ranks: int, function: Callable[..., None], plan: Plan, path: str, **settings: Any) -> None:
        with open(path, "a", encoding="utf-8") as file:
            file.write('{"event": "row"}\n')

    def take(event: sweep.Event) -> None:
        raise OSError("the terminal has gone")

    monkeypatch.setitem(vars(gin), "spawn", spawn)
    with pytest.raises(OSError, match="gone"):
        sweep.run_here(make_plan(), 2, take)


def test_a_sweep_is_not_continued_on_other_gpus(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Comm, "platform", "cuda")
    monkeypatch.setattr(sweep.gpus, "facts", lambda: {"gpus": ["H200", "H200"]})
    with pytest.raises(ConfigError, match="of the GPUs A100, here are H200, H200"):
        run(make_plan(place=("cuda", "shm"), gpus=("A100",)))
    assert rows(run(make_plan(place=("cuda", "shm"), gpus=("H200", "H200"))))
