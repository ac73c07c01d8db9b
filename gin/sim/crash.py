"""Threads of kernels that the simulation had to end: faults, and loops that never give way."""

from __future__ import annotations

import os
import shutil
import subprocess

from gin.errors import KernelError
from gin.platforms.host_source import SOURCE_NAME

__all__ = ["SPIN_ADVICE", "Fault", "Spin", "crash_error"]

_LOOKUP_SECONDS = 20.0

SPIN_ADVICE = (
    "Threads take turns, and this one has not ended its turn: nobody can write what its loop looks at. Wait with "
    "net.wait, or look with net.test or a cuda::atomic_ref, which give way. For a kernel that computes for longer, "
    "GIN_SPIN_LIMIT sets the limit (0: none)."
)


class Fault(KernelError):
    """A kernel's thread did what the processor refuses: an access to no memory, a division by zero."""


class Spin(KernelError):
    """A kernel's thread kept its turn for longer than GIN_SPIN_LIMIT."""


def crash_error(rank: int, text: str, kind: str, path: str, offset: int) -> KernelError:
    """The error of a rank whose thread was ended.

    text          what the simulation says: what happened, then where the threads stand
    kind          fault or spin
    path, offset  where in which compiled kernel
    """
    what, _, standing = text.partition("\n")
    where = source_line(path, offset)
    lines = [f"rank {rank}: {what}" + (f", at {where}" if where else "")]
    if kind == "spin":
        lines.append(SPIN_ADVICE)
    message = "\n".join([*lines, standing])
    return Spin(message) if kind == "spin" else Fault(message)


def source_line(path: str, offset: int) -> str:
    """The line of the kernel's source that a place in its code is of, as `kernel.cu:7`; empty where nobody knows."""
    tool = shutil.which("addr2line")
    if tool is None:
        return ""
    command = [tool, "-i", "-e", path, hex(offset)]  # -i: a line of a header, then those of its callers
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_LOOKUP_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return ""
    for line in done.stdout.splitlines():
        name, _, number = os.path.basename(line.split(" (")[0]).partition(":")
        if name == SOURCE_NAME and number.isdigit():
            return f"{name}:{number}"
    return ""
