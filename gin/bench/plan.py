"""What a sweep does: the tests, their definitions and defaults, sizes, messages and iterations."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

SCOPES = ("thread", "warp", "block")
ROUTES = ("native", "direct")
KERNELS = Path(__file__).parent / "kernels"

_UNITS = {"K": 10, "M": 20, "G": 30}


@dataclass(frozen=True)
class Test:
    """One test of the benchmark: what it times, said so that a reader can repeat it, and its defaults."""

    name: str
    op: str
    definition: str
    min_bytes: int
    max_bytes: int
    min_ranks: int
    max_messages: int  # in flight per block
    max_flight: int  # bytes in flight per block, as long as that leaves one message
    columns: tuple[str, ...]  # of the table
    __test__ = False  # not a test class of pytest

    def messages(self, nbytes: int) -> int:
        """Messages of `nbytes` that one iteration keeps in flight per block."""
        return max(1, min(self.max_messages, self.max_flight // max(nbytes, 1)))


TESTS = {
    test.name: test
    for test in (
        Test(
            "latency",
            "put_signal",
            "half the round trip of a put+signal ping-pong between ranks 0 and 1, timed on rank 0 inside one kernel",
            8,
            1 << 20,
            min_ranks=2,
            max_messages=1,
            max_flight=1,
            columns=("median_us", "p99_us"),
        ),
        Test(
            "bandwidth",
            "put_signal",
            "rank 0 to rank 1: several puts with a signal each in flight, from the first put to rank 1's answer that "
            "all arrived; times are per message",
            1 << 10,
            4 << 20,
            min_ranks=2,
            max_messages=64,
            max_flight=8 << 20,
            columns=("bandwidth_GBps", "median_us"),
        ),
        Test(
            "rate",
            "put",
            "rank 0 to rank 1: many puts and one ordered signal after them, from the first put to rank 1's answer; "
            "times are per message",
            8,
            1 << 10,
            min_ranks=2,
            max_messages=1024,
            max_flight=1 << 20,
            columns=("rate_Mops", "median_us"),
        ),
        Test(
            "alltoall",
            "put_signal",
            "every rank puts one message with a signal to every rank, from a barrier to the last arrival, the slowest "
            "rank of each iteration; bandwidth and rate are what one rank sends to the others",
            8,
            1 << 20,
            min_ranks=1,
            max_messages=1,
            max_flight=1,
            columns=("median_us", "bandwidth_GBps"),
        ),
    )
}


def format_size(nbytes: int) -> str:
    """The shortest exact form of a size: 1536, 4K, 1M."""
    for unit in ("G", "M", "K"):
        if nbytes and nbytes % (1 << _UNITS[unit]) == 0:
            return f"{nbytes >> _UNITS[unit]}{unit}"
    return str(nbytes)


def sizes_between(minimum: int, maximum: int, factor: float) -> list[int]:
    """Sizes from `minimum` up to at most `maximum`, each `factor` times the one before it; after 0 comes 1."""
    if minimum > maximum:
        raise ValueError(f"the smallest size {minimum} is above the largest {maximum}")
    if not math.isfinite(factor):
        raise ValueError(f"a step factor is a number above 1, not {factor}")
    if factor <= 1:
        raise ValueError(f"a step factor of {factor:g} never reaches the largest size; give one above 1")
    sizes = [0] if minimum == 0 else []
    size = max(minimum, 1)
    while size <= maximum:
        sizes.append(size)
        size = max(size + 1, int(size * factor))
    return sizes


@dataclass(frozen=True)
class Plan:
    """One sweep, the same on every rank."""

    test: str
    backends: tuple[str, ...]
    required: bool  # the backends were named: one that cannot run is an error, not a remark
    routes: tuple[str, ...]
    sizes: tuple[int, ...]
    scope: str = "thread"
    ctas: int = 1
    threads: int = 1
    iterations: int | None = None  # None: by size and time
    warmup: int | None = None
    platform: str | None = None  # None: as configured
    wire: str | None = None
    verify: bool = True
    timeout: float = 30.0  # seconds that any wait may take
    rounds: int = 3  # a row's iterations are cut into this many launches, which alternate between the backends
    seconds: float = 0.15  # aim for one row's time when iterations are not given
    samples: bool = False  # keep every sample in the results
    command: tuple[str, ...] = field(default=())

    @property
    def definition(self) -> Test:
        return TESTS[self.test]

    def first_iterations(self, nbytes: int) -> int:
        """Iterations wanted for a size, before the time they take is known."""
        if self.iterations is not None:
            return self.iterations
        return 1000 if nbytes <= 8 << 10 else 300 if nbytes <= 128 << 10 else 100

    def warmups(self, nbytes: int) -> int:
        """Iterations that every launch runs before those it keeps."""
        if self.warmup is not None:
            return self.warmup
        return 50 if nbytes <= 8 << 10 else 10 if nbytes <= 128 << 10 else 3

    def fitted_iterations(self, nbytes: int, seconds_each: float) -> int:
        """Iterations of a row when one takes about `seconds_each`, all of its work included; a multiple of rounds."""
        wanted = self.first_iterations(nbytes)
        if self.iterations is not None:
            return wanted
        if seconds_each > 0:
            wanted = max(20, int(min(wanted, self.seconds / seconds_each)))
        return -(-wanted // self.rounds) * self.rounds

    def split(self, iterations: int) -> list[int]:
        """The iterations of each launch of a row; their sum is `iterations`, none is 0."""
        rounds = min(self.rounds, iterations)
        return [iterations // rounds + (i < iterations % rounds) for i in range(rounds)]


def kernel_source(test: str, scope: str) -> str:
    """The CUDA C++ text of a test's kernel for one scope, with the line numbers of its files."""
    common, kernel = KERNELS / "common.cuh", KERNELS / f"{test}.cu"
    return (
        f"#define BENCH_SCOPE {SCOPES.index(scope)}\n"
        f'#line 1 "{common.name}"\n{common.read_text()}\n'
        f'#line 1 "{kernel.name}"\n{kernel.read_text()}\n'
    )
