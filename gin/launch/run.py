"""`gin run`: starts a program as several ranks on this host and sees them all to their end."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType

from gin.errors import ConfigError
from gin.launch.guardian import Guardian
from gin.launch.processes import Followers, Job, describe_exit, die_with_parent, exit_code, kill_group

__all__ = ["TIMED_OUT", "run"]

TIMED_OUT = 4  # exit code

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AFTER_TERM_SECONDS = 5.0


@dataclass
class _Stream:
    """One output of a rank, copied line by line."""

    descriptor: int
    target: int  # this process's own output
    begun: bytes = b""  # the beginning of a line


@dataclass
class _Rank:
    number: int
    process: subprocess.Popen[bytes]
    watch: int  # a descriptor that becomes readable when the process ends
    status: int | None = None
    streams: list[_Stream] = field(default_factory=list)


def run(
    size: int,
    command: Sequence[str],
    *,
    timeout: float = 0.0,
    grace: float = 10.0,
    label: bool = False,
    keep_going: bool = False,
) -> int:
    """Runs `command` as ranks 0 to size - 1 and returns the exit code of the job.

    timeout     seconds for the whole job, 0: none; exit code 4 when it is over
    grace       seconds for the other ranks to end by themselves once one has failed, before they are ended
    label       put `[rank] ` before each line of output
    keep_going  let the other ranks run on when one has failed, for as long as they take

    Output that goes to a terminal goes there directly. Otherwise, and with labels, it is passed on in whole lines.

    The code is 0, or that of the first rank that failed (128 + n for signal n, also for one that this process got). A rank
    that a RemoteError ends has failed after another one, however soon its process ends.
    Raises ConfigError when the command cannot be started. Nothing that the ranks started in their process groups is
    left when this returns, or when this process is killed.
    """
    guardian = Guardian()
    launch = _Launch(size, label)
    try:
        with _caught_signals(launch.selector) as caught:
            launch.start(command, guardian)
            return launch.supervise(timeout, grace, caught, keep_going)
    finally:
        launch.end()
        guardian.dismiss()


class _Launch:
    """The ranks of one job."""

    def __init__(self, size: int, label: bool) -> None:
        self.size = size
        self.label = label
        self.selector = selectors.DefaultSelector()
        self.ranks: list[_Rank] = []
        self.failed: list[_Rank] = []  # in the order of their ends
        self.told = 0  # of how many of them
        self.job = Job(size, "gin run")
        self.followers = Followers(self.job)
        self.selector.register(self.followers.socket, selectors.EVENT_READ, self.followers.hear)

    def start(self, command: Sequence[str], guardian: Guardian) -> None:
        job, parent = self.job, os.getpid()
        base = dict(os.environ)
        out, err = (subprocess.PIPE if self.label or not os.isatty(target) else None for target in (1, 2))
        if out is not None:
            base.setdefault("PYTHONUNBUFFERED", "1")  # lines are shown when they are written
        for number in range(self.size):
            try:
                process = subprocess.Popen(
                    command,
                    env=job.environment(number, base),
                    stdin=None if number == 0 and _has_input() else subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    process_group=0,
                    preexec_fn=lambda: die_with_parent(parent),
                )
            except OSError as error:
                raise ConfigError(f"{command[0]} cannot be started: {error.strerror}") from None
            guardian.watch(process.pid)
            rank = _Rank(number, process, os.pidfd_open(process.pid))
            self.ranks.append(rank)
            self.selector.register(rank.watch, selectors.EVENT_READ, lambda at=rank: self._ended(at))
            for stream, target in ((process.stdout, 1), (process.stderr, 2)):
                if stream is not None:
                    self._watch_output(rank, _Stream(stream.fileno(), target))

    def supervise(self, timeout: float, grace: float, caught: list[int], keep_going: bool) -> int:
        """Waits for the ranks, and ends those that outstay the timeout, a signal or, unless they keep going, the first
        failure."""
        deadline = time.monotonic() + timeout if timeout else float("inf")
        while self._running():
            self._turn(deadline)
            if caught:
                return self._interrupted(caught, grace)
            if self.failed and not keep_going:
                return self._failed(grace, caught)
            for rank in self.failed[self.told :]:
                self._tell(rank)
            self.told = len(self.failed)
            if self._running() and time.monotonic() >= deadline:
                numbers = ", ".join(str(rank.number) for rank in self._running())
                self._say(f"not finished within {timeout:g} s: ranks {numbers}. Ending them")
                self._end_in_order()
                return TIMED_OUT
        return exit_code((self._cause() or self.failed[0]).status or 0) if self.failed else 0

    def _failed(self, grace: float, caught: list[int]) -> int:
        """The others have a while to end by themselves. One of them may be the cause."""
        deadline = time.monotonic() + grace
        cause = self._cause()
        while cause is None and self._goes_on(deadline, caught):
            self._turn(deadline)
            cause = self._cause()
        cause = cause or self.failed[0]
        self._tell(cause)
        while self._goes_on(deadline, caught):
            self._turn(deadline)
        self._end_in_order()
        return exit_code(cause.status or 0)

    def _goes_on(self, deadline: float, caught: list[int]) -> bool:
        return bool(self._running()) and time.monotonic() < deadline and not caught

    def _cause(self) -> _Rank | None:
        """The first that failed, leaving out those that say that they follow another."""
        self.followers.hear()
        return next((rank for rank in self.failed if rank.number not in self.followers.ranks), None)

    def _tell(self, rank: _Rank) -> None:
        self._say(f"rank {rank.number} of {self.size} {describe_exit(rank.status or 0)}")

    def _interrupted(self, caught: list[int], grace: float) -> int:
        """Passes a signal on. The ranks have a while to end by it; a second signal ends them now."""
        number = caught[0]
        for rank in self._running():
            kill_group(rank.process.pid, number)
        deadline = time.monotonic() + grace
        while self._running() and time.monotonic() < deadline and len(caught) == 1:
            self._turn(deadline)
        self._end_in_order(at_once=len(caught) > 1)
        return 128 + number

    def _end_in_order(self, *, at_once: bool = False) -> None:
        """SIGTERM, a while, SIGKILL."""
        left = self._running()
        if left and not at_once:
            self._say(f"ending rank{'s' if len(left) > 1 else ''} {', '.join(str(rank.number) for rank in left)}")
            for rank in left:
                kill_group(rank.process.pid, signal.SIGTERM)
            deadline = time.monotonic() + _AFTER_TERM_SECONDS
            while self._running() and time.monotonic() < deadline:
                self._turn(deadline)
        for rank in self._running():
            kill_group(rank.process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kills whatever is left of the ranks' groups. The ranks' own numbers are taken until they are reaped here, so
        that no stranger can have got one."""
        for rank in self.ranks:
            kill_group(rank.process.pid, signal.SIGKILL)
            rank.process.wait()
        self._drain()
        for rank in self.ranks:
            os.close(rank.watch)
            for stream in (rank.process.stdout, rank.process.stderr):
                if stream is not None:
                    stream.close()
        self.selector.close()
        self.followers.socket.close()

    def _running(self) -> list[_Rank]:
        return [rank for rank in self.ranks if rank.status is None]

    def _turn(self, deadline: float) -> None:
        """Waits for something to happen, at most until the deadline."""
        left = None if deadline == float("inf") else max(0.0, deadline - time.monotonic())
        for key, _ in self.selector.select(left):
            key.data()

    def _ended(self, rank: _Rank) -> None:
        result = os.waitid(os.P_PID, rank.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is None:
            return
        self.selector.unregister(rank.watch)
        rank.status = result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        if rank.status != 0:
            self.failed.append(rank)

    def _watch_output(self, rank: _Rank, stream: _Stream) -> None:
        os.set_blocking(stream.descriptor, False)
        rank.streams.append(stream)
        self.selector.register(stream.descriptor, selectors.EVENT_READ, lambda: self._pass_on(rank, stream))

    def _pass_on(self, rank: _Rank, stream: _Stream) -> bool:
        """Copies what there is in whole lines; False when there is nothing now."""
        try:
            data = os.read(stream.descriptor, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self.selector.unregister(stream.descriptor)
        whole, newline, begun = (stream.begun + data).rpartition(b"\n")
        stream.begun = begun
        self._write(rank, stream, whole + newline)
        return bool(data)

    def _write(self, rank: _Rank, stream: _Stream, lines: bytes) -> None:
        if self.label:
            lines = b"".join(b"[%d] %s" % (rank.number, line) for line in lines.splitlines(keepends=True))
        with contextlib.suppress(OSError):  # nobody reads this process's output any more
            _write_all(stream.target, lines)

    def _drain(self) -> None:
        """Passes on what the ranks wrote before they ended."""
        for rank in self.ranks:
            for stream in rank.streams:
                while stream.descriptor in self.selector.get_map() and self._pass_on(rank, stream):
                    pass
                if stream.begun:
                    self._write(rank, stream, stream.begun + b"\n")

    @staticmethod
    def _say(text: str) -> None:
        sys.stderr.write(f"gin run: {text}\n")
        sys.stderr.flush()


def _has_input() -> bool:
    """Whether rank 0 gets this process's input. A terminal stays with the launcher: ranks are not in its foreground."""
    return sys.stdin is not None and not sys.stdin.closed and not sys.stdin.isatty()


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


@contextlib.contextmanager
def _caught_signals(selector: selectors.BaseSelector) -> Iterator[list[int]]:
    """The signals that arrive, instead of their usual effect; each also ends a wait in the selector."""
    caught: list[int] = []

    def catch(number: int, _: FrameType | None) -> None:
        caught.append(number)

    woken, wake = socket.socketpair()
    woken.setblocking(False)
    wake.setblocking(False)
    selector.register(woken, selectors.EVENT_READ, lambda: woken.recv(64))
    before = {number: signal.signal(number, catch) for number in _SIGNALS}
    wakeup = signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    try:
        yield caught
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        selector.unregister(woken)
        woken.close()
        wake.close()
