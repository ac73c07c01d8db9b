"""Compiled kernels of simulated jobs: one loaded module serves all ranks and runs, unless it has variables of its own."""

from __future__ import annotations

import shutil
import struct
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from gin import _core
from gin.config import Config
from gin.platforms.host_compiler import Compiler
from gin.sim.job import Job

__all__ = ["Modules", "writable_variables"]

FLAGS = ("-DGIN_SIM=1", "-g1")  # with lines, for where a thread had to be ended

_Key = tuple[Any, ...]


class Modules:
    """The kernels of one job with one set of compiler settings."""

    # Over all jobs of this process, so that a run costs no look at a file.
    _paths: ClassVar[dict[_Key, Path]] = {}
    _shared: ClassVar[dict[Path, Any]] = {}  # None for modules with variables of their own

    def __init__(self, config: Config) -> None:
        self._compiler = Compiler(config, config.backend, FLAGS)
        self._settings: _Key = (config.backend, config.cxx, config.cxxflags, config.check, config.cache_dir)
        self._own: dict[tuple[Path, int], Any] = {}

    @classmethod
    def of(cls, job: Job, config: Config) -> Modules:
        """The job's, made on first use."""
        key = (config.backend, config.cxx, config.cxxflags, config.check, config.cache_dir)
        found: Modules | None = job.modules.get(key)
        if found is None:
            found = job.modules[key] = cls(config)
        return found

    def module(self, source: str, entry: str, rank: int, beside: Path | None = None) -> Any:
        """A kernel as one rank runs it: `__device__` variables are each rank's own, and fresh in each job."""
        key = (*self._settings, source, entry, beside)
        path = self._paths.get(key)
        if path is None:
            path = self._paths[key] = self._compiler.compile(source, entry, beside)
        if path not in self._shared:
            self._shared[path] = None if writable_variables(path) else _core.Module(str(path))
        return self._shared[path] or self._copy(path, rank)

    def _copy(self, path: Path, rank: int) -> Any:
        module = self._own.get((path, rank))
        if module is None:
            with tempfile.TemporaryDirectory(prefix="gin-sim-") as folder:
                copy = Path(folder) / path.name
                shutil.copyfile(path, copy)
                module = self._own[path, rank] = _core.Module(str(copy))
        return module


def writable_variables(path: Path) -> list[str]:
    """The variables of a shared object (ELF, 64 bits, little end first) that its code can change, in the symbols' order."""
    data = path.read_bytes()
    table, size, count = struct.unpack_from("<Q", data, 0x28)[0], *struct.unpack_from("<HH", data, 0x3A)
    sections = [_Section(*struct.unpack_from("<IIQQQQIIQQ", data, table + size * i)) for i in range(count)]
    found: dict[str, None] = {}
    for section in sections:
        if section.kind not in (_SYMTAB, _DYNSYM):
            continue
        names = sections[section.link].offset
        for at in range(section.offset, section.offset + section.size, section.entry):
            name, info, _, index, _, nbytes = struct.unpack_from("<IBBHQQ", data, at)
            if info & 15 == _OBJECT and nbytes and index < count and sections[index].written:
                text = data[names + name : data.index(b"\0", names + name)].decode(errors="replace")
                if not text.startswith(_NOT_THE_USERS):
                    found[text] = None
    return list(found)


_SYMTAB, _DYNSYM = 2, 11
_OBJECT = 1
_WRITE, _TLS = 1, 0x400
_PROGBITS, _NOBITS = 1, 8
_NOT_THE_USERS = ("_ZN3gin4host", "_ZN3gin3sim", "gin_", "completed.", "__dso_handle")


class _Section:
    """A section header."""

    def __init__(
        self,
        name: int,
        kind: int,
        flags: int,
        address: int,
        offset: int,
        size: int,
        link: int,
        info: int,
        align: int,
        entry: int,
    ) -> None:
        self.kind, self.flags, self.offset, self.size, self.link, self.entry = kind, flags, offset, size, link, entry

    @property
    def written(self) -> bool:
        """Whether it holds variables: neither constants, nor what only the loader writes, nor thread-local ones."""
        return self.kind in (_PROGBITS, _NOBITS) and bool(self.flags & _WRITE) and not self.flags & _TLS
