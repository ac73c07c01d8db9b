"""Compiles kernels for GPUs: with NVRTC and nvJitLink, or with nvcc where a library's headers need it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gin import _core
from gin.backends import folder
from gin.config import Config
from gin.errors import CompileError, ConfigError
from gin.platforms.cache import Cache, folder_digest
from gin.platforms.host_compiler import include_folders
from gin.platforms.includes import includes_digest

__all__ = ["KINDS", "CudaCompiler", "DeviceCode"]

COMPILE_SECONDS = 300.0  # deadline of one compiler run, and of waiting for another rank's

# gin::entry::Kind by number.
KINDS = ("comm", "window", "signed", "unsigned", "float", "bool", "pointer", "struct")

_headers_digest = cache(folder_digest)


@dataclass(frozen=True)
class DeviceCode:
    """What kernels of a backend are compiled and linked with.

    includes   folders of the library's headers, of the very version that is loaded
    macros     NAME or NAME=VALUE
    libraries  device code to link with
    version    of the library, as the cache tells its versions apart
    nvcc       why NVRTC cannot compile the headers; empty when it can
    """

    backend: str
    includes: tuple[Path, ...] = ()
    macros: tuple[str, ...] = ()
    libraries: tuple[Path, ...] = ()
    version: str = ""
    nvcc: str = ""


class CudaCompiler:
    """Compiles kernels for one backend and one GPU architecture, and keeps what it made in the cache folder."""

    def __init__(self, config: Config, code: DeviceCode, arch: str) -> None:
        """
        arch  such as sm_90
        """
        self._config = config
        self._code = code
        self._arch = arch
        self._cache = Cache(config.cache_dir / "cuda", ".cubin", COMPILE_SECONDS)
        self.runs = 0  # compiler runs by this object

    def compile(
        self, source: str, entry: str, flags: int | None = None, beside: Path | None = None
    ) -> tuple[bytes, str]:
        """A kernel's machine code, and the kernel's name in it. Raises CompileError.

        flags   gin::Comm's: the code is for communicators that have these, and the ways that they never take are left out;
                None: for any communicator of the backend
        beside  the folder of the source's file, where it is of one
        """
        unit = _prepare(source, entry, flags)
        theirs = [beside] if beside else []
        key = self._key(unit, theirs)
        path = self._cache.obtain(key, lambda scratch: self._make(unit, entry, scratch, theirs))
        header, _, image = path.read_bytes().partition(b"\n")
        return image, json.loads(header)["symbol"]

    def _key(self, unit: str, theirs: list[Path]) -> str:
        tool = _nvcc_identity(self._config.nvcc) if self._code.nvcc else _nvrtc_identity()
        folders = (*_own_folders(), folder(self._code.backend))
        libraries = [(path, path.stat().st_size, path.stat().st_mtime_ns) for path in self._code.libraries]
        parts = [_core.__version__, self._arch, tool, self._includes(), self._macros(), self._code.version, libraries]
        included = includes_digest(unit, [Path(), *theirs])
        text = json.dumps([*map(str, parts), _headers_digest(folders), list(map(str, theirs)), included, unit])
        return hashlib.sha256(text.encode()).hexdigest()

    def _make(self, unit: str, entry: str, scratch: Path, theirs: list[Path]) -> Path:
        self.runs += 1
        image, symbol = (self._nvcc if self._code.nvcc else self._nvrtc)(unit, entry, scratch, theirs)
        made = scratch / "kernel.cubin"
        made.write_bytes(json.dumps({"symbol": symbol}).encode() + b"\n" + image)
        return made

    def _includes(self) -> list[str]:
        return [str(place) for place in (folder(self._code.backend), *_own_folders(), *self._code.includes)]

    def _macros(self) -> list[str]:
        header = folder(self._code.backend) / "device.cuh"  # wherever a header of the user's has that name too
        return [f"GIN_CHECK={int(self._config.check)}", f'GIN_BACKEND_HEADER="{header}"', *self._code.macros]

    # -- NVRTC ------------------------------------------------------------------------------------------------------------

    def _nvrtc(self, unit: str, entry: str, _scratch: Path, theirs: list[Path]) -> tuple[bytes, str]:
        from cuda.core import Program, ProgramOptions

        includes = [*map(str, theirs), *self._includes(), *map(str, _toolkit_folders())]
        includes.append(str(_own_folders()[0] / "nvrtc"))
        options = ProgramOptions(
            name="kernel.cu",
            std="c++17",
            arch=self._arch,
            include_path=includes,
            define_macro=self._macros(),
            relocatable_device_code=bool(self._code.libraries),
            device_as_default_execution_space=True,  # as with nvcc, a generic lambda in a kernel is the device's
        )
        try:
            program = Program(unit, "c++", options)
            made = program.compile("cubin", name_expressions=(entry,))
        except Exception as error:
            raise CompileError(_explain(entry, unit, str(error))) from None
        symbol = made.symbol_mapping[entry]
        return self._link(bytes(made.code), entry), symbol if isinstance(symbol, str) else symbol.decode()

    def _link(self, image: bytes, entry: str) -> bytes:
        """With the backend's device library, if it has one."""
        if not self._code.libraries:
            return image
        from cuda.core import Linker, LinkerOptions, ObjectCode

        codes = [ObjectCode.from_cubin(image, name=entry)]
        codes += [ObjectCode.from_library(str(path)) for path in self._code.libraries]
        try:
            linked = Linker(*codes, options=LinkerOptions(arch=self._arch)).link("cubin")
        except Exception as error:
            names = ", ".join(path.name for path in self._code.libraries)
            raise CompileError(f"kernel {entry!r} does not link with {names}:\n{error}") from None
        return bytes(linked.code)

    # -- nvcc -------------------------------------------------------------------------------------------------------------

    def _nvcc(self, unit: str, entry: str, scratch: Path, theirs: list[Path]) -> tuple[bytes, str]:
        source, made = scratch / "unit.cu", scratch / "unit.cubin"
        source.write_text(unit, encoding="utf-8")
        path, _ = find_nvcc(self._config.nvcc, self._code.nvcc)
        words = [path, "-std=c++17", f"-arch={self._arch}", "-O3", "-w", "-cubin"]
        words += ["-rdc=true"] * bool(self._code.libraries)
        words += [f"-D{macro}" for macro in self._macros()] + [f"-I{place}" for place in (*theirs, *self._includes())]
        try:
            done = subprocess.run(
                [*words, str(source), "-o", str(made)],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=COMPILE_SECONDS,
                cwd=scratch,
            )
        except subprocess.TimeoutExpired:
            raise CompileError(f"compiling kernel {entry} took more than {COMPILE_SECONDS:.0f} s") from None
        if done.returncode:
            raise CompileError(_explain(entry, unit, done.stderr))
        image = made.read_bytes()
        return self._link(image, entry), _find_symbol(image, entry)


