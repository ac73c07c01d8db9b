"""From a rank's failure record to the exception that tells its story."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from gin import _core
from gin.config import Config, format_duration, format_ranks
from gin.errors import Error, RangeError, RemoteError, TimeoutError, UnsupportedError

__all__ = ["Story", "describe", "exception"]

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


@dataclass(frozen=True)
class Story:
    """What a rank knows beside its record."""

    rank: int
    config: Config
    failure: tuple[int, str] | None = None  # (rank, reason) of the rank that failed first
    departed: Collection[int] = ()  # ranks that have closed the communicator
    where: str = ""  # where the kernel's threads stood


def exception(record: Mapping[str, Any], story: Story) -> Error:
    """The exception for a rank's failure record."""
    details = {**record, "rank": story.rank, "operation": OPERATIONS.get(record["operation"], "none")}
    code, what = record["code"], f"rank {story.rank}: {describe(record)}"
    if code == TIMEOUT:
        return TimeoutError(_overdue(record, what, story), record=details)
    if code == REMOTE and story.failure is not None:
        rank, reason = story.failure
        return RemoteError(f"rank {rank} failed: {reason}", record={**details, "peer": rank})
    if code == REMOTE:
        why = _core.verbs_detail(record["detail"]) if story.config.wire == "verbs" else f"detail {record['detail']}"
        return RemoteError(f"{what} failed at the peer or on the way: {why}", record=details)
    if code == RANGE:
        limits = f"asked for {record['seen']}, the limit is {record['expected']}"
        return RangeError(f"{what} is out of range: {limits}", record=details)
    if code == UNSUPPORTED:
        return UnsupportedError(f"{what} is not supported here", record=details)
    return Error(f"{what} failed inside gin (detail {record['detail']})", record=details)


def _overdue(record: Mapping[str, Any], what: str, story: Story) -> str:
    """The message of a wait that passed its deadline."""
    seen = f"expected at least {record['expected']}, seen {record['seen']}"
    gone = f"{format_ranks(list(story.departed))} closed the communicator before. " if story.departed else ""
    return (
        f"{what} passed its deadline of {format_duration(record['detail'] / 1e9)}: {seen}. {gone}"
        "A peer has not sent what this rank waits for, or needs longer: GIN_TIMEOUT sets the deadline"
        + (f"\n{story.where}" if story.where else "")
    )
