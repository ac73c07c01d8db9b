"""Wires that misbehave as far as the contract allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

__all__ = ["OVERTAKING", "faulty"]

OVERTAKING: Mapping[str, int] = {"overtake": 300}  # later requests overtake earlier ones, where they may


@contextmanager
def faulty(faults: Mapping[str, int]) -> Iterator[None]:
    """Communicators that are opened meanwhile have a wire with these faults; see csrc/wire/faulty.h."""
    if not faults:
        yield
        return
    from gin import _core

    real, options = _core.Fabric, {f"fault.{name}": str(value) for name, value in faults.items()}

    def fabric(wire: str, rank: int, size: int, given: Mapping[str, str]) -> Any:
        return real(wire, rank, size, {**given, **options})

    with mock.patch.object(_core, "Fabric", fabric):
        yield