def _own_folders() -> list[Path]:
    """gin's own headers; in nvrtc/ are those of the C library, which NVRTC has not."""
    return include_folders()[:1]


def _prepare(source: str, entry: str, flags: int | None) -> str:
    end = "" if source.endswith("\n") else "\n"
    known = "" if flags is None else f"#define GIN_COMM_FLAGS {flags}u\n"
    return (
        f'{known}#line 1 "kernel.cu"\n{source}{end}#line 1 "gin-entry"\n#include <gin/entry.cuh>\nGIN_ENTRY({entry})\n'
    )


def _explain(entry: str, unit: str, message: str) -> str:
    """The compiler's message, with what it most likely means first."""
    if "__global__" not in unit:
        return f"the source has no __global__ function, so no kernel {entry!r}"
    missing = re.search(r'gin-entry.*identifier "', message)
    head = f"the source has no kernel named {entry!r}" if missing else f"kernel {entry!r} does not compile"
    return f"{head}:\n{message.strip()}"


def _find_symbol(image: bytes, entry: str) -> str:
    """The name that a kernel has in an ELF image: of the kernels there, the one that `entry` can be."""
    kernels: set[str] = {name.decode() for name in re.findall(rb"\.nv\.constant0\.([\w$]+)\0", image)}
    if entry in kernels:
        return entry
    plain = re.sub(r"<.*", "", entry).split("::")[-1].strip()
    found = sorted(name for name in kernels if name.startswith("_Z") and f"{len(plain)}{plain}" in name)
    if len(found) != 1:
        raise CompileError(
            f"nvcc made the kernels {', '.join(sorted(kernels))}, and which of them is {entry!r} cannot be told; "
            'make it extern "C", or leave one instance of the template in the source'
        )
    return found[0]


@cache
def find_nvcc(wanted: str | None, why: str = "") -> tuple[str, str]:
    """Path and version line of nvcc. Raises ConfigError, with the reason that it is needed, when there is none."""
    path: str | None = shutil.which(wanted or "nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if path is None:
        raise ConfigError(
            f"nvcc is needed ({why}) and not on PATH; install the CUDA toolkit, or set GIN_NVCC to its path"
        )
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{path} does not run: {error}; set GIN_NVCC to one that does") from None
    lines = answer.stdout.decode(errors="replace").strip().splitlines()
    return path, lines[-1] if lines else ""


def _nvcc_identity(wanted: str | None) -> tuple[Any, ...]:
    """nvcc, and the flags that it takes from the environment."""
    return *find_nvcc(wanted), *(os.environ.get(f"NVCC_{when}_FLAGS", "") for when in ("PREPEND", "APPEND"))


@cache
def _nvrtc_identity() -> tuple[Any, ...]:
    """NVRTC's version, and those of the headers that it is given."""
    from cuda.bindings import nvrtc

    headers = [
        path
        for place in _toolkit_folders()
        for name in ("cuda/std/__cccl/version.h", "cuda_runtime_api.h")
        if (path := place / name).is_file()
    ]
    versions = [(str(path), hashlib.sha256(path.read_bytes()).hexdigest()) for path in headers]
    return *(int(part) for part in nvrtc.nvrtcVersion()[1:]), *versions


@cache
def _toolkit_folders() -> tuple[Path, ...]:
    """Where libcu++ and CUDA's own headers are. Raises ConfigError when they are nowhere."""
    from cuda import pathfinder

    found = [pathfinder.find_nvidia_header_directory(name) for name in ("cccl", "cudart")]
    found += ["/usr/local/cuda/include/cccl", "/usr/local/cuda/include"]
    folders = tuple(dict.fromkeys(Path(place) for place in found if place and Path(place).is_dir()))
    if not any((place / "cuda" / "atomic").exists() for place in folders):
        raise ConfigError(
            "kernels need CUDA's headers (cuda/atomic), which are neither in an installed nvidia-cuda-cccl package nor in "
            "a CUDA toolkit; install nvidia-cuda-cccl and nvidia-cuda-runtime, or set CUDA_HOME"
        )
    return folders
