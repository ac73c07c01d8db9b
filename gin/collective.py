"""Steps that all ranks of a communicator take together: one that fails on a rank is an error on all of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol

from gin.errors import RemoteError

__all__ = ["Exchange", "Store"]


class Store(Protocol):
    """What a communicator needs of the rendezvous."""

    def allgather(self, tag: str, payload: bytes, timeout: float | None = None) -> list[bytes]: ...

    def barrier(self, tag: str, timeout: float | None = None) -> None: ...

    def fail(self, reason: str) -> None: ...

    def close(self, timeout: float = 30.0) -> None: ...


class Exchange:
    """Exchanges JSON values between the ranks of one store."""

    def __init__(self, store: Store, rank: int) -> None:
        self._store = store
        self._rank = rank

    def gather(self, tag: str, make: Callable[[], Any]) -> list[Any]:
        """`make()` of every rank, in rank order. Collective.

        Where `make` raises, this rank raises the same and the others a RemoteError that names it.
        """
        error: BaseException | None = None
        try:
            message = {"value": make()}
        except Exception as caught:
            error, message = caught, {"error": f"{type(caught).__name__}: {caught}"}
        answers = [json.loads(answer) for answer in self._store.allgather(tag, json.dumps(message).encode())]
        if error is not None:
            raise error
        for rank, answer in enumerate(answers):
            if "error" in answer:
                raise RemoteError(f"{tag}: rank {rank} failed: {answer['error']}", record={"rank": rank})
        return [answer["value"] for answer in answers]

    def reduce(self, tag: str, make: Callable[[], Any], combine: Callable[[list[Any]], Any]) -> Any:
        """`combine` of every rank's `make()`, which is the same on every rank. Collective; raises as `gather` does."""
        return combine(self.gather(tag, make))

    def agree(self, tag: str, step: Callable[[], Any]) -> None:
        """Takes a step on every rank; returns when all have. Collective."""
        self.gather(tag, lambda: step() and None)


def error_text(error: BaseException) -> str:
    """One line about an error, for other ranks."""
    return f"{type(error).__name__}: {error}"
