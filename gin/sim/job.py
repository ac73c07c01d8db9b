"""A simulated job: its ranks' programs are greenlets of one OS thread, and one loop decides who goes on."""

from __future__ import annotations

import atexit
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np
from greenlet import GreenletExit, getcurrent, greenlet

from gin import _core
from gin.config import format_ranks
from gin.errors import ConfigError, Error, KernelError, TimeoutError
from gin.ranks import discover
from gin.sim.events import Layout, WindowPlace
from gin.sim.options import CHECKS, HOST, AllocationFault, simulation_options

if TYPE_CHECKING:
    import numpy.typing as npt

    from gin.config import Config
    from gin.sim.store import Meeting

__all__ = ["Deadlock", "Job", "Place", "ProcessEnd", "RankDied", "current", "current_or_solo"]

_STALL_CHANCE = 0.3  # that kernels go on for a while before a rank's program does
_MOST_TURNS, _LONGEST_STALL = 12, 20  # powers of two of scheduler turns, and of virtual nanoseconds


class Deadlock(KernelError):
    """Nothing in the job can move any more, and no wait has a deadline. `waiting` names every thread that waits."""

    def __init__(self, message: str, waiting: str) -> None:
        super().__init__(f"{message}\n{waiting}" if waiting else message)
        self.waiting = waiting


class ProcessEnd(SystemExit):
    """A rank's program called os._exit."""


class RankDied(GreenletExit):
    """Ends the program of a rank that the simulation has killed."""


@dataclass(eq=False)
class Place:
    """One rank of a job: its program, and what it waits for."""

    job: Job
    rank: int
    task: greenlet | None = None  # where the program goes on
    waits: str = ""  # what it waits for; empty while it can run
    module: ModuleType | None = None  # its __main__
    imported: dict[str, ModuleType] = field(default_factory=dict)  # modules of the user's, which it has for itself
    started: bool = False
    ended: bool = False
    result: Any = None
    error: BaseException | None = None
    openings: int = 0  # communicators that it has opened
    wakeup: BaseException | None = None  # what its wait ends with
    alone: Place | None = None  # as the one rank of a job of its own


def current() -> Place | None:
    """The simulated rank whose program is running, None outside of any."""
    task: Any = getcurrent()
    while task is not None:
        place = getattr(task, "gin_place", None)
        if place is not None:
            return cast(Place, place)
        task = task.parent
    return None


_solo: Place | None = None


def current_or_solo(
    config: Config, rank: int | None = None, size: int | None = None, bootstrap: object | None = None
) -> Place:
    """The simulated rank that runs now; outside of any, the one rank of a job that this process then is.

    Raises ConfigError for a rank or size that is not this rank's, and in one process of several.
    """
    global _solo
    place = current()
    if place is None:
        ranks = discover(rank, size)
        if ranks.size > 1 or bootstrap is not None:
            raise ConfigError(
                "platform sim has all ranks in one process, and this process is one rank of several; start them with "
                "`GIN_PLATFORM=sim gin run -n N PROGRAM`, `gin check PROGRAM` or gin.spawn; gin bench and gin conformance "
                "start their own: --ranks N, without gin run"
            )
        options = simulation_options(config, 1)
        if _solo is None or _solo.job.options != options:
            _solo = Job(1, options).places[0]
            atexit.register(_solo.job.stop)
        return _solo
    if (rank, size) == (0, 1) and place.job.size > 1:  # a communicator of its own
        if place.alone is None:
            place.alone = Job(1, place.job.options, trace=place.job.tracing).places[0]
        return place.alone
    if (rank, size) not in ((None, None), (place.rank, place.job.size)):
        raise ConfigError(
            f"rank={rank}, size={size}: this is rank {place.rank} of the {place.job.size} of a simulated job"
        )
    if bootstrap is not None:
        raise ConfigError("bootstrap: simulated ranks are all in this process and need none")
    return place


class _Program(greenlet):
    """A rank's program."""

    gin_place: Place


