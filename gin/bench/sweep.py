"""Runs a plan: opens every backend and route, then goes through the sizes with the backends in turn."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gin.ranks
from gin.bench import binding, conditions, gpus, results
from gin.bench.lanes import signals_for
from gin.bench.measure import Session, Taken, channels_of, heap_bytes, share
from gin.bench.plan import RAW, Plan, Shape
from gin.config import Config
from gin.errors import ConfigError, Error, OutOfMemoryError, UnsupportedError
from gin.layout import barrier_rounds
from gin.scratch import scratch_folder
from gin.sim import simulated

Event = dict[str, Any]
Sink = Callable[[Event], None]
"""What happened, told by rank 0. `event` is one of
unavailable  backend, route, reason
begin        environment, emulated, total (rows to come)
point        shape, bytes: what is measured next
row          row
end          conditions: what disturbed the machine meanwhile
failure      error (class name), message
"""


def run(plan: Plan, sink: Sink) -> None:
    """The whole plan, on this rank. Collective. `sink` is called on rank 0 alone.

    Raises UnsupportedError when a named backend, or every backend, cannot run here, and what a row's failure raises.
    """
    ranks = gin.ranks.discover()
    tell: Sink = sink if ranks.rank == 0 else _nobody
    with contextlib.ExitStack() as stack:
        try:
            _require_memory(plan, ranks.size, ranks.local_size)
            sessions = _open(plan, ranks.size, stack, tell)
            points = _points(plan, sessions, tell)
            clock = sessions[0].clock()
            cores, count = _cores(sessions[0].comm)
            _require_binding(plan, cores)
            tell(_begin(sessions, points, clock, cores))
            on_gpus = sessions[0].comm.platform == "cuda"
            before = conditions.read(with_gpus=on_gpus)
            with binding.bound_to(cores[sessions[0].comm.rank] if cores else ()):
                for shape, nbytes, able in points:
                    tell({"event": "point", "shape": str(shape), "bytes": nbytes})
                    _measure(plan, able, shape, nbytes, clock["resolution_ns"], tell)
            told = conditions.merge(share(sessions[0].comm, conditions.since(before, with_gpus=on_gpus)))
            tell({"event": "end", "conditions": {**told, "cores": max(count, told["cores"])}})
        except Error as error:
            tell({"event": "failure", "error": type(error).__name__, "message": str(error)})
            raise


def run_here(plan: Plan, ranks: int, sink: Sink) -> None:
    """The plan on `ranks` processes started on this machine; `sink` is called in this process as things happen.

    Raises what the ranks raised, as gin.spawn does.
    """
    import gin

    with scratch_folder("bench") as folder:
        events = folder / "events"
        events.touch()
        with _following(events, sink):
            gin.spawn(ranks, _spawned, plan, str(events), platform=plan.platform, env=_surroundings(plan))


def _surroundings(plan: Plan) -> dict[str, str | None]:
    """Variables for the ranks: simulated ones are timed by the network's model alone, unless it is asked for otherwise."""
    simulated = (plan.platform or os.environ.get("GIN_PLATFORM", "")).strip().lower() == "sim"
    return {"GIN_HOSTILE": os.environ.get("GIN_HOSTILE", "0")} if simulated else {}


def _spawned(plan: Plan, events: str) -> None:
    with open(events, "a", encoding="utf-8") as file:

        def write(event: Event) -> None:
            file.write(json.dumps(event) + "\n")
            file.flush()

        run(plan, write)


@contextlib.contextmanager
def _following(path: Path, sink: Sink) -> Any:
    """Calls `sink` for each event that is written to `path`, from a thread of its own, until the block ends."""
    done = threading.Event()
    failures: list[Exception] = []

    def follow() -> None:
        try:
            read()
        except Exception as error:
            failures.append(error)

    def read() -> None:
        rest = ""
        with open(path, encoding="utf-8") as file:
            while True:
                last = done.is_set()
                *lines, rest = (rest + file.read()).split("\n")
                for line in lines:
                    sink(json.loads(line))
                if last:
                    return
                done.wait(0.05)

    thread = threading.Thread(target=follow, name="gin-bench-events")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    if failures:
        raise failures[0]


def _nobody(event: Event) -> None:
    del event


def _settings(plan: Plan, ranks: int) -> dict[str, Any]:
    """What a communicator of this plan needs beyond the defaults."""
    wanted: dict[str, Any] = {"timeout": plan.timeout, "platform": plan.platform, "wire": plan.wire}
    config = Config.from_sources(**wanted)
    shapes = list(plan.shapes())
    contexts = max(shape.contexts or config.contexts for shape in shapes)
    channels = [channels_of(shape, shape.contexts or config.contexts) for shape in shapes]
    barriers = max(config.barriers, *channels)
    words = barriers * barrier_rounds(ranks)
    signals = max(signals_for(channel, words, move=config.platform != "sim") for channel in channels)
    needs = {
        "contexts": contexts,
        "signals": signals,
        "barriers": barriers,
        "heap": heap_bytes(plan, ranks) + 16 * contexts * (signals + words),
    }
    for name, need in needs.items():
        if need > getattr(config, name):
            wanted[name] = need
    return wanted


def _require_memory(plan: Plan, size: int, local_size: int) -> None:
    """Raises OutOfMemoryError where the windows of all communicators do not fit on this host together.

    Each would fit alone: they take memory where they are written first, when nobody is asked any more.
    """
    from gin import _core

    platform = Config.from_sources(platform=plan.platform).platform
    if platform in ("cuda", "sim") or simulated():
        return
    communicators = len(plan.backends) * len(plan.routes)
    need = heap_bytes(plan, size) * communicators * local_size
    have, limit = _core.available_memory()
    if need > have:
        raise OutOfMemoryError(
            f"the windows of {local_size} ranks and {communicators} backends and routes take {need} bytes together, and "
            f"{have} are available by {limit}; measure smaller messages, or fewer backends or routes at once"
        )


