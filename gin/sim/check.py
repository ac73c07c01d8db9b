"""`gin check`: one program under many seeds, until one breaks it; then the story of that run."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gin import _core
from gin.config import Config
from gin.errors import CompileError, ConfigError, Error, RangeError, RemoteError, TimeoutError, UnsupportedError
from gin.sim.crash import SPIN_ADVICE, Fault, Spin
from gin.sim.events import Trace
from gin.sim.explain import explain
from gin.sim.job import Deadlock, Job, Place, ProcessEnd, RankDied, failure_text
from gin.sim.launch import Script, run_script, write_errors
from gin.sim.options import CHECKS, simulation_options
from gin.sim.output import Outputs
from gin.sim.story import Story

__all__ = ["LATENESS", "TURNS", "Failure", "Plan", "Report", "check"]

Sink = Callable[[int, int], None]
TURNS = 20_000_000  # that a run may take
_KNOBS_OF_A_RUN = (
    "backend route on_peer_failure timeout contexts signals counters barriers heap check max_message ring_depth policy "
    "hostile model faults spin_limit"
)
_OF_A_RUN = [f"GIN_{name.upper()}" for name in _KNOBS_OF_A_RUN.split()]  # variables on which a run depends
_MOST_RECORDED = 300_000  # turns of a run that does not end
_OF_WAITING = ("assertion", "deadline", "deadlock")  # failures that a mistake in communication usually ends in
_SPIN_CAUSE = "a loop that never gives way"
_SPIN_RECORDED_MS = 1000  # that a thread may keep its turn once it is known to keep it for ever


@dataclass(frozen=True)
class Plan:
    """What to run.

    settings  GIN_* variables in force while the program runs
    turns     of threads, proxies and messages together, after which a run has failed: it does not come to an end
    """

    script: Script
    ranks: int
    first: int
    seeds: int
    settings: Mapping[str, str] = field(default_factory=dict)
    turns: int = TURNS

    def options(self, config: Config, seed: int) -> dict[str, Any]:
        """The simulation's, for one run."""
        return {**simulation_options(config, self.ranks, seed), "most_steps": self.turns, CHECKS: 1}

    @property
    def faulty(self) -> bool:
        """Whether faults were asked for: gin's own errors are then what the program is expected to end with."""
        return bool(self.settings.get("GIN_FAULTS"))

    def replay(self, seed: int, seeds: int = 1) -> str:
        """The command that repeats one run, or as many from that one on, with the variables that this one was given."""
        options = [*([f"--seeds {seeds}"] if seeds > 1 else []), f"--ranks {self.ranks}"]
        for name in ("backend", "policy", "faults", "model", "route"):
            if value := self.settings.get(f"GIN_{name.upper()}"):
                options.append(f"--{name} {shlex.quote(value)}")
        if self.turns != TURNS:
            options.append(f"--turns {self.turns}")
        rest = f" -- {shlex.join(self.script.arguments)}" if self.script.arguments else ""
        program = f"-m {self.script.module}" if self.script.module is not None else shlex.quote(self.script.path)
        variables = "".join(f"{name}={shlex.quote(os.environ[name])} " for name in _OF_A_RUN if self._is_given(name))
        return f"{variables}gin check {program} --seed {seed} {' '.join(options)}{rest}"

    def _is_given(self, variable: str) -> bool:
        return bool(os.environ.get(variable, "").strip()) and not self.settings.get(variable)


@dataclass
class Failure:
    """The first run that failed."""

    seed: int
    kind: str  # exception, assertion, deadline, deadlock, spin, fault or exit
    rank: int
    error: str  # class and message
    traceback: str
    of_gin: bool = False  # the error is one of gin's, which says what was wrong
    waiting: str = ""  # a deadlock's: every thread that waits, and what for
    output: str = ""
    story: Story | None = None
    guess: bool = False  # the failure is of a kind, and comes in a way, that the story may have nothing to do with
    story_seed: int = 0  # of the run that the story is of: another one where the first does not show its cause
    simplified: list[str] = field(default_factory=list)  # what the failure does not need
    steady: bool = True  # the second run of the seed did the same
    replay: str = ""
    trace: Trace | None = None

    def document(self) -> dict[str, Any]:
        """As JSON."""
        names = (
            "seed",
            "story_seed",
            "guess",
            "kind",
            "rank",
            "error",
            "traceback",
            "waiting",
            "output",
            "simplified",
            "steady",
            "replay",
        )
        fields = {name: getattr(self, name) for name in names}
        return {**fields, "story": self.story.document() if self.story else None}


