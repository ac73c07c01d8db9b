"""Where a launch's messages and signals lie: on other cache lines than those of the launches around it.

What it costs to hand a line from core to core hangs on its address, which says what part of a cache keeps it: up to a third
of a small message's time. Addresses are luck of the run and of the backend. So a row is taken over lines of all kinds.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HOME", "PAGE", "SPAN", "Lane", "lane", "signals_for"]

PAGE = 4096  # bytes that lie together in a machine's memory
SPAN = 8 * PAGE  # bytes: messages begin within so many from a window's beginning
_SIGNAL_PAGES = 4
_STEP = 128  # bytes of a GPU's line, or of a pair of lines of a processor
_WORD = 8  # bytes of a signal
_SIGNALS = 3  # of a block


@dataclass(frozen=True)
class Lane:
    """Offsets of the first message in the windows, bytes, and numbers of the first signal: on even ranks and on odd ones."""

    offsets: tuple[int, int]
    signals: tuple[int, int]


HOME = Lane((0, 0), (0, 0))
"""Where all launches are that nothing is gained by moving, as in simulated time."""


def signals_for(channels: int, others: int, *, move: bool = True) -> int:
    """Signals of a context that `channels` blocks share: pages of them, and so many more that each context begins a page.

    others  words that a context has besides, for barriers
    move    false where all launches are at HOME
    """
    if not move or not _fit(channels):
        return _SIGNALS * channels
    page = PAGE // _WORD
    return _SIGNAL_PAGES * page + -others % page


def lane(turn: int, nbytes: int, channels: int, *, each: bool, phases: tuple[int, int] = (0, 0)) -> Lane:
    """The places of a launch.

    turn      the launch's number; two launches, one led by either end, have the same places
    nbytes    of a message. Those above PAGE lie on many lines as it is, and begin at 0
    channels  blocks that share a context; where their signals take several lines, they begin at 0
    each      whether both ends have places of their own; otherwise all ranks have those of the even ones
    phases    how far rank 0's and rank 1's windows begin behind a page's beginning, bytes

    What a ping-pong pays depends on four places: messages and signals of both ranks. In sixteen lanes each of a place's
    address bits from 256 bytes to 2 KiB has both values with all combinations of the other places' same bit, and each place
    takes its pages in turn. Whatever these mean for the memory that a run got, it meets nearly the same mixture.
    """
    number, again = turn // 2 % 16, turn // 32 % 2
    steps = [_rotated(number, by) for by in range(4)]
    bytes_in = [_STEP * (2 * step + again) for step in steps]
    offsets = [
        (PAGE * (step % 4 + 4 * again) + at - phase) % SPAN if nbytes <= PAGE else 0
        for step, at, phase in zip(steps, bytes_in, phases, strict=False)
    ]
    signals = [
        (PAGE * ((step + again) % _SIGNAL_PAGES) + at) // _WORD if _fit(channels) else 0
        for step, at in zip(steps[2:], bytes_in[2:], strict=True)
    ]
    return Lane((offsets[0], offsets[each]), (signals[0], signals[each]))


def _fit(channels: int) -> bool:
    """Whether the signals of all blocks of a context have room within a step."""
    return _SIGNALS * channels * _WORD <= _STEP


def _rotated(number: int, by: int) -> int:
    """Four bits, moved up by so many places; those that fall out come in below."""
    return (number << by | number >> (4 - by)) & 15
