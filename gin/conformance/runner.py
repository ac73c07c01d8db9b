"""Runs a plan: job by job, in fresh processes after each failure, whatever the ranks do."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gin
from gin.conformance.plan import Job, Plan
from gin.conformance.rank import LOG, STACKS, STOP, work
from gin.conformance.results import FAIL, Result
from gin.errors import Error
from gin.scratch import scratch_folder

__all__ = ["Event", "Launch", "run", "start_here"]

Event = dict[str, Any]

POLL_SECONDS = 0.02

Launch = Callable[[Job, str], None]
"""Runs `work(job, folder)` on every rank and returns when all have ended. Raises what went wrong."""


def start_here(job: Job, folder: str) -> None:
    """Starts a job's ranks on this machine: simulated ones together in a process of their own."""
    if job.platform == "sim":
        gin.spawn(1, _simulate, job, folder, platform="host")
    else:
        gin.spawn(job.ranks, work, job, folder)


def _simulate(job: Job, folder: str) -> None:
    gin.spawn(job.ranks, work, job, folder, platform="sim")


def run(plan: Plan, launch: Launch = start_here, tell: Callable[[Job, Event], None] | None = None) -> Iterator[Result]:
    """The results of a plan's cases, as they come. What is not asked for to the end is stopped.

    launch  how ranks are started
    tell    told of everything that a job logs
    """
    yield from plan.skipped()
    for job in plan.jobs():
        left = job
        while left.cases:
            turn = _Turn(left, launch, tell or _nobody)
            yield from turn.results()
            left = left.without(turn.done)


def _nobody(job: Job, event: Event) -> None:
    del job, event


@dataclass
class _Turn:
    """One set of processes."""

    job: Job
    launch: Launch
    tell: Callable[[Job, Event], None]
    done: set[str] = field(default_factory=set)
    _running: str = ""
    _error: BaseException | None = None

    def results(self) -> Iterator[Result]:
        """What the job logs, then what became of the case during which it ended, if any."""
        with scratch_folder("conformance") as folder:
            log = folder / LOG
            log.touch()
            thread = threading.Thread(target=self._launched, args=(str(folder),), name="gin-conformance")
            thread.start()
            try:
                for event in _follow(log, thread):
                    self.tell(self.job, event)
                    yield from self._heard(event)
            finally:
                (folder / STOP).touch()
                thread.join()
            yield from self._ended(str(folder))

    def _launched(self, folder: str) -> None:
        try:
            self.launch(self.job, folder)
        except BaseException as error:
            self._error = error

    def _heard(self, event: Event) -> Iterator[Result]:
        if event["event"] == "begin":
            self._running = event["case"]
        elif event["event"] == "result":
            result = Result(**event["result"])
            self._running = ""
            self.done.add(result.case)
            yield result

    def _ended(self, folder: str) -> Iterator[Result]:
        """Blames what nobody has told of on the case that was running; on all that are left when none was."""
        if self._error is None and self.done:
            return
        blamed = [case for case in self.job.cases if case.name == self._running]
        if not blamed and not self.done:
            blamed = list(self.job.cases)
        why = _explain(self._error, folder)
        for case in blamed:
            self.done.add(case.name)
            yield self.job.result(case, FAIL, why)
        if not blamed:
            last = next(case for case in self.job.cases if case.name in self.done)
            yield self.job.result(last, FAIL, f"after the last case, at the end of the processes: {why}")


def _follow(path: Path, thread: threading.Thread) -> Iterator[Event]:
    """The lines that are written to a file until a thread has ended."""
    rest = ""
    with open(path, encoding="utf-8") as file:
        while True:
            last = not thread.is_alive()
            *lines, rest = (rest + file.read()).split("\n")
            for line in lines:
                yield json.loads(line)
            if last:
                return
            if not lines:
                time.sleep(POLL_SECONDS)


def _explain(error: BaseException | None, folder: str) -> str:
    """How processes ended that said nothing of a result."""
    late = []
    for path in sorted(Path(folder).glob(f"{STACKS}.*")):
        stacks = path.read_text(errors="replace")
        if stacks:
            late.append(f"rank {path.suffix[1:]} did not end in time; it stood at {_innermost(stacks)}")
    if late:
        return "; ".join(late)
    if error is None:
        return "the ranks ended without a result"
    kind = "" if isinstance(error, Error) else f"{type(error).__name__}: "
    return f"{kind}{error}".split("\n")[0]


def _innermost(stacks: str) -> str:
    """The innermost places of the main thread in what faulthandler writes."""
    threads = stacks.split("\n\n")
    main = next((text for text in reversed(threads) if "most recent call first" in text), stacks)
    places = [line.strip() for line in main.splitlines() if line.strip().startswith("File")]
    short = [place.replace("File ", "").replace('"', "").rpartition("/")[2] for place in places[:3]]
    return " < ".join(short) or "no Python frame"
