"""Simulated ranks as a user meets them: gin.spawn, gin run, gin.init; who waits for whom, and how programs end."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gin

BACKENDS = ("nvshmem", "nccl_gin", "ibrc_proxy")
EXAMPLES = Path(__file__).parents[2] / "examples"


def spawn(n: int, function: Any, *args: Any, **env: str) -> list[Any]:
    return gin.spawn(n, function, *args, platform="sim", env=env)


def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "gin", "run", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=100, env={**os.environ, "GIN_PLATFORM": "sim", **env}
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_ranks_meet_and_have_memory(backend: str, ranks: int) -> None:
    def body() -> Any:
        with gin.init(backend=backend) as comm:
            window = comm.window(100 * (comm.rank + 1))
            window.array()[:] = comm.rank
            comm.barrier()
            second = comm.window(0)
            return comm.rank, comm.size, window.sizes, int(window.read().sum()), second.nbytes, set(comm.routes())

    sizes = tuple(100 * (rank + 1) for rank in range(ranks))
    for rank, answer in enumerate(spawn(ranks, body)):
        assert answer == (rank, ranks, sizes, rank * 100 * (rank + 1), 0, {"native"})


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.glob("*.py")))
@pytest.mark.parametrize("backend", BACKENDS)
def test_examples(example: str, backend: str) -> None:
    done = run("-n", "3", str(EXAMPLES / example), GIN_BACKEND=backend)
    assert done.returncode == 0, done.stderr
    assert sorted(line.split(":")[0] for line in done.stdout.splitlines()) == [
        f"rank {r} of 3 ({backend})" for r in range(3)
    ]


def test_a_source_tree_in_the_current_folder_is_not_taken_for_gin(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "gin").mkdir()
    (tmp_path / "gin" / "__init__.py").write_text("raise RuntimeError('not this one')\n")
    (tmp_path / "beside.py").write_text("import gin\nprint(gin.init().size)\n")
    monkeypatch.chdir(tmp_path)
    for words in (("beside.py",), ("-m", "beside")):
        done = run("-n", "2", *words)
        assert (done.returncode, done.stdout) == (0, "2\n2\n"), done.stderr


def test_several_communicators() -> None:
    def body() -> Any:
        with gin.init(backend="nccl_gin", contexts=1) as first, gin.init(backend="nvshmem") as second:
            windows = first.window(8), second.window(16)
            kernel = first.compile(PASS_ON, "pass_on")
            kernel.launch(windows[0])
            second.compile(PASS_ON, "pass_on").launch(windows[1])
            first.synchronize()
            second.synchronize()
            return [int(window.read("u4", 1)[0]) for window in windows]

    assert spawn(3, body) == [[(rank - 1) % 3] * 2 for rank in range(3)]


PASS_ON = r"""
#include <gin/gin.cuh>
extern "C" __global__ void pass_on(gin::Comm comm, gin::Window dst) {
  gin::Context net(comm);
  net.put_value((net.rank() + 1) % net.size(), dst, 0, net.rank(), gin::signal_inc{0});
  net.wait(gin::thread, 0, 1);
}
"""


def test_an_exception_is_raised_with_the_others_as_notes() -> None:
    def body() -> None:
        with gin.init() as comm:
            if comm.rank == 1:
                raise ValueError("boo")
            comm.barrier()

    with pytest.raises(ValueError, match="boo") as caught:
        spawn(3, body)
    notes = "\n".join(caught.value.__notes__)
    assert "raised on rank 1 of 3" in notes and "rank 0 of 3 also failed: RemoteError" in notes


def test_a_rank_that_never_comes_is_named() -> None:
    def body() -> None:
        if os.environ["GIN_RANK"] != "1":
            gin.init()

    with pytest.raises(gin.BootstrapError, match=r"rank 1 did not come.*rank 1 has ended"):
        spawn(3, body)


def test_a_rank_that_has_closed_is_named() -> None:
    def body() -> None:
        with gin.init() as comm:
            if comm.rank != 2:
                comm.barrier()

    with pytest.raises(gin.RemoteError, match="rank 2 has closed the communicator"):
        spawn(3, body)


def test_different_calls_are_named() -> None:
    def body() -> None:
        with gin.init() as comm:
            comm.barrier() if comm.rank else comm.window(4)

    with pytest.raises(gin.Error, match="ranks make different calls"):
        spawn(2, body)


def test_a_wait_in_vain_passes_its_deadline_in_virtual_time() -> None:
    def body() -> None:
        with gin.init(timeout="1h") as comm:
            comm.compile(WAIT, "wait").launch()
            comm.synchronize()

    with pytest.raises(gin.TimeoutError, match=r"wait on signal 5 .*deadline of 3600s"):
        spawn(2, body)


WAIT = r"""
#include <gin/gin.cuh>
extern "C" __global__ void wait(gin::Comm comm) { gin::Context(comm).wait(gin::thread, 5, 1); }
"""


def test_a_deadlock_names_who_waits_for_what() -> None:
    def body() -> None:
        with gin.init(timeout=0) as comm:
            if comm.rank == 0:
                comm.compile(WAIT, "wait").launch()
                comm.synchronize()
            comm.barrier()

    with pytest.raises(gin.KernelError, match=r"deadlock(.|\n)*signal 5(.|\n)*rank 1: its program waits for barrier"):
        spawn(2, body)


def test_nested_jobs() -> None:
    def inner(base: int) -> int:
        with gin.init() as comm:
            comm.barrier()
            return base + comm.rank

    def outer() -> list[int]:
        with gin.init() as comm:
            found = gin.spawn(2, inner, 10 * comm.rank)
            comm.barrier()
            return found

    assert spawn(2, outer) == [[0, 1], [10, 11]]


def test_a_job_of_one_rank_needs_no_launcher(bare_environment: pytest.MonkeyPatch) -> None:
    with gin.init(platform="sim", backend="nccl_gin") as comm:
        window = comm.window(4)
        comm.compile(PASS_ON, "pass_on").launch(window)
        comm.synchronize()
        assert (comm.size, comm.platform, comm.config.wire) == (1, "sim", "sim")


def test_one_process_of_several_is_refused(bare_environment: pytest.MonkeyPatch) -> None:
    with pytest.raises(gin.ConfigError, match="all ranks in one process"):
        gin.init(platform="sim", rank=0, size=2)


def test_a_simulated_rank_has_no_other_platform() -> None:
    with pytest.raises(gin.UnsupportedError, match="this rank is simulated"):
        spawn(2, lambda: gin.init(platform="host"))


def test_programs_have_modules_and_main_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import gin\ncomm = gin.init()\ncount = 0\n")
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, mine\nmine.count += 1\nmine.comm.barrier()\n"
        "import __main__\nassert __main__.mine is mine and mine.count == 1\n"
        "print(mine.comm.rank, mine.comm.size, sys.argv[1:], __name__)\nmine.comm.close()\n"
    )
    done = run("-n", "3", "--label", str(program), "a", "-n")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{r}] {r} 3 ['a', '-n'] __main__" for r in range(3)]


def test_exit_codes(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import sys, os\nsys.exit(7 if os.environ['GIN_RANK'] == '1' else 0)\n")
    done = run("-n", "2", str(program))
    assert done.returncode == 7 and "rank 1 of 2 exited with code 7" in done.stderr


EXITS = """
import os, threading, gin
def leave(): os._exit({status})
with gin.init() as comm:
    if comm.rank == 1:
        {how}
    comm.barrier()
