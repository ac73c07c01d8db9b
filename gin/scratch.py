"""Folders for the files of one command, in the system's folder for temporary files.

A process that is killed cannot remove its folder. The next one does: a folder's name says whose it is, and a lock on it,
which ends with the process, that it is still in use.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["remove_left_behind", "scratch_folder"]

_NAME = re.compile(r"gin-(?:bench|conformance)-(\d+)-\w+")


@contextlib.contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """A folder until the block ends, for `bench` or `conformance`. Before, what killed processes left is removed."""
    remove_left_behind()
    with tempfile.TemporaryDirectory(prefix=f"gin-{purpose}-{os.getpid()}-", ignore_cleanup_errors=True) as folder:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with contextlib.suppress(OSError):  # not every file system has locks; the process's number must do there
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield Path(folder)
        finally:
            os.close(lock)


def remove_left_behind() -> None:
    """Removes the folders of this user's processes that are gone. What cannot be looked at is left."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if _is_left_behind(entry):
                    shutil.rmtree(entry.path, ignore_errors=True)


def _is_left_behind(entry: os.DirEntry[str]) -> bool:
    name = _NAME.fullmatch(entry.name)
    if (
        name is None
        or not entry.is_dir(follow_symlinks=False)
        or entry.stat(follow_symlinks=False).st_uid != os.geteuid()
    ):
        return False
    return not _lives(int(name[1])) and not _is_locked(entry.path)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _is_locked(path: str) -> bool:
    """Whether a process has it that is not seen here, as of another container."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(folder)
    return False
