"""What can be measured: the tests, their operations, and of each exactly what is timed."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TESTS", "Operation", "Test", "operation"]


@dataclass(frozen=True)
class Operation:
    """One thing a test can measure: what is timed, said so that a reader can repeat it, and what it needs."""

    test: str
    name: str
    definition: str
    kernel: str  # the file in kernels/
    timed_by: str = "leader"  # or "all": every rank takes times, and the slowest counts
    needs: str | None = None  # a capability
    fixed_bytes: int | None = None  # the one size there is
    min_ranks: int = 2
    max_messages: int = 1  # in flight per block
    max_flight: int = 1  # bytes in flight per block, as long as that leaves one message
    divisor: int = 1  # of the timed interval: 2 for half a round trip
    shared: bool = False  # blocks share what is timed: they begin each iteration together, and it is one time over all
    per_message: bool = False  # the interval is divided by its messages, of all blocks
    parts: int = 1  # timed intervals of one iteration; the last is the result
    sends: int = 1  # messages per place and iteration

    @property
    def raw(self) -> bool:
        """Whether its kernel also exists with a library's own calls in gin's place."""
        return self.kernel in ("pingpong", "stream")

    def messages(self, nbytes: int) -> int:
        """Messages of `nbytes` that one iteration keeps in flight per block."""
        return max(1, min(self.max_messages, self.max_flight // max(nbytes, 1)))

    def sizes(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """The sizes that are measured when these are asked for."""
        return sizes if self.fixed_bytes is None else (self.fixed_bytes,)

    def moved(self, nbytes: int, ranks: int) -> tuple[float, float]:
        """Messages and bytes that a result's time stands for."""
        if self.test == "alltoall":
            count = max(ranks - 1, 1)
        elif self.test == "moe":
            count = 2 * self.messages(nbytes)
        elif self.name == "put_signal_bidir":
            count = 2
        else:
            count = 1
        return count, count * nbytes


@dataclass(frozen=True)
class Test:
    """A test of the benchmark: its operations, the first of which is measured by default, and its defaults."""

    name: str
    operations: tuple[Operation, ...]
    min_bytes: int
    max_bytes: int
    columns: tuple[str, ...]  # of the table, the main figure first
    __test__ = False  # not a test class of pytest


def _latency() -> tuple[Operation, ...]:
    half = "half the round trip of a ping-pong between ranks 0 and 1, from the call until the answer's signal"
    one = "on the other of ranks 0 and 1, which does nothing meanwhile: from the call until"
    return (
        Operation("latency", "put_signal", f"put with a signal: {half}", "pingpong", divisor=2),
        Operation(
            "latency",
            "put_value",
            f"put of 8 bytes by value with a signal: {half}",
            "pingpong",
            fixed_bytes=8,
            divisor=2,
        ),
        Operation(
            "latency", "put_flush", f"put, then flush, {one} the source may be reused (local completion)", "onesided"
        ),
        Operation(
            "latency",
            "put_quiet",
            f"put, then quiet, {one} the data has settled (remote completion)",
            "onesided",
            needs="quiet",
        ),
        Operation("latency", "get", f"get, then flush, {one} the data is here (a round trip)", "onesided"),
        Operation(
            "latency",
            "atomic",
            f"atomic_fetch_add of 8 bytes, {one} the old value is here (a round trip)",
            "onesided",
            needs="atomics",
            fixed_bytes=8,
        ),
        Operation(
            "latency",
            "barrier",
            "barrier of all ranks without drain, one after the other: from entering to leaving, the slowest rank of each",
            "barrier",
            timed_by="all",
            fixed_bytes=0,
            min_ranks=1,
        ),
    )


def _bandwidth() -> tuple[Operation, ...]:
    flight = {"max_messages": 64, "max_flight": 8 << 20, "shared": True, "per_message": True}
    return (
        Operation(
            "bandwidth",
            "put_signal",
            "between ranks 0 and 1, one way: several puts with a signal each in flight, from the first put to the other's "
            "answer that all arrived; times are per message",
            "stream",
            **flight,  # type: ignore[arg-type]
        ),
        Operation(
            "bandwidth",
            "put_signal_bidir",
            "ranks 0 and 1 both ways at once: several puts with a signal each in flight, from the first put to the other's "
            "answer, the slower rank of each iteration; times are per pair of messages, bandwidth is the sum of both ways",
            "stream",
            timed_by="all",
            **flight,  # type: ignore[arg-type]
        ),
        Operation(
            "bandwidth",
            "get",
            "between ranks 0 and 1, one way: several gets in flight, from the first get until a flush says that all are "
            "here; times are per message",
            "onesided",
            **flight,  # type: ignore[arg-type]
        ),
    )


TESTS = {
    test.name: test
    for test in (
        Test("latency", _latency(), 8, 1 << 20, ("median_us", "spread", "p99_us")),
        Test("bandwidth", _bandwidth(), 1 << 10, 4 << 20, ("bandwidth_GBps", "spread", "median_us")),
        Test(
            "rate",
            (
                Operation(
                    "rate",
                    "put",
                    "between ranks 0 and 1, one way: many puts and one ordered signal after them, from the first put to "
                    "the other's answer; times are per message",
                    "stream",
                    max_messages=1024,
                    max_flight=1 << 20,
                    shared=True,
                    per_message=True,
                ),
            ),
            8,
            1 << 10,
            ("rate_Mops", "spread", "median_us"),
        ),
        Test(
            "alltoall",
            (
                Operation(
                    "alltoall",
                    "put_signal",
                    "every rank puts one message with a signal to every rank, from a barrier to the last arrival, the "
                    "slowest rank of each iteration; bandwidth and rate are what one rank sends to the others",
                    "alltoall",
                    timed_by="all",
                    shared=True,
                    min_ranks=1,
                ),
            ),
            8,
            1 << 20,
            ("median_us", "spread", "bandwidth_GBps"),
        ),
        Test(
            "moe",
            (
                Operation(
                    "moe",
                    "dispatch_combine",
                    "every rank sends tokens of the given size to experts on all ranks, rank d of n getting a share in "
                    "proportion to n - d, and gets them back: from a barrier to the last token that is back, the slowest "
                    "rank of each iteration; bandwidth and rate are what a rank sends on average, both ways together",
                    "moe",
                    timed_by="all",
                    shared=True,
                    min_ranks=1,
                    max_messages=128,
                    max_flight=4 << 20,
                ),
            ),
            256,
            16 << 10,
            ("median_us", "spread", "bandwidth_GBps"),
        ),
        Test(
            "overlap",
            (
                Operation(
                    "overlap",
                    "put_signal",
                    "between ranks 0 and 1: a put with a signal, a computation of about the same length, and the wait for "
                    "the other's answer; compared with both alone: overlap is the part of the shorter that was hidden",
                    "overlap",
                    parts=3,
                    sends=2,
                ),
            ),
            4 << 10,
            4 << 20,
            ("overlap_percent", "median_us", "transfer_us"),
        ),
    )
}


def operation(test: str, name: str) -> Operation:
    """An operation by its names. Raises KeyError when there is none."""
    return {found.name: found for found in TESTS[test].operations}[name]
