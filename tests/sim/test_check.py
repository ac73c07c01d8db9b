"""gin check: wrong programs are caught and explained, right ones pass, a seed is a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gin.cli.check import _story
from gin.sim.check import LATENESS, Plan, Report, check
from gin.sim.launch import Script

PROGRAMS = Path(__file__).parent / "programs"
CAUSES = {
    "missing_fence": "missing fence",
    "weak_signal": "weak signal taken for an ordered one",
    "other_context": "signal on another context",
    "reuse_source": "source reused before flush",
    "cumulative_signal": "cumulative signal over unordered puts",
    "late_base": "base value read after the peer's first put",
    "reset_in_flight": "reset while increments fly",
    "get_before_flush": "get read before its flush",
    "flush_for_settled": "flush taken for remote completion",
    "missing_wait": "no wait for what was sent",
}
BACKENDS = ("nvshmem", "nccl_gin", "ibrc_proxy")
# NVSHMEM sends a value and its signal as put, fence, signal, has one context for all, and only a quiet to flush with: these
# mistakes cannot show there.
HARMLESS = {("missing_fence", "nvshmem"), ("other_context", "nvshmem"), ("flush_for_settled", "nvshmem")}
RIGHT_SEEDS = int(os.environ.get("GIN_TEST_SEEDS", "60"))  # benchmarks/simulator.py runs 2,000


def run(
    program: str, variant: str, seeds: int, backend: str, ranks: int = 2, first: int = 0, **settings: str
) -> Report:
    script = Script.of_file(str(PROGRAMS / f"{program}.py"), (variant,))
    return check(Plan(script, ranks, first, seeds, {"GIN_BACKEND": backend, **settings}))


@pytest.mark.parametrize("policy", ["random", "pct"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", CAUSES)
def test_wrong_programs_are_caught_and_explained(program: str, backend: str, policy: str) -> None:
    report = run(program, "wrong", 200, backend, GIN_POLICY=policy)
    failure = report.failure
    if (program, backend) in HARMLESS:
        assert failure is None
        return
    assert failure is not None
    assert failure.steady and failure.kind in ("assertion", "deadline")
    assert failure.story is not None and failure.story.cause == CAUSES[program]
    assert any(step.where.startswith("kernel.cu:") for step in failure.story.steps)
    assert f"--seed {failure.seed} --ranks 2 --backend {backend} --policy {policy} -- wrong" in failure.replay


def test_a_replay_has_the_variables_that_the_run_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("CONTEXTS", "2"),
        ("CHECK", "1"),
        ("BACKEND", "nvshmem"),
        ("LOG", "error"),
        ("JOB_SECRET", "x y"),
    ):
        monkeypatch.setenv(f"GIN_{name}", value)
    failure = run("weak_signal", "wrong", 200, "nccl_gin").failure
    assert failure is not None
    assert failure.replay.startswith("GIN_CONTEXTS=2 GIN_CHECK=1 gin check ") and "--backend nccl_gin" in failure.replay


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", CAUSES)
def test_right_programs_pass(program: str, backend: str) -> None:
    for policy in ("random", "pct"):
        report = run(program, "right", RIGHT_SEEDS, backend, GIN_POLICY=policy)
        assert report.failure is None, report.failure
        assert report.runs == RIGHT_SEEDS and report.operations


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_seed_is_a_run(backend: str) -> None:
    first = run("weak_signal", "wrong", 200, backend).failure
    assert first is not None
    for _ in range(2):
        again = run("weak_signal", "wrong", 1, backend, first=first.seed).failure
        assert again is not None and again.trace is not None and first.trace is not None
        assert again.trace.events == first.trace.events
        assert (again.error, again.output) == (first.error, first.output)


def test_a_seed_is_the_same_run_in_another_process() -> None:
    program = str(PROGRAMS / "cumulative_signal.py")
    texts = []
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-P", "-m", "gin", "check", program, "--seed", "3", "--trace", "-", "--json", "-"]
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([*command, "--", "wrong"], capture_output=True, text=True, timeout=100, env=env)
        texts.append((done.returncode, [line for line in done.stdout.splitlines() if '"seconds"' not in line]))
    assert texts[0] == texts[1]


def test_command(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    program = str(PROGRAMS / "weak_signal.py")
    command = [sys.executable, "-P", "-m", "gin", "check", program, "--seeds", "200", "--backend", "nccl_gin"]
    done = subprocess.run([*command, "--json", str(found), "--", "wrong"], capture_output=True, text=True, timeout=100)
    assert done.returncode == 1, done.stderr
    assert "cause: weak signal taken for an ordered one" in done.stdout
    assert "kernel.cu:" in done.stdout and "replay: gin check" in done.stdout
    (report,) = json.loads(found.read_text())
    assert report["failure"]["story"]["cause"] == "weak signal taken for an ordered one"
    replay = report["failure"]["replay"].split()[1:]
    again = subprocess.run([sys.executable, "-P", "-m", "gin", *replay], capture_output=True, text=True, timeout=100)
    assert again.returncode == 1 and report["failure"]["error"] in again.stdout


def test_a_deadlock_names_the_waits(tmp_path: Path) -> None:
    program = tmp_path / "deadlock.py"
    program.write_text(
        'import gin\nSOURCE = r"""#include <gin/gin.cuh>\n'
        'extern "C" __global__ void wait(gin::Comm comm) {\n  gin::Context(comm).wait(gin::thread, 5, 1);\n}"""\n'
        'with gin.init(timeout=0) as comm:\n    comm.compile(SOURCE, "wait").launch()\n    comm.synchronize()\n'
    )
    failure = check(Plan(Script.of_file(str(program)), 3, 0, 5)).failure
    assert failure is not None and failure.kind == "deadlock"
    assert failure.waiting.count("wait on signal 5 to reach 1") == 3