@dataclass
class Report:
    """What came of a plan."""

    plan: Plan
    runs: int = 0
    operations: int = 0
    seconds: float = 0.0
    failure: Failure | None = None
    interrupted: bool = False  # before the last seed, or while a failure was looked into

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "schema": 1,
            "program": self.plan.script.path,
            "arguments": list(self.plan.script.arguments),
            "ranks": self.plan.ranks,
            "settings": dict(self.plan.settings),
            "first_seed": self.plan.first,
            "seeds": self.plan.seeds,
            "runs": self.runs,
            "operations": self.operations,
            "seconds": round(self.seconds, 3),
            "interrupted": self.interrupted,
            "failure": self.failure.document() if self.failure else None,
        }


def check(plan: Plan, sink: Sink = lambda done, total: None) -> Report:
    """Runs the seeds of a plan until one fails. `sink` is told how many are done. KeyboardInterrupt ends it early: the
    report is of the seeds that were done, and of the failure as far as it was looked into.

    Raises what cannot be blamed on a run: ConfigError, UnsupportedError, CompileError.
    """
    report = Report(plan)
    start = time.perf_counter()
    try:
        with _settings(plan.settings), contextlib.ExitStack() as stack:
            stack.callback(_core.set_last_words, "")
            _go_through(plan, Config.from_sources(), report, sink)
    except KeyboardInterrupt:
        report.interrupted = True
    report.seconds = time.perf_counter() - start
    return report


def _go_through(plan: Plan, config: Config, report: Report, sink: Sink) -> None:
    for seed in range(plan.first, plan.first + plan.seeds):
        run = _Run(plan, plan.options(config, seed))
        report.runs += 1
        report.operations += run.operations
        if run.failed is not None:
            if isinstance(run.failed.error, (CompileError, ConfigError, UnsupportedError)):
                raise run.failed.error
            report.failure = _failure(plan, seed, run)
            _explain(report.failure, plan, config, run)
            return
        sink(report.runs, plan.seeds)


class _Run:
    """One run of the program: what failed, if anything did."""

    def __init__(self, plan: Plan, options: Mapping[str, Any], *, trace: bool = False) -> None:
        self.job = Job(plan.ranks, options, trace=trace)
        _core.set_last_words(
            f"gin check: seed {self.job.seed} ended this process\nreplay: {plan.replay(self.job.seed)}\n"
        )
        outputs = Outputs(collect=True, label=True)
        run_script(plan.script, self.job, outputs)
        self.operations = sum(int(job.simulation.operations) for job in self.jobs())
        failed = [place for place in self.job.places if _counts(place, plan.faulty)]
        self.errors = [_text(place) for place in failed]
        self.failed: Place | None = min(failed, key=lambda place: _order(self.job, place), default=None)
        # The traceback of the failure stands by itself.
        write_errors([place for place in self.job.places if not self._told(place)], outputs)
        self.output = "".join(outputs.lines)
        ends = [_ADDRESS.sub("", _text(place)) for place in self.job.places]
        self.mark = (self.operations, int(self.job.simulation.now_ns), ends)
        self.traceback = failure_text(self.failed) if self.failed is not None else ""

    def _told(self, place: Place) -> bool:
        """Whether the failure says what this rank's error would; a deadlock is everybody's."""
        mine = self.failed.error if self.failed is not None else None
        return place is self.failed or (isinstance(mine, Deadlock) and isinstance(place.error, Deadlock))

    @property
    def endless(self) -> bool:
        """Whether it was given up though it went on."""
        return any(job.simulation.exhausted for job in self.jobs())

    def jobs(self) -> list[Job]:
        """The job and those that its programs spawned."""
        return [self.job, *self.job.children]


_ADDRESS = re.compile(r"\baddress 0x[0-9a-f]+")  # of a fault: the same run has its memory elsewhere the next time


def _text(place: Place) -> str:
    return "" if place.error is None else f"{type(place.error).__name__}: {place.error}"


def _counts(place: Place, faulty: bool) -> bool:
    """Whether a rank's end is a failure of the program. With faults, errors of gin that name them are what is expected."""
    error = place.error
    if error is None or isinstance(error, RankDied):
        return False
    if not faulty:
        return True
    return isinstance(error, (Deadlock, Spin, Fault, RangeError)) or not isinstance(error, Error)


def _order(job: Job, place: Place) -> tuple[bool, bool]:
    """Causes before consequences: the first that failed, and not by another's failure."""
    return isinstance(place.error, RemoteError), place is not job.first_error


def _kind(error: BaseException) -> str:
    match error:
        case Deadlock():
            return "deadlock"
        case Spin():
            return "spin"
        case Fault():
            return "fault"
        case TimeoutError():
            return "deadline"
        case AssertionError():
            return "assertion"
        case SystemExit():
            return "exit"
        case _:
            return "exception"