class Job:
    """`size` ranks under one simulation.

    options  of gin._core.Simulation, see gin.sim.options
    trace    record events
    """

    def __init__(self, size: int, options: Mapping[str, Any], *, trace: bool = False) -> None:
        self.size = size
        self.options = dict(options)
        self.seed = int(options.get("seed", 0))
        self.hostile = bool(int(options.get("hostile", 1)))
        self.checks_ranges = bool(options.get(CHECKS))  # where a program leaves it open
        self.simulation = _core.Simulation(size, {k: v for k, v in self.options.items() if not k.startswith(HOST)})
        self.tracing = trace
        if trace:
            self.simulation.trace(True)
        self.children: list[Job] = []  # jobs that programs of this one have spawned
        self.faults = AllocationFault(self.options.get(f"{HOST}alloc_at"))
        self.places = [Place(self, rank) for rank in range(size)]
        self.meetings: list[Meeting] = []
        self.modules: dict[Any, Any] = {}  # compiled kernels, by what they were made from
        self.keep: list[Any] = []  # what kernels of ended programs may still use
        self.outputs: Any = None  # told which rank writes
        self.layouts: dict[int, Layout] = {}  # by the number of the communicator
        self.windows: list[WindowPlace] = []
        self.first_error: Place | None = None
        self._random = random.Random(self.seed)
        self._ready: list[Place] = []
        self._launches: dict[int, Place] = {}  # programs that wait for their launches
        self._doomed: int | None = self.options.get("fault.dead_rank")  # a rank that may die
        self._words: dict[int, npt.NDArray[np.uint64]] = {}
        self._ending = False

    # -- what programs call --------------------------------------------------------------------------------------

    def wait_launches(self, rank: int) -> None:
        """Waits until all launches of the rank have ended, or one has failed. Raises Deadlock when they cannot."""
        place = self.places[rank]
        if self._ending or not self.simulation.pending(rank):
            return
        self._launches[rank] = place
        self._block(place, "its kernels to end")

    def block(self, rank: int, what: str) -> None:
        """Waits until `wake(rank)`. Raises what that was given."""
        self._block(self.places[rank], what)

    def wake(self, rank: int, error: BaseException | None = None) -> None:
        """Lets the program of a rank that waits go on."""
        place = self.places[rank]
        if place.waits:
            place.waits, place.wakeup = "", error
            self._launches.pop(rank, None)
            self._ready.append(place)

    # -- the loop ------------------------------------------------------------------------------------------------

    def run(self, programs: Sequence[Callable[[], Any]], seconds: float = 0.0) -> None:
        """Runs one program per rank to its end. Results and errors are in `places`.

        seconds  of real time after which the job is ended with a TimeoutError, 0: none
        """
        surroundings = _Surroundings(self)
        deadline = time.monotonic() + seconds if seconds else None
        try:
            for place, program in zip(self.places, programs, strict=True):
                task = _Program(lambda place=place, program=program: self._main(place, program))
                task.gin_place = place
                place.task = task
                self._ready.append(place)
            while self._turn(surroundings):
                if deadline is not None and time.monotonic() > deadline:
                    left = [place.rank for place in self.places if not place.ended]
                    text = f"{format_ranks(left)} of {self.size} simulated ranks have not finished within {seconds:g} s"
                    raise TimeoutError(text, record={"ranks": left})
        finally:
            self._end(surroundings)

    def _turn(self, surroundings: _Surroundings) -> bool:
        """One step: a program goes on, or kernels do. False when all programs have ended."""
        if self._ready:
            self._stall()
            place = self._ready.pop(self._random.randrange(len(self._ready)) if len(self._ready) > 1 else 0)
            surroundings.enter(place)
            assert place.task is not None
            try:
                place.task.switch()
            finally:
                surroundings.leave(place)
            return True
        if all(place.ended for place in self.places):
            return False
        self._advance()
        return True

    def _stall(self) -> None:
        """Now and then the hosts are slow, and kernels go on first."""
        if self.hostile and self.size > 1 and self._random.random() < _STALL_CHANCE:
            self._run_kernels(1 << self._random.randrange(_MOST_TURNS), 1 << self._random.randrange(_LONGEST_STALL))

    def _advance(self) -> None:
        """Kernels go on until a program can; where nothing moves, the programs that wait are told so."""
        if self._launches and self._run_kernels():
            return
        stuck = [place for place in self.places if place.waits]
        self._resolve(stuck)

    def _run_kernels(self, turns: int = 0, ns: int = 0) -> bool:
        """Whether a program that waited for its kernels can go on."""
        ended = self.simulation.run(sorted(self._launches), turns, ns)
        buried = self._bury()
        if ended >= 0:
            self.wake(ended)
        return ended >= 0 or buried

    def _bury(self) -> bool:
        """Ends the program of a rank that has died since the last look; whether there was one."""
        if self._doomed is None or not self.simulation.dead(self._doomed):
            return False
        place, self._doomed = self.places[self._doomed], None
        died = RankDied("the simulation has killed this rank")
        if place.waits:
            self.wake(place.rank, died)
        elif place in self._ready and place.task is not None and place.started:
            place.wakeup = died
        return True

    def _resolve(self, stuck: list[Place]) -> None:
        """Ends the waits of programs that wait in vain: those in kernels with a Deadlock, those in collective calls with the
        names of the ranks that cannot come."""
        if self._launches:
            waiting = str(self.simulation.report()).rstrip()
            programs = [
                f"rank {p.rank}: its program waits for {p.waits}" for p in stuck if p.rank not in self._launches
            ]
            waiting = "\n".join(filter(None, [waiting, *programs]))
            for rank in sorted(self._launches):
                self.wake(rank, Deadlock(f"rank {rank}: {self._why_stuck()}", waiting))
            return
        hopeless = [late for meeting in self.meetings for late in meeting.hopeless()]
        first = min((late.deadline for late in hopeless), default=0.0)
        for late in hopeless:
            if late.deadline == first:
                self.wake(late.rank, late.error)
        if not self._ready:
            for place in stuck:
                self.wake(place.rank, Error(f"rank {place.rank} waits for {place.waits}, which cannot happen any more"))

    def _why_stuck(self) -> str:
        if self.simulation.exhausted:
            return f"no end after {int(self.simulation.steps)} turns of threads, proxies and messages"
        return "deadlock: no thread of the job can go on"

    def words(self, group: int, count: int) -> npt.NDArray[np.uint64]:
        """The zeroed words that kernels of a communicator keep between launches, of shape (ranks, count)."""
        found = self._words.get(group)
        if found is None:
            found = self._words[group] = np.zeros((self.size, count), np.uint64)
        return found

    def describe(self, rank: int) -> str:
        """What a rank is doing, for messages about it."""
        place = self.places[rank]
        if place.ended and place.error is not None:
            return f"rank {rank} has ended with {type(place.error).__name__}"
        if place.ended:
            return f"rank {rank} has ended"
        return f"rank {rank} waits for {place.waits}" if place.waits else f"rank {rank} runs"

    def stop(self) -> None:
        """Ends kernels that still run, while the memory that they use is there."""
        self.simulation.close()

    # -- inside --------------------------------------------------------------------------------------------------

    def _block(self, place: Place, what: str) -> None:
        if self._ending:
            return
        place.waits = what
        if place.task is None:  # a job of one rank whose program is not ours to switch
            while place.waits:
                self._advance()
            self._ready.clear()
        else:
            here: Any = getcurrent()
            if current() is not place:
                place.waits = ""
                raise Error(
                    f"rank {place.rank} is simulated: its communicators can be used by the thread of its own program alone"
                )
            place.task = here
            here_parent = _hub_of(here)
            here_parent.switch()
        error, place.wakeup = place.wakeup, None
        if error is not None:
            raise error

    def _main(self, place: Place, program: Callable[[], Any]) -> None:
        place.started = True
        try:
            place.result = program()
        except KeyboardInterrupt:  # it is for the process, whichever rank's code it finds; goes to who runs the job
            raise
        except BaseException as error:
            if isinstance(error, SystemExit) and not error.code:
                return
            place.error = error
            if self.first_error is None and not self._ending:
                self.first_error = place
        finally:
            place.ended = True
            if not self._ending:
                for meeting in self.meetings:
                    meeting.ended(place)

    def _end(self, surroundings: _Surroundings) -> None:
        """No program is left behind, whatever happened."""
        self._ending = True
        for place in self.places:
            if place.task is not None and not place.ended:
                surroundings.enter(place)
                place.waits = ""
                place.task.throw(GreenletExit)
                surroundings.leave(place)
        surroundings.restore()
        self.stop()
        for place in self.places:
            if place.module is not None:
                place.module.__dict__.clear()
            place.task = place.module = None
            place.imported.clear()
            if place.alone is not None:
                place.alone.job.stop()
        self.meetings.clear()


