"""Processes that cannot be left behind, and words for how they ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import signal
from collections.abc import Mapping

from gin.rendezvous.secret import fresh

__all__ = ["Job", "describe_exit", "die_with_parent", "exit_code", "kill_group"]

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Job:
    """The variables by which `size` ranks started here find each other."""

    def __init__(self, size: int, launcher: str) -> None:
        self.size = size
        self._shared = {
            "GIN_SIZE": str(size),
            "GIN_LOCAL_SIZE": str(size),
            "GIN_RENDEZVOUS": f"unix:@gin-{os.getpid()}-{secrets.token_hex(8)}",
            "GIN_JOB_SECRET": fresh(),
            "GIN_LAUNCHER": launcher,
        }

    def environment(self, rank: int, base: Mapping[str, str]) -> dict[str, str]:
        """`base` with the variables of one rank."""
        return {**base, **self._shared, "GIN_RANK": str(rank), "GIN_LOCAL_RANK": str(rank)}


def die_with_parent(parent: int) -> None:
    """Called in a new process: it is killed when the thread that started it ends; at once if `parent` is gone."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def kill_group(leader: int, signal_number: int) -> None:
    """Signals a process group, if there is still somebody in it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal_number)


def describe_exit(status: int) -> str:
    """Words for a status: an exit code, or minus a signal number."""
    if status >= 0:
        return f"exited with code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was killed by {name}"


def exit_code(status: int) -> int:
    """The exit code by which a shell would show the status."""
    return status if status >= 0 else 128 - status
