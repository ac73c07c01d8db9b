"""Compiles kernels for the host platform with the system's C++ compiler, and keeps what it made."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import gin
from gin import _core
from gin.backends import folder
from gin.config import Config
from gin.errors import CompileError, ConfigError, Error
from gin.platforms.host_source import FLAGS, prepare

__all__ = ["Compiler", "find_compiler", "include_folders"]

COMPILE_SECONDS = 120.0  # deadline of one compiler run, and of waiting for another rank's
OPTIMISE = ("-O2", "-w")  # the user sees errors, not warnings about headers


def include_folders() -> list[Path]:
    """Where kernels find headers: the package's own in an installation, the source tree's in a checkout."""
    package = Path(gin.__file__).parent
    installed = package / "include"
    if installed.is_dir():
        return [installed, installed / "host", installed / "emulation"]
    tree = package.parent / "csrc"
    return [tree / "include", tree / "host" / "include", tree / "emulation" / "include", tree]


@cache
def _headers_digest(folders: tuple[Path, ...]) -> str:
    """Of the contents of every header in the folders."""
    digest = hashlib.sha256()
    for place in folders:
        for path in sorted(place.rglob("*")):
            if path.is_file() and path.suffix in ("", ".h", ".cuh", ".inl"):
                digest.update(str(path.relative_to(place)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


@cache
def find_compiler(wanted: str | None) -> tuple[str, str]:
    """Path and version line of the C++ compiler. Raises ConfigError when there is none."""
    for name in [wanted] if wanted else ["g++", "clang++", "c++"]:
        path = shutil.which(name)
        if path is None:
            continue
        try:
            answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise ConfigError(f"the C++ compiler {path} does not run: {error}; set GIN_CXX to one that does") from None
        return path, answer.stdout.splitlines()[0] if answer.stdout else ""
    what = f"{wanted!r} (from GIN_CXX or CXX)" if wanted else "g++, clang++ or c++"
    raise ConfigError(f"kernels need a C++ compiler; {what} is not on PATH. Install g++ or set GIN_CXX")


class Compiler:
    """Compiles kernels for one backend and keeps what it made in the cache folder."""

    def __init__(self, config: Config, backend: str) -> None:
        self._config = config
        self._backend = backend
        self.runs = 0  # compiler runs by this object

    def command(self, source: Path, target: Path) -> list[str]:
        """The compiler's command line."""
        path, _ = find_compiler(self._config.cxx)
        words = [path, *FLAGS, *OPTIMISE, "-DGIN_HOST_PLATFORM=1", f"-DGIN_CHECK={int(self._config.check)}"]
        words += ['-DGIN_BACKEND_HEADER="device.cuh"', f"-I{folder(self._backend)}"]
        words += [f"-I{place}" for place in include_folders()]
        return [*words, *self._config.cxxflags, str(source), "-o", str(target)]

    def compile(self, source: str, entry: str) -> Path:
        """The shared object of a kernel: from the cache, or compiled now. Raises CompileError."""
        unit = prepare(source, entry)
        folder_ = _private_folder(self._config.cache_dir / "host")
        target = folder_ / f"{self._key(unit)}.so"
        if not _intact(target):
            with _lock(folder_, target.stem):
                if not _intact(target):
                    self._run(unit, entry, target)
        return target

    def _key(self, unit: str) -> str:
        path, version = find_compiler(self._config.cxx)
        folders = (*include_folders(), folder(self._backend))
        command = self.command(Path("kernel"), Path("kernel"))
        text = json.dumps([_core.__version__, version, os.path.realpath(path), command, _headers_digest(folders), unit])
        return hashlib.sha256(text.encode()).hexdigest()

    def _run(self, unit: str, entry: str, target: Path) -> None:
        self.runs += 1
        with tempfile.TemporaryDirectory(prefix=".compile-", dir=target.parent) as scratch:
            source, made = Path(scratch, "kernel.cu"), Path(scratch, "kernel.so")
            source.write_text(unit, encoding="utf-8")
            try:
                done = subprocess.run(
                    self.command(source, made), capture_output=True, text=True, timeout=COMPILE_SECONDS, cwd=scratch
                )
            except subprocess.TimeoutExpired:
                raise CompileError(f"compiling kernel {entry} took more than {COMPILE_SECONDS:.0f} s") from None
            if done.returncode:
                raise CompileError(_explain(entry, unit, done.stderr))
            digest = hashlib.sha256(made.read_bytes()).hexdigest()
            note = Path(scratch, "kernel.sha256")
            note.write_text(digest, encoding="ascii")
            os.replace(note, target.with_suffix(".sha256"))
            os.replace(made, target)


def _explain(entry: str, unit: str, stderr: str) -> str:
    """The compiler's message, with what it most likely means first."""
    if "__global__" not in unit:
        return f"the source has no __global__ function, so no kernel {entry!r}"
    missing = f"'{entry}'" in stderr and "gin-entry" in stderr
    head = f"the source has no kernel named {entry!r}" if missing else f"kernel {entry!r} does not compile"
    return f"{head}:\n{stderr.strip()}"


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


@contextmanager
def _lock(folder_: Path, key: str) -> Iterator[None]:
    """One compiler run per kernel at a time; few lock files, which stay."""
    deadline = time.monotonic() + COMPILE_SECONDS
    with open(folder_ / f".lock-{key[0]}", "w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Error(
                        f"another process has been compiling for {COMPILE_SECONDS:.0f} s ({lock.name})"
                    ) from None
                time.sleep(0.01)
        yield