def _hub_of(task: Any) -> Any:
    """The greenlet in which the job's loop runs."""
    while not isinstance(task, _Program):
        task = task.parent
    return task.parent


class _Surroundings:
    """What programs take to be their process's own: __main__, the modules of theirs, the rank's variables, and its end."""

    def __init__(self, job: Job) -> None:
        self._job = job
        names = ("GIN_RANK", "GIN_SIZE", "GIN_LOCAL_RANK", "GIN_LOCAL_SIZE")
        self._variables = {name: os.environ.get(name) for name in names}
        self._main = sys.modules.get("__main__")
        self._argv = list(sys.argv)
        self._known = len(sys.modules)
        self._names = set(sys.modules)
        self._exit = os._exit
        os._exit = _refusing(os._exit)  # type: ignore[assignment]
        os.environ["GIN_SIZE"] = os.environ["GIN_LOCAL_SIZE"] = str(job.size)

    def enter(self, place: Place) -> None:
        os.environ["GIN_RANK"] = os.environ["GIN_LOCAL_RANK"] = str(place.rank)
        if place.module is not None:
            sys.modules["__main__"] = place.module
            sys.modules.update(place.imported)
        if self._job.outputs is not None:
            self._job.outputs.rank = place.rank

    def leave(self, place: Place) -> None:
        if self._job.outputs is not None:
            self._job.outputs.rank = None
        if place.module is None:
            return
        if len(sys.modules) != self._known or place.imported:
            self._take_out(place)

    def _take_out(self, place: Place) -> None:
        """Modules of the user's that the program has imported are its own; others are everybody's."""
        for name in [name for name in sys.modules if name not in self._names]:
            module = sys.modules[name]
            if _private(module):
                place.imported[name] = sys.modules.pop(name)
            else:
                self._names.add(name)
        self._known = len(sys.modules)

    def restore(self) -> None:
        for name, value in self._variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if self._main is not None:
            sys.modules["__main__"] = self._main
        sys.argv[:] = self._argv
        os._exit = self._exit


def _refusing(end: Callable[[int], NoReturn]) -> Callable[[int], NoReturn]:
    """os._exit for a process that all ranks are in: a failure of the rank's, as the others would be gone without a word."""
    process = os.getpid()

    def refuse(status: int) -> NoReturn:
        if os.getpid() != process:  # one that the program has forked
            end(status)
        text = f"os._exit({status}) would end all simulated ranks, which are one process: let the program end by itself"
        if current() is None:  # a thread of the program's own, where an exception would be lost
            os.write(2, f"gin: {text}\n".encode())
            end(status or 1)
        raise ProcessEnd(text)

    return refuse


def _private(module: Any) -> bool:
    from gin.launch.pickling import is_users

    return isinstance(module, ModuleType) and is_users(module)


def failure_text(place: Place) -> str:
    """The traceback of the error that a rank's program ended with."""
    error = place.error
    assert error is not None
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OWN):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))


_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