LOOPS = {
    "read": ("while (net.read(5) < 1) {}", "a loop that only looks at signal 5, which is 0"),
    "test": ("while (!net.test(5, 1) && !net.test(6, 1)) {}", "a loop that only looks at signal"),
    "counter": ("while (net.read_counter(2) < 1) {}", "a loop that only looks at counter 2, which is 0"),
    "reset": ("while (!net.reset(5)) {}", "a loop that only looks at signal 5, which is 0"),
}


def program(tmp_path: Path, body: str, more: str = "", before: str = "") -> Script:
    """A script whose kernel has this body, with lines of Python after and before the launch."""
    path = tmp_path / "program.py"
    path.write_text(
        'import gin\nSOURCE = r"""#include <gin/gin.cuh>\n'
        'extern "C" __global__ void kernel(gin::Comm comm, gin::Window window) {\n  gin::Context net(comm);\n'
        f'  {body}\n}}"""\n'
        f"with gin.init() as comm:\n    window = comm.window(64)\n{before}"
        f'    comm.compile(SOURCE, "kernel").launch(window, block=4)\n    comm.synchronize()\n{more}'
    )
    return Script.of_file(str(path))


@pytest.mark.parametrize(
    ("loop", "policy"), [("read", "random"), ("test", "pct"), ("counter", "random"), ("reset", "pct")]
)
def test_a_loop_around_a_look_ends_with_its_story(loop: str, policy: str, tmp_path: Path) -> None:
    body, words = LOOPS[loop]
    failure = check(Plan(program(tmp_path, f"if (net.rank() == 1) {body}"), 2, 0, 2, {"GIN_POLICY": policy})).failure
    assert failure is not None and failure.kind == "deadlock" and failure.steady
    assert words in failure.waiting and "(kernel.cu:4)" in failure.waiting
    assert failure.story is not None and failure.story.cause == "a loop that nothing ends"
    assert "again and again: it is 0" in failure.story.steps[-1].text
    assert failure.story.steps[-1].where == "kernel.cu:4"


