"""Compiled kernels on disk: one file per key, whole or not there, made by one process at a time."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gin.errors import ConfigError, Error

__all__ = ["Cache", "folder_digest"]


class Cache:
    """A folder of files that are executed, so that only this user may write to it."""

    def __init__(self, folder: Path, suffix: str, seconds: float) -> None:
        """
        folder   made when it is first used
        suffix   of the files, with its dot
        seconds  how long to wait for another process that is making a file
        """
        self._folder = folder
        self._suffix = suffix
        self._seconds = seconds

    def obtain(self, key: str, make: Callable[[Path], Path]) -> Path:
        """The file of a key: kept from before, or what `make(scratch folder)` returns, moved here.

        Raises ConfigError when the folder cannot be used, and what `make` raises.
        """
        folder = _private_folder(self._folder)
        target = folder / f"{key}{self._suffix}"
        try:
            if not _intact(target):
                with self._lock(folder, key):
                    if not _intact(target):
                        self._fill(target, make)
        except OSError as error:
            raise ConfigError(f"the cache folder {folder} cannot be used: {error}; set GIN_CACHE_DIR") from None
        return target

    def _fill(self, target: Path, make: Callable[[Path], Path]) -> None:
        with tempfile.TemporaryDirectory(prefix=".compile-", dir=target.parent) as scratch:
            made = make(Path(scratch))
            note = Path(scratch, "digest.sha256")
            note.write_text(hashlib.sha256(made.read_bytes()).hexdigest(), encoding="ascii")
            os.replace(note, target.with_suffix(".sha256"))
            os.replace(made, target)

    @contextmanager
    def _lock(self, folder: Path, key: str) -> Iterator[None]:
        """One maker per kernel at a time; 256 lock files at most, which stay."""
        deadline = time.monotonic() + self._seconds
        with open(folder / f".lock-{key[:2]}", "w") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise Error(
                            f"another process has been compiling for {self._seconds:.0f} s ({lock.name})"
                        ) from None
                    time.sleep(0.01)
            yield


def folder_digest(folders: tuple[Path, ...]) -> str:
    """Of the contents of every header in the folders."""
    digest = hashlib.sha256()
    for place in folders:
        for path in sorted(place.rglob("*")):
            if path.is_file() and path.suffix in ("", ".h", ".cuh", ".inl"):
                digest.update(str(path.relative_to(place)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _private_folder(path: Path) -> Path:
    """Creates a folder that only this user writes to. Raises ConfigError when others could: its files are executed."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        raise ConfigError(f"the cache folder {path} cannot be made: {error}; set GIN_CACHE_DIR") from None
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise ConfigError(
            f"the cache folder {path} can be written to by others, and what it holds is executed; "
            "make it your own with mode 0700, or set GIN_CACHE_DIR"
        )
    return path


def _intact(target: Path) -> bool:
    """Whether a cache file is whole and what was put there."""
    try:
        return hashlib.sha256(target.read_bytes()).hexdigest() == target.with_suffix(".sha256").read_text("ascii")
    except OSError:
        return False
    except UnicodeDecodeError:
        return False