def _failure(plan: Plan, seed: int, run: _Run) -> Failure:
    """What is known of a failure from the run alone."""
    assert run.failed is not None and run.failed.error is not None
    place, error = run.failed, run.failed.error
    failure = Failure(seed, _kind(error), place.rank, _text(place), run.traceback, output=run.output)
    failure.waiting = error.waiting if isinstance(error, Deadlock) else ""
    failure.of_gin = isinstance(error, (Error, ProcessEnd))
    failure.replay = plan.replay(seed)
    return failure


def _explain(failure: Failure, plan: Plan, config: Config, run: _Run) -> None:
    """Runs the seed again, recorded, and finds out what the failure needs and what explains it."""
    assert run.failed is not None and run.failed.error is not None
    error, seed = run.failed.error, failure.seed
    options = plan.options(config, seed)
    if run.endless:
        _tell(failure, _Run(plan, {**options, "most_steps": min(plan.turns, _MOST_RECORDED)}, trace=True), seed)
        return
    if isinstance(error, Spin):
        limit = min(options["spin_limit_ms"] or _SPIN_RECORDED_MS, _SPIN_RECORDED_MS)
        recorded = _Run(plan, {**options, "spin_limit_ms": limit}, trace=True)
        failure.trace, failure.story, failure.story_seed = _trace_of(recorded), Story(_SPIN_CAUSE, SPIN_ADVICE), seed
        return
    again = _Run(plan, options, trace=True)
    failure.steady = again.mark == run.mark
    if failure.kind not in _OF_WAITING and _fails_alike(failure, _Run(plan, {**options, **_PROMPT})):
        failure.simplified = [*(what for what, _ in _TAMER), LATENESS]
        failure.guess = True
        _tell(failure, again, seed)
        return
    failure.simplified, simpler = _simplify(plan, options, run)
    _tell(failure, simpler or again, seed)
    others = range(seed + 1, seed + 1 + _OTHER_RUNS)
    for other in others if failure.story is None or failure.story.weight <= 0 else ():
        similar = _Run(plan, plan.options(config, other), trace=True)
        if (
            similar.failed is not None
            and similar.failed.error is not None
            and _kind(similar.failed.error) == failure.kind
        ):
            _tell(failure, similar, other)


def _fails_alike(failure: Failure, run: _Run) -> bool:
    """Whether a rank of another run has the failure's error. Messages of gin name places and times, which differ."""
    if failure.steady and not failure.of_gin:
        return failure.error in run.errors
    return failure.error.split(":")[0] in [error.split(":")[0] for error in run.errors]


def _tell(failure: Failure, run: _Run, seed: int) -> None:
    """Takes the story that a run tells, if it is better than the one there is."""
    trace = _trace_of(run)
    rank = run.failed.rank if run.failed is not None else failure.rank
    story = explain(trace, rank, last_resorts=not failure.guess) if trace is not None else None
    if failure.trace is None:
        failure.trace = trace
    if story is not None and story.weight < 0 and failure.of_gin:
        return
    if story is not None and (failure.story is None or story.weight > failure.story.weight):
        failure.trace, failure.story, failure.story_seed = trace, story, seed


LATENESS = "late delivery"
_PROMPT = {"hostile": 0}  # nothing is delayed, torn or overtaken
_OTHER_RUNS = 30  # in which a cause is looked for that the first run does not show

# Ways in which a run is made tamer, in the order in which they are tried.
_TAMER: tuple[tuple[str, dict[str, Any]], ...] = (
    ("stalls of ranks, blocks and proxies", {"stalls": 0}),
    ("poison", {"poison": 0}),
)


def _simplify(plan: Plan, options: Mapping[str, Any], run: _Run) -> tuple[list[str], _Run | None]:
    """What can be left out with the same seed and the program still fails in the same way; the tamest such run, recorded."""
    assert run.failed is not None and run.failed.error is not None
    left_out: list[str] = []
    tamest: _Run | None = None
    tamed = dict(options)
    for what, change in _TAMER:
        attempt = _Run(plan, {**tamed, **change}, trace=True)
        error = attempt.failed.error if attempt.failed is not None else None
        if error is not None and _kind(error) == _kind(run.failed.error):
            tamed |= change
            left_out.append(what)
            tamest = attempt
    return left_out, tamest


def _trace_of(run: _Run) -> Trace | None:
    """The events of the job that did the most, with what its communicators say of signals."""
    job = max(run.jobs(), key=lambda job: int(job.simulation.operations))
    if not job.layouts:
        return None
    return Trace(job.simulation.events(), job.layouts, job.windows)


class _settings:  # noqa: N801 - a context manager
    """GIN_* variables in force in a block; the platform is sim there."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = {**settings, "GIN_PLATFORM": "sim"}

    def __enter__(self) -> None:
        self._before = {name: os.environ.get(name) for name in self._settings}
        os.environ.update(self._settings)

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
