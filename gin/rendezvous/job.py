"""What rank 0 keeps of one job: who is there, and which collective calls are under way. No sockets, no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gin.config import format_ranks
from gin.rendezvous.frames import Header, ProtocolError

__all__ = ["Call", "Job", "Send"]

Send = Callable[[int, Header, Sequence[bytes]], None]  # rank, header, pieces of the payload


@dataclass(frozen=True)
class Call:
    """A collective call as one rank makes it. All its members must make the same one."""

    kind: str  # allgather, barrier or broadcast
    tag: str
    root: int  # of a broadcast, else -1
    order: tuple[int, ...]  # the members in the order of the results

    def __str__(self) -> str:
        root = f" from rank {self.root}" if self.root >= 0 else ""
        group = f" of ranks {list(self.order)}" if list(self.order) != sorted(self.order) else ""
        return f"{self.kind} {self.tag!r}{root}{group}"


@dataclass
class _Slot:
    """One place in a group's sequence of calls."""

    calls: dict[int, Call] = field(default_factory=dict)
    payloads: dict[int, bytes] = field(default_factory=dict)
    error: Header | None = None  # what every member that arrives from now on is told


class Job:
    """The calls and the members of one job.

    Each method is an event; `send` carries what follows from it to members, in order. Every rank that calls gets
    exactly one answer: `result`, or `error` with a kind (`timeout`, `mismatch`, `remote`).
    """

    def __init__(self, size: int, send: Send) -> None:
        self.size = size
        self.members: dict[int, str] = {}  # connected ranks, each with its description for messages
        self.departed: set[int] = set()  # said goodbye
        self.seen: set[int] = set()  # have joined
        self.failures: dict[int, str] = {}  # rank -> reason
        self._send = send
        self._slots: dict[tuple[tuple[int, ...], int], _Slot] = {}

    def join(self, rank: int, description: str) -> None:
        """A rank has proved itself. One that comes into a failed job learns so at once."""
        self.members[rank] = description
        self.seen.add(rank)
        for failed in self.failures:
            self._send(rank, self._failure_notice(failed), ())

    def call(self, rank: int, sequence: int, call: Call, payload: bytes) -> None:
        """`rank` makes its `sequence`-th call in the group of the call's members. Raises ProtocolError for nonsense."""
        group = tuple(sorted(set(call.order)))
        if rank not in group or len(group) != len(call.order) or group[0] < 0 or group[-1] >= self.size:
            raise ProtocolError(f"a group {call.order} that rank {rank} cannot call in")
        slot = self._slots.setdefault((group, sequence), _Slot())
        if rank in slot.calls:
            raise ProtocolError(f"rank {rank} makes call {sequence} twice")
        slot.calls[rank] = call
        slot.payloads[rank] = payload
        if slot.error is None:
            slot.error = self._departure(group, slot) or self._mismatch(group, sequence, slot, rank)
            if slot.error is not None:
                for other in slot.calls:
                    self._answer_error(other, group, sequence, slot.error)
        else:
            self._answer_error(rank, group, sequence, slot.error)
        if len(slot.calls) == len(group):
            del self._slots[group, sequence]
            if slot.error is None:
                self._answer(group, sequence, slot)

    def expire(self, rank: int, group: tuple[int, ...], sequence: int, seconds: float) -> None:
        """`rank` will wait no longer: the call ends for all who are in it, naming those who are not."""
        slot = self._slots.get((group, sequence))
        if slot is None or slot.error is not None or rank not in slot.calls:
            return  # the answer is already on its way
        missing = [other for other in group if other not in slot.calls]
        absent = [other for other in missing if other not in self.members and other not in self.departed]
        have = "has" if len(missing) == 1 else "have"
        text = f"{format_ranks(missing)} {have} not reached {slot.calls[rank].tag!r} within {seconds:g} s"
        if absent:
            text += f" ({format_ranks(absent)} never joined the job)"
        slot.error = {"kind": "timeout", "text": text, "ranks": missing}
        for other in slot.calls:
            self._answer_error(other, group, sequence, slot.error)

    def fail(self, rank: int, reason: str) -> None:
        """`rank` has failed. Everybody is told, and ends the calls that this leaves without an answer."""
        if rank not in self.failures:
            self.failures[rank] = reason
            self._slots = {place: slot for place, slot in self._slots.items() if rank not in place[0]}
            for other in self.members:
                if other != rank:
                    self._send(other, self._failure_notice(rank), ())

    def leaving(self, rank: int) -> None:
        """`rank` will say goodbye as soon as all that it sent has arrived; it can still fail."""
        for other in self.members:
            if other != rank:
                self._send(other, {"op": "departed", "rank": rank}, ())

    def leave(self, rank: int) -> None:
        """`rank` says goodbye. Calls that wait for it cannot end well."""
        self.leaving(rank)
        self.members.pop(rank, None)
        self.departed.add(rank)
        for (group, sequence), slot in list(self._slots.items()):
            if slot.error is None and (error := self._departure(group, slot)) is not None:
                slot.error = error
                for other in slot.calls:
                    self._answer_error(other, group, sequence, error)

    def lost(self, rank: int, reason: str) -> None:
        """The connection of `rank` ended without goodbye."""
        description = self.members.pop(rank, f"rank {rank}")
        if rank not in self.departed:
            self.fail(rank, f"{description} {reason}")

    def _departure(self, group: tuple[int, ...], slot: _Slot) -> Header | None:
        gone = [rank for rank in group if rank in self.departed and rank not in slot.calls]
        if not gone:
            return None
        tag = next(iter(slot.calls.values())).tag
        verb = "has" if len(gone) == 1 else "have"
        return {
            "kind": "remote",
            "text": f"{format_ranks(gone)} {verb} left the job (closed its communicator or ended) before {tag!r}",
            "ranks": gone,
        }

    @staticmethod
    def _mismatch(group: tuple[int, ...], sequence: int, slot: _Slot, rank: int) -> Header | None:
        for other, call in slot.calls.items():
            if call != slot.calls[rank]:
                where = f"collective call {sequence} of {format_ranks(group)}"
                text = f"{where}: rank {other} calls {call}, but rank {rank} calls {slot.calls[rank]}"
                return {"kind": "mismatch", "text": text, "ranks": [other, rank]}
        return None

    def _answer(self, group: tuple[int, ...], sequence: int, slot: _Slot) -> None:
        call = next(iter(slot.calls.values()))
        givers = [call.root] if call.kind == "broadcast" else call.order if call.kind == "allgather" else []
        pieces = [slot.payloads[giver] for giver in givers]
        header = {**self._place(group, sequence), "op": "result", "sizes": [len(piece) for piece in pieces]}
        for rank in group:
            self._send(rank, header, pieces)

    def _answer_error(self, rank: int, group: tuple[int, ...], sequence: int, error: Header) -> None:
        if rank in self.members:
            self._send(rank, {**error, **self._place(group, sequence), "op": "error"}, ())

    def _place(self, group: tuple[int, ...], sequence: int) -> Header:
        return {"group": None if len(group) == self.size else list(group), "sequence": sequence}

    def _failure_notice(self, rank: int) -> Header:
        return {"op": "failed", "rank": rank, "reason": self.failures[rank]}
