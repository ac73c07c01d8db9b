"""Folders of commands that were killed are removed by the next one, and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from processes import running

from gin.scratch import remove_left_behind, scratch_folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is the system's folder for temporary files here and in processes started from here."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def dead_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_a_folder_is_the_processs_and_gone_with_the_block(folder: Path) -> None:
    with scratch_folder("bench") as made:
        assert made.parent == folder and made.name.startswith(f"gin-bench-{os.getpid()}-")
        (made / "events").touch()
        remove_left_behind()
        assert (made / "events").exists()
    assert list(folder.iterdir()) == []


def test_only_what_the_dead_have_left_is_removed(folder: Path) -> None:
    gone = dead_process()
    left = [folder / f"gin-bench-{gone}-abc", folder / f"gin-conformance-{gone}-a_1"]
    for path in left:
        (path / "deep").mkdir(parents=True)
        (path / "deep" / "file").write_text("x")
    other = folder / "other"
    other.mkdir()
    kept = [
        folder / f"gin-bench-{os.getpid()}-abc", folder / f"gin-bench-{gone}", folder / f"gin-other-{gone}-abc",
        folder / "gin-bench-1-abc", folder / f"my-gin-bench-{gone}-abc",
    ]  # fmt: skip
    for path in kept:
        path.mkdir()
    file, link = folder / f"gin-bench-{gone}-file", folder / f"gin-bench-{gone}-link"
    file.touch()
    link.symlink_to(other)
    remove_left_behind()
    assert sorted(folder.iterdir()) == sorted([*kept, file, link, other])


def test_what_another_process_has_locked_is_kept(folder: Path) -> None:
    """As in another container, whose processes are not seen here."""
    path = folder / f"gin-bench-{dead_process()}-abc"
    path.mkdir()
    locks = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], 0), fcntl.LOCK_EX); print(flush=True)"
    command = [sys.executable, "-c", f"{locks}; sys.stdin.read()", str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        remove_left_behind()
        assert path.exists()
        process.communicate(b"")
    remove_left_behind()
    assert not path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder away")
def test_another_users_folder_is_kept(folder: Path) -> None:
    path = folder / f"gin-bench-{dead_process()}-abc"
    path.mkdir()
    os.chown(path, 1, 1)
    remove_left_behind()
    assert path.exists()


@pytest.mark.parametrize("words", [("bench", "latency", "-n", "10000000"), ("conformance", "--backend", "ibrc_proxy")])
def test_a_killed_commands_folder_goes_with_the_next_one(folder: Path, words: tuple[str, ...]) -> None:
    command = [sys.executable, "-P", "-m", "gin", *words]
    deadline = time.monotonic() + 60
    with running(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not (made := [path for path in folder.iterdir() if path.name.startswith(f"gin-{words[0]}-")]):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    assert made[0].exists()
    while made[0].exists():  # a child that it was just starting has its lock until the child's program begins
        assert time.monotonic() < deadline
        with scratch_folder("bench"):
            time.sleep(0.01)


def test_interrupts_at_the_end_leave_no_traceback(folder: Path) -> None:
    """The first while the ranks run, others while the command ends."""
    for later in (0.3, 0.7, 1.2):
        command = [sys.executable, "-P", "-m", "gin", "bench", "latency", "--backend", "ibrc_proxy", "-n", "10000000"]
        with running(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            while not any(folder.glob("gin-bench-*/events")):
                assert process.poll() is None
                time.sleep(0.05)
            time.sleep(1.5)
            process.send_signal(signal.SIGINT)
            for _ in range(2):
                time.sleep(later)
                process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        assert process.returncode in (130, -signal.SIGINT)
        assert "Traceback" not in err and "Exception ignored" not in err, err
    assert list(folder.glob("gin-bench-*")) == []
