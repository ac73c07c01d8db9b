"""The server of the rendezvous: one thread of rank 0's process per address, for all jobs that meet there."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

from gin.rendezvous import secret as proof
from gin.rendezvous.endpoint import Endpoint, listen, peer_identity, tune
from gin.rendezvous.frames import HANDSHAKE, MEMBER, Decoder, Frame, Header, ProtocolError, encode
from gin.rendezvous.job import Call, Job

__all__ = ["VERSION", "Hosted", "Hosting", "Server"]

VERSION = 2

_HANDSHAKE_SECONDS = 10.0
_HANDSHAKES_AT_ONCE = 1024
_FLUSH_SECONDS = 2.0
_LOST = "died or lost its connection to rank 0, without saying goodbye"


@dataclass
class Hosted:
    """One job at a server. `key` is what its ranks' hellos must say: (job, size, generation)."""

    key: tuple[str, int, int]
    secret: bytes
    job: Job = field(init=False)
    connections: dict[int, _Connection] = field(default_factory=dict)
    left: threading.Event = field(default_factory=threading.Event)  # no rank but 0 is connected


class Hosting(NamedTuple):
    """What rank 0 holds of its job: the server, the job there, and its own connection, already accepted."""

    server: Server
    hosted: Hosted
    connection: socket.socket

    def release(self, deadline: float) -> None:
        """Serves the job until its other ranks have left or the (monotonic) deadline, then no more."""
        self.server.release(self.hosted, deadline)


