"""What a sweep does: sizes, shapes of the launches, and how many iterations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gin.bench.tests import TESTS, Operation, Test, operation

__all__ = [
    "KERNELS",
    "RAW",
    "ROUTES",
    "SCOPES",
    "TESTS",
    "Identity",
    "Plan",
    "Shape",
    "format_size",
    "kernel_source",
    "sizes_between",
]

SCOPES = ("thread", "warp", "block")
ROUTES = {
    "native": "the backend's own operation",
    "direct": "the caller loads and stores the peer's memory, by the same code on every backend",
}
# Threads of a block that kernels are compiled for: on a GPU each thread then has 255 registers, 128 or 64.
BOUNDS = (256, 512, 1024)
KERNELS = Path(__file__).parent / "kernels"
RAW = ("nvshmem", "nccl_gin")  # backends on a library whose own calls can be measured beside gin's
MAX_ROWS = 1_000_000
_LAUNCHES = 10  # of a row, where it has the iterations
_LAUNCH = 20  # iterations that are worth a launch of their own

_UNITS = {"K": 10, "M": 20, "G": 30}


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
        if len(sizes) > MAX_ROWS:
            raise ValueError(f"a step factor of {factor:g} gives more than {MAX_ROWS} sizes; give a larger one")
        size = max(size + 1, int(min(size * factor, maximum + 1)))
    return sizes


@dataclass(frozen=True)
class Shape:
    """An operation and the geometry that calls it."""

    operation: Operation
    scope: str
    ctas: int
    threads: int
    contexts: int | None  # None: as many as the communicator has

    @property
    def bound(self) -> int:
        """The threads per block that its kernel is compiled for: the more, the fewer registers each has on a GPU."""
        return next(bound for bound in BOUNDS if self.threads <= bound)

    def __str__(self) -> str:
        contexts = "" if self.contexts is None else f" contexts={self.contexts}"
        return f"{self.operation.name} scope={self.scope} ctas={self.ctas} threads={self.threads}{contexts}"


Identity = tuple[str, str, int, int, int, int, int, str, str]
"""op, scope, ctas, threads, contexts, ranks, bytes, backend, route: what tells the rows of a sweep apart."""


@dataclass(frozen=True)
class Plan:
    """One sweep, the same on every rank."""

    test: str
    backends: tuple[str, ...]
    required: bool  # the backends were named: one that cannot run is an error, not a remark
    routes: tuple[str, ...]
    sizes: tuple[int, ...]
    operations: tuple[str, ...] = ()  # none: the test's first
    scopes: tuple[str, ...] = ("thread",)
    ctas: tuple[int, ...] = (1,)
    threads: tuple[int, ...] = ()  # none: 1 for scope thread, else 32
    contexts: tuple[int, ...] = ()  # none: as configured
    iterations: int | None = None  # None: by size and time
    warmup: int | None = None  # None: until steady
    platform: str | None = None  # None: as configured
    wire: str | None = None
    verify: bool = True
    timeout: float = 30.0  # seconds that any wait may take
    rounds: int = 64  # a row's iterations are cut into launches, at most so many, which alternate between the backends
    seconds: float = 0.15  # aim for one row's time when iterations are not given
    samples: bool = True  # keep every sample in the results
    baseline: bool = False  # on GPUs: measure the libraries' own calls as well, as backends named `<backend>-raw`
    done: frozenset[Identity] = frozenset()  # measured before
    place: tuple[str, str] | None = None  # platform and wire of what was measured before
    gpus: tuple[str, ...] | None = None  # the GPUs it was measured on
    binding: tuple[str, ...] | None = None  # the cores of each rank that it was measured on
    command: tuple[str, ...] = field(default=())

    @property
    def definition(self) -> Test:
        return TESTS[self.test]

    def shapes(self) -> Iterator[Shape]:
        """Every operation with every geometry."""
        names = self.operations or (self.definition.operations[0].name,)
        for name, scope, ctas, contexts in itertools.product(names, self.scopes, self.ctas, self.contexts or (None,)):
            for threads in self.threads or (1 if scope == "thread" else 32,):
                yield Shape(operation(self.test, name), scope, ctas, threads, contexts)

    def points(self) -> Iterator[tuple[Shape, int]]:
        """Every shape with every size, in the order of measuring."""
        return ((shape, nbytes) for shape in self.shapes() for nbytes in shape.operation.sizes(self.sizes))

    def first_iterations(self, nbytes: int) -> int:
        """Iterations wanted for a size, before the time they take is known."""
        if self.iterations is not None:
            return self.iterations
        return 2000 if nbytes <= 8 << 10 else 600 if nbytes <= 128 << 10 else 200

    def longest_launch(self, nbytes: int) -> int:
        """Kept iterations of a launch, at most."""
        first = self.first_iterations(nbytes)
        return max(-(-first // self.launches(first)), 2 * _LAUNCH)

    def warmups(self, nbytes: int) -> int:
        """Iterations that every launch runs before those it keeps."""
        if self.warmup is not None:
            return self.warmup
        return 10 if nbytes <= 8 << 10 else 5 if nbytes <= 128 << 10 else 2

    def fitted_iterations(self, nbytes: int, seconds_each: float) -> int:
        """Iterations of a row when one takes about `seconds_each`, all of its work included; as many in every launch."""
        wanted = self.first_iterations(nbytes)
        if self.iterations is not None:
            return wanted
        if seconds_each > 0:
            wanted = max(20, int(min(wanted, self.seconds / seconds_each)))
        launches = self.launches(wanted)
        return -(-wanted // launches) * launches

    def launches(self, iterations: int) -> int:
        """How many launches the iterations of a row are cut into: ten, or more that are long enough."""
        return min(max(_LAUNCHES, iterations // _LAUNCH), self.rounds, iterations)

    def split(self, iterations: int) -> list[int]:
        """The iterations of each launch of a row; their sum is `iterations`, none is 0."""
        launches = self.launches(iterations)
        return [iterations // launches + (i < iterations % launches) for i in range(launches)]


def kernel_name(test: str, name: str) -> str:
    """What the kernel of an operation is called."""
    return f"{test}_{name}"


def kernel_source(shape: Shape, net: str = "gin") -> str:
    """The CUDA C++ text of an operation's kernel for one scope, with the line numbers of its files.

    `net` is whose calls it makes: gin's, or those of the library below one of RAW.
    """
    made = shape.operation
    name = kernel_name(made.test, made.name)
    return source_of(made.kernel, name, made.name, shape.scope, net, shape.bound, shared=made.shared)


def source_of(
    file: str,
    kernel: str,
    operation_name: str,
    scope: str,
    net: str = "gin",
    bound: int = BOUNDS[-1],
    *,
    shared: bool = False,
) -> str:
    """The text of one kernel file and of what all of them share."""
    parts = [KERNELS / "common.cuh", KERNELS / f"net_{net}.cuh", KERNELS / f"{file}.cu"]
    return (
        f"#define BENCH_SCOPE {SCOPES.index(scope)}\n"
        f"#define BENCH_THREADS {bound}\n"
        f"#define BENCH_KERNEL {kernel}\n"
        f"#define BENCH_OP_{operation_name} 1\n"
        f"#define BENCH_SHARED {int(shared)}\n"
        + "".join(f'#line 1 "{part.name}"\n{part.read_text()}\n' for part in parts)
    )