"""


@pytest.mark.parametrize("status", [0, 3])
@pytest.mark.parametrize("command", ["run", "check"])
def test_a_program_that_ends_the_process_fails(command: str, status: int, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(EXITS.format(status=status, how="leave()"))
    words = [sys.executable, "-P", "-m", "gin", command, "-n", "2", str(program)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, env={**os.environ, "GIN_PLATFORM": "sim"})
    assert done.returncode == 1, done
    assert f"os._exit({status}) would end all simulated ranks" in done.stdout + done.stderr
    if command == "check":
        assert "seed 0: exit on rank 1" in done.stdout and "in leave" in done.stdout
        assert "cause:" not in done.stdout


def test_a_thread_that_ends_the_process_does_not_pass(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        EXITS.format(status=0, how="thread = threading.Thread(target=leave); thread.start(); thread.join()")
    )
    done = run("-n", "2", str(program))
    assert done.returncode == 1 and "gin: os._exit(0) would end" in done.stderr, done


def test_processes_that_a_rank_has_forked_end_as_they_will(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    how = "child = os.fork(); child or leave(); assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3"
    program.write_text(EXITS.format(status=3, how=how))
    done = run("-n", "2", str(program))
    assert done.returncode == 0, done.stderr


def test_os_exit_is_given_back() -> None:
    before = os._exit
    with pytest.raises(SystemExit, match="would end all simulated ranks"):
        spawn(2, lambda: os._exit(7))
    assert os._exit is before


def test_programs_that_are_not_python_are_refused() -> None:
    done = run("-n", "2", "true")
    assert done.returncode == 2 and "runs Python programs" in done.stderr


def test_variables_of_a_kernel_are_each_ranks_own() -> None:
    source = r"""
    #include <gin/gin.cuh>
    __device__ int calls = 10;
    extern "C" __global__ void count(gin::Comm comm, gin::Window out) {
      calls += 1 + gin::Context(comm).rank();
      *static_cast<int*>(out.local()) = calls;
    }
    """

    def body() -> int:
        with gin.init() as comm:
            out = comm.window(4)
            kernel = comm.compile(source, "count")
            for _ in range(2):
                kernel.launch(out)
            comm.synchronize()
            return int(out.read("i4")[0])

    for _ in range(2):
        assert spawn(3, body) == [12, 14, 16]


PUTS = r"""
#include <gin/gin.cuh>
extern "C" __global__ void puts(gin::Comm comm, gin::Window window, int waits) {
  gin::Context net(comm);
  for (int i = 0; i < 64; ++i)
    net.put(gin::thread, 1 - net.rank(), window, 4096 * i, window, 4096 * i, 4096, gin::signal_inc{0});
  if (waits) net.wait(gin::thread, 1, 1);
}
"""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("ends", ["at once", "with launches done", "while a kernel waits", "and opens another"])
def test_what_is_in_flight_does_not_touch_memory_that_is_gone(backend: str, ends: str) -> None:
    """Programs that leave a communicator open."""

    def body() -> None:
        comm = gin.init(backend=backend, timeout="1ms")
        window = comm.window(64 * 4096)
        comm.compile(PUTS, "puts").launch(window, int(ends == "while a kernel waits"))
        if ends != "while a kernel waits" and ends != "at once":
            comm.synchronize()
        del window, comm
        gc.collect()
        if ends == "and opens another":
            with gin.init(backend=backend) as other:
                for _ in range(5):
                    fresh = other.window(64 * 4096)
                    other.barrier()
                    assert not fresh.read().any()
                    fresh.close()

    for seed in range(5):
        spawn(2, body, GIN_SEED=str(seed))


def test_jobs_leave_nothing_behind() -> None:
    def body() -> None:
        comm = gin.init(backend="ibrc_proxy")
        comm.compile(PASS_ON, "pass_on").launch(comm.window(8))
        comm.synchronize()  # and no close

    def jobs() -> list[Any]:
        gc.collect()
        return [thing for thing in gc.get_objects() if type(thing).__name__ == "Job"]

    before = jobs()  # those that the exceptions of earlier tests still show
    spawn(2, body)
    assert [job for job in jobs() if not any(job is other for other in before)] == []
