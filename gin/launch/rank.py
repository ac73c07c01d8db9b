"""What a rank started by gin.spawn does: one function, whose result or exception goes back through its channel."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import pickle
import random
import signal
import socket
import struct
import sys
import time
import traceback
from typing import Any, Protocol, cast

import cloudpickle

__all__ = ["LENGTH", "work"]

LENGTH = struct.Struct("!Q")


class _Runner(Protocol):
    def _run_exitfuncs(self) -> None: ...


def work(channel: socket.socket) -> int:
    """Runs the function that the channel brings and answers. Returns the exit code."""
    channel.setblocking(True)
    request = pickle.loads(_receive(channel))
    _settle(request)
    code, answer = 0, b""
    try:
        function, arguments = pickle.loads(request["call"])
        answer = cloudpickle.dumps({"time": 0.0, "result": function(*arguments)})
    except BaseException as error:
        sys.last_value = error  # as the interpreter leaves it for what runs at exit
        answer, code = cloudpickle.dumps(_describe(error)), 1
    with contextlib.suppress(OSError):
        channel.sendall(LENGTH.pack(len(answer)) + answer)
    cast(_Runner, atexit)._run_exitfuncs()
    return code


def _receive(channel: socket.socket) -> bytes:
    def exactly(count: int) -> bytes:
        parts = []
        while count:
            part = channel.recv(min(count, 1 << 20))
            if not part:
                raise EOFError("the parent has gone")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    return exactly(LENGTH.unpack(exactly(LENGTH.size))[0])


def _settle(request: dict[str, Any]) -> None:
    """Makes the surroundings those of the parent."""
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:] = request["path"]
    sys.argv[:] = request["argv"]
    with contextlib.suppress(OSError):
        os.chdir(request["directory"])
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    faulthandler.enable()
    faulthandler.register(signal.SIGTERM, all_threads=True, chain=True)  # one that is stuck shows where
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def _describe(error: BaseException) -> dict[str, Any]:
    """The exception as it can travel: itself if it can be pickled both ways, and always its texts."""
    frames = error.__traceback__.tb_next if error.__traceback__ else None  # without this module's own
    described: dict[str, Any] = {
        "time": time.monotonic(),
        "type": type(error).__name__,
        "text": str(error),
        "traceback": "".join(traceback.format_exception(type(error), error, frames)),
        "error": None,
    }
    if isinstance(error, SystemExit):
        described["text"] = f"SystemExit({error.code!r})"
    elif not isinstance(error, (KeyboardInterrupt, GeneratorExit)):
        described["error"] = _pickle_error(error)
    return described


def _pickle_error(error: BaseException) -> bytes | None:
    """The exception in a form that is known to load, if there is one. Plain pickling calls the class again with `args`,
    which fails for one whose constructor takes something else."""
    for form in (error, _Rebuilt(type(error), error.args, error.__dict__)):
        with contextlib.suppress(Exception):
            data = bytes(cloudpickle.dumps(form))
            pickle.loads(data)
            return data
    return None


class _Rebuilt:
    """Loads as an exception of the class, made without its constructor."""

    def __init__(self, kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> None:
        self._parts = kind, args, state

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, self._parts


def _rebuild(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error
