"""`gin bench` with real ranks: every test on every backend and route, and what a bad run gets."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

import gin
from gin.backends import NAMES
from gin.bench import sweep
from gin.bench.plan import ROUTES, SCOPES, TESTS, Plan, Shape, kernel_name, kernel_source
from gin.bench.results import usable_cores
from gin.bench.tests import operation
from gin.config import Config
from gin.platforms.host_compiler import Compiler

BACKENDS = [name for name in os.environ.get("GIN_TEST_BACKENDS", ",".join(NAMES)).split(",") if name in NAMES]
COMMAND = (sys.executable, "-c", "import sys; sys.argv[0] = 'gin'; from gin.cli.main import main; main()")

pytestmark = pytest.mark.usefixtures("bare_environment")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is no checkout, so that the installed package is what runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def gin_command(*arguments: object, before: tuple[str, ...] = (), seconds: float = 120) -> Any:
    command = [*before, *COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)


def rows_in(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text())["rows"])


def possible(test: str, backend: str) -> dict[str, Any]:
    """The operations of a test that a backend can do, by name."""
    able = gin.backends.capabilities(backend)
    return {made.name: made for made in TESTS[test].operations if made.needs is None or able[made.needs]}


def compiled(sources: Iterable[tuple[str, str, str]]) -> None:
    """Compiles (backend, source, entry) into the cache on all cores; the ranks would do so one after the other."""
    config = Config.from_sources()

    def make(job: tuple[str, str, str]) -> None:
        backend, source, entry = job
        Compiler(config, backend).compile(source, entry)

    with ThreadPoolExecutor(usable_cores()) as pool:
        list(pool.map(make, dict.fromkeys(sources)))


def sources_of(backend: str, plan: Plan) -> Iterator[tuple[str, str, str]]:
    for shape in plan.shapes():
        yield backend, kernel_source(shape), kernel_name(shape.operation.test, shape.operation.name)


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    """What the tests below run, compiled."""
    plans = [(backend, plan_of(test, backend)) for test in TESTS for backend in BACKENDS]
    plans += [(plan.backends[0], plan) for test in TESTS for plan in scopes_of(test)]
    sources = [source for backend, plan in plans for source in sources_of(backend, plan)]
    for (test, op, old, new), backend in CORRUPTED:
        shape = Shape(operation(test, op), "thread", 1, 1, None)
        sources.append((backend, kernel_source(shape).replace(old, new), kernel_name(test, op)))
    compiled(sources)


def plan_of(test: str, *backends: str, **fields: Any) -> Plan:
    """Few iterations of all operations that the backends can do."""
    names = tuple(dict.fromkeys(name for backend in backends for name in possible(test, backend)))
    made = {"routes": tuple(ROUTES), "sizes": (24,), "operations": names, "iterations": 3, "warmup": 1, **fields}
    return Plan(test, backends, True, **made)


@pytest.mark.parametrize("test", list(TESTS))
def test_every_operation_size_and_route_arrives_right(here: Path, test: str) -> None:
    ranks = 3 if test in ("alltoall", "moe") else 2
    sizes = ["-b", "1", "-e", "60000", "-f", "37"]
    done = gin_command(
        *("bench", test, "--op", "all", "--backend", ",".join(BACKENDS), *sizes, "-n", 12, "-w", 1, "--ranks", ranks),
        *("--json", "out.json"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = rows_in(here / "out.json")
    assert {(row["backend"], row["op"], row["bytes"], row["route"]) for row in rows} == {
        (backend, name, nbytes, route)
        for backend in BACKENDS
        for name, made in possible(test, backend).items()
        for nbytes in made.sizes((1, 37, 1369, 50653))
        for route in ROUTES
    }
    for row in rows:
        assert (row["wrong"], row["iterations"], row["ranks"]) == (0, 12, ranks)
        assert 0 <= row["min_us"] <= row["median_us"] <= row["p90_us"] <= row["p99_us"] <= row["max_us"]
        assert row["median_low_us"] <= row["median_us"] <= row["median_high_us"]
        assert len(row["samples_us"]) == row["samples"] > 0
        assert len(row["ends_us"]) == (2 if operation(test, row["op"]).timed_by == "leader" else 0)


def swept(plans: Sequence[Plan]) -> list[dict[str, Any]]:
    """The rows of several sweeps on these ranks."""
    rows: list[dict[str, Any]] = []
    for plan in plans:
        sweep.run(plan, lambda event: rows.append(event["row"]) if event["event"] == "row" else None)
    return rows


def scopes_of(test: str) -> list[Plan]:
    """Every scope on a backend of its own, another one for the next test, with blocks that share contexts unevenly."""
    plans = []
    for place, scope in enumerate(SCOPES):
        backend = BACKENDS[(place + list(TESTS).index(test)) % len(BACKENDS)]
        # Operations that share a kernel's text share its way of using the groups.
        names = tuple({made.kernel: name for name, made in possible(test, backend).items()}.values())
        shape: dict[str, Any] = {"scopes": (scope,), "ctas": (5,), "threads": (64,), "contexts": (2, 4)}
        plans.append(plan_of(test, backend, routes=("native",), operations=names, **shape))
    return plans


@pytest.mark.parametrize("test", list(TESTS))
def test_every_scope_with_several_blocks(here: Path, test: str) -> None:
    plans = scopes_of(test)
    rows = gin.spawn(2, swept, plans)[0]
    assert {(row["op"], row["scope"], row["contexts"]) for row in rows} == {
        (name, plan.scopes[0], contexts) for plan in plans for name in plan.operations for contexts in (2, 4)
    }
    assert {(row["wrong"], row["ctas"], row["threads"]) for row in rows} == {(0, 5, 64)}


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_patterns_of_few_and_odd_ranks(here: Path, ranks: int) -> None:
    plans = [plan_of(test, *BACKENDS, sizes=(0, 1, 9), ctas=(2,)) for test in ("alltoall", "moe")]
    rows = gin.spawn(ranks, swept, plans)[0]
    assert len(rows) == 2 * 3 * 2 * len(BACKENDS)
    assert all(row["wrong"] == 0 for row in rows)


def corrupt(plan: Plan, old: str, new: str) -> list[dict[str, Any]]:
    """A sweep on this rank whose kernel has one thing changed."""
    from gin.bench import measure

    original = measure.kernel_source

    def changed(shape: Shape, net: str) -> str:
        text = original(shape, net)
        assert old in text
        return text.replace(old, new)

    measure.kernel_source = changed
    return swept([plan])


# Too short: stale at its end. Too long: reaches the guard or a neighbour. Displaced: all of it.
DEFECTS = (
    ("latency", "put_signal", "plan.bytes, gin::signal_inc", "plan.bytes - 1, gin::signal_inc"),
    ("latency", "put_value", "target, to, value,", "target, to, value + 1,"),
    (
        "latency",
        "put_flush",
        "target, place, source, place, plan.bytes);",
        "target, place, source, place, plan.bytes - 1);",
    ),
    ("latency", "get", "source, place, target, place, plan.bytes);", "source, place, target, place, plan.bytes - 1);"),
    ("latency", "atomic", "place, uint64_t(1));", "place, uint64_t(2));"),
    ("bandwidth", "put_signal", "offset, plan.bytes, gin::signal_inc", "offset, plan.bytes - 1, gin::signal_inc"),
    ("bandwidth", "put_signal_bidir", "offset, plan.bytes, gin::signal_inc", "offset, plan.bytes - 1, gin::signal_inc"),
    ("rate", "put", "offset, plan.bytes);", "offset, plan.bytes + 9);"),
    ("alltoall", "put_signal", "to * plan.stride, plan.bytes", "to * plan.stride + 8, plan.bytes"),
    ("moe", "dispatch_combine", "t * plan.stride, plan.bytes);", "t * plan.stride + 8, plan.bytes);"),
    ("moe", "dispatch_combine", "returned + (mine + k)", "returned + (mine + k + 1)"),
    ("overlap", "put_signal", "plan.bytes, gin::signal_inc", "plan.bytes - 1, gin::signal_inc"),
)


def able(test: str, op: str, place: int) -> str:
    """A backend that can do the operation; checking is the kernel's own, the same on all."""
    backends = [backend for backend in BACKENDS if op in possible(test, backend)] or list(BACKENDS)
    return backends[place % len(backends)]


