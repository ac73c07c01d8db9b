"""From a rank's failure record to the exception that tells its story."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gin.config import Config, format_duration
from gin.errors import ArgumentError, Error, RemoteError, TimeoutError, UnsupportedError

__all__ = ["describe", "exception"]

# gin::Operation in the words of the device API.
OPERATIONS = {
    1: "put",
    2: "put_value",
    3: "get",
    4: "signal",
    5: "wait",
    6: "wait_counter",
    7: "flush",
    8: "fence",
    9: "quiet",
    10: "atomic",
    11: "barrier",
    12: "launch",
}
OK, TIMEOUT, REMOTE, RANGE, UNSUPPORTED, INTERNAL = range(6)
_NUMBERED = {"wait": "signal", "signal": "signal", "wait_counter": "counter", "barrier": "barrier index"}


def describe(record: Mapping[str, Any]) -> str:
    """What the failed operation was: its name, its subject, its context and its thread."""
    operation = OPERATIONS.get(record["operation"], "operation")
    words = [operation]
    if operation in _NUMBERED:
        words.append(f"on {_NUMBERED[operation]} {record['id']}")
    if record["peer"] >= 0:
        words.append(f"{'from' if operation in ('wait', 'barrier') else 'to'} rank {record['peer']}")
    words.append(f"(context {record['context']}, block {tuple(record['block'])}, thread {tuple(record['thread'])})")
    return " ".join(words)


def exception(
    record: Mapping[str, Any], rank: int, config: Config, failure: tuple[int, str] | None, where: str = ""
) -> Error:
    """The exception for a record.

    rank     this rank
    failure  (rank, reason) of the rank that failed first, where the store knows one
    where    where the kernel's threads stood
    """
    details = {**record, "rank": rank, "operation": OPERATIONS.get(record["operation"], "none")}
    code = record["code"]
    if code == TIMEOUT:
        seen = f"expected at least {record['expected']}, seen {record['seen']}"
        text = (
            f"rank {rank}: {describe(record)} passed its deadline of {format_duration(config.timeout)}: {seen}. "
            "A peer has not sent what this rank waits for, or needs longer: GIN_TIMEOUT sets the deadline"
        )
        return TimeoutError(text + (f"\n{where}" if where else ""), record=details)
    if code == REMOTE:
        if failure is not None:
            return RemoteError(f"rank {failure[0]} failed: {failure[1]}", record={**details, "peer": failure[0]})
        return RemoteError(
            f"rank {rank}: {describe(record)} failed at the peer or on the way (detail {record['detail']})",
            record=details,
        )
    if code == RANGE:
        text = f"rank {rank}: {describe(record)} is out of range: asked for {record['seen']}, the limit is {record['expected']}"
        return _RangeError(text, record=details)
    if code == UNSUPPORTED:
        return UnsupportedError(f"rank {rank}: {describe(record)} is not supported here", record=details)
    return Error(f"rank {rank}: {describe(record)} failed inside gin (detail {record['detail']})", record=details)


class _RangeError(ArgumentError, IndexError):
    """Raised for an operation that GIN_CHECK=1 found out of range. Also a builtin `IndexError`."""
