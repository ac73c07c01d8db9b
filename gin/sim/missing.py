"""Stories of waits that are not there."""

from __future__ import annotations

from collections.abc import Iterator

from gin.sim.events import Event, Trace
from gin.sim.story import PUTS, Step, Story, arrived, posted, request_name

__all__ = ["never_waited_for"]

_WEIGHT = -1.0  # below all others: programs may know by other means that something has come
_LOOKS = ("met", "overdue", "read")


def never_waited_for(trace: Trace, rank: int | None) -> Iterator[Story]:
    """The last put to arrive of those to the rank that failed, or to any, that no wait or look of their target is for."""
    looked = {(event.rank, event.context, event.offset) for event in trace.events if _looks(event)}
    lookers = {event.rank for event in trace.events if _looks(event)}
    found: tuple[int, int] | None = None
    for number in trace.requests:
        put = trace.post(number)
        if put.op not in PUTS or not put.bytes or put.peer == put.rank or rank not in (None, put.peer):
            continue
        signal = trace.requests[number].signal
        if (put.peer, *signal) in looked if signal is not None else put.peer in lookers:
            continue
        delivered = trace.requests[number].delivered
        at = delivered[-1] if delivered else len(trace.events)
        if found is None or at > found[0]:
            found = at, number
    if found is not None:
        yield _story(trace, *found)


def _looks(event: Event) -> bool:
    return event.kind in _LOOKS and event.op in ("wait", "")


def _story(trace: Trace, at: int, number: int) -> Story:
    put, signal = trace.post(number), trace.requests[number].signal
    steps = [posted(trace, number)]
    ended = [event for event in trace.events[:at] if event.kind == "end" and event.rank == put.peer]
    if ended and ended[-1].time >= put.time:
        steps.append(Step(ended[-1].time, put.peer, "its kernel ends"))
    if at < len(trace.events):
        steps.append(Step(trace.events[at].time, put.peer, f"the last bytes of {request_name(trace, number)} arrive"))
    else:
        steps.append(arrived(trace, number, at))
    if signal is not None:
        for_it, remedy = f"signal {signal[1]} of context {signal[0]}", "Wait for it"
    elif trace.has_signal(number):
        for_it, remedy = f"the signal that {request_name(trace, number)} carries", "Wait for it"
    else:
        for_it, remedy = request_name(trace, number), "Let the put carry a signal, and wait for that"
    rule = (
        f"No wait of rank {put.peer} is for {for_it}: its kernel reads, or ends, whether the bytes have come or not. "
        f"{remedy} before what was sent is read."
    )
    return Story("no wait for what was sent", rule, steps, _WEIGHT)
