"""Compiles kernels for the host platform with the system's C++ compiler, and keeps what it made."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import gin
from gin import _core
from gin.backends import folder
from gin.config import Config
from gin.errors import CompileError, ConfigError
from gin.platforms.cache import Cache, folder_digest
from gin.platforms.host_source import SOURCE_NAME, compiler_flags, prepare
from gin.platforms.includes import files_of_flags, folders_of_flags, includes_digest

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


_headers_digest = cache(folder_digest)


@cache
def find_compiler(wanted: str | None) -> tuple[str, str]:
    """Path and version line of the C++ compiler. Raises ConfigError when there is none."""
    for name in [wanted] if wanted else ["g++", "clang++", "c++"]:
        path = shutil.which(name)
        if path is None:
            continue
        try:
            answer = subprocess.run([path, "--version"], capture_output=True, timeout=30, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise ConfigError(f"the C++ compiler {path} does not run: {error}; set GIN_CXX to one that does") from None
        lines = answer.stdout.decode(errors="replace").splitlines()
        return path, lines[0] if lines else ""
    what = f"{wanted!r} (from GIN_CXX or CXX)" if wanted else "g++, clang++ or c++"
    raise ConfigError(f"kernels need a C++ compiler; {what} is not on PATH. Install g++ or set GIN_CXX")


class Compiler:
    """Compiles kernels for one backend and keeps what it made in the cache folder."""

    def __init__(self, config: Config, backend: str, flags: tuple[str, ...] = ()) -> None:
        """
        flags  more words of the command line, before the user's
        """
        self._config = config
        self._backend = backend
        self._flags = flags
        self._cache = Cache(config.cache_dir / "host", ".so", COMPILE_SECONDS)
        self.runs = 0  # compiler runs by this object

    def command(self, source: Path, target: Path, entry: str = "", beside: Path | None = None) -> list[str]:
        """The compiler's command line."""
        path, version = find_compiler(self._config.cxx)
        words = [
            path,
            *compiler_flags(version),
            *OPTIMISE,
            "-DGIN_HOST_PLATFORM=1",
            f"-DGIN_CHECK={int(self._config.check)}",
        ]
        words += [f'-DGIN_BACKEND_HEADER="{folder(self._backend) / "device.cuh"}"', f"-I{folder(self._backend)}"]
        words += [f"-I{place}" for place in include_folders()]
        if entry.isidentifier():
            words.append(f"-fno-builtin-{entry}")  # an extern "C" kernel may be called puts
        words += ["-iquote", str(beside)] if beside else []
        return [*words, *self._flags, *self._config.cxxflags, str(source), "-o", str(target)]

    def compile(self, source: str, entry: str, beside: Path | None = None) -> Path:
        """The shared object of a kernel: from the cache, or compiled now. Raises CompileError.

        beside  the folder of the source's file, where it is of one
        """
        unit = prepare(source, entry)
        key = self._key(unit, beside)
        return self._cache.obtain(key, lambda scratch: self._run(source, unit, entry, scratch, beside))

    def _key(self, unit: str, beside: Path | None) -> str:
        path, version = find_compiler(self._config.cxx)
        folders = (*include_folders(), folder(self._backend))
        command = self.command(Path("kernel"), Path("kernel"), beside=beside)
        flags = self._config.cxxflags
        theirs = includes_digest(
            files_of_flags(flags) + unit, [*([beside] if beside else []), *folders_of_flags(flags)]
        )
        parts = [_core.__version__, version, os.path.realpath(path), command, _headers_digest(folders), theirs, unit]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def _run(self, text: str, unit: str, entry: str, scratch: Path, beside: Path | None) -> Path:
        self.runs += 1
        source, made = scratch / "unit.cu", scratch / "kernel.so"
        source.write_text(unit, encoding="utf-8")
        (scratch / SOURCE_NAME).write_text(text, encoding="utf-8")  # which the compiler's messages quote
        try:
            done = subprocess.run(
                self.command(source, made, entry, beside),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=COMPILE_SECONDS,
                cwd=scratch,
                env={**os.environ, "LC_ALL": "C"},  # messages are looked into
            )
        except subprocess.TimeoutExpired:
            raise CompileError(f"compiling kernel {entry} took more than {COMPILE_SECONDS:.0f} s") from None
        except OSError as error:
            raise CompileError(f"compiling kernel {entry}: the compiler does not run: {error}") from None
        if done.returncode:
            raise CompileError(_explain(entry, unit, done.stderr))
        return made


def _explain(entry: str, unit: str, stderr: str) -> str:
    """The compiler's message, with what it most likely means first."""
    kernels = re.findall(r"__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)", unit)
    if not kernels:
        return f"the source has no __global__ function, so no kernel {entry!r}"
    if f"'{entry}'" in stderr and "gin-entry" in stderr and "kernel.cu:" not in stderr:
        return f"the source has no kernel named {entry!r}; it has {', '.join(dict.fromkeys(kernels))}"
    if said := _own_words(stderr):
        return f"kernel {entry!r} does not compile: {said}\n{stderr.strip()}"
    hint = "" if "gin/gin.cuh" in unit or "gin::" not in unit else " (it does not include <gin/gin.cuh>)"
    return f"kernel {entry!r} does not compile{hint}:\n{stderr.strip()}"


def _own_words(stderr: str) -> str:
    """What gin's headers say of a wrong call, with the line that makes it; empty where it is something else."""
    said = re.search(r"static assertion failed[^\n]*?: \"?(gin: [^\n]+?)\"?$", stderr, re.MULTILINE)
    if said is None:
        return ""
    before = stderr[: said.start()].rpartition("In instantiation of")[2]
    calls = re.search(rf"^{SOURCE_NAME}:(\d+):", before, re.MULTILINE) or re.search(
        rf"^{SOURCE_NAME}:(\d+):", stderr[said.end() :], re.MULTILINE
    )
    line = f"{SOURCE_NAME}:{calls[1]}: " if calls else ""
    return line + said[1]
