"""Runs a plan: opens every backend and route, then goes through the sizes with the backends in turn."""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gin.ranks
from gin.bench import results
from gin.bench.measure import Session, Taken, heap_bytes
from gin.bench.plan import Plan
from gin.config import Config
from gin.errors import Error, UnsupportedError

Event = dict[str, Any]
Sink = Callable[[Event], None]
"""What happened, told by rank 0. `event` is one of
unavailable  backend, route, reason
begin        environment, emulated, total (rows to come)
row          row
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
            sessions = _open(plan, ranks.size, stack, tell)
            tell(_begin(plan, sessions))
            for nbytes in plan.sizes:
                _measure(plan, sessions, nbytes, tell)
        except Error as error:
            tell({"event": "failure", "error": type(error).__name__, "message": str(error)})
            raise


def run_here(plan: Plan, ranks: int, sink: Sink) -> None:
    """The plan on `ranks` processes started on this machine; `sink` is called in this process as things happen.

    Raises what the ranks raised, as gin.spawn does.
    """
    import gin

    with tempfile.TemporaryDirectory(prefix="gin-bench-") as folder:
        events = Path(folder) / "events"
        events.touch()
        with _following(events, sink):
            gin.spawn(ranks, _spawned, plan, str(events))


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

    def follow() -> None:
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


def _nobody(event: Event) -> None:
    del event


def _settings(plan: Plan, ranks: int) -> dict[str, Any]:
    """What a communicator of this plan needs beyond the defaults."""
    wanted: dict[str, Any] = {"timeout": plan.timeout, "platform": plan.platform, "wire": plan.wire}
    config = Config.from_sources(**wanted)
    blocks = -(-plan.ctas // config.contexts)  # that share a context
    for name, need in (("signals", 3 * blocks), ("barriers", blocks), ("heap", heap_bytes(plan, ranks))):
        if need > getattr(config, name):
            wanted[name] = need
    return wanted


def _open(plan: Plan, ranks: int, stack: contextlib.ExitStack, tell: Sink) -> list[Session]:
    import gin

    settings = _settings(plan, ranks)
    sessions: list[Session] = []
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
        if plan.required and len(sessions) == opened:
            raise UnsupportedError(f"backend {backend} cannot run here: {reasons[0]}")
    if not sessions:
        raise UnsupportedError("no backend can run here; `gin info` says what each one lacks")
    return sessions


def _begin(plan: Plan, sessions: list[Session]) -> Event:
    comm = sessions[0].comm
    env = {**results.environment(), "platform": comm.platform, "wire": comm.config.wire}
    return {
        "event": "begin",
        "environment": env,
        "emulated": comm.platform != "cuda",
        "total": len(sessions) * len(plan.sizes),
    }


def _measure(plan: Plan, sessions: list[Session], nbytes: int, tell: Sink) -> None:
    """One size: every session's iterations are cut into launches, and the sessions take turns."""
    warmup = plan.warmups(nbytes)
    shares = [plan.split(session.calibrate(nbytes)) for session in sessions]
    taken = [Taken() for _ in sessions]
    for turn in range(plan.rounds):
        for session, parts, into in zip(sessions, shares, taken, strict=True):
            if turn < len(parts):
                session.launch(nbytes, warmup, parts[turn], into)
    for session, into in zip(sessions, taken, strict=True):
        row = session.row(nbytes, into)
        if row is not None:
            tell({"event": "row", "row": row})
