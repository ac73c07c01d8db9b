"""The rendezvous of simulated ranks: collective calls inside one process, whose results all ranks share."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gin.collective import Exchange, error_text
from gin.config import Config, format_ranks
from gin.errors import BootstrapError, BootstrapTimeoutError, ConfigError, Error, RemoteError, TimeoutError
from gin.ranks import Ranks
from gin.rendezvous.store import Store

if TYPE_CHECKING:
    from gin.sim.job import Job, Place

__all__ = ["Meeting", "SimExchange", "SimStore", "join"]

HOST = "simulated"


def join(config: Config, place: Place) -> SimStore:
    """The store of a simulated rank's next communicator. Collective: every rank of the job calls it as often."""
    job, number = place.job, place.openings
    place.openings += 1
    if number == len(job.meetings):
        job.meetings.append(Meeting(job, number))
    goes_on = config.on_peer_failure == "peer"
    store = job.meetings[number].enter(place.rank, config.connect_timeout, goes_on)
    try:
        store.barrier("joining the job")
    except TimeoutError as error:
        raise BootstrapTimeoutError(str(error), record=error.record) from None
    except RemoteError as error:
        raise BootstrapError(str(error), record=error.record) from None
    return store


@dataclass(eq=False)
class _Call:
    """One collective call. `values` has the rank's argument for each rank that has come."""

    kind: str
    tag: str
    group: tuple[int, ...]
    root: int
    values: dict[int, Any] = field(default_factory=dict)
    result: Any = None
    left: int = 0  # ranks that have not fetched the result
    deadlines: dict[int, float] = field(default_factory=dict)  # virtual seconds, of the ranks that wait


class Meeting:
    """What the stores of one communicator's ranks share. `number` counts the communicators of the job."""

    def __init__(self, job: Job, number: int) -> None:
        self.job = job
        self.number = number
        self.hosts = (HOST,) * job.size
        self.everyone = tuple(range(job.size))
        self.stores: dict[int, SimStore] = {}
        self.departed: set[int] = set()
        self.failures: set[int] = set()
        self._calls: dict[tuple[tuple[int, ...], int], _Call] = {}

    def enter(self, rank: int, timeout: float, goes_on: bool) -> SimStore:
        size = self.job.size
        ranks = Ranks(rank, size, rank, size, "simulator", "simulated", True)
        store = self.stores[rank] = SimStore(self, ranks, timeout, goes_on)
        return store

    def call(
        self,
        store: SimStore,
        kind: str,
        tag: str,
        value: Any,
        root: int = -1,
        group: tuple[int, ...] | None = None,
        timeout: float | None = None,
    ) -> _Call:
        """One rank's part of a collective call; returns when all of the group have come."""
        ranks = self.everyone if group is None else group
        store.check(tag, ranks)
        key = (ranks, store.turn(ranks))
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = _Call(kind, tag, ranks, root, left=len(ranks))
        if (call.kind, call.tag, call.root) != (kind, tag, root):
            raise self._mismatch(store.rank, f"{kind} {tag!r}", call)
        call.values[store.rank] = value
        if len(call.values) == len(ranks):
            self._complete(call)
        else:
            gone = sorted(self.departed.intersection(ranks) - call.values.keys())
            if gone:
                raise RemoteError(f"{tag!r} on rank {store.rank} cannot end: {_left(gone)}", record={"rank": gone[0]})
            seconds = store.timeout if timeout is None else timeout
            call.deadlines[store.rank] = self.job.simulation.now_ns / 1e9 + (seconds or math.inf)
            try:
                self.job.block(store.rank, f"{kind} {tag!r}")
            finally:
                del call.deadlines[store.rank]
        call.left -= 1
        if call.left == 0:
            del self._calls[key]
        return call

    def _complete(self, call: _Call) -> None:
        values = [call.values[rank] for rank in call.group]
        call.result = [call.values[call.root]] if call.kind == "broadcast" else [] if call.kind == "barrier" else values
        for rank in sorted(call.deadlines):
            self.job.wake(rank)

    def _mismatch(self, rank: int, made: str, call: _Call) -> Error:
        others = format_ranks(sorted(call.values))
        error = Error(f"ranks make different calls: rank {rank} calls {made}, {others} {call.kind} {call.tag!r}")
        for other in sorted(call.deadlines):
            self.job.wake(other, Error(str(error)))
        return error

    def fail(self, rank: int, reason: str) -> None:
        """The rank has failed: the others are told, and their waits end."""
        if rank in self.failures:
            return
        self.failures.add(rank)
        for other in sorted(self.stores):
            self.stores[other].told(rank, reason)
        for call in list(self._calls.values()):
            for waiting in sorted(call.deadlines):
                if rank in call.group or not self.stores[waiting].goes_on:
                    text = f"{call.tag!r} on rank {waiting} cannot end: {reason}"
                    self.job.wake(waiting, RemoteError(text, record={"rank": rank}))

    def leave(self, rank: int) -> None:
        """The rank has closed its store: calls that need it cannot end."""
        self.departed.add(rank)
        for call in list(self._calls.values()):
            if rank in call.group and rank not in call.values:
                for waiting in sorted(call.deadlines):
                    text = f"{call.tag!r} on rank {waiting} cannot end: {_left([rank])}"
                    self.job.wake(waiting, RemoteError(text, record={"rank": rank}))

    def ended(self, place: Place) -> None:
        """The program of a rank has ended, perhaps with this communicator open."""
        store = self.stores.get(place.rank)
        if store is None or store.closed:
            return
        if place.error is not None:
            store.fail(error_text(place.error))
        store.close()

    def hopeless(self) -> list[Late]:
        """The ranks whose collective calls wait in vain, as nothing in the job can go on."""
        found = []
        for call in self._calls.values():
            missing = [rank for rank in call.group if rank not in call.values]
            doing = "; ".join(self.job.describe(rank) for rank in missing[:8]) + ("; ..." if len(missing) > 8 else "")
            for rank in sorted(call.deadlines) if missing else []:
                late = f"{format_ranks(missing)} did not come, and cannot come any more: {doing}"
                error = TimeoutError(f"{call.tag!r} on rank {rank}: {late}", record={"ranks": missing})
                found.append(Late(call.deadlines[rank], rank, error))
        return found