def test_a_program_that_goes_on_for_ever_ends(tmp_path: Path) -> None:
    body = "for (;;) { net.put(gin::thread, 0, window, 0, window, 8, 8); net.flush(gin::thread); }"
    failure = check(Plan(program(tmp_path, body), 2, 0, 2, turns=50_000)).failure
    assert failure is not None and failure.kind == "deadlock"
    assert "no end after 50000 turns" in failure.error and "kernel.cu:4" in failure.waiting
    assert "--turns 50000" in failure.replay


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_wait_for_too_few_is_told(backend: str, tmp_path: Path) -> None:
    """Each rank puts to both, and waits for one of two."""
    body = (
        "if (threadIdx.x < 2) net.put_value(threadIdx.x, window, 4 * net.rank(), net.rank() + 1, gin::signal_inc{0});\n"
        "  net.wait(gin::block, 0, 1);"
    )
    oracle = "    assert window.read('u4', 2).tolist() == [1, 2]\n"
    failure = check(Plan(program(tmp_path, body, oracle), 2, 0, 200, {"GIN_BACKEND": backend})).failure
    assert failure is not None and failure.kind == "assertion"
    assert failure.story is not None and failure.story.cause == "a wait for too few"
    assert any("wait for signal 0 of context 0 to reach 1 ends" in step.text for step in failure.story.steps)


def test_a_get_without_any_flush_is_told(tmp_path: Path) -> None:
    """The host reads what a kernel has got and not flushed."""
    body = (
        "unsigned* words = static_cast<unsigned*>(window.local());\n"
        "  if (threadIdx.x == 0) words[0] = 5, net.signal(1 - net.rank(), gin::ordered(gin::signal_inc{0}));\n"
        "  net.wait(gin::block, 0, 1);\n  net.get(gin::block, 1 - net.rank(), window, 0, window, 8, 4);"
    )
    oracle = "    assert window.read('u4', 1, 8) == [5]\n    comm.barrier()\n"
    failure = check(Plan(program(tmp_path, body, oracle), 2, 0, 200, {"GIN_BACKEND": "ibrc_proxy"})).failure
    assert failure is not None and failure.kind == "assertion" and failure.story is not None
    assert failure.story.cause == "get read before its flush"
    assert any("ends, without a flush" in step.text for step in failure.story.steps)


ROUNDS = (
    "for (int round = 0; round < 4; ++round) {\n"
    "    if (threadIdx.x == 0) net.put_value(1 - net.rank(), window, 4 * round, round, gin::ordered(gin::signal_inc{0}));\n"
    "    net.wait(gin::block, 0, net.epoch(0) + 1);\n  }"
)


@pytest.mark.parametrize(
    ("end", "kind"), [("raise ValueError('mine')", "exception"), ("raise SystemExit('mine')", "exit")]
)
def test_a_failure_of_the_programs_own_gets_no_story(end: str, kind: str, tmp_path: Path) -> None:
    """A peer may be a round ahead when the program ends: every seed fails, and none of them by that."""
    failure = check(Plan(program(tmp_path, ROUNDS, f"    {end}\n"), 2, 0, 1)).failure
    assert failure is not None and failure.kind == kind and failure.trace is not None
    assert failure.story is None, failure.story
    assert failure.simplified[-1] == LATENESS


def test_an_exception_that_late_delivery_alone_brings_about_has_its_cause(tmp_path: Path) -> None:
    body = (
        "if (threadIdx.x == 0) net.put_value(1 - net.rank(), window, 4, 7);\n"
        "  if (threadIdx.x == 0) net.signal(1 - net.rank(), gin::signal_inc{0});\n"
        "  net.wait(gin::block, 0, 1);"
    )
    oracle = "    if window.read('u4', 1, 4) != 7:\n        raise ValueError('it has not come')\n"
    failure = check(Plan(program(tmp_path, body, oracle), 2, 0, 200)).failure
    assert failure is not None and failure.kind == "exception" and LATENESS not in failure.simplified
    assert failure.story is not None and failure.story.cause == "weak signal taken for an ordered one"
    assert not failure.guess


