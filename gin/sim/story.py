"""A failure's story: the few events that explain it, in words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gin.sim.events import Event, Trace

__all__ = ["PUTS", "Step", "Story", "applied", "arrived", "posted", "request_name", "waited", "word"]

PUTS = ("put", "put_value")


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


def request_name(trace: Trace, number: int) -> str:
    """As `put #7`."""
    return f"{trace.post(number).op} #{number}"


def posted(trace: Trace, number: int) -> Step:
    """A request, where it is called."""
    event, request = trace.post(number), trace.requests[number]
    words = [f"{event.op} #{number} to rank {event.peer}, context {event.context}"]
    if event.bytes and event.op != "signal":
        words.append(trace.place(event))
    if request.signal is not None:
        words.append(f"adds to {'ordered ' if event.value2 & 2 else ''}signal {request.signal[1]}")
    elif event.op in PUTS:
        words.append("with a signal" if trace.has_signal(number) else "without a signal")
    return Step(event.time, event.rank, ", ".join(words), event.where)


def applied(trace: Trace, at: int) -> Step:
    """An addition to a signal."""
    event = trace.events[at]
    signal = trace.signal_of(event)
    which = f"signal {signal[1]} of context {signal[0]}" if signal else "a word"
    return Step(event.time, event.peer, f"{which} becomes {event.value2} by {request_name(trace, event.number)}")


def waited(event: Event) -> Step:
    """The end of a wait, or a look."""
    if event.kind == "met" and event.op in ("flush", "fence", "quiet"):
        text = f"{event.op} of context {event.context} ends"
    elif event.kind == "read":
        text = f"reads {event.value2} from {word(event)}"
    else:
        text = f"{_wait(event)} {'passes its deadline' if event.kind == 'overdue' else 'ends'}: it is {event.value2}"
    return Step(event.time, event.rank, text, event.where)


def word(event: Event) -> str:
    """The signal or counter of a wait, read or reset."""
    what = "counter" if event.op == "wait_counter" else "signal"
    return f"{what} {event.offset} of context {event.context}"


def _wait(event: Event) -> str:
    """A wait, and for what."""
    match event.op:
        case "wait" | "wait_counter":
            return f"wait for {word(event)} to reach {event.value}"
        case "barrier":
            return f"barrier {event.offset} of context {event.context}, waiting for {event.value},"
        case _:
            return f"{event.op} of context {event.context}, waiting for {event.value},"


def arrived(trace: Trace, number: int, after: int) -> Step:
    """The first bytes of a put that arrive after a place in the trace."""
    event, request = trace.post(number), trace.requests[number]
    late = [at for at in request.delivered if at > after]
    if not late:
        return Step(trace.events[-1].time, event.peer, f"{request_name(trace, number)} has not arrived to the end")
    piece = trace.events[late[0]]
    text = f"{trace.place(piece)} of {request_name(trace, number)} arrive only now"
    return Step(piece.time, event.peer, text)
