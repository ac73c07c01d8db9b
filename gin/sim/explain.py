"""From the trace of a run that failed to the few events that explain it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gin.sim.completion import FLUSH_CAUSE, FLUSH_RULE, flush_after, flushes_for_settled, unflushed_gets
from gin.sim.events import Event, Trace
from gin.sim.missing import never_waited_for
from gin.sim.story import PUTS, Step, Story, applied, arrived, posted, request_name, waited, word

__all__ = ["explain"]


def explain(trace: Trace, rank: int | None = None, *, last_resorts: bool = True) -> Story | None:
    """The likeliest story of a failure, None when the trace has none of the known ones.

    rank          the one that failed, where that is known
    last_resorts  stories too of what right programs often do
    """
    stories = [*_changed_sources(trace), *_overtaken(trace, rank), *_reset_too_early(trace), *_late_bases(trace)]
    for others in (
        _unsatisfied(trace),
        _endless(trace, rank),
        flushes_for_settled(trace, rank),
        unflushed_gets(trace, rank, flushed=False),
        _too_few(trace, rank),
    ):
        stories += [] if stories else list(others)
    if last_resorts:
        for others in (unflushed_gets(trace, rank, flushed=True), never_waited_for(trace, rank)):
            stories += [] if stories else list(others)
    return max(stories, key=lambda story: story.weight, default=None)


# -- a put that something overtook ----------------------------------------------------------------------------------


def _overtaken(trace: Trace, rank: int | None) -> Iterator[Story]:
    """Waits that ended, by the signal of one request, while an earlier put of its sender to the same rank was under way."""
    grew: dict[tuple[int, int, int], list[int]] = {}  # (rank, context, id) -> places where the signal grew
    under_way: dict[tuple[int, int], list[int]] = {}  # (sender, target) -> puts that have not arrived
    total = len(trace.events)
    for at, event in enumerate(trace.events):
        key = (event.rank, event.peer)
        if event.kind == "post" and event.op in PUTS and event.bytes:
            under_way.setdefault(key, []).append(event.number)
        elif event.kind == "deliver" and _last_piece(trace, at, event.number):
            puts = under_way.get(key, [])
            if event.number in puts:
                puts.remove(event.number)
        elif event.kind == "signal":
            signal = trace.signal_of(event)
            if signal is not None:
                grew.setdefault((event.peer, *signal), []).append(at)
        elif event.kind in ("met", "read") and event.op in ("wait", ""):
            grown = grew.get((event.rank, event.context, event.offset), [])
            for by in reversed(grown[-8:]):
                story = _overtaking(trace, at, by, under_way)
                if story is not None:
                    story.weight += 1 + at / total / 2 + (event.rank == rank) - (event.kind == "read") / 2
                    yield story


def _last_piece(trace: Trace, at: int, number: int) -> bool:
    delivered = trace.requests[number].delivered
    return bool(delivered) and delivered[-1] == at


def _overtaking(trace: Trace, wait: int, by: int, under_way: dict[tuple[int, int], list[int]]) -> Story | None:
    """The wait at `wait` was satisfied by the signal at `by`; was a put posted before that one still under way?"""
    signal = trace.events[by]
    covered = trace.post(signal.number)
    own = trace.requests[signal.number].signal
    found: tuple[float, int, str, str] | None = None
    for number in under_way.get((covered.rank, covered.peer), []):
        if number == signal.number or trace.requests[number].post > trace.requests[signal.number].post:
            continue
        theirs = trace.requests[number].signal
        put = trace.post(number)
        if theirs is None and trace.has_signal(number):
            continue  # one that has never been applied: nobody can have taken another's for it
        verdict = _verdict(put, covered, theirs, own)
        if verdict is not None and (found is None or verdict[0] >= found[0]):
            found = (verdict[0], number, verdict[1], verdict[2])
    if found is None:
        return None
    weight, number, cause, rule = found
    flush = flush_after(trace, number, trace.requests[signal.number].post)
    between = []
    if flush is not None and trace.requests[number].signal is None:
        cause, rule, between = FLUSH_CAUSE, FLUSH_RULE, [waited(trace.events[flush])]
    steps = [
        posted(trace, number),
        *between,
        posted(trace, signal.number),
        applied(trace, by),
        waited(trace.events[wait]),
        arrived(trace, number, wait),
    ]
    return Story(cause, rule, steps, weight)


def _verdict(
    put: Event, covering: Event, theirs: tuple[int, int] | None, own: tuple[int, int] | None
) -> tuple[float, str, str] | None:
    """(weight, cause, rule) where a programmer may have believed that one request's signal covers another's bytes."""
    if theirs is None and put.context != covering.context:
        rule = (
            f"Nothing is ordered across contexts: a signal of context {covering.context} says nothing of a put of context "
            f"{put.context}. Send both on one context."
        )
        return 3, "signal on another context", rule
    if theirs is None and covering.op == "signal":
        rule = (
            "A weak signal covers no put. Use ordered(...), which is applied after every earlier put of its context to that "
            "peer has settled, or let the put carry the signal."
        )
        return 3, "weak signal taken for an ordered one", rule
    if theirs is None:
        rule = (
            "A signal covers the request that carries it and no earlier one. Put a fence between the two, or make the "
            "signal ordered(...)."
        )
        return 3, "missing fence", rule
    if theirs == own:
        rule = (
            "Puts of one context arrive in any order: a count of n says that n of them have arrived, and not which. Give "
            "each chunk a signal of its own, wait for all of them, or make the signals ordered(...)."
        )
        return 2, "cumulative signal over unordered puts", rule
    return None


# -- sources, resets, bases ------------------------------------------------------------------------------------------


def _changed_sources(trace: Trace) -> Iterator[Story]:
    for event in trace.events:
        if event.kind != "read_source" or not event.value:
            continue
        post = trace.post(event.number)
        completed = trace.requests[event.number].completed
        steps = [
            posted(trace, event.number),
            Step(
                event.time,
                event.rank,
                f"the source of {request_name(trace, event.number)} is read: its bytes have changed since the call",
            ),
        ]
        if completed is not None:
            done = trace.events[completed]
            steps.append(
                Step(done.time, done.rank, f"{request_name(trace, event.number)} completes: its source may be reused")
            )
        rule = (
            f"The source of a {post.op} is read at any time until it has completed. Flush, wait for a ticket or for a "
            "counter before it is written again. Where another thread was to write it before the put, the put was called "
            "too early: synchronise the threads first."
        )
        yield Story("source reused before flush", rule, steps, 6)


def _reset_too_early(trace: Trace) -> Iterator[Story]:
    """Resets that took off more than the waits before them had asked for, or that increments in flight missed."""
    asked: dict[tuple[int, int, int], int] = {}
    grown: dict[tuple[int, int, int], list[int]] = {}
    for at, event in enumerate(trace.events):
        key = (event.rank, event.context, event.offset)
        if event.kind == "signal":
            signal = trace.signal_of(event)
            if signal is not None:
                grown.setdefault((event.peer, *signal), []).append(at)
        elif event.kind == "met":
            asked[key] = max(asked.get(key, 0), event.value)
        elif event.kind == "reset":
            lost = event.value - asked.pop(key, 0)
            if lost > 0 and grown.get(key):
                yield _lost_by_reset(trace, at, grown[key][-lost:], lost)
            grown.pop(key, None)


def _lost_by_reset(trace: Trace, at: int, by: list[int], lost: int) -> Story:
    event = trace.events[at]
    steps = []
    for place in by[-3:]:
        steps += [posted(trace, trace.events[place].number), applied(trace, place)]
    what = f"reset of signal {event.offset} of context {event.context}"
    text = f"{what} takes off {event.value}, of which no wait has seen {lost}"
    steps.append(Step(event.time, event.rank, text, event.where))
    steps += _overdue_after(trace, at)
    rule = (
        "A reset takes off all that has come. Reset between barriers, while no increment can be under way; or count on "
        "and wait for epoch(id) + n."
    )
    return Story("reset while increments fly", rule, steps, 5)


def _late_bases(trace: Trace) -> Iterator[Story]:
    """Waits in vain for more than a value that was read when a peer's increment was already in it."""
    reads: dict[tuple[int, int, int], int] = {}
    grown: dict[tuple[int, int, int], list[int]] = {}
    for at, event in enumerate(trace.events):
        key = (event.rank, event.context, event.offset)
        if event.kind == "signal":
            signal = trace.signal_of(event)
            if signal is not None:
                grown.setdefault((event.peer, *signal), []).append(at)
        elif event.kind == "read" and event.op == "wait" and event.value2:
            reads[key] = at
        elif event.kind == "overdue" and event.op == "wait" and key in reads:
            base = trace.events[reads[key]]
            before = [place for place in grown.get(key, []) if place < reads[key]]
            if not before or event.value <= base.value2:
                continue
            last = before[-1]
            steps = [
                posted(trace, trace.events[last].number),
                applied(trace, last),
                waited(base),
                *_overdue_after(trace, at - 1),
            ]
            rule = (
                "A peer may send before this rank reads the value that it counts from, and that increment is then in it. "
                "Wait for epoch(id) + n, or read the base before a barrier that the peer's first put comes after."
            )
            yield Story("base value read after the peer's first put", rule, steps, 5)