def test_a_mistake_beside_an_exception_that_always_comes_is_a_guess(tmp_path: Path) -> None:
    body = (
        "unsigned* words = static_cast<unsigned*>(window.local());\n  if (threadIdx.x) return;\n"
        "  for (int i = 0; i < 3; ++i) words[0] = i, net.put(gin::thread, 1 - net.rank(), window, 8, window, 0, 4);\n"
        "  net.quiet(gin::thread);"
    )
    script = program(tmp_path, body, "    raise ValueError('mine')\n")
    failure = check(Plan(script, 2, 0, 1, {"GIN_BACKEND": "ibrc_proxy"})).failure
    assert failure is not None and failure.simplified[-1] == LATENESS
    assert failure.story is not None and failure.story.cause == "source reused before flush"
    assert failure.guess and "perhaps: source reused before flush" in list(_story(failure))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_peer_that_is_a_kernel_ahead_is_no_wait_for_too_few(backend: str, tmp_path: Path) -> None:
    body = (
        "if (threadIdx.x == 0) net.put_value(1 - net.rank(), window, 0, 7, gin::ordered(gin::signal_inc{0}));\n"
        "  net.wait(gin::block, 0, net.epoch(0) + 1);"
    )
    again = "    comm.compile(SOURCE, 'kernel').launch(window, block=4)\n    comm.synchronize()\n"
    ahead = f"    if comm.rank:\n        assert False\n{again}"
    for seed in range(20):
        failure = check(Plan(program(tmp_path, body, ahead), 2, seed, 1, {"GIN_BACKEND": backend})).failure
        assert failure is not None and failure.rank == 1
        assert failure.story is None, failure.story


def test_a_signal_that_covers_no_bytes_is_no_sign_of_a_wait_for_too_few(tmp_path: Path) -> None:
    """Nobody waits for the last word of thanks."""
    body = (
        "net.wait(gin::block, 0, 0);\n  if (threadIdx.x == 0) net.signal(1 - net.rank(), gin::signal_inc{0});\n"
        "  net.quiet(gin::block);"
    )
    failure = check(Plan(program(tmp_path, body, "    assert False\n"), 2, 0, 1)).failure
    assert failure is not None and failure.story is None, failure


@pytest.mark.parametrize("finish", ["quiet", "fence"])
def test_a_get_of_the_librarys_own_is_no_mistake(finish: str, tmp_path: Path) -> None:
    body = (
        "if (threadIdx.x == 0) net.put_value(1 - net.rank(), window, 0, 7, gin::signal_inc{0});\n"
        f"  net.wait(gin::block, 0, 1);\n  net.{finish}(gin::block);"
    )
    failure = check(Plan(program(tmp_path, body, "    assert False\n"), 2, 0, 1, {"GIN_BACKEND": "nccl_gin"})).failure
    assert failure is not None and failure.kind == "assertion" and failure.trace is not None
    assert any(event.kind == "post" and event.op == "get" for event in failure.trace.events)
    assert failure.story is None, failure.story


@pytest.mark.parametrize("backend", ["nccl_gin", "ibrc_proxy"])
def test_a_flush_before_the_hosts_barrier_is_told(backend: str, tmp_path: Path) -> None:
    body = "net.put(gin::block, 1 - net.rank(), window, 0, window, 32, 32); net.flush(gin::block);"
    fill = "    window.array('u4')[8:] = 1 + comm.rank\n    comm.barrier()\n"
    oracle = "    comm.barrier()\n    assert (window.read('u4', 8) == 2 - comm.rank).all()\n    comm.barrier()\n"
    script = program(tmp_path, body, oracle, fill)
    failure = check(Plan(script, 2, 0, 200, {"GIN_BACKEND": backend})).failure
    assert failure is not None and failure.kind == "assertion" and failure.story is not None
    assert failure.story.cause == "flush taken for remote completion"
    assert "arrive" in failure.story.steps[-1].text  # late, or not before the end


def test_a_source_that_another_thread_writes_too_late_is_told(tmp_path: Path) -> None:
    """One thread puts what the others of its block are still to write."""
    body = (
        "static_cast<unsigned*>(window.local())[4 + threadIdx.x] = 0;\n  __syncthreads();\n"
        "  for (unsigned i = 0; i < 4 * threadIdx.x; ++i) net.test(1, 1);\n"
        "  static_cast<unsigned*>(window.local())[4 + threadIdx.x] = 7;\n"
        "  if (threadIdx.x == 0) net.put(gin::thread, 1 - net.rank(), window, 0, window, 16, 16, gin::signal_inc{0});\n"
        "  net.wait(gin::block, 0, 1);"
    )
    oracle = "    assert window.read('u4', 4).tolist() == [7] * 4\n"
    failure = check(Plan(program(tmp_path, body, oracle), 2, 0, 200, {"GIN_BACKEND": "ibrc_proxy"})).failure
    assert failure is not None and failure.story is not None
    assert failure.story.cause == "source reused before flush"
    assert "synchronise the threads first" in failure.story.rule


