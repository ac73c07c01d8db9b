"""What a simulation has recorded, in the order in which it happened."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["Event", "Layout", "Request", "Trace", "WindowPlace"]


class Event(NamedTuple):
    """One record of gin._core.Simulation.events(), in its order of fields.

    kind    launch, end, post, read_source, deliver, signal, complete, settle, wait, met, overdue, read, reset, kill, stall
    op      of a request: put, get, value, signal, atomic or fence; of a wait: wait, wait_counter, barrier, flush, quiet ...
    offset  of a request, bytes in the peer's region; of a signal alone, of its word; of a wait, read or reset, the
            signal's or counter's id
    value, value2  by kind, see csrc/sim/trace.h
    number  of the request, from 1 on; 0 for none
    """

    time: int  # ns
    kind: str
    rank: int
    peer: int
    context: int
    op: str
    region: int
    offset: int
    bytes: int
    value: int
    value2: int
    number: int
    piece: int
    file: str
    line: int

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}" if self.file else ""


@dataclass
class Request:
    """What became of one request: places in the trace."""

    post: int
    delivered: list[int] = field(default_factory=list)
    signalled: int | None = None
    signal: tuple[int, int] | None = None  # (context, id) that it adds to; of a put, once it has
    completed: int | None = None
    settled: int | None = None


GROUP_REGIONS = 1 << 20  # regions are numbered within each communicator, see csrc/sim/fabric.h

Layout = tuple[int, int, int]  # contexts, signal words of each, and the user's among them


@dataclass(frozen=True)
class WindowPlace:
    """The window `number` (from 1) of communicator `group` (from 0) lies at `offset` of a region of the wire."""

    group: int
    number: int
    region: int
    offset: int
    nbytes: int


class Trace:
    """Events with what they say of requests and of signals.

    layouts  of each communicator
    windows  in the order in which they were made
    """

    def __init__(
        self, events: Iterable[tuple[Any, ...]], layouts: Mapping[int, Layout], windows: Sequence[WindowPlace] = ()
    ) -> None:
        self.events = [Event(*event) for event in events]
        self._layouts = layouts
        self._windows = windows
        self.requests: dict[int, Request] = {}
        self._ends: dict[int, list[int]] = {}  # by rank, places where its kernels ended
        for at, event in enumerate(self.events):
            if event.number:
                self._note(at, event)
            elif event.kind == "end":
                self._ends.setdefault(event.rank, []).append(at)

    def _note(self, at: int, event: Event) -> None:
        if event.kind == "post":
            self.requests[event.number] = Request(at, signal=self.signal_of(event) if event.op == "signal" else None)
            return
        request = self.requests.get(event.number)
        if request is None:
            return
        match event.kind:
            case "deliver":
                request.delivered.append(at)
            case "signal":
                request.signalled = at
                request.signal = self.signal_of(event)
            case "complete":
                request.completed = at
            case "settle":
                request.settled = at

    def signal_of(self, event: Event) -> tuple[int, int] | None:
        """(context, id) of the signal whose word an event adds to; None for other words."""
        group, region = divmod(event.region, GROUP_REGIONS)
        contexts, ids, _ = self._layouts.get(group, (0, 0, 0))
        words = contexts * ids
        word = event.offset // 8 - words  # behind those that are loaded and stored
        return divmod(word, ids) if region == 0 and 0 <= word < words else None

    def is_users(self, signal: tuple[int, int] | None) -> bool:
        """Whether it is no signal of the library's own barriers."""
        return signal is not None and any(signal[1] < signals for _, _, signals in self._layouts.values())

    def post(self, number: int) -> Event:
        """Where a request was posted."""
        return self.events[self.requests[number].post]

    def kernels_ended(self, rank: int, until: int) -> int:
        """How many kernels of a rank have ended before a place."""
        return bisect_left(self._ends.get(rank, []), until)

    def has_signal(self, number: int) -> bool:
        """Whether a request carries a signal, applied or not."""
        return bool(self.post(number).value2 & 1)

    def window_of(self, event: Event) -> WindowPlace | None:
        """The user's window that an event is about; None for memory of the library's own."""
        group, region = divmod(event.region, GROUP_REGIONS)
        for window in reversed(self._windows):
            inside = event.offset - window.offset
            if (window.group, window.region) == (group, region) and 0 <= inside < max(1, window.nbytes):
                return window
        return None

    def place(self, event: Event) -> str:
        """The window and the bytes that an event is about."""
        window = self.window_of(event)
        if window is None:
            name, first = f"region {event.region % GROUP_REGIONS}", event.offset
        else:
            of = f" of communicator {window.group + 1}" if window.group else ""
            name, first = f"window {window.number}{of}", event.offset - window.offset
        return f"{name}, bytes {first} to {first + max(1, event.bytes) - 1}"
