"""Threads that the simulation has to end: loops that never give way, and faults. Each is a failure with a story, not the end
of the process."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from processes import running

from gin.cli.check import command
from gin.sim.check import Failure, Plan, check
from gin.sim.launch import Script

BACKENDS = ("nvshmem", "nccl_gin", "ibrc_proxy")
KERNELS = r"""
#include <gin/gin.cuh>
#include <string.h>

__device__ __attribute__((noinline)) int deep(volatile int* word, int left) {
  volatile char bytes[1000];
  bytes[left % 10] = char(left);
  return left ? deep(word, left - 1) + bytes[left % 10] : *word;
}

extern "C" __global__ void kernel(gin::Comm comm, gin::Window window) {
  gin::Context net(comm);
  const uint32_t peer = 1 - net.rank();
  net.put_value(peer, window, 0, 1);
  volatile int* word = static_cast<int*>(window.local());
  volatile int zero = 0;
  if (net.rank() == 0 || threadIdx.x != 2) return;
  BODY
}
"""
DEEP = KERNELS[: KERNELS.index("volatile char")].count("\n") + 1
LINE = KERNELS[: KERNELS.index("BODY")].count("\n") + 1
FAULTS = {
    "null": (
        "*static_cast<int*>(net.peer_pointer(window, 0, peer)) = 7;",
        "address 0x0; peer_pointer gives a null pointer",
    ),
    "copy": (
        "memcpy(net.peer_pointer(window, 0, peer), window.local(), 4096); *word = 1;",
        "address 0x0; peer_pointer gives a null pointer",
    ),
    "nowhere": ("*reinterpret_cast<volatile int*>(1ull << 60) = 7;", "none that memory can have"),
    "division": ("*word = 7 / zero;", "integer division by zero"),
    "stack": ("*word = deep(word, 1 << 20);", "stack overflow: a thread has 256 KiB"),
    "trap": ("__builtin_trap();", "illegal instruction"),
}
SPINS = {
    "volatile": "while (word[1] == 0) {}",
    "clock": "while (word[1] == 0 && clock64() < (1ll << 62)) {}",
    "copy": "for (char to[64]; word[1] == 0;) memcpy(to, (char*)word, 64 - zero);",
    "nothing": 'for (;;) __asm__ volatile("");',
}


def script(folder: Path, body: str, then: str = "") -> Script:
    path = folder / "program.py"
    source = KERNELS.replace("BODY", body)
    path.write_text(
        f"import gin\nwith gin.init() as comm:\n    window = comm.window(4096)\n"
        f'    comm.compile({source!r}, "kernel").launch(window, block=4)\n'
        f"{then}    comm.synchronize()\n"
    )
    return Script.of_file(str(path))


def failure(folder: Path, body: str, **settings: str) -> Failure:
    found = check(Plan(script(folder, body), 2, 7, 3, settings)).failure
    assert found is not None and found.seed == 7 and found.rank == 1
    return found


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_a_failure_with_its_line(fault: str, tmp_path: Path) -> None:
    body, words = FAULTS[fault]
    found = failure(tmp_path, body)
    assert found.kind == "fault" and found.steady
    assert found.error.startswith("Fault: rank 1: kernel kernel: ") and words in found.error, found.error
    line = f"[{DEEP - 1}-{DEEP + 2}]" if fault == "stack" else LINE
    assert re.search(rf"in block \(0,0,0\) thread \(2,0,0\), at kernel\.cu:{line}\n", found.error), found.error
    assert "thread 2 running" in found.error


def test_a_fault_at_an_address_that_differs_is_the_same_run(tmp_path: Path) -> None:
    found = failure(tmp_path, "word[-(1ll << 36)] = 7;")
    assert found.kind == "fault" and "segmentation fault at address 0x" in found.error, found.error
    assert found.steady


@pytest.mark.parametrize(
    ("spin", "backend"),
    [("volatile", name) for name in BACKENDS] + [(name, "ibrc_proxy") for name in SPINS if name != "volatile"],
)
def test_a_loop_that_never_gives_way_is_a_failure_with_its_line(spin: str, backend: str, tmp_path: Path) -> None:
    found = failure(tmp_path, SPINS[spin], GIN_SPIN_LIMIT="300ms", GIN_BACKEND=backend)
    assert found.kind == "spin" and "has not given way to other threads for" in found.error
    assert f"thread (2,0,0), at kernel.cu:{LINE}" in found.error and "GIN_SPIN_LIMIT" in found.error
    assert found.story is not None and found.story.cause == "a loop that never gives way"
    assert "net.wait" in found.story.rule
    assert found.replay.startswith("gin check ") and "--seed 7" in found.replay


def test_what_computes_for_long_is_left_alone(tmp_path: Path) -> None:
    body = "for (unsigned long i = 0; i < 300'000'000; ++i) __asm__ volatile(\"\");"
    assert check(Plan(script(tmp_path, body), 2, 0, 1, {"GIN_SPIN_LIMIT": "0"})).failure is None
    assert check(Plan(script(tmp_path, body), 2, 0, 1)).failure is None


def test_the_job_goes_on_after_a_fault(tmp_path: Path) -> None:
    """The process is as good as before: the next runs are what they were."""
    for _ in range(3):
        assert failure(tmp_path, FAULTS["null"][0]).kind == "fault"
        assert failure(tmp_path, FAULTS["stack"][0]).kind == "fault"
        assert check(Plan(script(tmp_path, "return;"), 2, 0, 3)).failure is None


@pytest.mark.parametrize("body", ["while (word[1] == 0) {}", "*word = 7 / zero;"])
def test_faults_of_the_network_excuse_neither(body: str, tmp_path: Path) -> None:
    found = failure(tmp_path, body, GIN_SPIN_LIMIT="300ms", GIN_FAULTS="refuse")
    assert found.kind in ("spin", "fault")


def gin(*words: str, **settings: str) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    command = [sys.executable, "-P", "-m", "gin", *words]
    return running(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **settings})


def test_an_interrupt_ends_a_spin(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    path = script(tmp_path, SPINS["volatile"], f"    open({str(begun)!r}, 'w').close()\n").path
    with gin("check", path, "--seed", "3", GIN_SPIN_LIMIT="0") as process:
        while not begun.exists():
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode, (out, err)
    assert "passed" not in out and "Traceback" not in err, (out, err)


def test_an_interrupt_tells_how_many_seeds_have_passed_and_how_to_go_on(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    path = script(tmp_path, "return;", f"    open({str(begun)!r}, 'a').write('.')\n").path
    with gin("check", path, "--seed", "5", "--seeds", "1000000", "--json", "-") as process:
        deadline = time.monotonic() + 60
        while not begun.exists() or begun.stat().st_size < 20:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    (report,) = json.loads(out)
    assert process.returncode == 130, (out, err)
    assert report["interrupted"] and report["failure"] is None and report["runs"] >= 9
    assert f"{report['runs']} of 1000000 seeds run" in err and "passed, then interrupted" in err
    assert f"go on: gin check {path} --seed {5 + report['runs']} --seeds {1000000 - report['runs']} --ranks 2" in err


def test_an_interrupt_while_the_cause_is_looked_for_leaves_the_failure(tmp_path: Path, monkeypatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gin.sim.check._explain", interrupted)
    path = script(tmp_path, "return;", "    assert comm.rank == 0\n").path
    done = CliRunner().invoke(command, [path, "--seed", "7", "--seeds", "3", "--json", str(tmp_path / "found.json")])
    (report,) = json.loads((tmp_path / "found.json").read_text())
    assert done.exit_code == 1, done.output
    assert "FAILED\nseed 7: assertion on rank 1\n" in done.output and "the replay looks again" in done.output
    assert report["failure"]["seed"] == 7 and report["interrupted"] and report["runs"] == 1


@pytest.mark.parametrize("place", ["gin.cli.check._check", "gin.cli.check.Plan", "gin.sim.check.Config.from_sources"])
def test_an_interrupt_before_the_first_run_leaves_a_report(place: str, tmp_path: Path, monkeypatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(place, interrupted)
    path = script(tmp_path, "return;").path
    done = CliRunner().invoke(command, [path, "--backend", "all", "--json", str(tmp_path / "found.json")])
    reports = json.loads((tmp_path / "found.json").read_text())
    assert done.exit_code == 130, done.output
    assert "nccl_gin" in done.output[done.output.index("not run:") :]
    assert all(report["interrupted"] and report["runs"] == 0 for report in reports)
    assert {path.suffix for path in tmp_path.iterdir()} <= {".py", ".json"}


def mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def test_stacks_of_runs_that_are_over_are_not_kept(tmp_path: Path) -> None:
    path = Path(script(tmp_path, "return;").path)
    path.write_text(path.read_text().replace("block=4", "grid=8, block=64"))
    script_of_many = Script.of_file(str(path), ())
    assert check(Plan(script_of_many, 2, 0, 2)).failure is None
    gc.disable()
    try:
        before = mappings()
        assert check(Plan(script_of_many, 2, 2, 3)).failure is None
        assert mappings() < before + 500
    finally:
        gc.enable()


def test_a_fault_outside_of_the_kernel_tells_the_seed_before_the_process_ends(tmp_path: Path) -> None:
    path = script(tmp_path, 'printf("%s %d\\n", reinterpret_cast<const char*>(zero + 8), *word);').path
    with gin("check", path, "--seed", "3") as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGSEGV
    assert "gin: kernel kernel, block (0,0,0) thread (2,0,0): segmentation fault at address 0x8" in err, err
    assert f"replay: gin check {path} --seed 3 --ranks 2" in err


def test_a_put_of_no_memory_is_an_error_also_where_it_is_recorded(tmp_path: Path) -> None:
    body = "net.put(gin::thread, 0, window, 0, window, 1ull << 45, 64); net.flush(gin::thread);"
    found = failure(tmp_path, body, GIN_BACKEND="ibrc_proxy", GIN_CHECK="0")
    assert found.kind == "exception" and found.error.startswith("RangeError: rank 1: put to rank 0"), found.error


def test_gin_run_tells_it_too(tmp_path: Path) -> None:
    path = script(tmp_path, SPINS["volatile"]).path
    with gin("run", "-n", "2", path, GIN_PLATFORM="sim", GIN_SPIN_LIMIT="300ms") as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "rank 1: kernel kernel: has not given way to other threads" in err and f"at kernel.cu:{LINE}" in err, err