@dataclass(frozen=True)
class Late:
    """A wait in vain: in which rank's program, until when (virtual seconds), and what it ends with."""

    deadline: float
    rank: int
    error: Error


def _left(ranks: Sequence[int]) -> str:
    return f"{format_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} closed the communicator"


class SimStore(Store):
    """One rank's side of a meeting."""

    def __init__(self, meeting: Meeting, ranks: Ranks, timeout: float, goes_on: bool) -> None:
        super().__init__(ranks, timeout, goes_on)
        self.hosts = meeting.hosts
        self.meeting = meeting
        self.closed = False
        self._turns: dict[tuple[int, ...], int] = {}

    def exchange(self) -> Exchange:
        return SimExchange(self)

    @property
    def departed(self) -> frozenset[int]:
        return frozenset(self.meeting.departed)

    def fail(self, reason: str) -> None:
        if not self.closed:
            self.meeting.fail(self.rank, f"rank {self.rank} failed: {reason}")

    def close(self, timeout: float = 30.0) -> None:
        if not self.closed:
            self.closed = True
            self._callbacks.clear()
            self.meeting.leave(self.rank)

    def told(self, rank: int, reason: str) -> None:
        """A rank of the job has failed."""
        self._set_failure(rank, reason, notify=rank != self.rank and not self.closed)

    def check(self, tag: str, members: Sequence[int]) -> None:
        """Raises unless a collective call can begin."""
        if self.closed:
            raise ConfigError(f"{tag!r} on rank {self.rank}: the communicator is closed")
        self._raise_failure(tag, members)

    def turn(self, group: tuple[int, ...]) -> int:
        """How many calls this rank has made in a group before."""
        number = self._turns.get(group, 0)
        self._turns[group] = number + 1
        return number

    def _call(
        self, kind: str, tag: str, payload: bytes, root: int, group: Sequence[int] | None, timeout: float | None
    ) -> list[bytes]:
        answers: list[bytes] = self.meeting.call(self, kind, tag, payload, root, self._order(group), timeout).result
        return answers


@dataclass
class _Failed:
    """What `make` raised on a rank."""

    error: Exception


class SimExchange(Exchange):
    """Exchanges values by reference. What `gather` returns belongs to all ranks: nobody changes it."""

    def __init__(self, store: SimStore) -> None:
        super().__init__(store, store.rank)
        self._own = store

    def gather(self, tag: str, make: Callable[[], Any]) -> list[Any]:
        return self.reduce(tag, make, list)  # type: ignore[no-any-return]

    def reduce(self, tag: str, make: Callable[[], Any], combine: Callable[[list[Any]], Any]) -> Any:
        try:
            value = make()
        except Exception as error:
            value = _Failed(error)
        call = self._own.meeting.call(self._own, "allgather", tag, value)
        if isinstance(value, _Failed):
            raise value.error
        if isinstance(call.result, list):
            call.result = _Combined(tag, call.result, combine)
        answer = call.result.value
        if isinstance(answer, Exception):
            raise copy.copy(answer)
        return answer


class _Combined:
    """The result of a `reduce`, made once for all ranks."""

    def __init__(self, tag: str, values: list[Any], combine: Callable[[list[Any]], Any]) -> None:
        for rank, value in enumerate(values):
            if isinstance(value, _Failed):
                text = f"{tag}: rank {rank} failed: {type(value.error).__name__}: {value.error}"
                self.value: Any = RemoteError(text, record={"rank": rank})
                return
        try:
            self.value = combine(values)
        except Exception as error:
            self.value = error
