"""The connection of one rank to the rendezvous server: handshake, and the store on top of it."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from gin.config import format_ranks
from gin.errors import BootstrapError, ConfigError, Error, RemoteError, TimeoutError
from gin.ranks import Ranks
from gin.rendezvous import secret as proof
from gin.rendezvous.endpoint import Endpoint, connect
from gin.rendezvous.frames import HANDSHAKE, MEMBER, Decoder, Frame, Header, ProtocolError, encode
from gin.rendezvous.server import VERSION, Hosting
from gin.rendezvous.store import Store

__all__ = ["NetworkStore", "reach"]

_Key = tuple[tuple[int, ...] | None, int]  # group and place in its sequence

_ANSWER_SECONDS = 5.0  # the server answers an expired call at once, if it is alive
_GREETING_SECONDS = 10.0


def reach(endpoint: Endpoint, hello: Header, secret: bytes, seconds: float) -> tuple[socket.socket, Decoder]:
    """A connection on which both sides have proved that they know the secret. Waits for a server that is not there yet.

    Raises BootstrapError with the cause and the remedy.
    """
    deadline = time.monotonic() + (seconds or float("inf"))
    pause, reason, tries = 0.002, "", 0
    while (left := deadline - time.monotonic()) > 0 or not tries:
        tries += 1
        try:
            connection = connect(endpoint, max(0.1, min(left, _GREETING_SECONDS)))
        except BootstrapError as error:  # the name does not resolve (yet)
            if endpoint.kind == "unix":
                raise
            reason = str(error)
        except OSError as error:
            reason = str(error.strerror or error)
        else:
            try:
                greeted = _greet(connection, endpoint, hello, secret, deadline)
            except BaseException:
                connection.close()
                raise
            if isinstance(greeted, Decoder):
                return connection, greeted
            connection.close()
            reason = greeted
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(2 * pause, 0.1)
    raise BootstrapError(
        f"rank {hello['rank']} of {hello['size']} could not join rank 0 at {endpoint} (from {endpoint.origin}) within "
        f"{seconds:g} s: {reason}. Check that rank 0 runs, that all ranks have the same GIN_RENDEZVOUS and size, and "
        "that GIN_CONNECT_TIMEOUT is long enough for the slowest rank to start"
    )


def _greet(
    connection: socket.socket, endpoint: Endpoint, hello: Header, secret: bytes, deadline: float
) -> Decoder | str:
    """The handshake on one connection. A text says why it is worth trying again."""
    decoder = Decoder(HANDSHAKE)
    limit = min(deadline, time.monotonic() + _GREETING_SECONDS)
    try:
        challenge = _await_frame(connection, decoder, limit)
        if challenge is None:
            return "rank 0 closed the connection: its server was ending"
        version = challenge.header.get("version")
        if challenge.header["op"] != "challenge" or challenge.header.get("protocol") != "gin":
            raise ProtocolError("no challenge")
        if version != VERSION:
            raise BootstrapError(
                f"rank 0 at {endpoint} speaks version {version!r:.20} of the rendezvous protocol, this rank version "
                f"{VERSION}: install the same gin on all ranks"
            )
        nonce = str(challenge.header.get("nonce"))
        signed = {**hello, "nonce": proof.nonce()}
        signed["proof"] = proof.prove(secret, "client", nonce, signed)
        _send_all(connection, encode(signed), limit)
        answer = _await_frame(connection, decoder, limit)
    except ProtocolError:
        raise BootstrapError(
            f"what listens at {endpoint} (from {endpoint.origin}) is not the rendezvous of a gin job. "
            "Set GIN_PORT or GIN_RENDEZVOUS to another port on all ranks"
        ) from None
    except _SilentError:
        if time.monotonic() >= deadline:
            return "it accepted the connection and said nothing"
        raise BootstrapError(
            f"what listens at {endpoint} (from {endpoint.origin}) accepted the connection and said nothing for "
            f"{_GREETING_SECONDS:g} s: it is not the rendezvous of a gin job, or its process is stopped. Set GIN_PORT "
            "or GIN_RENDEZVOUS to another port on all ranks"
        ) from None
    except OSError as error:
        return f"the connection broke: {error.strerror}"
    if answer is None:
        return "rank 0 closed the connection: it or its server was ending"
    return _judge(answer, endpoint, signed, secret, nonce) or decoder


def _judge(answer: Frame, endpoint: Endpoint, hello: Header, secret: bytes, nonce: str) -> str:
    """Empty when rank 0 has proved itself and let us in; a reason to try again; raises when it is pointless."""
    if answer.header["op"] == "welcome":
        if proof.verify(answer.header.get("proof"), secret, "server", nonce, hello):
            return ""
        raise BootstrapError(f"what listens at {endpoint} does not know the job's secret: it is not this job's rank 0")
    text = f"{answer.header.get('text')!s:.1000}"
    match answer.header.get("reason"):
        case "later":
            return (
                f"rank 0 has not opened size {hello['size']}, opening {hello['generation']} (it has: {text or 'none'})"
            )
        case "secret":
            raise BootstrapError(
                f"rank 0 at {endpoint} refused rank {hello['rank']}: the job's secrets differ. Set the same "
                f"GIN_JOB_SECRET on all ranks, or on none to use {proof.key_file()} of the same user; if another job "
                "uses this address, set GIN_RENDEZVOUS or GIN_PORT"
            )
        case _:
            raise BootstrapError(f"rank 0 at {endpoint} refused rank {hello['rank']}: {text}")


class _SilentError(Exception):
    """Nothing came in time."""


def _await_frame(connection: socket.socket, decoder: Decoder, deadline: float) -> Frame | None:
    """The next frame; None when the other side has closed."""
    while (frame := decoder.pop()) is None:
        if not _wait(connection, select.POLLIN, deadline):
            raise _SilentError
        if not (data := connection.recv(1 << 16)):
            return None
        decoder.feed(data)
    return frame


def _wait(connection: socket.socket, events: int, deadline: float) -> bool:
    """Whether the socket is ready before the (monotonic) deadline."""
    poll = select.poll()
    poll.register(connection, events)
    left = deadline - time.monotonic()
    return bool(poll.poll(None if left == float("inf") else max(0, int(1000 * left) + 1)))


def _send_all(connection: socket.socket, data: bytes, deadline: float) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[connection.send(view) :]
        except BlockingIOError:
            if not _wait(connection, select.POLLOUT, deadline):
                raise _SilentError from None


@dataclass
class _Answer:
    header: Header
    payload: bytes


class NetworkStore(Store):
    """The store of a rank among several. One thread reads what the server sends."""

    _alive: ClassVar[weakref.WeakSet[NetworkStore]] = weakref.WeakSet()

    def __init__(
        self,
        ranks: Ranks,
        timeout: float,
        connection: socket.socket,
        decoder: Decoder,
        hosting: Hosting | None,
        goes_on: bool = False,
    ) -> None:
        super().__init__(ranks, timeout, goes_on)
        self.hosts = ()
        self._connection = connection
        self._decoder = decoder
        self._decoder.limits = MEMBER
        self._hosting = hosting
        self._answers: dict[_Key, _Answer | None] = {}
        self._sequences: dict[tuple[int, ...], int] = {}
        self._sending = threading.Lock()
        self._departed: set[int] = set()
        self._closing = False  # this rank has said goodbye
        self._ended = False  # nothing more will come
        self._closed = False
        self._owner = os.getpid()
        self._reader = threading.Thread(target=self._read, name=f"gin rendezvous rank {ranks.rank}", daemon=True)
        self._alive.add(self)
        self._reader.start()

    @property
    def departed(self) -> frozenset[int]:
        with self._state:
            return frozenset(self._departed)

    def fail(self, reason: str) -> None:
        self._transmit({"op": "fail", "reason": str(reason)[:2000]}, b"", _ANSWER_SECONDS)
        self._set_failure(self.rank, f"rank {self.rank} (this one) failed: {reason}", notify=False)

    def leaving(self) -> None:
        self._transmit({"op": "leaving"}, b"", _ANSWER_SECONDS)

    def close(self, timeout: float = 30.0) -> None:
        with self._state:
            if self._closed or self._owner != os.getpid():
                return
            self._closed = self._closing = True
            self._state.notify_all()
        deadline = time.monotonic() + timeout
        self._transmit({"op": "bye"}, b"", min(timeout, _ANSWER_SECONDS))
        with self._state:  # the server's goodbye shows that it has ours
            self._state.wait_for(lambda: self._ended, min(timeout, _ANSWER_SECONDS))
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._reader:
            self._reader.join(_ANSWER_SECONDS)
        self._connection.close()
        self._alive.discard(self)
        if self._hosting is not None:
            self._hosting.release(deadline)

    def _call(
        self, kind: str, tag: str, payload: bytes, root: int, group: Sequence[int] | None, timeout: float | None
    ) -> list[bytes]:
        order = self._order(group)
        members = order or tuple(range(self.size))
        seconds = self.timeout if timeout is None else timeout
        if len(payload) * len(members) > MEMBER.payload:
            raise ConfigError(
                f"{tag!r}: {len(payload)} bytes from each of {len(members)} ranks are too much for the rendezvous, "
                f"which carries at most {MEMBER.payload} bytes in one call"
            )
        ranks = tuple(sorted(members))
        with self._state:
            self._refuse_when_over(tag, members)
            sequence = self._sequences.get(ranks, 0)
            self._sequences[ranks] = sequence + 1
            key: _Key = (None if len(ranks) == self.size else ranks, sequence)
            self._answers[key] = None
        header = {"op": "call", "kind": kind, "tag": tag, "root": root, "group": order, "sequence": sequence}
        try:
            self._transmit(header, bytes(payload), seconds or float("inf"))
            answer = self._await(key, tag, members, seconds)
        finally:
            with self._state:
                del self._answers[key]
        return self._unpack(answer, tag)

    def _refuse_when_over(self, tag: str, members: Sequence[int]) -> None:
        if self._closing:
            raise ConfigError(f"{tag!r} on rank {self.rank}: the communicator is closed")
        self._raise_failure(tag, members)
        if self._ended:
            text = f"{tag!r} on rank {self.rank}: rank 0 has left the job (closed its communicator or ended)"
            raise RemoteError(text, record={"rank": 0})

    def _await(self, key: _Key, tag: str, members: Sequence[int], seconds: float) -> _Answer:
        """The server's answer to a call. A failure that concerns it ends the wait, unless the answer is there already."""

        def over() -> bool:
            return bool(self._answers[key] or self._failed(members) or self._ended or self._closing)

        with self._state:
            done = self._state.wait_for(over, seconds or None)
        if not done:
            self._transmit({"op": "expire", "group": key[0], "sequence": key[1], "seconds": seconds}, b"", 1.0)
            with self._state:
                self._state.wait_for(over, _ANSWER_SECONDS)
        with self._state:
            answer = self._answers[key]
            if answer is not None and answer.header.get("kind") == "remote":
                self._raise_failure(tag, members)  # why a rank has left, where it said so
            if answer is None:
                self._refuse_when_over(tag, members)
                raise TimeoutError(
                    f"{tag!r} on rank {self.rank} did not end within {seconds:g} s, and rank 0 does not answer: its "
                    "process is stopped or busy",
                    record={"rank": 0},
                )
            return answer

    def _unpack(self, answer: _Answer, tag: str) -> list[bytes]:
        header = answer.header
        if header["op"] == "error":
            text = f"{header['text']} (seen by rank {self.rank} in {tag!r})"
            record: dict[str, object] = {"rank": min(header["ranks"], default=-1), "ranks": list(header["ranks"])}
            match header["kind"]:
                case "timeout":
                    raise TimeoutError(text + ". GIN_CONNECT_TIMEOUT sets how long to wait", record=record)
                case "remote":
                    raise RemoteError(text, record=record)
                case _:
                    raise Error(
                        text + ". All ranks must make the same collective calls in the same order", record=record
                    )
        pieces, at = [], 0
        for size in header["sizes"]:
            pieces.append(answer.payload[at : at + size])
            at += size
        return pieces

    def _transmit(self, header: Header, payload: bytes, seconds: float) -> None:
        """Sends a frame. A connection that is broken is noticed, with its reason, by the reading thread."""
        with self._sending, contextlib.suppress(OSError):
            try:
                _send_all(self._connection, encode(header, payload), time.monotonic() + seconds)
            except _SilentError:  # half a frame may be out: the stream is of no more use
                self._connection.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        """The reading thread: until the connection ends."""
        reason = "died or lost its connection to this rank, without saying goodbye"
        try:
            while True:
                for frame in self._decoder:
                    if not self._handle(frame):
                        return
                _wait(self._connection, select.POLLIN, float("inf"))
                data = self._connection.recv(1 << 18)
                if not data:
                    break
                self._decoder.feed(data)
        except OSError as error:
            reason += f" ({error.strerror})"
        except (ProtocolError, KeyError, TypeError, ValueError) as error:
            reason = f"broke the rendezvous protocol: {error!r:.200}"
        finally:
            with self._state:
                peaceful = self._ended or self._closing
                self._ended = True
                self._state.notify_all()
            if not peaceful:
                self._set_failure(0, f"rank 0 {reason}")

    def _handle(self, frame: Frame) -> bool:
        """Takes one frame in; False when it was the last."""
        header = frame.header
        match header["op"]:
            case "result" | "error":
                group = header["group"]
                key: _Key = (None if group is None else tuple(group), header["sequence"])
                with self._state:
                    if key in self._answers:
                        self._answers[key] = _Answer(header, frame.payload)
                        self._state.notify_all()
            case "failed":
                self._set_failure(int(header["rank"]), str(header["reason"]))
            case "departed":
                with self._state:
                    self._departed.add(int(header["rank"]))
            case "bye" | "closing":
                with self._state:
                    self._ended = True
                    self._state.notify_all()
                return False
            case other:
                raise ProtocolError(f"no message is called {other!r:.40}")
        return True

    @classmethod
    def say_goodbye_at_exit(cls, failure: str | None) -> None:
        """At the end of the process: closes what is open, or first reports why the process ends."""
        for store in list(cls._alive):
            if store._owner != os.getpid():
                continue
            if failure is not None and not store._failed(()):
                store.fail(failure)
            store.close(2.0 if store._failed(()) else 30.0)  # the others know of a failure already

    @classmethod
    def forget_after_fork(cls) -> None:
        """In a child made by fork: the connections belong to the parent, whose death must still be noticed."""
        for store in list(cls._alive):
            store._connection.close()
        cls._alive = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"<store of rank {self.rank} of {self.size}; departed: {format_ranks(sorted(self._departed))}>"


os.register_at_fork(after_in_child=NetworkStore.forget_after_fork)
