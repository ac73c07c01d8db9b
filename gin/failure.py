"""From a rank's failure record to the exception that tells its story."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from gin import _core
from gin.config import Config, format_duration, format_ranks
from gin.errors import Error, RangeError, RemoteError, TimeoutError, UnsupportedError

__all__ = ["Story", "describe", "exception", "loss"]

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
    13: "peer_pointer",
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
    lost: Collection[int] = ()  # peers that are lost, where that is no failure of the job


def exception(record: Mapping[str, Any], story: Story) -> Error:
    """The exception for a rank's failure record."""
    details = {**record, "rank": story.rank, "operation": OPERATIONS.get(record["operation"], "none")}
    code, what = record["code"], f"rank {story.rank}: {describe(record)}"
    if code == TIMEOUT:
        return TimeoutError(_overdue(record, what, story), record=details)
    if code == REMOTE and story.failure is not None:
        rank, reason = story.failure
        return RemoteError(_of_another(rank, reason), record={**details, "peer": rank})
    if code == REMOTE:
        return RemoteError(f"{what} {_on_the_way(record, story)}", record=details)
    if code == RANGE:
        limits = f"asked for {record['seen']}, the limit is {record['expected']}"
        if not (record["expected"] or record["seen"]):  # found by the wire, which knows no windows
            limits = (
                "it names no peer, or bytes outside of a window; GIN_CHECK=1 finds it in the kernel, and says the limit"
            )
        return RangeError(f"{what} is out of range: {limits}", record=details)
    if code == UNSUPPORTED:
        return UnsupportedError(f"{what} is not supported here", record=details)
    return Error(f"{what} failed inside gin (detail {record['detail']})", record=details)


def loss(record: Mapping[str, Any], story: Story, reason: str | None) -> RemoteError:
    """Why a peer is lost: what its record says, and `reason`, which the rendezvous has heard."""
    peer = record["peer"]
    operation = OPERATIONS.get(record["operation"], "none")
    details = {**record, "rank": peer, "operation": operation}
    told = [] if operation == "none" else [f"{describe(record)} {_on_the_way(record, story)}"]
    if reason:
        told.append(_of_another(peer, reason))
    return RemoteError(f"rank {story.rank} lost rank {peer}: {'; '.join(told) or 'it was given up'}", record=details)


def _on_the_way(record: Mapping[str, Any], story: Story) -> str:
    why = _core.verbs_detail(record["detail"]) if story.config.wire == "verbs" else f"detail {record['detail']}"
    return f"failed at the peer or on the way: {why}"


def _of_another(rank: int, reason: str) -> str:
    """The message of another rank's failure, whose reason may begin with the rank, and its error too."""
    said = re.match(rf"rank {rank}(?P<process> \([^()]*\))? (?:failed: )?", reason)
    process = said["process"] or "" if said else ""
    rest = reason[said.end() :] if said else reason
    return f"rank {rank} failed{process}: " + re.sub(rf"^(\w+: )rank {rank}: ", r"\1", rest)


def _overdue(record: Mapping[str, Any], what: str, story: Story) -> str:
    """The message of a wait that passed its deadline."""
    seen = f"expected at least {record['expected']}, seen {record['seen']}"
    gone = f"{format_ranks(list(story.departed))} closed the communicator before. " if story.departed else ""
    if story.lost:
        gone += (
            f"Lost: {format_ranks(list(story.lost))}; a wait that says whom it is for (gin::from) ends with its loss. "
        )
    return (
        f"{what} passed its deadline of {format_duration(record['detail'] / 1e9)}: {seen}. {gone}"
        "A peer has not sent what this rank waits for, or needs longer: GIN_TIMEOUT sets the deadline"
        + (f"\n{story.where}" if story.where else "")
    )