def _overdue_after(trace: Trace, at: int) -> list[Step]:
    """The next wait that passed its deadline."""
    for event in trace.events[at + 1 :]:
        if event.kind == "overdue":
            return [waited(event)]
    return []


def _unsatisfied(trace: Trace) -> Iterator[Story]:
    """The first wait that passed its deadline, with what had come for it."""
    for at, event in enumerate(trace.events):
        if event.kind == "overdue":
            rule = "Nothing that was sent satisfies this wait: too few increments, another signal, context or rank."
            yield Story("a wait that nothing satisfies", rule, [*_come(trace, event.rank, at), waited(event)])
            return


def _come(trace: Trace, rank: int, until: int) -> list[Step]:
    """The last additions to a rank's signals before a place in the trace."""
    places = [
        at
        for at, event in enumerate(trace.events[:until])
        if event.kind == "signal" and event.peer == rank and trace.is_users(trace.signal_of(event))
    ]
    return [applied(trace, at) for at in places[-6:]]


def _endless(trace: Trace, rank: int | None) -> Iterator[Story]:
    """A kernel that has not ended, and whose last deed was to look at a signal."""
    streaks: dict[int, tuple[tuple[Any, ...], int]] = {}  # of the same look, by rank, and where they began
    for at, event in enumerate(trace.events):
        if event.kind in ("launch", "end", "wait", "met", "post", "reset", "read"):
            seen = event.value2 if event.kind == "read" else event.value
            look = (event.kind, event.op, event.context, event.offset, seen)
            if event.rank not in streaks or streaks[event.rank][0] != look:
                streaks[event.rank] = look, at
    for looking, (look, at) in sorted(streaks.items(), key=lambda item: item[0] != rank):
        if look[0] not in ("read", "reset"):
            continue
        event = trace.events[at]
        text = f"looks at {word(event)} again and again: it is {look[-1]}"
        step = Step(event.time, looking, text, event.where)
        rule = (
            "Nothing that was sent ends this loop: too few increments, another signal, context or rank. A wait has a "
            "deadline; a loop around read or test has none."
        )
        yield Story("a loop that nothing ends", rule, [*_come(trace, looking, at), step])
        return


