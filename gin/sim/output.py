"""What simulated ranks write: passed on in whole lines, with the rank's number before them, or collected."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from typing import TextIO

__all__ = ["Outputs"]


class Outputs:
    """Standard output and error of a job's ranks. `rank` is the one whose program runs, None outside of any.

    label    put `[rank] ` before each line
    collect  keep what is written in `lines` instead of passing it on
    """

    def __init__(self, *, label: bool = False, collect: bool = False) -> None:
        self.rank: int | None = None
        self.label = label
        self.lines: list[str] = []
        self.collect = collect

    @contextlib.contextmanager
    def in_force(self) -> Iterator[Outputs]:
        """Until the block ends, sys.stdout and sys.stderr are the ranks'."""
        streams = [_Stream(self, sys.stdout), _Stream(self, sys.stderr)]
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            try:
                yield self
            finally:
                for stream in streams:
                    stream.finish()


class _Stream(io.TextIOBase):
    def __init__(self, outputs: Outputs, target: TextIO) -> None:
        self._outputs = outputs
        self._target = target
        self._begun: dict[int | None, str] = {}

    def write(self, text: str) -> int:
        rank = self._outputs.rank
        whole, newline, begun = (self._begun.pop(rank, "") + text).rpartition("\n")
        if begun:
            self._begun[rank] = begun
        if newline:
            self._pass_on(rank, whole + newline)
        return len(text)

    def _pass_on(self, rank: int | None, lines: str) -> None:
        if self._outputs.label and rank is not None:
            lines = "".join(f"[{rank}] {line}" for line in lines.splitlines(keepends=True))
        if self._outputs.collect:
            self._outputs.lines.append(lines)
        else:
            self._target.write(lines)

    def finish(self) -> None:
        """Passes on lines without an end."""
        for rank, text in self._begun.items():
            self._pass_on(rank, text + "\n")
        self._begun.clear()
        self.flush()

    def flush(self) -> None:
        if not self._outputs.collect:
            self._target.flush()

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._target.fileno()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._target.encoding
