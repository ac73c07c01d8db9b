"""What a communicator sees of the rendezvous: collective calls with deadlines, and news of dead ranks."""

from __future__ import annotations

import abc
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence

from gin.collective import Exchange
from gin.errors import ConfigError, RemoteError
from gin.ranks import Ranks

__all__ = ["FailureCallback", "SoloStore", "Store"]

FailureCallback = Callable[[int, str], None]

log = logging.getLogger("gin.rendezvous")


class Store(abc.ABC):
    """A job's rendezvous on one rank.

    `allgather`, `barrier` and `broadcast` are collective: every rank of the group calls the same one with the same tag,
    in the same order. `group` holds ranks of the job (None: all) and gives the order of results; each set of ranks has
    its own sequence of calls. `timeout` is in seconds (0: none), by default the store's.

    Every call raises TimeoutError naming the ranks that did not come, RemoteError once a rank of the job has failed
    (naming the first) or one that is needed has left, Error when ranks make different calls. A store that `goes_on` raises
    for failed ranks of the group alone. Threads may share a store as long as each group is used by one thread at a time.
    """

    ranks: Ranks  # after the ranks have met: the local numbers are those of the real hosts
    hosts: tuple[str, ...]  # for each rank, a name of its host that is equal on ranks of one host only

    def __init__(self, ranks: Ranks, timeout: float, goes_on: bool = False) -> None:
        self.ranks = ranks
        self.timeout = timeout
        self.goes_on = goes_on
        self.opening = 0  # how often the job was opened before, by the rank that counts most
        self._failures: dict[int, str] = {}  # rank -> reason, the first one first
        self._callbacks: list[FailureCallback] = []
        self._state = threading.Condition()

    @property
    def rank(self) -> int:
        return self.ranks.rank

    @property
    def size(self) -> int:
        return self.ranks.size

    @property
    def local_rank(self) -> int:
        """This rank's place among those of its host."""
        return self.ranks.local_rank

    @property
    def local_size(self) -> int:
        """The number of ranks on this host."""
        return self.ranks.local_size

    @property
    def failure(self) -> tuple[int, str] | None:
        """(rank, reason) of the job's first failure, or None."""
        with self._state:
            return next(iter(self._failures.items()), None)

    @property
    def failures(self) -> dict[int, str]:
        """Why each failed rank has failed; the first one alone, unless the store goes on."""
        with self._state:
            return dict(self._failures)

    @property
    def departed(self) -> frozenset[int]:
        """Ranks known to have closed their store in peace."""
        return frozenset()

    def exchange(self) -> Exchange:
        """Exchanges values other than bytes between the ranks of this store."""
        return Exchange(self, self.rank)

    def allgather(
        self, tag: str, payload: bytes, timeout: float | None = None, group: Sequence[int] | None = None
    ) -> list[bytes]:
        """Every rank's payload, in the order of the group."""
        return self._call("allgather", tag, payload, -1, group, timeout)

    def barrier(self, tag: str = "barrier", timeout: float | None = None, group: Sequence[int] | None = None) -> None:
        """Returns when every rank of the group has called it."""
        self._call("barrier", tag, b"", -1, group, timeout)

    def broadcast(
        self,
        tag: str,
        payload: bytes | None,
        root: int = 0,
        timeout: float | None = None,
        group: Sequence[int] | None = None,
    ) -> bytes:
        """The payload of rank `root`; what the others pass is not used."""
        if self.rank == root and payload is None:
            raise ConfigError(f"broadcast {tag!r}: rank {root} is the root and has no payload")
        if root not in (range(self.size) if group is None else group):
            raise ConfigError(f"broadcast {tag!r}: root {root} is not in the group")
        return self._call("broadcast", tag, payload if self.rank == root and payload else b"", root, group, timeout)[0]

    def on_failure(self, callback: FailureCallback) -> None:
        """Calls `callback(rank, reason)` from another thread when another rank fails; at once if one has.

        Once, unless the store goes on: then once for each rank.
        """
        with self._state:
            self._callbacks.append(callback)
            failures = list(self._failures.items())
        for failure in failures:
            if failure[0] != self.rank:
                _notify([callback], failure)

    def off_failure(self, callback: FailureCallback) -> None:
        """Undoes `on_failure`."""
        with self._state, contextlib.suppress(ValueError):
            self._callbacks.remove(callback)

    @abc.abstractmethod
    def fail(self, reason: str) -> None:
        """Tells all other ranks that this one has failed."""

    def leaving(self) -> None:
        """Tells all other ranks that this one is about to close, which may take a while. Where they can be told."""
        return

    @abc.abstractmethod
    def close(self, timeout: float = 30.0) -> None:
        """Says goodbye and ends all threads, within about `timeout` seconds. Rank 0 first waits for the others."""

    @abc.abstractmethod
    def _call(
        self, kind: str, tag: str, payload: bytes, root: int, group: Sequence[int] | None, timeout: float | None
    ) -> list[bytes]:
        """One collective call."""

    def _order(self, group: Sequence[int] | None) -> tuple[int, ...] | None:
        """The group as a tuple, None for all ranks in order. Raises ConfigError for one this rank cannot call in."""
        if group is None:
            return None
        order = tuple(group)
        if self.rank not in order or len(set(order)) != len(order) or min(order) < 0 or max(order) >= self.size:
            raise ConfigError(
                f"group {list(order)}: distinct ranks below {self.size} are needed, rank {self.rank} among them"
            )
        return None if order == tuple(range(self.size)) else order

    def _set_failure(self, rank: int, reason: str, *, notify: bool = True) -> None:
        """Records the first failure (of each rank where the store goes on), ends the waits, and tells the callbacks."""
        with self._state:
            if rank in self._failures or (self._failures and not self.goes_on):
                return
            self._failures[rank] = reason
            callbacks = list(self._callbacks)
            self._state.notify_all()
        if notify:
            _notify(callbacks, (rank, reason))

    def _failed(self, members: Sequence[int]) -> list[int]:
        """The failed ranks without which `members` cannot end a call: any failure is, unless the store goes on."""
        return [rank for rank in self._failures if not self.goes_on or rank == self.rank or rank in members]

    def _raise_failure(self, tag: str, members: Sequence[int]) -> None:
        if failed := self._failed(members):
            reasons = "; ".join(self._failures[rank] for rank in failed)
            record: dict[str, object] = {"rank": failed[0]}
            if self.goes_on:
                record["ranks"] = failed
            raise RemoteError(f"{tag!r} on rank {self.rank} cannot end: {reasons}", record=record)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _notify(callbacks: Sequence[FailureCallback], failure: tuple[int, str]) -> None:
    for callback in callbacks:
        try:
            callback(*failure)
        except Exception:
            log.exception("a failure callback failed")


class SoloStore(Store):
    """The store of a job of one rank: nobody to wait for, no sockets, no threads."""

    def __init__(self, ranks: Ranks, timeout: float, host: str) -> None:
        super().__init__(ranks, timeout)
        self.hosts = (host,)
        self._closed = False

    def fail(self, reason: str) -> None:
        self._set_failure(0, f"rank 0 (this one) failed: {reason}", notify=False)

    def close(self, timeout: float = 30.0) -> None:
        self._closed = True

    def _call(
        self, kind: str, tag: str, payload: bytes, root: int, group: Sequence[int] | None, timeout: float | None
    ) -> list[bytes]:
        self._order(group)
        if self._closed:
            raise ConfigError(f"{tag!r} on rank 0: the communicator is closed")
        self._raise_failure(tag, (0,))
        return [] if kind == "barrier" else [bytes(payload)]