CORRUPTED = [(defect, able(*defect[:2], place)) for place, defect in enumerate(DEFECTS)]


@pytest.mark.parametrize(("defect", "backend"), CORRUPTED, ids=[f"{d[0]}-{d[1]}-{b}" for d, b in CORRUPTED])
def test_bytes_that_are_wrong_are_counted(here: Path, defect: tuple[str, str, str, str], backend: str) -> None:
    test, op, old, new = defect
    if op not in possible(test, backend):
        pytest.skip(f"{backend} has no {op}")
    nbytes = {"rate": 1024, "latency": 8}.get(test, 40)
    plan = Plan(test, (backend,), True, ("direct",), (nbytes,), operations=(op,), iterations=4, warmup=0, rounds=1)
    answers = gin.spawn(2, corrupt, plan, old, new)
    assert answers[0][0]["wrong"] >= 3
    assert answers[1] == []


# -- bad runs


@pytest.mark.skipif("ibrc_proxy" not in BACKENDS, reason="needs ibrc_proxy")
def test_a_wire_that_moves_nothing_ends_by_the_deadline(here: Path) -> None:
    wire = ["--backend", "ibrc_proxy", "--wire", "null", "--route", "native"]
    done = gin_command("bench", "latency", *wire, "--timeout", "0.5", "--json", "out.json", seconds=60)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "deadline" in done.stderr
    assert list(here.iterdir()) == []


