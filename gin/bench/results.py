"""The results of a sweep: what a row holds, the JSON and CSV files, and the environment worth recording."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import platform as system_platform
import re
import stat
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Any

from gin._version import __version__
from gin.config import OTHER_VARIABLES

SCHEMA = 1
ROW_FIELDS = (
    "test",
    "op",
    "backend",
    "platform",
    "wire",
    "route",
    "ranks",
    "scope",
    "ctas",
    "threads",
    "bytes",
    "iterations",
    "warmup",
    "min_us",
    "median_us",
    "p90_us",
    "p99_us",
    "max_us",
    "bandwidth_GBps",
    "rate_Mops",
    "wrong",
)
# What rows say besides: geometry, and how sure the figures are.
MORE_FIELDS = (
    "contexts",
    "messages",
    "samples",
    "median_low_us",
    "median_high_us",
    "step_us",
    "mean_us",
    "stdev_us",
    "p999_us",
    "outliers",
    "drift",
    "drifted",
    "steady",
    "transfer_us",
    "compute_us",
    "overlap_percent",
)
Row = dict[str, Any]

# Numbers and places that a launcher hands to each rank.
_LAUNCHERS_OWN = OTHER_VARIABLES | {"GIN_RENDEZVOUS", "GIN_PORT"}
_VARIABLES = re.compile(r"(GIN|NCCL|NVSHMEM|CUDA|UCX)_\w+")
_PRIVATE = re.compile(r"SECRET|TOKEN|PASSW|CREDENTIAL|_KEY\b|AUTH", re.IGNORECASE)


def recorded_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that bear on a measurement: GIN_*, NCCL_*, NVSHMEM_*, CUDA_*, UCX_*.

    Left out is what a launcher sets for each rank, and anything secret.
    """
    source = os.environ if environ is None else environ
    kept = (name for name in sorted(source) if _VARIABLES.fullmatch(name) and name not in _LAUNCHERS_OWN)
    return {name: source[name] for name in kept if not _PRIVATE.search(name)}


def cpu_name() -> str:
    """The processor's name as the kernel gives it, or the architecture."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return system_platform.processor() or system_platform.machine()


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment() -> dict[str, Any]:
    """The machine and the software, without what identifies a person or a host."""
    import numpy

    return {
        "gin": __version__,
        "python": system_platform.python_version(),
        "numpy": numpy.__version__,
        "system": system_platform.system(),
        "kernel": system_platform.release(),
        "machine": system_platform.machine(),
        "cpu": cpu_name(),
        "cores": usable_cores(),
        "variables": recorded_variables(),
    }


def document(
    rows: Sequence[Row],
    *,
    command: Sequence[str],
    emulated: bool,
    env: Mapping[str, Any],
    complete: bool,
    remarks: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The JSON document of a sweep. `complete` is false when it ended before its last row.

    remarks  what else is worth knowing, e.g. the conditions while it ran and what was left out
    """
    return {
        "schema": SCHEMA,
        "tool": f"gin {__version__}",
        "command": list(command),
        "emulated": emulated,
        "complete": complete,
        "environment": dict(env),
        "remarks": dict(remarks or {}),
        "rows": list(rows),
    }


def to_json(results: Mapping[str, Any]) -> str:
    """Text of a results document: one line per row, strict JSON."""
    head = {key: value for key, value in results.items() if key != "rows"}
    lines = [json.dumps(row, allow_nan=False) for row in results["rows"]]
    opening = json.dumps(head, indent=1, allow_nan=False)[:-2]
    body = ",\n  ".join(lines)
    return f'{opening},\n "rows": [' + (f"\n  {body}\n ]" if lines else "]") + "\n}\n"


def to_csv(rows: Sequence[Row]) -> str:
    """One line per row under a header; what was not measured is empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, (*ROW_FIELDS, *MORE_FIELDS), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


class Output:
    """A result file that is claimed before the sweep and appears, whole, after it.

    A path of `-` is the standard output. Raises FileExistsError when the file exists and `force` is false, and OSError
    when nothing can be written there. With `force` a link is followed, and the file that it names is replaced.
    """

    def __init__(self, path: str, *, force: bool = False) -> None:
        self.path = path
        self._force = force
        self._temporary: str | None = None
        self._stream: IO[str] | None = None
        if not path:
            raise FileNotFoundError(2, "the name is empty", path)
        if path == "-":
            if sys.stdout is None:
                raise OSError(9, "the standard output is closed")
            self._stream = sys.stdout
        elif os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
            if os.path.isdir(path):
                raise IsADirectoryError(21, "is a folder", path)
            # A device or a pipe; open until the result is written.
            self._stream = open(path, "w", encoding="utf-8")  # noqa: SIM115
        else:
            if os.path.lexists(path) and not force:
                raise FileExistsError(17, "exists", path)
            folder, name = os.path.split(os.path.realpath(path) if force else path)
            if len(os.fsencode(name)) > os.pathconf(folder or ".", "PC_NAME_MAX"):
                raise OSError(36, "File name too long", path)
            handle, self._temporary = tempfile.mkstemp(prefix=f".{name[:32]}.", dir=folder or ".")
            os.fchmod(handle, 0o666 & ~_umask())
            os.close(handle)

    def write(self, text: str) -> None:
        """Puts the result in place. Raises FileExistsError when a file has appeared meanwhile and `force` is false."""
        if self._stream is not None:
            self._stream.write(text)
            self._stream.flush()
            self.discard()
            return
        assert self._temporary is not None
        with open(self._temporary, "w", encoding="utf-8") as file:
            file.write(text)
        if self._force:
            os.replace(self._temporary, os.path.realpath(self.path))
        else:
            _move_to_new(self._temporary, self.path)
        self._temporary = None

    def discard(self) -> None:
        """Leaves nothing behind; what was written stays."""
        if self._stream is not None and self._stream is not sys.stdout:
            with contextlib.suppress(OSError):
                self._stream.close()
        if self._temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._temporary)
            self._temporary = None


def _move_to_new(source: str, target: str) -> None:
    """Renames a file, and fails, rather than replaces, when the name is taken."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without links; what appears between the two calls is replaced
        if os.path.lexists(target):
            raise FileExistsError(17, "exists", target) from None
        os.rename(source, target)
    else:
        os.unlink(source)


def abandon(stream: IO[str]) -> None:
    """Sends what a stream that takes no more still holds to nowhere, so that the interpreter's end does not complain."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
