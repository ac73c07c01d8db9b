"""From the trace of a run that failed to the few events that explain it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gin.sim.events import Event, Trace

__all__ = ["Step", "Story", "explain"]

_PUTS = ("put", "put_value")


@dataclass(frozen=True)
class Step:
    """One line of a story: what happened at which rank, and where in the kernel's source it was asked for."""

    time_ns: int
    rank: int
    text: str
    where: str = ""


@dataclass
class Story:
    """Why a run may have failed. `cause` names the mistake in a few words, `rule` says what the contract promises."""

    cause: str
    rule: str
    steps: list[Step] = field(default_factory=list)
    weight: float = 0.0  # how well it explains the failure

    def document(self) -> dict[str, Any]:
        """As JSON."""
        steps = [{"time_ns": s.time_ns, "rank": s.rank, "text": s.text, "where": s.where} for s in self.steps]
        return {"cause": self.cause, "rule": self.rule, "steps": steps}


def explain(trace: Trace, rank: int | None = None) -> Story | None:
    """The likeliest story of a failure, None when the trace has none of the known ones.

    rank  the one that failed, where that is known
    """
    stories = [*_changed_sources(trace), *_overtaken(trace, rank), *_reset_too_early(trace), *_late_bases(trace)]
    for others in (_unsatisfied(trace), _endless(trace, rank), _too_few(trace, rank)):
        stories += [] if stories else list(others)
    return max(stories, key=lambda story: story.weight, default=None)


# -- the events in words -------------------------------------------------------------------------------------------


def _name(trace: Trace, number: int) -> str:
    return f"{trace.post(number).op} #{number}"


def _posted(trace: Trace, number: int) -> Step:
    event, request = trace.post(number), trace.requests[number]
    words = [f"{event.op} #{number} to rank {event.peer}, context {event.context}"]
    if event.bytes and event.op != "signal":
        words.append(trace.place(event))
    if request.signal is not None:
        words.append(f"adds to {'ordered ' if event.value2 & 2 else ''}signal {request.signal[1]}")
    elif event.op in _PUTS:
        words.append("with a signal" if trace.has_signal(number) else "without a signal")
    return Step(event.time, event.rank, ", ".join(words), event.where)


def _applied(trace: Trace, at: int) -> Step:
    event = trace.events[at]
    signal = trace.signal_of(event)
    which = f"signal {signal[1]} of context {signal[0]}" if signal else "a word"
    return Step(event.time, event.peer, f"{which} becomes {event.value2} by {_name(trace, event.number)}")


def _waited(event: Event) -> Step:
    if event.kind == "read":
        text = f"reads {event.value2} from {_word(event)}"
    else:
        text = f"{_wait(event)} {'passes its deadline' if event.kind == 'overdue' else 'ends'}: it is {event.value2}"
    return Step(event.time, event.rank, text, event.where)


def _word(event: Event) -> str:
    """The signal or counter of a wait, read or reset."""
    what = "counter" if event.op == "wait_counter" else "signal"
    return f"{what} {event.offset} of context {event.context}"


def _wait(event: Event) -> str:
    """A wait, and for what."""
    match event.op:
        case "wait" | "wait_counter":
            return f"wait for {_word(event)} to reach {event.value}"
        case "barrier":
            return f"barrier {event.offset} of context {event.context}, waiting for {event.value},"
        case _:
            return f"{event.op} of context {event.context}, waiting for {event.value},"


def _arrived(trace: Trace, number: int, after: int) -> Step:
    """The first bytes of a put that arrive after a place in the trace."""
    event, request = trace.post(number), trace.requests[number]
    late = [at for at in request.delivered if at > after]
    if not late:
        return Step(trace.events[-1].time, event.peer, f"{_name(trace, number)} has not arrived to the end")
    piece = trace.events[late[0]]
    text = f"{trace.place(piece)} of {_name(trace, number)} arrive only now"
    return Step(piece.time, event.peer, text)


# -- a put that something overtook ----------------------------------------------------------------------------------


