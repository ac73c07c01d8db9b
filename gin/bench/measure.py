"""Measures rows on one open communicator. What is said to be collective all ranks call with equal arguments."""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gin.bench.lanes import HOME, PAGE, SPAN, Lane, lane
from gin.bench.plan import Identity, Plan, Shape, kernel_name, kernel_source, source_of
from gin.bench.results import Row
from gin.bench.rows import Times, make_row
from gin.bench.tests import Operation
from gin.errors import ArgumentError

Nanoseconds = npt.NDArray[np.int64]

_LINE = 64
_GUARD = 64  # bytes after the last message that nothing may write
_GUARD_BYTE = 0xA5
_OUT_HEADER = 64  # bytes before the samples, as in kernels/common.cuh
_PLAN = struct.Struct("<4Q10I")  # bench::Plan of kernels/common.cuh
_CLOCK_READINGS = 1000
_STEADY = 0.1  # two launches in a row are steady when their medians differ by no more than this part
_SETTLE_LAUNCHES = 6
_WORK = 2000  # steps of a computation to begin with


def stride_of(nbytes: int) -> int:
    """Distance of neighbouring messages in a window, bytes."""
    return max(_LINE, -(-nbytes // _LINE) * _LINE)


def places(shape: Shape, nbytes: int, ranks: int) -> int:
    """Messages of one size that a window has room for."""
    messages = shape.operation.messages(nbytes)
    if shape.operation.test == "alltoall":
        return ranks
    if shape.operation.test == "moe":
        return (ranks + 1) * messages
    return shape.ctas * messages


def channels_of(shape: Shape, contexts: int) -> int:
    """Blocks that share a context."""
    return -(-shape.ctas // contexts)


def used_bytes(shape: Shape, nbytes: int, ranks: int) -> int:
    """Bytes of a window that the messages of one size take."""
    return places(shape, nbytes, ranks) * stride_of(nbytes)


def window_bytes(plan: Plan, ranks: int) -> int:
    """Size of the source and of the target window, for everything in the plan."""
    return max(used_bytes(shape, nbytes, ranks) for shape, nbytes in plan.points()) + SPAN + _GUARD


def out_bytes(plan: Plan) -> int:
    """Size of the window that a launch's samples come back in."""
    most = max(shape.ctas * shape.operation.parts * plan.longest_launch(nbytes) for shape, nbytes in plan.points())
    return _OUT_HEADER + 16 * max(most, _CLOCK_READINGS)


def heap_bytes(plan: Plan, ranks: int) -> int:
    """Memory of one rank for one communicator's windows, with room for their alignment."""
    return 2 * window_bytes(plan, ranks) + out_bytes(plan) + (4 << 20)


def share(comm: Any, value: object) -> list[Any]:
    """Every rank's value (anything JSON can say), in rank order, on every rank. Collective."""
    answers: list[Any] = comm._exchange.gather("bench", lambda: value)
    return answers


@dataclass
class Settled:
    """What the launches before the first one that is kept found out."""

    iterations: int  # for the row
    warmup: int  # iterations that were run
    steady: bool | None  # None: nobody looked
    work: int  # steps of a computation that takes about as long as the transfer; 0 where there is none


@dataclass
class Taken:
    """What the launches of one row gave so far, on this rank."""

    turns: list[tuple[int, Nanoseconds]] = field(default_factory=list)  # leader, and times as `durations` gives them
    wrong: int = 0
    warmup: int = 0
    iterations: int = 0
    steady: bool | None = None


class Place:
    """Where a communicator's messages go: its windows, and the number of its next message. Collective."""

    def __init__(self, comm: Any, plan: Plan) -> None:
        nbytes = window_bytes(plan, comm.size)
        self.source = comm.window(nbytes)
        self.target = comm.window(nbytes)
        self.out = comm.window(out_bytes(plan))
        self.serial = 1
        phases = share(comm, self.target.address % PAGE)
        self.phases = phases[0], phases[min(1, comm.size - 1)]


class Session:
    """One backend and route: an open communicator with the plan's windows and kernels. Collective throughout."""

    def __init__(self, comm: Any, plan: Plan, backend: str, route: str, *, raw: Session | None = None) -> None:
        """With `raw`, a session of that backend and route: kernels make the library's own calls, in the other's place."""
        self.comm, self.plan = comm, plan
        self.backend = f"{backend}-raw" if raw else backend
        self._net = backend if raw else "gin"
        taken = dict.fromkeys(comm.routes())
        self.route = route if route != "auto" else next(iter(taken)) if len(taken) == 1 else "mixed"
        self._place: Place = raw._place if raw else Place(comm, plan)
        self._kernels: dict[tuple[str, str, int], Any] = {}

    def raw(self) -> Session:
        """A session that makes the library's own calls on this one's communicator. The native route of a backend in RAW."""
        return Session(self.comm, self.plan, self.backend, self.route, raw=self)

    def lacks(self, operation: Operation) -> str | None:
        """Why an operation cannot be measured here, or None."""
        if self._net != "gin" and not operation.raw:
            return "there is no kernel of the library's own calls for it"
        if operation.needs and not self.comm.capabilities[operation.needs]:
            return f"backend {self.backend} lacks the capability {operation.needs}"
        if operation.parts > 1 and self.comm.platform == "sim":
            return "computation takes no simulated time, so that nothing can overlap with it"
        return None

    def require_room(self, shape: Shape) -> None:
        """Raises ArgumentError where blocks would wait for others that have no room beside them. A GPU says so itself."""
        from gin import _core

        threads = shape.ctas * shape.threads
        if self.comm.platform != "cuda" and shape.operation.shared and threads > _core.host_max_threads:
            raise ArgumentError(
                f"{shape.ctas} blocks of {shape.threads} threads begin each iteration together, and this platform runs "
                f"{_core.host_max_threads} threads at once; give fewer blocks or threads"
            )

    def contexts(self, shape: Shape) -> int:
        """Contexts that the blocks of a shape share out."""
        return shape.contexts or int(self.comm.config.contexts)

    def identity(self, shape: Shape, nbytes: int) -> Identity:
        """What tells the row from all others of a sweep."""
        contexts, ranks = self.contexts(shape), self.comm.size
        name = shape.operation.name
        return (name, shape.scope, shape.ctas, shape.threads, contexts, ranks, nbytes, self.backend, self.route)

    def clock(self) -> dict[str, int]:
        """The clock of this platform's kernels, on the worst rank: its steps, and what reading it takes, nanoseconds."""
        kernel = self.comm.compile(source_of("clock", "clock_readings", "clock", "thread"), "clock_readings")
        out = self._place.out
        out.write(np.zeros(out.nbytes, np.uint8))
        self._start(kernel, (0, 0, 0, 0, 1, 10, _CLOCK_READINGS, 1, 0, 0, 0, 0, 0, 0), 1, 1)
        words = self._times(_CLOCK_READINGS).ravel()
        steps = np.diff(words)
        resolution = int(steps[steps > 0].min()) if (steps > 0).any() else 0
        found = share(self.comm, [resolution, int(np.median(steps))])
        return {"resolution_ns": max(r for r, _ in found), "reading_ns": max(o for _, o in found)}

    def launch(
        self, shape: Shape, nbytes: int, warmup: int, iterations: int, taken: Taken, *, turn: int = 0, work: int = 0
    ) -> float:
        """One launch, whose times and wrong elements are added to `taken`. Returns the seconds it took here.

        turn  its number in the row: ranks 0 and 1 take turns in leading, and pairs of launches in where things lie
        """
        plan, made, place = self.plan, shape.operation, self._place
        messages, contexts, leader = made.messages(nbytes), self.contexts(shape), turn % 2
        at = self._lane(shape, nbytes, turn)
        place.out.write(np.zeros(place.out.nbytes, np.uint8))
        end = at.offsets[self.comm.rank % 2] + used_bytes(shape, nbytes, self.comm.size)
        place.target.write(np.full(_GUARD, _GUARD_BYTE, np.uint8), offset=end)
        self.comm.barrier()
        numbers = (
            *(nbytes, stride_of(nbytes), place.serial, work),
            *(messages, warmup, iterations, contexts, leader, int(plan.verify)),
            *at.offsets,
            *at.signals,
        )
        seconds = self._start(self._kernel(shape), numbers, shape.ctas, shape.threads)
        place.serial += made.sends * (warmup + iterations) * max(shape.ctas * messages, self.comm.size)
        words = self._times(shape.ctas * iterations * made.parts)
        taken.turns.append((leader, durations(made, words.reshape(shape.ctas, iterations, made.parts, 2))))
        if plan.verify:
            guard = place.target.read("uint8", _GUARD, offset=end)
            taken.wrong += int(place.out.read("uint64", 1)[0]) + int(np.count_nonzero(guard != _GUARD_BYTE))
        taken.warmup += warmup
        taken.iterations += iterations
        return seconds

    def settle(self, shape: Shape, nbytes: int) -> Settled:
        """Launches until two in a row agree, unless the warm-up is given, and finds the iterations of a row.

        What is measured here is not kept. Wrong data is found again later.
        """
        plan, made = self.plan, shape.operation
        work = _WORK if made.parts > 1 else 0
        if plan.iterations is not None and plan.warmup is not None and not work:
            return Settled(plan.iterations, 0, None, 0)
        count, last, spent, run = max(plan.warmups(nbytes), 3), 0.0, 0.0, 0
        steady: bool | None = None if plan.warmup is not None else False
        for _ in range(_SETTLE_LAUNCHES):
            taken = Taken()
            seconds = share(self.comm, self.launch(shape, nbytes, 0, count, taken, work=work))[0]
            run, spent = run + count, spent + seconds
            medians = share(self.comm, [float(np.median(part)) for part in taken.turns[0][1]])[0]
            work = _fitted_work(work, medians)
            each = seconds / count
            if steady is None:
                break
            if last and abs(medians[-1] - last) <= _STEADY * last:
                steady = True
                break
            last = medians[-1]
            if spent > plan.seconds:
                break
            count = min(2 * count, plan.longest_launch(nbytes))
        return Settled(plan.fitted_iterations(nbytes, each), run, steady, work)

    def row(self, shape: Shape, nbytes: int, taken: Taken, resolution_ns: int) -> Row | None:
        """The row of one size from all ranks' samples: on rank 0, None elsewhere."""
        made = shape.operation
        everyone = share(self.comm, [[leader, times.tolist()] for leader, times in taken.turns])
        wrong = sum(share(self.comm, taken.wrong))
        if self.comm.rank != 0:
            return None
        identity = {
            "backend": self.backend,
            "platform": self.comm.platform,
            "wire": self.comm.config.wire,
            "route": self.route,
            "ranks": self.comm.size,
        }
        times = Times.of(made, [[(leader, np.array(part)) for leader, part in turns] for turns in everyone])
        return make_row(
            self.plan,
            shape,
            {**identity, "contexts": self.contexts(shape)},
            nbytes,
            times,
            warmup=taken.warmup,
            iterations=taken.iterations,
            steady=taken.steady,
            wrong=wrong,
            resolution_ns=resolution_ns,
        )

    def close(self) -> None:
        """Closes the communicator and with it the windows."""
        self.comm.close()

    def _lane(self, shape: Shape, nbytes: int, turn: int) -> Lane:
        if self.comm.platform == "sim":
            return HOME
        channels, each = channels_of(shape, self.contexts(shape)), shape.operation.kernel == "pingpong"
        return lane(turn, nbytes, channels, each=each, phases=self._place.phases)

    def _kernel(self, shape: Shape) -> Any:
        key = shape.operation.name, shape.scope, shape.bound
        if key not in self._kernels:
            name = kernel_name(self.plan.test, shape.operation.name)
            self._kernels[key] = self.comm.compile(kernel_source(shape, self._net), name)
        return self._kernels[key]

    def _start(self, kernel: Any, numbers: tuple[int, ...], grid: int, block: int) -> float:
        """Runs a kernel and waits for it; seconds."""
        start = time.perf_counter()
        place = self._place
        kernel.launch(place.source, place.target, place.out, _PLAN.pack(*numbers), grid=grid, block=block)
        self.comm.synchronize()
        return time.perf_counter() - start

    def _times(self, count: int) -> Nanoseconds:
        """Starts and ends that a launch left, of shape (count, 2)."""
        words = self._place.out.read("uint64", 2 * count, offset=_OUT_HEADER)
        return np.array(words).astype(np.int64).reshape(count, 2)


def _fitted_work(work: int, medians: list[float]) -> int:
    """Steps of a computation that takes as long as the transfer, from the times of both."""
    if not work or len(medians) < 2 or medians[1] <= 0:
        return work
    return max(1, min(int(work * medians[0] / medians[1]), 1 << 40))


def durations(operation: Operation, kept: Nanoseconds) -> Nanoseconds:
    """Nanoseconds, of shape (parts, times), from starts and ends of shape (blocks, iterations, parts, 2).

    Where blocks share what is measured, which they begin together, it is one time from the first start to the last end.
    """
    starts, ends = kept[..., 0], kept[..., 1]
    if operation.shared:
        starts, ends = starts.min(axis=0, keepdims=True), ends.max(axis=0, keepdims=True)
    taken = ends - starts
    if operation.timed_by == "all":
        taken = taken.max(axis=0, keepdims=True)
    return taken.reshape(-1, operation.parts).T
