"""`gin run` and the command group: exit codes, signals, output, nothing left behind."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from test_spawn import assert_gone, processes_of

import gin

pytestmark = pytest.mark.timeout(60)

SCRIPT = """
import os, signal, subprocess, sys, time
rank = int(os.environ["GIN_RANK"])
what = sys.argv[1:]
open(os.path.join(os.environ["GIN_TEST_FOLDER"], str(rank)), "w").close()
if "print" in what:
    print("out", rank, os.environ["GIN_SIZE"], os.environ["GIN_LOCAL_RANK"], os.environ["GIN_LOCAL_SIZE"])
    print("err", rank, file=sys.stderr)
    sys.stdout.write("no newline")
if "child" in what:
    subprocess.Popen(["sleep", "60"])
if "ignore" in what:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
if rank == 1:
    if "fail" in what:
        sys.exit(7)
    if "kill" in what:
        os.kill(os.getpid(), signal.SIGKILL)
if "read" in what:
    print("read", rank, repr(sys.stdin.read()))
if "later" in what and rank != 1:
    time.sleep(0.3)
    sys.exit(9)
if "sleep" in what:
    time.sleep(60)
"""


class Gin:
    """Runs the command line in processes that a marker finds again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.marker = folder, str(folder)
        self.ranks = folder / "ranks"
        self.ranks.mkdir()
        self.script = folder / "script.py"
        self.script.write_text(SCRIPT)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GIN_")},
            "PYTHONPATH": str(Path(gin.__file__).parents[1]),
            "GIN_TEST_MARKER": self.marker,
            "GIN_TEST_FOLDER": str(self.ranks),
        }

    def start(self, *arguments: str, **options: object) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = [sys.executable, "-P", "-m", "gin", *arguments]
        return subprocess.Popen(command, env=self.environment, cwd=self.folder, text=True, **(pipes | options))  # type: ignore[call-overload,no-any-return]

    def __call__(self, *arguments: str, input: str | None = None) -> tuple[int, str, str]:
        process = self.start(*arguments, stdin=subprocess.PIPE if input else subprocess.DEVNULL)
        out, err = process.communicate(input, timeout=40)
        return process.returncode, out, err

    def wait_for(self, ranks: int) -> None:
        while len(list(self.ranks.iterdir())) < ranks:
            time.sleep(0.02)


@pytest.fixture
def command(tmp_path: Path) -> Gin:
    return Gin(tmp_path)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_ranks_get_their_variables(command: Gin, n: int) -> None:
    code, out, err = command("run", "-n", str(n), "script.py", "print")
    assert code == 0
    plain = [f"out {rank} {n} {rank} {n}" for rank in range(n)]
    assert sorted(out.splitlines()) == ["no newline"] * n + plain
    assert sorted(err.splitlines()) == [f"err {rank}" for rank in range(n)]


def test_labels(command: Gin) -> None:
    code, out, err = command("run", "-n", "2", "--label", "script.py", "print")
    assert code == 0
    assert sorted(out.splitlines()) == ["[0] no newline", "[0] out 0 2 0 2", "[1] no newline", "[1] out 1 2 1 2"]
    assert sorted(err.splitlines()) == ["[0] err 0", "[1] err 1"]


def test_programs_and_modules(command: Gin) -> None:
    assert command("run", "-n", "2", "echo", "--timeout", "x")[:2] == (0, "--timeout x\n" * 2)
    assert command("run", "-n", "1", "-m", "platform", "--help")[0] == 0
    code, out, _ = command("run", "-n", "2", "sh", "-c", "echo $GIN_RANK of $GIN_SIZE")
    assert (code, sorted(out.splitlines())) == (0, ["0 of 2", "1 of 2"])


def test_input_goes_to_rank_zero(command: Gin) -> None:
    _, out, _ = command("run", "-n", "2", "script.py", "read", input="hello")
    assert sorted(out.splitlines()) == ["read 0 'hello'", "read 1 ''"]


@pytest.mark.parametrize(
    ("how", "code", "words"), [("fail", 7, "exited with code 7"), ("kill", 137, "killed by SIGKILL")]
)
def test_the_first_failure_decides(command: Gin, how: str, code: int, words: str) -> None:
    began = time.monotonic()
    found, _, err = command("run", "-n", "3", "--grace", "300ms", "script.py", how, "sleep", "child")
    assert found == code
    assert f"gin run: rank 1 of 3 was {words}" in err or f"gin run: rank 1 of 3 {words}" in err
    assert "ending ranks 0, 2" in err
    assert time.monotonic() - began < 6
    assert_gone(command.marker)


def test_the_others_may_end_by_themselves(command: Gin) -> None:
    code, _, err = command("run", "-n", "3", "script.py", "fail", "later")
    assert code == 7
    assert "ending" not in err


@pytest.mark.parametrize(
    ("options", "variables", "kept"),
    [
        (["--keep-going"], {}, True),
        ([], {"GIN_ON_PEER_FAILURE": "peer"}, True),
        (["--end-all"], {"GIN_ON_PEER_FAILURE": "peer"}, False),
        ([], {"GIN_ON_PEER_FAILURE": "job"}, False),
    ],
)
def test_the_others_may_keep_going(command: Gin, options: list[str], variables: dict[str, str], kept: bool) -> None:
    command.environment |= variables
    words = ("--grace", "50ms", *options, "sh", "-c", "test $GIN_RANK != 1 || exit 7; sleep 1; echo $GIN_RANK; exit 3")
    code, out, err = command("run", "-n", "3", *words)
    assert code == 7  # of the first that failed, not of those that failed after it
    assert "gin run: rank 1 of 3 exited with code 7" in err
    assert sorted(out.splitlines()) == (["0", "2"] if kept else [])
    assert ("rank 0 of 3 exited with code 3" in err) == kept
    assert ("ending" in err) != kept


