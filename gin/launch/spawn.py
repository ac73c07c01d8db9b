"""`gin.spawn`: runs a function as several ranks on this host, in processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import secrets
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gin.config import format_ranks, parse_duration
from gin.errors import ConfigError, RemoteError, TimeoutError
from gin.launch.nursery import Nursery
from gin.launch.pickling import pickle_call
from gin.launch.processes import Job, describe_exit
from gin.sim import simulated

__all__ = ["spawn"]

_T = TypeVar("_T")

_GRACE_SECONDS = 5.0  # for the other ranks to end by themselves once one has failed
_EXIT_SECONDS = 10.0  # for the processes to end once all functions have returned
_AFTER_TERM_SECONDS = 1.0
_MOST_RANKS = 4096
_LENGTH_BYTES = 8


def spawn(
    n: int,
    function: Callable[..., _T],
    *args: Any,
    timeout: float | str | None = None,
    env: Mapping[str, str | None] | None = None,
    platform: str | None = None,
) -> list[_T]:
    """Runs `function(*args)` as `n` ranks in new processes of this host and returns their results by rank.

    function  may be local, a lambda, or defined in a notebook or a test; it calls `gin.init()` itself
    timeout   seconds (or text such as 30s) for all of it; then the ranks are ended and TimeoutError names the late ones
    env       variables to set for the ranks, or to remove (None)
    platform  GIN_PLATFORM for the ranks. With `sim`, from wherever it comes, they are simulated, all in this process

    The ranks have the current folder, module path, variables, standard output and error of this process, and no input.
    When a rank raises, the others have a few seconds to end, and the first exception is raised here, with the rank's
    traceback and the other ranks' errors as notes. A rank that ends otherwise raises RemoteError with rank and signal.
    """
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= _MOST_RANKS:
        raise ConfigError(f"spawn: n={n!r}: the number of ranks is from 1 to {_MOST_RANKS}")
    if not callable(function):
        raise ConfigError(f"spawn: {function!r:.100} cannot be called; the order is spawn(n, function, *args)")
    try:
        seconds = parse_duration(timeout) if timeout is not None else 0.0
    except ValueError as error:
        raise ConfigError(f"spawn: timeout={timeout!r:.80} is not {error}") from None
    variables = dict(env or {}) if platform is None else {**(env or {}), "GIN_PLATFORM": platform}
    if simulated() or (variables.get("GIN_PLATFORM", os.environ.get("GIN_PLATFORM")) or "").strip().lower() == "sim":
        from gin.sim import launch

        return launch.spawn(n, function, args, seconds, variables)
    return _Spawn(n, _requests(n, pickle_call(function, args), variables)).run(seconds)


def _requests(n: int, call: bytes, env: Mapping[str, str | None]) -> list[bytes]:
    """What each rank is sent."""
    job = Job(n, "gin.spawn")
    merged = {**os.environ, **env}
    base = {name: value for name, value in merged.items() if value is not None}
    surroundings = {"path": list(sys.path), "argv": list(sys.argv), "directory": os.getcwd(), "call": call}
    requests = []
    for rank in range(n):
        data = pickle.dumps({**surroundings, "environment": job.environment(rank, base)})
        requests.append(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
    return requests


@dataclass
class _Rank:
    """One rank as its parent sees it."""

    number: int
    channel: socket.socket
    outgoing: memoryview
    incoming: bytearray = field(default_factory=bytearray)
    answer: dict[str, Any] | None = None  # with the key `result`, or the description of an exception
    answered_at: float = 0.0
    status: int | None = None
    ended_at: float = 0.0
    killed: bool = False  # by this process, for outstaying

    def receive(self, data: bytes) -> None:
        """Takes in a part of the answer."""
        self.incoming += data
        size = int.from_bytes(self.incoming[:_LENGTH_BYTES], "big")
        if len(self.incoming) < _LENGTH_BYTES or len(self.incoming) < _LENGTH_BYTES + size:
            return
        self.answered_at = time.monotonic()
        try:
            self.answer = pickle.loads(memoryview(self.incoming)[_LENGTH_BYTES:])
        except Exception as error:
            text = f"its answer cannot be loaded here: {type(error).__name__}: {error}"
            self.answer = {"time": self.answered_at, "type": "error", "text": text, "traceback": text, "error": None}

    @property
    def raised(self) -> bool:
        return self.answer is not None and "result" not in self.answer

    @property
    def failed(self) -> bool:
        """It raised, or ended with anything but its function's result."""
        ended_badly = self.status is not None and (self.status != 0 or self.answer is None)
        return not self.killed and (self.raised or ended_badly)


