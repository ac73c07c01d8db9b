"""Where the contract's tests run: a backend, a route, and the faults of the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import gin


@contextmanager
def faulty(faults: Mapping[str, int]) -> Iterator[None]:
    """Communicators that are opened meanwhile have a wire with these faults; see csrc/wire/faulty.h."""
    from gin import _core

    real, options = _core.Fabric, {f"fault.{name}": str(value) for name, value in faults.items()}

    def fabric(wire: str, rank: int, size: int, given: Mapping[str, str]) -> Any:
        return real(wire, rank, size, {**given, **options})

    with mock.patch.object(_core, "Fabric", fabric if faults else real):
        yield


@dataclass(frozen=True)
class World:
    """A backend and a route to run ranks on."""

    backend: str
    route: str
    faults: Mapping[str, int] = field(default_factory=dict)

    def run(
        self,
        ranks: int,
        body: Callable[[Any], Any],
        *,
        seconds: float = 100,
        faults: Mapping[str, int] | None = None,
        **settings: Any,
    ) -> list[Any]:
        """`body(comm)` on every rank; its results by rank."""
        backend, route = self.backend, self.route
        faults = self.faults if faults is None else faults

        def rank_main() -> Any:
            with (
                faulty(faults),
                gin.init(backend=backend, **{"route": route, "timeout": "20s", "check": True} | settings) as comm,
            ):
                return body(comm)

        return gin.spawn(ranks, rank_main, timeout=seconds)
