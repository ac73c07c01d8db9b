"""A small process that outlives a launcher killed by SIGKILL just long enough to end what it had started."""

from __future__ import annotations

import contextlib
import os
import signal

from gin.launch.processes import kill_group

__all__ = ["Guardian"]


class Guardian:
    """Kills the process groups given to it when this process ends without `dismiss`."""

    def __init__(self) -> None:
        receiving, self._sending = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            try:
                os.close(self._sending)
                _guard(receiving)
            finally:
                os._exit(0)
        os.close(receiving)

    def watch(self, leader: int) -> None:
        """From now on the group of `leader` must not survive this process."""
        os.write(self._sending, b"%d\n" % leader)

    def dismiss(self) -> None:
        """All groups have been ended."""
        with contextlib.suppress(OSError):
            os.write(self._sending, b"done\n")
        os.close(self._sending)
        os.waitpid(self._process, 0)


def _guard(receiving: int) -> None:
    """The guardian's whole life: it reads until the launcher's end of the pipe is closed."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    text = b""
    while data := os.read(receiving, 4096):
        text += data
    lines = text.split()
    if not lines or lines[-1] != b"done":
        for line in lines:
            kill_group(int(line), signal.SIGKILL)