def _overtaken(trace: Trace, rank: int | None) -> Iterator[Story]:
    """Waits that ended, by the signal of one request, while an earlier put of its sender to the same rank was under way."""
    applied: dict[tuple[int, int, int], list[int]] = {}  # (rank, context, id) -> places where the signal grew
    under_way: dict[tuple[int, int], list[int]] = {}  # (sender, target) -> puts that have not arrived
    total = len(trace.events)
    for at, event in enumerate(trace.events):
        key = (event.rank, event.peer)
        if event.kind == "post" and event.op in _PUTS and event.bytes:
            under_way.setdefault(key, []).append(event.number)
        elif event.kind == "deliver" and _last_piece(trace, at, event.number):
            puts = under_way.get(key, [])
            if event.number in puts:
                puts.remove(event.number)
        elif event.kind == "signal":
            signal = trace.signal_of(event)
            if signal is not None:
                applied.setdefault((event.peer, *signal), []).append(at)
        elif event.kind in ("met", "read") and event.op in ("wait", ""):
            grown = applied.get((event.rank, event.context, event.offset), [])
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
    steps = [
        _posted(trace, number),
        _posted(trace, signal.number),
        _applied(trace, by),
        _waited(trace.events[wait]),
        _arrived(trace, number, wait),
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
            _posted(trace, event.number),
            Step(
                event.time,
                event.rank,
                f"the source of {_name(trace, event.number)} is read: its bytes have changed since the call",
            ),
        ]
        if completed is not None:
            done = trace.events[completed]
            steps.append(
                Step(done.time, done.rank, f"{_name(trace, event.number)} completes: its source may be reused")
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
        steps += [_posted(trace, trace.events[place].number), _applied(trace, place)]
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
                _posted(trace, trace.events[last].number),
                _applied(trace, last),
                _waited(base),
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
            return [_waited(event)]
    return []


def _unsatisfied(trace: Trace) -> Iterator[Story]:
    """The first wait that passed its deadline, with what had come for it."""
    for at, event in enumerate(trace.events):
        if event.kind == "overdue":
            rule = "Nothing that was sent satisfies this wait: too few increments, another signal, context or rank."
            yield Story("a wait that nothing satisfies", rule, [*_come(trace, event.rank, at), _waited(event)])
            return


def _come(trace: Trace, rank: int, until: int) -> list[Step]:
    """The last additions to a rank's signals before a place in the trace."""
    places = [
        at
        for at, event in enumerate(trace.events[:until])
        if event.kind == "signal" and event.peer == rank and trace.is_users(trace.signal_of(event))
    ]
    return [_applied(trace, at) for at in places[-6:]]


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
        text = f"looks at {_word(event)} again and again: it is {look[-1]}"
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
    for at, event in enumerate(trace.events):
        if event.kind == "met" and event.op == "wait":
            key = (event.rank, event.context, event.offset)
            waits[key] = at
            more.pop(key, None)
        elif event.kind == "signal" and (signal := trace.signal_of(event)) is not None:
            key = (event.peer, *signal)
            if key in waits and trace.is_users(signal):
                more.setdefault(key, event.number)
    for number, request in trace.requests.items():
        if request.signal is not None and request.signalled is None:
            key = (trace.post(number).peer, *request.signal)
            if key in waits and trace.is_users(request.signal):
                more.setdefault(key, number)
    for key, number in more.items():
        if rank is None or key[0] == rank:
            yield _more_came(trace, waits[key], number)
            return


def _more_came(trace: Trace, wait: int, number: int) -> Story:
    request = trace.requests[number]
    if request.signalled is not None:
        last = _applied(trace, request.signalled)
    else:
        text = f"what {_name(trace, number)} adds has not come to the end"
        last = Step(trace.events[-1].time, trace.post(number).peer, text)
    steps = sorted([_posted(trace, number), _waited(trace.events[wait]), last], key=lambda step: step.time_ns)
    rule = (
        "More was sent to this signal than the wait asks for. What the additions after it cover may not have arrived when "
        "it ends: wait for all of them."
    )
    return Story("a wait for too few", rule, steps)