def _too_few(trace: Trace, rank: int | None) -> Iterator[Story]:
    """A rank's last wait for a signal that grew beyond what the wait asked for, or would have."""
    waits: dict[tuple[int, int, int], int] = {}
    more: dict[tuple[int, int, int], int] = {}  # the first request whose addition came after the wait
    fences = _first_fences(trace)
    for at, event in enumerate(trace.events):
        if event.kind == "met" and event.op == "wait":
            key = (event.rank, event.context, event.offset)
            waits[key] = at
            more.pop(key, None)
        elif event.kind == "signal" and (signal := trace.signal_of(event)) is not None:
            key = (event.peer, *signal)
            if key in waits and trace.is_users(signal) and _missed(trace, waits[key], event.number, fences):
                more.setdefault(key, event.number)
    for number, request in trace.requests.items():
        if request.signal is not None and request.signalled is None:
            key = (trace.post(number).peer, *request.signal)
            if key in waits and trace.is_users(request.signal) and _missed(trace, waits[key], number, fences):
                more.setdefault(key, number)
    for key, number in more.items():
        if rank is None or key[0] == rank:
            yield _more_came(trace, waits[key], number)
            return


def _first_fences(trace: Trace) -> dict[tuple[int, int], int]:
    """Where each (rank, context) has its first fence or quiet."""
    first: dict[tuple[int, int], int] = {}
    for at, event in enumerate(trace.events):
        if event.kind in ("post", "met") and event.op in ("fence", "quiet"):
            first.setdefault((event.rank, event.context), at)
    return first


def _missed(trace: Trace, wait: int, number: int, fences: Mapping[tuple[int, int], int]) -> bool:
    """Whether a wait may have been meant for an addition: it tells of bytes, and its sender was not a kernel ahead."""
    post, at = trace.post(number), trace.requests[number].post
    covers = post.op != "signal" or post.value2 & 2 or fences.get((post.rank, post.context), at) < at
    ahead = trace.kernels_ended(post.rank, at) > trace.kernels_ended(trace.events[wait].rank, wait)
    return bool(covers) and not ahead


def _more_came(trace: Trace, wait: int, number: int) -> Story:
    request = trace.requests[number]
    if request.signalled is not None:
        last = applied(trace, request.signalled)
    else:
        text = f"what {request_name(trace, number)} adds has not come to the end"
        last = Step(trace.events[-1].time, trace.post(number).peer, text)
    steps = sorted([posted(trace, number), waited(trace.events[wait]), last], key=lambda step: step.time_ns)
    rule = (
        "More was sent to this signal than the wait asks for. What the additions after it cover may not have arrived when "
        "it ends: wait for all of them."
    )
    return Story("a wait for too few", rule, steps)