class _Spawn:
    """One call: the ranks, and the loop that feeds them and listens to them."""

    def __init__(self, n: int, requests: list[bytes]) -> None:
        self._n = n
        self._selector = selectors.DefaultSelector()
        self._ranks: list[_Rank] = []
        self._lost = False  # the process that starts ranks died
        self._status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._selector.register(self._status, selectors.EVENT_READ)
        try:
            name = secrets.token_hex(8)
            nursery = Nursery.current()
            for number, request in enumerate(requests):
                channel, rank_end = socket.socketpair()
                channel.setblocking(False)
                self._ranks.append(rank := _Rank(number, channel, memoryview(request)))
                with rank_end:
                    nursery.start(name, number, rank_end, theirs)
                self._selector.register(channel, selectors.EVENT_READ | selectors.EVENT_WRITE, rank)
        except BaseException:
            self._close()
            raise
        finally:
            theirs.close()

    def run(self, timeout: float) -> list[Any]:
        """Everything from here on ends with the ranks' processes gone."""
        deadline = time.monotonic() + (timeout or float("inf"))
        try:
            while self._running() and not self._failures():
                self._turn(min(deadline, self._exit_deadline()))
                if self._running() and time.monotonic() >= deadline:
                    raise self._timed_out(timeout)
                if self._running() and time.monotonic() >= self._exit_deadline():
                    raise self._stuck_at_exit()
            if self._failures():
                self._let_end(min(deadline, time.monotonic() + _GRACE_SECONDS))
                raise self._error()
            return [rank.answer["result"] for rank in self._ranks if rank.answer is not None]
        finally:
            self._close()

    def _running(self) -> list[_Rank]:
        return [] if self._lost else [rank for rank in self._ranks if rank.status is None]

    def _failures(self) -> list[_Rank]:
        return [rank for rank in self._ranks if rank.failed or (self._lost and rank.status is None)]

    def _exit_deadline(self) -> float:
        """When processes must have ended: some time after the last function has returned."""
        if any(rank.answer is None for rank in self._ranks):
            return float("inf")
        return max(rank.answered_at for rank in self._ranks) + _EXIT_SECONDS

    def _turn(self, deadline: float) -> None:
        """Waits for something to happen, at most until the deadline."""
        left = None if deadline == float("inf") else max(0.0, deadline - time.monotonic())
        for key, events in self._selector.select(left):
            if key.data is None:
                self._heard()
            else:
                self._exchange(key.data, events)

    def _exchange(self, rank: _Rank, events: int) -> bool:
        """Sends to and receives from a rank what can be without waiting; whether something was received."""
        if rank.channel not in self._selector.get_map():  # closed by an event before this one
            return False
        try:
            if events & selectors.EVENT_WRITE:
                rank.outgoing = rank.outgoing[rank.channel.send(rank.outgoing) :]
                if not rank.outgoing:
                    self._selector.modify(rank.channel, selectors.EVENT_READ, rank)
            if events & selectors.EVENT_READ:
                data = rank.channel.recv(1 << 20)
                rank.receive(data)
                if not data:
                    self._selector.unregister(rank.channel)
                return bool(data)
        except BlockingIOError:
            pass
        except OSError:  # it died; how, the status socket tells
            self._selector.unregister(rank.channel)
        return False

    def _heard(self) -> None:
        """A rank's exit status, or the end of the process that starts ranks."""
        message = self._status.recv(4096)
        if not message:
            self._lost = True
            self._selector.unregister(self._status)
            return
        report = json.loads(message)
        rank = self._ranks[report["rank"]]
        while self._exchange(rank, selectors.EVENT_READ):
            pass  # take all that it sent before it ended
        rank.status, rank.ended_at = report["status"], time.monotonic()

    def _let_end(self, deadline: float) -> None:
        """Waits for the ranks that still run, then has those show where they stand, and ends them."""
        while self._running() and time.monotonic() < deadline:
            self._turn(deadline)
        for rank in self._running():
            rank.killed = True
        if self._running():
            with contextlib.suppress(OSError):
                self._status.send(bytes([signal.SIGTERM]))
            deadline = time.monotonic() + _AFTER_TERM_SECONDS
            while self._running() and time.monotonic() < deadline:
                self._turn(deadline)

    def _timed_out(self, timeout: float) -> TimeoutError:
        late = [rank.number for rank in self._running()]
        self._let_end(0.0)
        verb = (
            "has not finished within {} s and was ended"
            if len(late) == 1
            else "have not finished within {} s and were ended"
        )
        text = f"spawn: {format_ranks(late)} of {self._n} {verb.format(f'{timeout:g}')}"
        return TimeoutError(text + "; their standard error shows where they stood", record={"ranks": late})

    def _stuck_at_exit(self) -> TimeoutError:
        late = [rank.number for rank in self._running()]
        self._let_end(0.0)
        return TimeoutError(
            f"spawn: {format_ranks(late)} of {self._n} returned, but did not end within {_EXIT_SECONDS:g} s: something "
            "that runs at exit (atexit, closing a communicator) does not end",
            record={"ranks": late},
        )

    def _error(self) -> BaseException:
        """The exception to raise: the first cause, with the other ranks' failures as notes.

        A RemoteError that a rank raised tells of another rank's failure: that one is the cause, if there is one.
        """
        failures = [(rank, *self._failure(rank)) for rank in self._failures()]
        failures.sort(key=lambda item: (item[0].raised and isinstance(item[1], RemoteError), item[2]))
        first, error, _ = failures[0]
        for rank, other, _ in failures[1:]:
            error.add_note(f"rank {rank.number} of {self._n} also failed: {type(other).__name__}: {other}")
        ended = [rank.number for rank in self._ranks if rank.killed]
        if ended:
            verb = (
                "had not ended by itself and was ended"
                if len(ended) == 1
                else "had not ended by themselves and were ended"
            )
            error.add_note(f"{format_ranks(ended)} {verb} {_GRACE_SECONDS:g} s after rank {first.number} failed")
        return error

    def _failure(self, rank: _Rank) -> tuple[BaseException, float]:
        """(exception, when it happened)."""
        where = f"rank {rank.number} of {self._n}"
        record: dict[str, object] = {"rank": rank.number}
        if rank.answer is not None and rank.raised:
            error: BaseException
            try:
                error = pickle.loads(rank.answer["error"])
            except Exception:  # it cannot travel, or its class is not known here
                error = RemoteError(f"{where} raised {rank.answer['type']}: {rank.answer['text']}", record=record)
            error.add_note(f"raised on {where}:\n{rank.answer['traceback'].rstrip()}")
            return error, rank.answer["time"]
        if rank.status is None:
            return RemoteError(f"{where} was lost: the process that starts ranks died", record=record), 0.0
        when = "before" if rank.answer is None else "after"
        text = f"{where} {describe_exit(rank.status)} {when} its function returned"
        return RemoteError(text, record=record), rank.ended_at

    def _close(self) -> None:
        """Ends the ranks that are left: the zygote kills them when the status socket closes."""
        self._selector.close()
        self._status.close()
        for rank in self._ranks:
            rank.channel.close()
