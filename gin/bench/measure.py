"""Measures rows on one open communicator. What is said to be collective all ranks call with equal arguments."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gin.bench.plan import Plan, kernel_source
from gin.bench.results import Row
from gin.bench.stats import summarize

Samples = npt.NDArray[np.float64]

_LINE = 64
_GUARD = 64  # bytes after the last message that nothing may write
_GUARD_BYTE = 0xA5
_OUT_HEADER = 64  # bytes before the samples, as in kernels/common.cuh


def stride_of(nbytes: int) -> int:
    """Distance of neighbouring messages in a window, bytes."""
    return max(_LINE, -(-nbytes // _LINE) * _LINE)


def used_bytes(plan: Plan, nbytes: int, ranks: int) -> int:
    """Bytes of a window that the messages of one size take."""
    places = ranks if plan.test == "alltoall" else plan.ctas * plan.definition.messages(nbytes)
    return places * stride_of(nbytes)


def window_bytes(plan: Plan, ranks: int) -> int:
    """Size of the source and of the target window, for every size of the plan."""
    return max(used_bytes(plan, nbytes, ranks) for nbytes in plan.sizes) + _GUARD


def out_bytes(plan: Plan) -> int:
    """Size of the window that a launch's samples come back in."""
    most = max(plan.first_iterations(nbytes) for nbytes in plan.sizes) + plan.rounds
    return _OUT_HEADER + 16 * plan.ctas * most


def heap_bytes(plan: Plan, ranks: int) -> int:
    """Memory of one rank for one communicator's windows, with room for their alignment."""
    return 2 * window_bytes(plan, ranks) + out_bytes(plan) + (4 << 20)


def share(comm: Any, value: object) -> list[Any]:
    """Every rank's value (anything JSON can say), in rank order, on every rank. Collective."""
    answers: list[Any] = comm._exchange.gather("bench", lambda: value)
    return answers


@dataclass
class Taken:
    """What the launches of one row gave so far, on this rank."""

    samples: list[Samples] = field(
        default_factory=list
    )  # nanoseconds, shape (ctas or 1, iterations), one array per launch
    wrong: int = 0
    warmup: int = 0
    iterations: int = 0


class Session:
    """One backend and route: an open communicator with the test's windows and kernel. Collective throughout."""

    def __init__(self, comm: Any, plan: Plan, backend: str, route: str) -> None:
        self.comm, self.plan, self.backend = comm, plan, backend
        taken = dict.fromkeys(comm.routes())
        self.route = route if route != "auto" else next(iter(taken)) if len(taken) == 1 else "mixed"
        nbytes = window_bytes(plan, comm.size)
        self.source = comm.window(nbytes)
        self.target = comm.window(nbytes)
        self.out = comm.window(out_bytes(plan))
        self.kernel = comm.compile(kernel_source(plan.test, plan.scope), plan.test)
        self._serial = 1

    def launch(self, nbytes: int, warmup: int, iterations: int, taken: Taken) -> float:
        """One launch, whose samples and wrong elements are added to `taken`. Returns the seconds it took here."""
        plan, messages = self.plan, self.plan.definition.messages(nbytes)
        self.out.write(np.zeros(self.out.nbytes, np.uint8))
        end = used_bytes(plan, nbytes, self.comm.size)
        self.target.write(np.full(_GUARD, _GUARD_BYTE, np.uint8), offset=end)
        self.comm.barrier()
        start = time.perf_counter()
        self.kernel.launch(
            self.source,
            self.target,
            self.out,
            nbytes,
            stride_of(nbytes),
            self._serial,
            messages,
            warmup,
            iterations,
            int(plan.verify),
            grid=plan.ctas,
            block=plan.threads,
        )
        self.comm.synchronize()
        seconds = time.perf_counter() - start

        self._serial += (warmup + iterations) * max(plan.ctas * messages, self.comm.size)
        words = self.out.read("uint64")
        guard = self.target.read("uint8", _GUARD, offset=end)
        first = _OUT_HEADER // 8
        kept = np.array(words[first : first + 2 * plan.ctas * iterations])
        taken.samples.append(durations(plan, kept.reshape(plan.ctas, iterations, 2)))
        if plan.verify:
            taken.wrong += int(words[0]) + int(np.count_nonzero(guard != _GUARD_BYTE))
        taken.warmup += warmup
        taken.iterations += iterations
        return seconds

    def calibrate(self, nbytes: int) -> int:
        """How many iterations a row of this size gets: as many on every rank. What is measured here is not kept."""
        warmup = self.plan.warmups(nbytes)
        if self.plan.iterations is not None:
            return self.plan.iterations
        trial = max(warmup, 3)
        seconds = self.launch(nbytes, 0, trial, Taken())
        return self.plan.fitted_iterations(nbytes, share(self.comm, seconds)[0] / trial)

    def row(self, nbytes: int, taken: Taken) -> Row | None:
        """The row of one size from all ranks' samples: on rank 0, None elsewhere."""
        samples = np.concatenate(taken.samples, axis=1)
        if self.plan.test == "alltoall":
            # The slowest block of each iteration here, then the slowest rank.
            parts = share(self.comm, samples.max(axis=0).tolist())
            samples = np.max(np.array(parts), axis=0, keepdims=True)
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
        return make_row(self.plan, identity, nbytes, taken, microseconds(self.plan, nbytes, samples), wrong)

    def close(self) -> None:
        """Closes the communicator and with it the windows."""
        self.comm.close()


def durations(plan: Plan, kept: npt.NDArray[np.uint64]) -> Samples:
    """Nanoseconds, of shape (blocks, iterations), from starts and ends of shape (blocks, iterations, 2).

    Where blocks share what is measured, it is one time from the first start to the last end: they need not run at once.
    """
    starts, ends = kept[..., 0], kept[..., 1]
    if plan.test in ("bandwidth", "rate"):
        starts, ends = starts.min(axis=0, keepdims=True), ends.max(axis=0, keepdims=True)
    return (ends - starts).astype(np.float64)


def microseconds(plan: Plan, nbytes: int, samples: Samples) -> Samples:
    """One time per sample as the test defines it, from nanoseconds of shape (blocks, iterations)."""
    if plan.test == "alltoall":
        return samples.ravel() / 1e3
    if plan.test == "latency":
        return samples.ravel() / 2 / 1e3
    return samples.ravel() / (plan.definition.messages(nbytes) * plan.ctas) / 1e3


def make_row(plan: Plan, identity: Row, nbytes: int, taken: Taken, times: Samples, wrong: int) -> Row:
    """A result row. `identity`: backend, platform, wire, route, ranks. `times`: microseconds as the test defines."""
    summary = summarize(times)
    messages = max(identity["ranks"] - 1, 1) if plan.test == "alltoall" else 1
    each = summary.median / messages
    row: Row = {
        "test": plan.test,
        "op": plan.definition.op,
        **identity,
        "scope": plan.scope,
        "ctas": plan.ctas,
        "threads": plan.threads,
        "bytes": nbytes,
        "iterations": taken.iterations,
        "warmup": taken.warmup,
        "min_us": round(summary.min, 6),
        "median_us": round(summary.median, 6),
        "p90_us": round(summary.p90, 6),
        "p99_us": round(summary.p99, 6),
        "max_us": round(summary.max, 6),
        "bandwidth_GBps": round(nbytes / each / 1e3, 6) if each > 0 else None,
        "rate_Mops": round(1 / each, 6) if each > 0 else None,
        "wrong": wrong if plan.verify else None,
    }
    if plan.samples:
        row["samples_us"] = [round(float(time), 6) for time in times]
    return row
