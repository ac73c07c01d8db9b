"""Processes that cannot be left behind, and words for how they ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import signal
import socket
import struct
from collections.abc import Mapping

from gin.rendezvous.secret import fresh

__all__ = ["Followers", "Job", "describe_exit", "die_with_parent", "exit_code", "kill_group", "tell_of_following"]

_PR_SET_PDEATHSIG = 1
_CREDENTIALS = struct.Struct("3i")  # process, user, group
_TELL_SECONDS = 1.0
_libc = ctypes.CDLL(None, use_errno=True)


class Job:
    """The variables by which `size` ranks started here find each other."""

    def __init__(self, size: int, launcher: str) -> None:
        self.size = size
        self.name = f"gin-{os.getpid()}-{secrets.token_hex(8)}"
        self._shared = {
            "GIN_SIZE": str(size),
            "GIN_LOCAL_SIZE": str(size),
            "GIN_RENDEZVOUS": f"unix:@{self.name}",
            "GIN_JOB_SECRET": fresh(),
            "GIN_LAUNCHER": launcher,
        }

    def environment(self, rank: int, base: Mapping[str, str]) -> dict[str, str]:
        """`base` with the variables of one rank."""
        return {**base, **self._shared, "GIN_RANK": str(rank), "GIN_LOCAL_RANK": str(rank)}


class Followers:
    """The ranks of a job that have said that they end for another rank's failure."""

    def __init__(self, job: Job) -> None:
        self.ranks: set[int] = set()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.socket.bind(_followers_address(job.name))

    def hear(self) -> None:
        """Takes in what has been said."""
        with contextlib.suppress(BlockingIOError):
            while True:
                text, ancillary, _, _ = self.socket.recvmsg(16, socket.CMSG_SPACE(_CREDENTIALS.size))
                users = [_CREDENTIALS.unpack(data)[1] for _, _, data in ancillary]
                if users == [os.geteuid()] and text.isdigit():
                    self.ranks.add(int(text))


def tell_of_following() -> None:
    """Tells `gin run`, if that has started this rank, that it ends for another rank's failure."""
    name = os.environ.get("GIN_RENDEZVOUS", "").removeprefix("unix:@")
    if os.environ.get("GIN_LAUNCHER") != "gin run":
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as teller:
        teller.settimeout(_TELL_SECONDS)  # many may tell at once, and few wait in line
        teller.sendto(os.environ.get("GIN_RANK", "").encode(), _followers_address(name))


def _followers_address(name: str) -> str:
    return f"\0{name}-followers"


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
