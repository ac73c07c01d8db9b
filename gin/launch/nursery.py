"""This process's zygote: started on first use, asked for ranks, closed at exit."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import ClassVar

import gin.launch
from gin.errors import BootstrapError

__all__ = ["Nursery"]

_END_SECONDS = 5.0


class Nursery:
    """A running zygote. Started anew when it has died."""

    _current: ClassVar[Nursery | None] = None
    _lock: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def current(cls) -> Nursery:
        with cls._lock:
            if cls._current is None or cls._current._process.poll() is not None:
                if cls._current is not None:
                    cls._current.close()
                cls._current = cls()
            return cls._current

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = str(Path(gin.launch.__file__).parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        with theirs:
            command = [sys.executable, "-P", *flags, "-m", "gin.launch.zygote", str(theirs.fileno()), str(os.getpid())]
            try:
                with contextlib.ExitStack() as opened:
                    self._process = subprocess.Popen(
                        command,
                        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                        pass_fds=[theirs.fileno()],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=_output(2, opened),
                        start_new_session=True,
                    )
            except OSError as error:
                self._control.close()
                raise BootstrapError(f"spawn: {sys.executable} cannot be started: {error.strerror}") from None

    def start(self, spawn: str, rank: int, channel: socket.socket, status: socket.socket) -> None:
        """Starts one rank of the named spawn, with this process's current standard output and error."""
        with contextlib.ExitStack() as opened:
            outputs = [_output(descriptor, opened) for descriptor in (1, 2)]
            message = json.dumps({"spawn": spawn, "rank": rank}).encode()
            try:
                socket.send_fds(self._control, [message], [channel.fileno(), status.fileno(), *outputs])
            except OSError as error:
                raise BootstrapError(f"spawn: the process that starts ranks has died: {error.strerror}") from None

    def close(self) -> None:
        """Ends the zygote, and with it any rank that is left. An interrupt ends it at once."""
        self._control.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        except KeyboardInterrupt:
            self._process.kill()
            self._process.wait()
            raise

    @classmethod
    def close_current(cls) -> None:
        with cls._lock:
            if cls._current is not None:
                cls._current.close()
                cls._current = None

    @classmethod
    def close_at_exit(cls) -> None:
        """Nobody is left who could be told of an interrupt."""
        with contextlib.suppress(KeyboardInterrupt):
            cls.close_current()

    @classmethod
    def forget_after_fork(cls) -> None:
        """In a child made by fork: the zygote is the parent's, and must notice when the parent alone ends."""
        cls._lock = threading.Lock()
        if cls._current is not None:
            cls._current._control.close()
            cls._current._process.returncode = 0  # not this process's child: nothing to wait for
            cls._current = None


def _output(descriptor: int, opened: contextlib.ExitStack) -> int:
    """The descriptor, or a null device in place of one that is closed."""
    try:
        os.fstat(descriptor)
    except OSError:
        descriptor = os.open(os.devnull, os.O_WRONLY)
        opened.callback(os.close, descriptor)
    return descriptor


atexit.register(Nursery.close_at_exit)
os.register_at_fork(after_in_child=Nursery.forget_after_fork)