class _Connection:
    """One socket, its incoming frames and its outgoing bytes."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.decoder = Decoder(HANDSHAKE)
        self.outgoing: deque[memoryview] = deque()
        self.nonce = proof.nonce()
        self.deadline = time.monotonic() + _HANDSHAKE_SECONDS
        self.hosted: Hosted | None = None
        self.rank = -1
        self.closing = False  # nothing more is read; closed as soon as all is sent


class Server:
    """Accepts at one endpoint and serves the jobs added to it.

    `refused` counts connections that were closed for a wrong secret, another user, or not being gin at all.
    """

    _servers: ClassVar[dict[tuple[str, str, int], Server]] = {}
    _lock = threading.Lock()

    @classmethod
    def host(cls, endpoint: Endpoint, key: tuple[str, int, int], secret: bytes, *, single_host: bool) -> Hosting:
        """Serves a new job at the endpoint; port 0 stands for any free one, told by the server's own endpoint.

        Raises BootstrapError when the address cannot be had.
        """
        with cls._lock:
            server = cls._servers.get((endpoint.kind, endpoint.host, endpoint.port))
            if server is None:
                listeners = listen(endpoint, single_host=single_host)
                if endpoint.kind == "tcp":
                    endpoint = replace(endpoint, port=listeners[0].getsockname()[1])
                server = cls(endpoint, listeners)
                cls._servers[endpoint.kind, endpoint.host, endpoint.port] = server
                server._thread.start()
            server._users += 1
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        hosted = Hosted(key, secret)
        hosted.job = Job(key[1], lambda rank, header, pieces: server._send(hosted, rank, header, pieces))
        server._do(lambda: server._add(hosted, theirs))
        return Hosting(server, hosted, ours)

    def __init__(self, endpoint: Endpoint, listeners: list[socket.socket]) -> None:
        self.endpoint = endpoint
        self.refused = 0
        self._users = 0
        self._listeners = listeners
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._actions: deque[Callable[[], None]] = deque()
        self._connections: set[_Connection] = set()
        self._jobs: dict[tuple[str, int, int], Hosted] = {}
        self._stop_at: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"gin rendezvous {endpoint}", daemon=True)
        for listener in listeners:
            self._selector.register(listener, selectors.EVENT_READ, lambda _, at=listener: self._accept(at))
        self._woken.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ, lambda _: self._drain())

    def release(self, hosted: Hosted, deadline: float) -> None:
        """Serves the job until its other ranks have left or the (monotonic) deadline, then no more.

        The last job's release ends the server.
        """
        hosted.left.wait(max(0.0, deadline - time.monotonic()))
        done = threading.Event()
        self._do(lambda: self._remove(hosted, done))
        done.wait(_FLUSH_SECONDS)
        with self._lock:
            self._users -= 1
            if self._users:
                return
            self._servers.pop((self.endpoint.kind, self.endpoint.host, self.endpoint.port), None)
            self._do(self._stop)
            self._thread.join(2 * _FLUSH_SECONDS)

    def abandon_after_fork(self) -> None:
        """In a child made by fork: drops the sockets, so that the parent alone holds them."""
        for sock in (*self._listeners, self._wake, self._woken, *(c.socket for c in self._connections)):
            sock.close()
        self._selector.close()

    @classmethod
    def forget_after_fork(cls) -> None:
        """In a child made by fork: no server runs here, and the lock may be held by a thread that is not here."""
        for server in cls._servers.values():
            server.abandon_after_fork()
        cls._servers = {}
        cls._lock = threading.Lock()

    # What follows runs in the server's thread.

    def _do(self, action: Callable[[], None]) -> None:
        self._actions.append(action)
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)

    def _run(self) -> None:
        try:
            while self._stop_at is None or (self._connections and time.monotonic() < self._stop_at):
                for key, events in self._selector.select(self._patience()):
                    key.data(events)
                self._drop_late_handshakes()
                while self._actions:
                    self._actions.popleft()()
        except Exception as error:  # a defect here must not leave the ranks waiting
            for hosted in self._jobs.values():
                hosted.job.fail(0, f"the rendezvous server stopped: {error!r}")
                for connection in hosted.connections.values():
                    self._flush(connection)
            raise
        finally:
            for connection in list(self._connections):
                self._close(connection)
            for listener in self._listeners:
                listener.close()
            self._selector.close()
            self._wake.close()
            self._woken.close()

    def _patience(self) -> float | None:
        """Seconds until something is due without an event."""
        due = [c.deadline for c in self._connections if c.hosted is None or c.closing]
        if self._stop_at is not None:
            due.append(self._stop_at)
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _drop_late_handshakes(self) -> None:
        now = time.monotonic()
        for connection in [c for c in self._connections if (c.hosted is None or c.closing) and c.deadline <= now]:
            self._close(connection)

    def _stop(self) -> None:
        self._stop_at = time.monotonic() + _FLUSH_SECONDS
        for connection in list(self._connections):
            if not connection.closing:
                self._close(connection)

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:  # gone again, or no descriptors left: the caller tries again
            return
        if sock.family == socket.AF_UNIX and peer_identity(sock)[1] != os.geteuid():
            self.refused += 1
            sock.close()
            return
        waiting = [c for c in self._connections if c.hosted is None]
        if len(waiting) >= _HANDSHAKES_AT_ONCE:
            self._close(min(waiting, key=lambda c: c.deadline))
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            tune(sock)
        connection = self._adopt(sock)
        self._queue(connection, {"op": "challenge", "protocol": "gin", "version": VERSION, "nonce": connection.nonce})

    def _adopt(self, sock: socket.socket) -> _Connection:
        connection = _Connection(sock)
        self._connections.add(connection)
        self._selector.register(sock, selectors.EVENT_READ, lambda events: self._ready(connection, events))
        return connection

    def _add(self, hosted: Hosted, sock: socket.socket) -> None:
        self._jobs[hosted.key] = hosted
        self._admit(self._adopt(sock), hosted, 0, f"rank 0 (process {os.getpid()})")

    def _remove(self, hosted: Hosted, done: threading.Event) -> None:
        self._jobs.pop(hosted.key, None)
        for connection in list(hosted.connections.values()):
            self._queue(connection, {"op": "closing"})
            self._finish(connection)
        done.set()

    def _admit(self, connection: _Connection, hosted: Hosted, rank: int, description: str) -> None:
        connection.hosted, connection.rank = hosted, rank
        connection.decoder.limits = MEMBER
        hosted.connections[rank] = connection
        if rank == 0:
            hosted.left.set()
        else:
            hosted.left.clear()
        hosted.job.join(rank, description)

    def _ready(self, connection: _Connection, events: int) -> None:
        if connection not in self._connections:
            return
        if events & selectors.EVENT_WRITE:
            self._flush(connection)
        if events & selectors.EVENT_READ and connection in self._connections:
            self._receive(connection)

    def _receive(self, connection: _Connection) -> None:
        try:
            data = connection.socket.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError as error:
            self._drop(connection, f"{_LOST} ({error.strerror})")
            return
        if not data:
            self._drop(connection, _LOST)
            return
        if connection.closing:
            return
        connection.decoder.feed(data)
        try:
            for frame in connection.decoder:
                self._handle(connection, frame)
                if connection.closing or connection not in self._connections:
                    return
        except (ProtocolError, KeyError, TypeError, ValueError, AttributeError) as error:
            if connection.hosted is None:
                self.refused += 1
            self._drop(connection, f"broke the rendezvous protocol: {error!r:.200}")

    def _handle(self, connection: _Connection, frame: Frame) -> None:
        hosted = connection.hosted
        if hosted is None:
            self._greet(connection, frame.header)
            return
        header, rank = frame.header, connection.rank
        everybody = range(hosted.job.size)
        match header["op"]:
            case "call":
                order = tuple(int(member) for member in (header["group"] or everybody))
                call = Call(str(header["kind"]), str(header["tag"]), int(header["root"]), order)
                hosted.job.call(rank, int(header["sequence"]), call, frame.payload)
            case "expire":
                group = tuple(int(member) for member in (header["group"] or everybody))
                hosted.job.expire(rank, group, int(header["sequence"]), float(header["seconds"]))
            case "fail":
                hosted.job.fail(rank, f"{hosted.job.members[rank]} failed: {header['reason']!s:.2000}")
            case "leaving":
                hosted.job.leaving(rank)
            case "bye":
                hosted.job.leave(rank)
                self._queue(connection, {"op": "bye"})
                self._finish(connection)
            case other:
                raise ProtocolError(f"no operation is called {other!r:.40}")

    def _greet(self, connection: _Connection, hello: Header) -> None:
        """Lets a rank in, tells it to come again when its job is not open yet, or turns a stranger away."""
        if hello["op"] != "hello":
            raise ProtocolError("no hello")
        secrets = dict.fromkeys(hosted.secret for hosted in self._jobs.values())
        known = [s for s in secrets if proof.verify(hello.get("proof"), s, "client", connection.nonce, hello)]
        key = (str(hello["job"]), int(hello["size"]), int(hello["generation"]))
        rank = int(hello["rank"])
        hosted = self._meant(key, rank)
        if not known and secrets:
            self.refused += 1
            self._refuse(connection, "secret", "")
        elif hosted is None or hosted.secret not in known:
            self._refuse(connection, "later", ", ".join(f"size {size}, opening {n}" for _, size, n in self._jobs))
        elif not 0 <= rank < hosted.job.size:
            self._refuse(connection, "rank", f"there is no rank {rank} in a job of {hosted.job.size}")
        elif rank in hosted.connections or rank in hosted.job.departed:
            who = hosted.job.members.get(rank, "a process that has left")
            self._refuse(connection, "rank", f"rank {rank} is taken by {who}; two processes have the same rank")
        else:
            answer = proof.prove(hosted.secret, "server", connection.nonce, hello)
            self._queue(connection, {"op": "welcome", "proof": answer})
            where = f"process {int(hello['process'])} on {hello['host']!s:.80}"
            self._admit(connection, hosted, rank, f"rank {rank} ({where})")

    def _meant(self, key: tuple[str, int, int], rank: int) -> Hosted | None:
        """The job that a hello means: that of its key. A process that was started again has not counted the openings before,
        or the others count more than a rank 0 that was: then the one that still waits for this rank."""
        exact = self._jobs.get(key)
        if exact is not None and rank not in exact.job.seen:
            return exact
        for (name, size, _), hosted in self._jobs.items():
            if (name, size) == key[:2] and 0 <= rank < size and rank not in hosted.job.seen:
                return hosted
        return None if exact is not None and rank in exact.job.failures and rank not in exact.job.members else exact

    def _refuse(self, connection: _Connection, reason: str, text: str) -> None:
        self._queue(connection, {"op": "refused", "reason": reason, "text": text})
        self._finish(connection)

    def _send(self, hosted: Hosted, rank: int, header: Header, pieces: Sequence[bytes]) -> None:
        connection = hosted.connections.get(rank)
        if connection is not None:
            self._queue(connection, header, b"".join(pieces))

    def _queue(self, connection: _Connection, header: Header, payload: bytes = b"") -> None:
        if connection.closing or connection not in self._connections:
            return
        connection.outgoing.append(memoryview(encode(header, payload)))
        if len(connection.outgoing) == 1:
            self._flush(connection)

    def _flush(self, connection: _Connection) -> None:
        try:
            while connection.outgoing:
                sent = connection.socket.send(connection.outgoing[0])
                if sent == len(connection.outgoing[0]):
                    connection.outgoing.popleft()
                else:
                    connection.outgoing[0] = connection.outgoing[0][sent:]
        except BlockingIOError:
            pass
        except OSError:  # what ended the connection is seen when it is read
            connection.outgoing.clear()
        if connection.closing and not connection.outgoing:
            self._close(connection)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.outgoing else 0)
        if self._selector.get_key(connection.socket).events != events:
            self._selector.modify(connection.socket, events, self._selector.get_key(connection.socket).data)

    def _finish(self, connection: _Connection) -> None:
        """Closes the connection once all that is queued has been sent, or soon."""
        connection.closing = True
        connection.deadline = time.monotonic() + _FLUSH_SECONDS
        self._forget(connection)
        if not connection.outgoing:
            self._close(connection)

    def _drop(self, connection: _Connection, reason: str) -> None:
        """The connection ended by itself, or is ended for misbehaviour."""
        hosted, rank, announced = connection.hosted, connection.rank, connection.closing
        self._close(connection)
        if hosted is not None and not announced:
            hosted.job.lost(rank, reason)

    def _close(self, connection: _Connection) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self._selector.unregister(connection.socket)
            connection.socket.close()
            self._forget(connection)

    @staticmethod
    def _forget(connection: _Connection) -> None:
        hosted = connection.hosted
        if hosted is not None and hosted.connections.get(connection.rank) is connection:
            del hosted.connections[connection.rank]
            if not any(hosted.connections):
                hosted.left.set()


os.register_at_fork(after_in_child=Server.forget_after_fork)