def test_a_wire_of_a_later_version_is_unavailable(here: Path) -> None:
    done = gin_command("bench", "latency", "--backend", BACKENDS[0], "--wire", "verbs")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "verbs" in done.stderr


@pytest.fixture
def sweeping(here: Path) -> Iterator[subprocess.Popen[str]]:
    """A long sweep that has measured some rows. Fails when any of its processes outlives it."""
    sizes = ["-b", "8", "-e", "16K", "-f", "1.0001", "-n", "500"]
    told = here / "tmp"
    told.mkdir()
    command = [*COMMAND, "bench", "latency", "--backend", BACKENDS[0], *sizes, "--json", "out.json"]
    pipe = subprocess.PIPE
    environ = {**os.environ, "TMPDIR": str(told)}
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environ) as process:
        family: list[psutil.Process] = []
        try:
            wait_for(lambda: any('"row"' in path.read_text() for path in told.rglob("events")), 60)
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            assert process.poll() is None
            yield process
        finally:
            process.kill()
    _, alive = psutil.wait_procs(family[1:], timeout=10)
    assert not alive


def ranks_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The ranks' processes: children of the one that starts them."""
    return [rank for starter in psutil.Process(process.pid).children() for rank in starter.children()]


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_rank_that_dies_ends_the_sweep(sweeping: subprocess.Popen[str], here: Path) -> None:
    ranks_of(sweeping)[1].send_signal(signal.SIGKILL)
    out, err = sweeping.communicate(timeout=30)
    assert sweeping.returncode == 1, out + err
    assert "RemoteError" in err
    assert "rank 1" in err
    results = json.loads((here / "out.json").read_text())
    assert results["complete"] is False
    assert results["rows"]
    assert {entry.name for entry in here.iterdir()} == {"out.json", "tmp"}


def test_ctrl_c_keeps_the_rows_that_are_complete(sweeping: subprocess.Popen[str], here: Path) -> None:
    sweeping.send_signal(signal.SIGINT)
    out, err = sweeping.communicate(timeout=30)
    assert sweeping.returncode == 130, out + err
    assert "interrupted" in err
    assert "Traceback" not in err
    results = json.loads((here / "out.json").read_text())
    assert results["complete"] is False
    assert len(results["rows"]) == len({(row["bytes"], row["route"]) for row in results["rows"]}) > 0


def test_an_interrupted_sweep_goes_on(here: Path) -> None:
    arguments = ["bench", "latency", "--backend", BACKENDS[0], "-b", "8", "-e", "1K", "-n", "20", "-w", "1"]
    done = gin_command(*arguments, "--json", "out.json")
    assert done.returncode == 0, done.stderr
    whole = json.loads((here / "out.json").read_text())
    (here / "out.json").write_text(json.dumps({**whole, "complete": False, "rows": whole["rows"][:7]}))
    done = gin_command("bench", "--resume", "out.json")
    assert done.returncode == 0, done.stdout + done.stderr
    after = json.loads((here / "out.json").read_text())
    assert after["complete"] is True
    assert after["rows"][:6] == whole["rows"][:6]
    assert len(after["rows"]) == len(whole["rows"]) == 16
    assert {(row["bytes"], row["route"]) for row in after["rows"]} == {
        (row["bytes"], row["route"]) for row in whole["rows"]
    }


def test_a_killed_sweep_leaves_no_process(sweeping: subprocess.Popen[str]) -> None:
    sweeping.kill()
    sweeping.communicate(timeout=30)


# -- launchers


@pytest.mark.parametrize(
    "launcher",
    [
        (*COMMAND, "run", "-n", "3", "--"),
        ("mpirun", "-n", "3", "--allow-run-as-root", "--oversubscribe"),
    ],
    ids=["gin run", "mpirun"],
)
def test_the_ranks_of_a_launcher_are_used(here: Path, launcher: tuple[str, ...]) -> None:
    if shutil.which(launcher[0]) is None:
        pytest.skip(f"{launcher[0]} is not installed")
    shape = ["--backend", BACKENDS[0], "-b", 8, "-e", 16, "-n", 3, "-w", 1]
    done = gin_command("bench", "alltoall", *shape, "--json", "out.json", before=launcher)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {row["ranks"] for row in rows_in(here / "out.json")} == {3}
    assert done.stdout.count("# EMULATION") == 1


def test_standard_output_stays_clean_with_real_ranks(here: Path) -> None:
    done = gin_command("bench", "latency", "--backend", BACKENDS[0], "-b", 8, "-e", 8, "-n", 3, "-w", 1, "--json", "-")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["rows"]) == 2


def test_the_baseline_is_shown_on_request(here: Path) -> None:
    shape = ["--backend", BACKENDS[0], "-b", 8, "-e", 8, "-n", 3, "-w", 1]
    done = gin_command("bench", "latency", *shape, "--baseline")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("# without gin:") == 4
