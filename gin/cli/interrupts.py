"""What signals do to a command that runs for long and then tells what it has."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

__all__ = ["noticed", "terminated_as_interrupted", "undisturbed"]


@contextlib.contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM, by which a CI job is cancelled, and SIGHUP, by which a connection ends, do what Ctrl-C does: what was
    measured is kept."""

    def interrupt(number: int, frame: object) -> None:
        del number, frame
        raise KeyboardInterrupt

    with _handled((signal.SIGTERM, signal.SIGHUP), interrupt):
        yield


@contextlib.contextmanager
def noticed() -> Iterator[Callable[[], None]]:
    """Yields what raises a Ctrl-C again, if there was one: Python drops it where it comes in a finalizer."""
    seen: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        del frame
        seen.append(number)
        raise KeyboardInterrupt

    def again() -> None:
        if seen:
            raise KeyboardInterrupt

    with _handled((signal.SIGINT,), interrupt):
        yield again


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """The first Ctrl-C does not interrupt the writing of results; a second one does."""
    seen: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        del frame
        seen.append(number)
        if len(seen) > 1:
            raise KeyboardInterrupt

    with _handled((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), interrupt):
        yield


@contextlib.contextmanager
def _handled(numbers: Sequence[signal.Signals], handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Handles signals that are not ignored, as nohup does with SIGHUP; outside of the main thread, none."""
    main = threading.current_thread() is threading.main_thread()
    previous = {number: signal.getsignal(number) for number in numbers if main}
    taken = [number for number, old in previous.items() if old not in (signal.SIG_IGN, None)]
    for number in taken:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, previous[number])
