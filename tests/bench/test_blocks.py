"""Blocks whose work is taken for one go through their iterations together."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import gin
from gin.bench.measure import Session, Taken, durations
from gin.bench.plan import Plan, Shape, kernel_source

ITERATIONS = 25


def kept(plan: Plan, backend: str, route: str) -> tuple[Any, Any, int]:
    """On the leader: starts and ends of every block and iteration, the times made of them, and the wrong elements."""

    def rank_main() -> Any:
        size = f"{1 << 20}"
        with gin.init(
            backend=backend, route=route, platform="host", heap="64M", max_message=size, timeout="30s"
        ) as comm:
            session, (shape, nbytes) = Session(comm, plan, backend, route), next(plan.points())
            taken = Taken()
            session.launch(shape, nbytes, 3, ITERATIONS, taken)
            words = session._times(shape.ctas * ITERATIONS).reshape(shape.ctas, ITERATIONS, 1, 2)
            return words.tolist(), taken.turns[0][1].tolist(), taken.wrong

    words, times, wrong = gin.spawn(2, rank_main, timeout=120)[0]
    return np.array(words), np.array(times), wrong


@pytest.mark.parametrize(
    ("backend", "route"), [("nvshmem", "native"), ("ibrc_proxy", "native"), ("nccl_gin", "direct")]
)
@pytest.mark.parametrize(
    ("test", "op", "ctas", "threads"),
    [
        ("rate", "put", 3, 1),
        ("rate", "put", 5, 33),
        ("bandwidth", "put_signal", 3, 1),
        ("bandwidth", "put_signal_bidir", 2, 32),
        ("bandwidth", "get", 3, 32),
        ("alltoall", "put_signal", 3, 32),
        ("moe", "dispatch_combine", 2, 33),
    ],
)
def test_no_iteration_begins_before_all_blocks_have_ended_the_last(
    test: str, op: str, ctas: int, threads: int, backend: str, route: str
) -> None:
    made: dict[str, Sequence[Any]] = {"operations": (op,), "ctas": (ctas,), "threads": (threads,)}
    plan = Plan(test, (backend,), True, (route,), (100,), iterations=ITERATIONS, warmup=3, **made)  # type: ignore[arg-type]
    words, times, wrong = kept(plan, backend, route)
    starts, ends = words[..., 0, 0], words[..., 0, 1]
    assert (starts[:, 1:].min(axis=0) >= ends[:, :-1].max(axis=0)).all() and (ends > starts).all()
    assert times.shape == (1, ITERATIONS) and times.sum() <= ends.max() - starts.min()
    assert wrong == 0
    shape = next(plan.points())[0]
    assert (durations(shape.operation, words) == ends.max(axis=0) - starts.min(axis=0)).all()


READY = """
#include <gin/gin.cuh>
extern "C" __global__ void ready(gin::Comm comm, uint32_t id) {
  gin::Context net(comm, blockIdx.x);
  net.signal(0, gin::signal_inc{id});
}
"""


def test_what_one_block_fails_in_ends_those_that_wait_for_it() -> None:
    """Two blocks have what they wait for, and the third has not: its wait is what is told."""
    made: dict[str, Sequence[Any]] = {"operations": ("put",), "ctas": (3,)}
    plan = Plan("rate", ("nvshmem",), True, ("native",), (8,), iterations=2, warmup=0, **made)  # type: ignore[arg-type]

    def rank_main() -> Any:
        with gin.init(
            backend="nvshmem", route="native", platform="host", heap="64M", timeout=("2s", "30s")[rank()]
        ) as comm:
            session, (shape, nbytes) = Session(comm, plan, "nvshmem", "native"), next(plan.points())
            if comm.rank == 0:
                with pytest.raises(gin.TimeoutError) as caught:
                    session.launch(shape, nbytes, 0, 2, Taken())
                return caught.value.record
            comm.barrier()  # the one before a launch
            comm.compile(READY, "ready").launch(session._lane(shape, nbytes, 0).signals[0] + 1, grid=2)
            with pytest.raises(gin.RemoteError):
                comm.barrier()
            return None

    record = gin.spawn(2, rank_main, timeout=60)[0]
    assert (record["operation"], record["context"], record["seen"]) == ("wait", 2, 0)


def rank() -> int:
    return int(os.environ["GIN_RANK"])


@pytest.mark.parametrize("name", ["latency", "bandwidth"])
def test_blocks_that_share_no_time_are_left_alone(name: str) -> None:
    shape = next(Plan(name, (), True, (), (8,), operations=("get",)).shapes())
    assert shape.operation.shared == (name == "bandwidth")
    assert f"#define BENCH_SHARED {int(shape.operation.shared)}\n" in kernel_source(shape)


def test_more_threads_than_run_at_once_are_refused_with_both_numbers() -> None:
    plan = Plan(
        "rate", ("nvshmem",), True, ("native",), (8,), operations=("put",), ctas=(40,), threads=(1024,), iterations=2
    )

    def rank_main() -> None:
        with gin.init(backend="nvshmem", route="native", platform="host", heap="64M", timeout="5s") as comm:
            session, shape = Session(comm, plan, "nvshmem", "native"), next(plan.shapes())
            with pytest.raises(gin.ArgumentError, match=r"40 blocks of 1024 threads .* runs \d+ threads at once"):
                session.require_room(shape)
            session.require_room(Shape(shape.operation, "thread", 15, 1024, None))

    gin.spawn(2, rank_main, timeout=60)


def test_what_has_no_room_is_refused_before_anything_is_measured() -> None:
    command = [sys.executable, "-P", "-m", "gin", "bench", "rate", "--platform", "host", "--backend", "nvshmem"]
    command += ["--route", "native", "-c", "1,40", "-t", "1024", "-b", "8", "-e", "8", "--ranks", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "40 blocks of 1024 threads begin" in done.stderr, done.stdout + done.stderr
    assert "rate Mmsg/s" not in done.stdout


def test_windows_that_do_not_fit_together_are_refused_before_any_is_written() -> None:
    each = gin._core.available_memory()[0] // 8  # a window of it fits, and there are twelve pairs
    command = [sys.executable, "-P", "-m", "gin", "bench", "latency", "--ranks", "2", "-b", str(each), "-e", str(each)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "6 backends and routes take" in done.stderr, done.stdout + done.stderr
    assert "MemAvailable" in done.stderr or "control group" in done.stderr
