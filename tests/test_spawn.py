"""gin.spawn: results, exceptions, dead ranks, deadlines, output, speed, nothing left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from gin.errors import ConfigError, RemoteError, TimeoutError
from gin.launch import nursery as nursery_module
from gin.launch.spawn import spawn

pytestmark = pytest.mark.timeout(60)

A_LOCK = threading.Lock()  # a function that uses it cannot be sent whole


class CustomError(Exception):
    """Known to this module only."""

    def __init__(self, first: int, second: str) -> None:
        super().__init__(f"{first} {second}")
        self.first = first


def my_rank() -> int:
    return int(os.environ["GIN_RANK"])


def take_lock() -> bool:
    return A_LOCK.acquire(blocking=False)


def pause(seconds: float) -> None:
    time.sleep(seconds)


def processes_of(marker: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("GIN_TEST_MARKER") == marker and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def assert_gone(marker: str, seconds: float = 5) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and processes_of(marker):
        time.sleep(0.02)
    assert processes_of(marker) == []


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_results_by_rank(n: int) -> None:
    def work(factor: int, *, ranks: dict[str, int] | None = None) -> tuple[int, str, str]:
        return my_rank() * factor, os.environ["GIN_SIZE"], os.environ["GIN_LOCAL_RANK"]

    assert spawn(n, work, 10) == [(10 * rank, str(n), str(rank)) for rank in range(n)]


def test_all_kinds_of_functions() -> None:
    assert spawn(2, my_rank) == [0, 1]
    assert spawn(2, lambda: my_rank() + 1) == [1, 2]
    assert spawn(2, os.getcwd) == [os.getcwd()] * 2
    assert spawn(1, "text".upper) == ["TEXT"]
    assert spawn(1, take_lock) == [True]
    assert spawn(1, sum, [1, 2, 3]) == [6]


def test_large_arguments_and_results() -> None:
    data = os.urandom(5_000_000)
    assert spawn(2, lambda given: given * 2, data) == [data * 2] * 2


def test_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_here.py").write_text("value = 42")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("GIN_TEST_A", "a")
    monkeypatch.setenv("GIN_TEST_B", "b")

    def look() -> tuple[object, ...]:
        import only_here  # type: ignore[import-not-found]

        values = os.environ.get("GIN_TEST_A"), os.environ.get("GIN_TEST_B"), os.environ.get("GIN_TEST_C")
        return only_here.value, os.getcwd(), sys.argv, sys.stdin.read(), *values

    expected = (42, str(tmp_path), sys.argv, "", None, "b", "c")
    assert spawn(1, look, env={"GIN_TEST_A": None, "GIN_TEST_C": "c"}) == [expected]


def test_ranks_are_fresh() -> None:
    def work() -> tuple[object, ...]:
        import random

        import numpy as np

        os.environ["GIN_TEST_STATE"] = "set"
        return random.random(), float(np.random.rand()), os.getpid(), os.getpgid(0) == os.getpid()

    results = spawn(2, work) + spawn(2, work)
    for column in range(3):
        assert len({result[column] for result in results}) == 4
    assert all(result[3] for result in results)
    assert spawn(1, lambda: os.environ.get("GIN_TEST_STATE")) == [None]


def test_output_goes_where_the_parents_goes(capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        print("out of", my_rank())
        print("err of", my_rank(), file=sys.stderr)
        os.system("echo from a child")

    spawn(2, work)
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["from a child", "from a child", "out of 0", "out of 1"]
    assert sorted(err.splitlines()) == ["err of 0", "err of 1"]


def test_exception_keeps_its_type_and_tells_where() -> None:
    def work() -> None:
        if my_rank() == 1:
            raise CustomError(3, "four")

    with pytest.raises(CustomError, match="3 four") as caught:
        spawn(3, work)
    note = "\n".join(caught.value.__notes__)
    assert "raised on rank 1 of 3" in note
    assert 'raise CustomError(3, "four")' in note, "the traceback shows source lines"


def test_own_errors_keep_their_record() -> None:
    def work() -> None:
        raise TimeoutError("too late", record={"rank": 7})

    with pytest.raises(TimeoutError, match="too late") as caught:
        spawn(1, work)
    assert caught.value.record == {"rank": 7}


def test_first_failure_wins_and_the_others_are_noted() -> None:
    def work() -> None:
        time.sleep([0.3, 0.0, 0.3][my_rank()])
        raise [RuntimeError("second"), KeyError("first"), OSError("third")][my_rank()]

    with pytest.raises(KeyError) as caught:
        spawn(3, work)
    notes = "\n".join(caught.value.__notes__)
    assert "rank 0 of 3 also failed: RuntimeError: second" in notes
    assert "rank 2 of 3 also failed: OSError: third" in notes


def test_a_consequence_is_not_the_cause() -> None:
    def work() -> None:
        if my_rank() == 0:
            raise RemoteError("rank 1 died")
        time.sleep(0.2)
        raise ValueError("the cause")

    with pytest.raises(ValueError, match="the cause"):
        spawn(2, work)


def test_what_cannot_travel() -> None:
    with pytest.raises(TypeError, match="pickle"):
        spawn(1, threading.Lock)
    with pytest.raises(ConfigError, match="cannot be sent"):
        spawn(1, print, threading.Lock())

    def work() -> None:
        error = ValueError("unique")
        error.lock = threading.Lock()  # type: ignore[attr-defined]
        raise error

    with pytest.raises(RemoteError, match="rank 0 of 1 raised ValueError: unique"):
        spawn(1, work)


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (
            lambda: os.kill(os.getpid(), signal.SIGKILL),
            "rank 1 of 2 was killed by SIGKILL before its function returned",
        ),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "rank 1 of 2 was killed by SIGSEGV"),
        (lambda: os._exit(3), "rank 1 of 2 exited with code 3"),
        (lambda: os._exit(0), "rank 1 of 2 exited with code 0 before its function returned"),
        (lambda: sys.exit(5), r"rank 1 of 2 raised SystemExit: SystemExit\(5\)"),
    ],
)
def test_a_rank_that_ends_otherwise(ending: object, words: str) -> None:
    def work() -> None:
        if my_rank() == 1:
            ending()  # type: ignore[operator]

    with pytest.raises(RemoteError, match=words) as caught:
        spawn(2, work)
    if "raised" not in words:
        assert caught.value.record == {"rank": 1}


def test_death_at_exit_is_a_failure() -> None:
    def work() -> int:
        import atexit

        atexit.register(os.abort)
        return 1

    with pytest.raises(RemoteError, match="rank 0 of 1 was killed by SIGABRT after its function returned"):
        spawn(1, work)


def test_the_others_have_time_and_then_are_ended(capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        if my_rank() == 1:
            raise ValueError("early")
        pause(40)

    began = time.monotonic()
    with pytest.raises(ValueError, match="early") as caught:
        spawn(2, work, env={"GIN_TEST_MARKER": "grace"})
    assert 4 < time.monotonic() - began < 15
    assert "rank 0 had not ended" in "\n".join(caught.value.__notes__)
    assert "in pause" in capfd.readouterr().err, "it showed where it stood"
    assert_gone("grace")


def test_timeout_names_the_late_ranks(capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        if my_rank() != 1:
            pause(40)

    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"ranks 0, 2 of 3 have not finished within 0\.4 s") as caught:
        spawn(3, work, timeout="400ms", env={"GIN_TEST_MARKER": "timeout"})
    assert time.monotonic() - began < 5
    assert caught.value.record == {"ranks": [0, 2]}
    assert_gone("timeout")


def test_a_rank_that_ignores_sigterm_is_killed() -> None:
    def work() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pause(40)

    with pytest.raises(TimeoutError):
        spawn(1, work, timeout=0.3, env={"GIN_TEST_MARKER": "ignore"})
    assert_gone("ignore")


def test_what_a_rank_starts_ends_with_it() -> None:
    spawn(1, lambda: subprocess.Popen(["sleep", "60"]) and None, env={"GIN_TEST_MARKER": "grandchild"})
    assert_gone("grandchild")


def test_wrong_arguments() -> None:
    for n in (0, -1, 1.0, True, "2"):
        with pytest.raises(ConfigError, match="number of ranks"):
            spawn(n, my_rank)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cannot be called"):
        spawn(2, 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="duration"):
        spawn(2, my_rank, timeout="soon")


def test_the_zygote_is_replaced_when_it_dies() -> None:
    spawn(1, my_rank)
    nursery = nursery_module.Nursery.current()
    nursery._process.kill()
    nursery._process.wait()
    assert spawn(2, my_rank) == [0, 1]


def test_ranks_die_with_the_zygote() -> None:
    def kill_it() -> None:
        if my_rank() == 0:
            os.kill(os.getppid(), signal.SIGKILL)
        pause(40)

    with pytest.raises(RemoteError, match="the process that starts ranks died"):
        spawn(2, kill_it, env={"GIN_TEST_MARKER": "zygote"})
    assert_gone("zygote")


def test_two_spawns_at_once(nothing_left: None) -> None:
    results: list[list[int]] = []
    threads = [threading.Thread(target=lambda: results.append(spawn(3, my_rank))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [[0, 1, 2]] * 4


def test_spawn_in_a_rank() -> None:
    assert spawn(2, lambda: (my_rank(), spawn(3, my_rank))) == [(0, [0, 1, 2]), (1, [0, 1, 2])]


def test_a_forked_process_has_its_own_zygote() -> None:
    spawn(1, my_rank)

    def child() -> None:
        assert spawn(2, my_rank) == [0, 1]

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(30)
    assert process.exitcode == 0
    assert spawn(2, my_rank) == [0, 1]


def test_nothing_is_left_behind(nothing_left: None) -> None:
    for _ in range(50):
        spawn(2, my_rank)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_ranks_die_with_the_parent(tmp_path: Path, end: signal.Signals) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent("""
        import pathlib, sys, time
        from gin.launch.spawn import spawn
        def work(folder):
            import os
            pathlib.Path(folder, os.environ["GIN_RANK"]).touch()
            time.sleep(60)
        spawn(2, work, sys.argv[1])
        """)
    )
    marker = f"parent {end}"
    environment = {**os.environ, "GIN_TEST_MARKER": marker, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    parent = subprocess.Popen([sys.executable, str(script), str(tmp_path)], env=environment, stderr=subprocess.DEVNULL)
    while len(list(tmp_path.iterdir())) < 3:
        time.sleep(0.02)
    parent.send_signal(end)
    parent.wait(10)
    assert_gone(marker)


def test_speed() -> None:
    spawn(3, my_rank)
    times = []
    for _ in range(10):
        began = time.monotonic()
        assert spawn(3, my_rank) == [0, 1, 2]
        times.append(time.monotonic() - began)
    assert sorted(times)[len(times) // 2] < 0.3, "tens of milliseconds on a quiet machine"