@pytest.mark.parametrize("options", [[], ["--keep-going"]])
@pytest.mark.parametrize(("exits", "code", "told"), [("3", 3, "rank 1"), ("0", 1, "rank [02]")])
def test_ranks_that_fail_for_another_one_do_not_decide(
    command: Gin, options: list[str], exits: str, code: int, told: str
) -> None:
    command.script.write_text(
        "import sys, time\n"
        "import gin\n"
        "try:\n"
        "    with gin.init(connect_timeout='20s') as comm:\n"
        "        if comm.rank == 1:\n"
        "            raise LookupError\n"
        "        comm.barrier()\n"
        "except LookupError:\n"
        "    time.sleep(1.5)  # the others have ended\n"
        f"    sys.exit({exits})\n"
    )
    found, _, err = command("run", "-n", "3", *options, "script.py")
    assert found == code
    assert re.search(rf"^gin run: {told} of 3 exited with code {code}$", err, re.MULTILINE)
    assert len(re.findall("^gin run: rank", err, re.MULTILINE)) == (1 if not options else 2 + (code == 3))


def test_a_timeout_ends_those_that_keep_going(command: Gin) -> None:
    code, _, err = command("run", "-n", "2", "--keep-going", "--timeout", "1s", "script.py", "fail", "sleep")
    assert code == 4 and "not finished within 1 s: ranks 0" in err and "rank 1 of 2 exited with code 7" in err


def test_ranks_that_do_not_obey_are_killed(command: Gin, monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    code, _, _ = command("run", "-n", "2", "--timeout", "500ms", "script.py", "ignore", "sleep")
    assert code == 4
    assert time.monotonic() - began < 12
    assert_gone(command.marker)


def test_timeout(command: Gin) -> None:
    code, _, err = command("run", "-n", "2", "--timeout", "1s", "script.py", "sleep")
    assert code == 4
    assert "not finished within 1 s: ranks 0, 1" in err
    assert command("run", "-n", "2", "--timeout", "20s", "script.py")[0] == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_passed_on(command: Gin, number: signal.Signals) -> None:
    process = command.start("run", "-n", "2", "script.py", "sleep", "child")
    command.wait_for(2)
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    if number == signal.SIGINT:
        assert err.count("\nKeyboardInterrupt\n") == 2
    assert_gone(command.marker)


def test_a_second_signal_ends_at_once(command: Gin) -> None:
    process = command.start("run", "-n", "2", "script.py", "ignore", "sleep")
    command.wait_for(2)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(3) == 130
    assert_gone(command.marker)


def test_nothing_survives_a_killed_launcher(command: Gin) -> None:
    process = command.start("run", "-n", "3", "script.py", "child", "ignore", "sleep")
    command.wait_for(3)
    time.sleep(0.3)
    assert len(processes_of(command.marker)) >= 7
    process.kill()
    process.wait(5)
    assert_gone(command.marker)


def test_under_a_terminal(command: Gin) -> None:
    """Ctrl-C typed at a terminal; ranks write to it, though they are not in its foreground."""
    ours, theirs = pty.openpty()
    process = command.start(
        "run", "-n", "2", "script.py", "print", "sleep",
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, preexec_fn=_take_terminal,
    )  # fmt: skip
    os.close(theirs)
    command.wait_for(2)
    time.sleep(0.2)
    os.write(ours, b"\x03")
    text = b""
    while True:
        try:
            data = os.read(ours, 4096)
        except OSError:
            break
        if not data:
            break
        text += data
    assert process.wait(20) == 130
    assert b"out 0 2" in text
    os.close(ours)
    assert_gone(command.marker)


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "script.py"], "--ranks"),
        (["run", "-n", "0", "script.py"], "not in the range"),
        (["run", "-n", "2"], "No program"),
        (["run", "-n", "2", "missing.py"], "no file 'missing.py'"),
        (["run", "-n", "2", "missing-program"], "no program that can be executed"),
        (["run", "-n", "2", "--timeout", "soon", "script.py"], "a duration"),
        (["rum"], "Did you mean 'run'?"),
        (["zzz"], "The commands are"),
    ],
)
def test_wrong_usage(command: Gin, arguments: list[str], words: str) -> None:
    code, _, err = command(*arguments)
    assert code == 2
    assert words in err


def test_version_and_help(command: Gin) -> None:
    assert command("--version")[1].split() == ["gin,", "version", gin.__version__]
    assert "run" in command("--help")[1]
    assert "Examples:" in command("run", "--help")[1]


def test_import_is_light(command: Gin) -> None:
    code = textwrap.dedent("""
        import sys, time
        began = time.perf_counter()
        import gin
        seconds = time.perf_counter() - began
        heavy = {"click", "rich", "numpy", "ctypes", "asyncio", "gin._core"} & set(sys.modules)
        print(seconds < 0.3, sorted(heavy))
    """)
    out = subprocess.run(
        [sys.executable, "-c", code], env=command.environment, capture_output=True, text=True, check=True
    )
    assert out.stdout == "True []\n"
