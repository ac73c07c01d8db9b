"""A process that has imported what ranks need and forks one for each request: `python -m gin.launch.zygote`.

It is asked through a socket inherited as a descriptor. One message starts one rank and carries the descriptors of its
channel (function in, result out), of the spawn's status socket, and of its standard output and error. The exit of each
rank is reported on the status socket; a byte received there is a signal for the spawn's ranks, and its closing kills
them. The process ends, and with it all ranks, when its own socket closes or its parent dies.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import sys
from dataclasses import dataclass
from typing import Any

from gin.launch.processes import die_with_parent, kill_group

__all__ = ["main"]


@dataclass
class _Child:
    process: int
    rank: int
    watch: int  # its pidfd


@dataclass
class _Spawn:
    """The ranks of one call of gin.spawn that have not ended, and where their ends are reported."""

    status: socket.socket
    children: dict[int, _Child]


class _Zygote:
    def __init__(self, control: socket.socket, parent: int) -> None:
        self._control = control
        self._selector = selectors.DefaultSelector()
        self._spawns: dict[str, _Spawn] = {}
        self._alive = True
        self._selector.register(control, selectors.EVENT_READ, self._request)
        self._parent = os.pidfd_open(parent)
        self._selector.register(self._parent, selectors.EVENT_READ, self._stop)

    def serve(self) -> None:
        while self._alive:
            for key, _ in self._selector.select():
                key.data()
        for name in list(self._spawns):
            self._end(name)

    def _stop(self) -> None:
        self._alive = False

    def _request(self) -> None:
        message, descriptors, _, _ = socket.recv_fds(self._control, 4096, 4, socket.MSG_CMSG_CLOEXEC)
        if not message:
            self._stop()
            return
        request = json.loads(message)
        channel, status, out, err = descriptors
        spawn = self._spawns.get(request["spawn"])
        if spawn is None:
            spawn = self._spawns[request["spawn"]] = _Spawn(socket.socket(fileno=os.dup(status)), {})
            self._selector.register(
                spawn.status, selectors.EVENT_READ, lambda name=request["spawn"]: self._commanded(name)
            )
        own = os.getpid()
        process = os.fork()
        if process == 0:
            _become_rank(own, channel, out, err)
        for descriptor in descriptors:
            os.close(descriptor)
        with contextlib.suppress(OSError):
            os.setpgid(process, process)  # here too, so that the group exists before anybody signals it
        child = _Child(process, request["rank"], os.pidfd_open(process))
        spawn.children[child.rank] = child
        self._selector.register(
            child.watch, selectors.EVENT_READ, lambda name=request["spawn"], rank=child.rank: self._ended(name, rank)
        )

    def _commanded(self, name: str) -> None:
        """A signal for all ranks of a spawn, or its end."""
        spawn = self._spawns[name]
        data = spawn.status.recv(1)
        if not data:
            self._end(name)
            return
        for child in spawn.children.values():
            kill_group(child.process, data[0])

    def _ended(self, name: str, rank: int) -> None:
        """Reports a rank's end, after killing what it left in its group."""
        spawn = self._spawns.get(name)
        if spawn is None or rank not in spawn.children:
            return
        child = spawn.children.pop(rank)
        status = self._reap(child)
        with contextlib.suppress(OSError):
            spawn.status.send(json.dumps({"rank": rank, "status": status}).encode())

    def _reap(self, child: _Child) -> int:
        os.waitid(os.P_PID, child.process, os.WEXITED | os.WNOWAIT)
        kill_group(child.process, signal.SIGKILL)
        _, status = os.waitpid(child.process, 0)
        self._selector.unregister(child.watch)
        os.close(child.watch)
        return os.waitstatus_to_exitcode(status)

    def _end(self, name: str) -> None:
        spawn = self._spawns.pop(name)
        self._selector.unregister(spawn.status)
        spawn.status.close()
        for child in spawn.children.values():
            kill_group(child.process, signal.SIGKILL)
            self._reap(child)


def _become_rank(zygote: int, channel: int, out: int, err: int) -> None:
    """In the forked process: takes over the rank's descriptors, runs its function, and never returns."""
    code = 1
    try:
        os.setpgid(0, 0)
        die_with_parent(zygote)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (out, 1), (err, 2)):
            os.dup2(source, target)
        for descriptor in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, channel}:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(descriptor)
        for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
            signal.signal(number, handler)
        from gin.launch.rank import work

        code = work(socket.socket(fileno=channel))
    except BaseException:
        with contextlib.suppress(BaseException):
            sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _import_for_ranks() -> None:
    """What every rank would import anyway. Nothing here may start threads that a fork would lose."""
    import importlib

    names: Any = ("cloudpickle", "traceback", "faulthandler", "numpy", "gin.launch.rank", "gin.rendezvous.client")
    for name in (*names, "gin.comm"):
        with contextlib.suppress(Exception):  # a rank that needs it gets the error itself
            importlib.import_module(name)


def main() -> None:
    """Serves until the parent is gone. Arguments: the socket's descriptor and the parent's process number."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal's Ctrl-C the parent decides
    control, parent = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    sys.argv[1:] = []
    _import_for_ranks()
    gc.collect()
    gc.freeze()
    _Zygote(control, parent).serve()


if __name__ == "__main__":
    main()
