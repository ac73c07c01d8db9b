"""Stories of what a flush says and what it does not: puts that it was taken to settle, gets that were read before it."""

from __future__ import annotations

from collections.abc import Iterator

from gin.sim.events import Trace
from gin.sim.story import PUTS, Step, Story, arrived, posted, request_name, waited

__all__ = ["FLUSH_CAUSE", "FLUSH_RULE", "flush_after", "flushes_for_settled", "unflushed_gets"]

FLUSH_CAUSE = "flush taken for remote completion"
FLUSH_RULE = (
    "A flush says that the sources of puts may be reused, and nothing of their targets. The peer may read what a put wrote "
    "when it sees the signal that the put carries, an ordered(...) one after it, or any signal sent after quiet."
)
_GET_CAUSE = "get read before its flush"
_GET_RULE = (
    "A get returns before its bytes are there. They may be read after flush, or when a ticket of flush_async has been "
    "waited for, by the threads that called it."
)


def flush_after(trace: Trace, number: int, until: int) -> int | None:
    """Where, before the place `until`, a flush of a request's context ended that was called after the request."""
    post = trace.post(number)
    for at in range(trace.requests[number].post + 1, until):
        event = trace.events[at]
        if event.kind == "met" and event.op == "flush" and (event.rank, event.context) == (post.rank, post.context):
            return at
    return None


def flushes_for_settled(trace: Trace, rank: int | None) -> Iterator[Story]:
    """A put that had not arrived when its sender's flush ended, and that nothing else covers.

    rank  the one that failed: the put's target, where it is known
    """
    total = len(trace.events)
    for number, request in trace.requests.items():
        put = trace.post(number)
        if put.op not in PUTS or not put.bytes or trace.has_signal(number) or rank not in (None, put.peer):
            continue
        flush = flush_after(trace, number, total)
        if flush is None or _settled_by(request.delivered, flush) or _covered(trace, number):
            continue
        steps = [posted(trace, number), waited(trace.events[flush]), arrived(trace, number, flush)]
        yield Story(FLUSH_CAUSE, FLUSH_RULE, steps)
        return


def _settled_by(delivered: list[int], place: int) -> bool:
    return bool(delivered) and delivered[-1] < place


def _covered(trace: Trace, number: int) -> bool:
    """Whether the sender says later, on the same context, that the put has settled or is before something that has."""
    put = trace.post(number)
    for event in trace.events[trace.requests[number].post + 1 :]:
        if (event.rank, event.context) != (put.rank, put.context):
            continue
        if event.kind == "met" and event.op in ("quiet", "barrier", "fence"):
            return True
        if event.kind == "post" and (event.op == "fence" or (event.peer == put.peer and event.value2 & 2)):
            return True
    return False


def unflushed_gets(trace: Trace, rank: int | None, *, flushed: bool) -> Iterator[Story]:
    """The get of a rank that took longest to arrive, as a kernel may read it too early and leaves no sign of it.

    rank     the one that failed, where that is known
    flushed  of those that a flush follows in their kernel; otherwise of those that none does
    """
    found: list[tuple[int, int, int]] = []  # time that it took, its number, where its flush or its kernel ended
    for number, request in trace.requests.items():
        get = trace.post(number)
        if get.op != "get" or not get.where or rank not in (None, get.rank):
            continue
        if trace.window_of(get) is None:  # by which a fence or quiet finds out what has settled
            continue
        end = _end_of_kernel(trace, request.post)
        flush = flush_after(trace, number, end)
        if (flush is not None) != flushed:
            continue
        landed = trace.events[request.delivered[-1]].time if request.delivered else trace.events[-1].time
        found.append((landed - get.time, number, end if flush is None else flush))
    if not found:
        return
    _, number, over = max(found, key=lambda entry: (entry[0], -entry[1]))
    delivered = trace.requests[number].delivered
    event = trace.events[over] if over < len(trace.events) else None
    steps = [posted(trace, number)]
    if delivered:
        last = trace.events[delivered[-1]]
        steps.append(Step(last.time, last.rank, f"the bytes of {request_name(trace, number)} are there only now"))
    if event is not None:
        steps.append(
            waited(event) if flushed else Step(event.time, event.rank, "the kernel ends, without a flush after it")
        )
    yield Story(_GET_CAUSE, _GET_RULE, sorted(steps, key=lambda step: step.time_ns))


def _end_of_kernel(trace: Trace, post: int) -> int:
    """Where the kernel ends that makes the request posted at a place."""
    rank = trace.events[post].rank
    ends = (
        at for at in range(post, len(trace.events)) if trace.events[at].kind == "end" and trace.events[at].rank == rank
    )
    return next(ends, len(trace.events))