def test_what_ranks_wrote_stands_once(tmp_path: Path) -> None:
    body = "net.wait(gin::thread, 5, 1, net.rank() ? 1'000'000 : 2'000'000);"
    script = program(tmp_path, body, "")
    failure = check(Plan(script, 2, 0, 1, {"GIN_BACKEND": "nccl_gin"})).failure
    assert failure is not None and failure.kind == "deadline"
    assert f"[{1 - failure.rank}] " in failure.output and f"[{failure.rank}] " not in failure.output
    assert failure.story is not None
    assert failure.story.steps[-1].text == "wait for signal 5 of context 0 to reach 1 passes its deadline: it is 0"


OUT_OF_RANGE = (
    "if (threadIdx.x == 0) net.put_value(1 - net.rank(), window, 0, 7, gin::signal_inc{64});\n"
    "  net.wait(gin::block, 64, 1);"
)


@pytest.mark.parametrize("faults", [{}, {"GIN_FAULTS": "refuse"}])
def test_ranges_are_checked(faults: dict[str, str], tmp_path: Path) -> None:
    failure = check(Plan(program(tmp_path, OUT_OF_RANGE), 2, 0, 1, faults)).failure
    assert failure is not None and failure.steady and failure.story is None
    assert failure.error.startswith("RangeError: ") and "asked for 64, the limit is 64" in failure.error
    assert "GIN_CHECK" not in failure.replay


def test_ranges_are_checked_in_jobs_that_a_program_spawns(tmp_path: Path) -> None:
    path = Path(program(tmp_path, OUT_OF_RANGE).path)
    head, body = path.read_text().split("with gin.init", 1)
    body = "".join(f"    {line}\n" for line in f"with gin.init{body}".splitlines())
    path.write_text(f"{head}def work():\n{body}\ngin.spawn(2, work, platform='sim')\n")
    failure = check(Plan(Script.of_file(str(path)), 1, 0, 1)).failure
    assert failure is not None and failure.error.startswith("RangeError: "), failure.error


@pytest.mark.parametrize("given", ["argument", "variable", "file"])
def test_ranges_are_not_checked_where_that_is_the_setting(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = program(tmp_path, OUT_OF_RANGE)
    monkeypatch.chdir(tmp_path)
    if given == "argument":
        path = Path(script.path)
        path.write_text(path.read_text().replace("gin.init()", "gin.init(check=False)"))
        script = Script.of_file(script.path)
    elif given == "variable":
        monkeypatch.setenv("GIN_CHECK", "0")
    else:
        (tmp_path / "gin.toml").write_text("check = false\n")
    assert check(Plan(script, 2, 0, 1)).failure is None


FAULTY = r"""
import numpy as np
import gin
SOURCE = r'''
#include <gin/gin.cuh>
extern "C" __global__ void shift(gin::Comm comm, gin::Window dst, gin::Window src, unsigned long long bytes) {
  gin::Context net(comm);
  net.put(gin::block, (net.rank() + 1) % net.size(), dst, 0, src, 0, bytes, gin::signal_inc{0});
  net.wait(gin::block, 0, net.epoch(0) + 1);
  net.flush(gin::block);
  net.barrier(gin::block);
}
'''
with gin.init(timeout="1s") as comm:
    dst, src = comm.window(100_000), comm.window(100_000)
    src.write(np.full(100_000, comm.rank, np.uint8))
    kernel = comm.compile(SOURCE, "shift")
    for turn in range(4):
        kernel.launch(dst, src, 100_000, block=32)
        comm.synchronize()
        assert (dst.read() == (comm.rank - 1) % comm.size).all()
        comm.barrier()
"""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "faults", ["error", "dead", "full", "alloc", "register", "message", "refuse", "dead,refuse,full=1"]
)
def test_programs_survive_faults_or_end_with_errors_of_gin(faults: str, backend: str, tmp_path: Path) -> None:
    program = tmp_path / "faulty.py"
    program.write_text(FAULTY)
    report = check(Plan(Script.of_file(str(program)), 3, 0, 20, {"GIN_FAULTS": faults, "GIN_BACKEND": backend}))
    assert report.failure is None, report.failure