def _open(plan: Plan, ranks: int, stack: contextlib.ExitStack, tell: Sink) -> list[Session]:
    import gin

    settings = _settings(plan, ranks)
    sessions: list[Session] = []
    told: list[str] = []
    for backend in plan.backends:
        reasons: list[str] = []
        opened = len(sessions)
        for route in plan.routes:
            try:
                comm = gin.init(backend=backend, route=route, **settings)
            except UnsupportedError as error:
                reasons.append(str(error))
                tell({"event": "unavailable", "backend": backend, "route": route, "reason": str(error)})
                continue
            stack.callback(comm.close)
            sessions.append(Session(comm, plan, backend, route))
            if plan.baseline and comm.platform == "cuda" and backend in RAW and sessions[-1].route == "native":
                sessions.append(sessions[-1].raw())
        if plan.required and len(sessions) == opened:
            raise UnsupportedError(f"backend {backend} cannot run here: {reasons[0]}")
        told += reasons
    if not sessions:
        why = f": {told[0]}" if len(set(told)) == 1 else "; `gin info` says what each one lacks"
        raise UnsupportedError(f"no backend can run here{why}")
    return sessions


Point = tuple[Shape, int, list[Session]]


def _points(plan: Plan, sessions: list[Session], tell: Sink) -> list[Point]:
    """What there is to measure, and who can. Points of which every row was measured before are left out."""
    for shape in {shape.operation.name: shape for shape in plan.shapes()}.values():
        for session in sessions:
            reason = session.lacks(shape.operation)
            if reason:
                where = {"backend": session.backend, "route": session.route}
                tell({"event": "unavailable", **where, "reason": f"{shape.operation.name}: {reason}"})
    for shape in plan.shapes():
        sessions[0].require_room(shape)
    comm = sessions[0].comm
    if plan.place not in (None, (comm.platform, comm.config.wire)):
        raise ConfigError(
            f"the results so far are of platform and wire {plan.place}, these would be of "
            f"{(comm.platform, comm.config.wire)}; give --platform and --wire as before"
        )
    if plan.gpus is not None and comm.platform == "cuda":
        here = tuple(map(str, gpus.facts().get("gpus", ())))
        if here != plan.gpus:
            raise ConfigError(f"the results so far are of the GPUs {', '.join(plan.gpus)}, here are {', '.join(here)}")
    points = []
    possible = 0
    for shape, nbytes in plan.points():
        able = [session for session in sessions if session.lacks(shape.operation) is None]
        possible += len(able)
        if any(session.identity(shape, nbytes) not in plan.done for session in able):
            points.append((shape, nbytes, able))
    if not possible:
        raise UnsupportedError(
            f"none of these backends can do what {plan.test} of {', '.join(plan.operations)} measures"
        )
    return points


def _cores(comm: Any) -> tuple[list[binding.Cores], int]:
    """Each rank's cores to measure on, none where they do not matter or cannot be had; how many all have. Collective."""
    if comm.platform == "sim":
        return [], 0
    places = [(host, cores) for host, cores in share(comm, binding.here())]
    found = [binding.share_for(rank, places) for rank in range(len(places))]
    return found if all(found) else [], len({(host, core) for host, cores in places for core in cores})


def _require_binding(plan: Plan, cores: Sequence[binding.Cores]) -> None:
    """Raises ConfigError where the results so far are of ranks on other cores."""
    here = tuple(binding.text(own) for own in cores)
    if plan.binding is not None and plan.binding != here:
        raise ConfigError(
            f"the results so far are of ranks on the cores {'; '.join(plan.binding)}, these would be on {'; '.join(here)}; "
            "start them as before, or measure into a new file"
        )


def _begin(
    sessions: list[Session], points: list[Point], clock: dict[str, int], cores: Sequence[binding.Cores]
) -> Event:
    comm = sessions[0].comm
    env = {**results.environment(), "platform": comm.platform, "wire": comm.config.wire, "clock": clock}
    if cores:
        env["binding"] = [binding.text(own) for own in cores]
    if comm.platform == "cuda":
        env |= gpus.facts()
    return {
        "event": "begin",
        "environment": env,
        "emulated": comm.platform != "cuda",
        "total": sum(len(able) for _, _, able in points),
    }


def _measure(plan: Plan, sessions: list[Session], shape: Shape, nbytes: int, resolution_ns: int, tell: Sink) -> None:
    """One size: every session's iterations are cut into launches, and the sessions take turns.

    Ranks 0 and 1 take turns in leading, so that either end is timed.
    """
    settled = [session.settle(shape, nbytes) for session in sessions]
    shares = [plan.split(found.iterations) for found in settled]
    taken = [Taken(warmup=found.warmup, steady=found.steady) for found in settled]
    for turn in range(plan.rounds):
        for session, found, parts, into in zip(sessions, settled, shares, taken, strict=True):
            if turn < len(parts):
                warmup = plan.warmups(nbytes)
                session.launch(shape, nbytes, warmup, parts[turn], into, turn=turn, work=found.work)
    for session, into in zip(sessions, taken, strict=True):
        row = session.row(shape, nbytes, into, resolution_ns)
        if row is not None:
            tell({"event": "row", "row": row})
