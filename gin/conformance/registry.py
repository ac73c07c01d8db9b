"""The cases: every promise of the contract by name, with what it needs and where it runs."""

from __future__ import annotations

import fnmatch
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gin.errors import ConfigError

__all__ = ["FAMILIES", "Case", "Source", "all_cases", "case", "select"]

# The modules of gin.conformance.cases, in the order of the table.
FAMILIES = (
    "transfer",
    "visibility",
    "signal",
    "order",
    "local",
    "epoch",
    "atomic",
    "barrier",
    "limits",
    "comm",
    "failure",
    "refusal",
)

CASE_SECONDS = 60.0  # deadline of a case

Function = Callable[..., None]
Source = tuple[str, str]
"""A kernel: CUDA C++ source, and the kernel's name in it."""


@dataclass(frozen=True)
class Case:
    """One promise, checked by one function that every rank calls."""

    name: str  # family.what, with [variant] where there are several
    promise: str  # the row or rule of the contract
    function: Function
    kernels: tuple[Source, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()  # capabilities: a backend without one has to refuse, by name
    ranks: tuple[int, ...] = (3,)  # how many ranks it runs on by default
    least: int = 2  # ... and at least
    most: int = 1 << 16  # ... and at most
    routes: tuple[str, ...] = ("direct", "native")
    platforms: tuple[str, ...] = ()  # where it can run; empty: everywhere
    settings: Mapping[str, Any] = field(default_factory=dict)  # of its communicator, beyond the defaults
    alone: bool = False  # it spends its communicator: nothing runs there after it
    opens: bool = False  # it opens communicators itself and is given none
    situations: tuple[str, ...] = ()  # reports (repository#number) of what people ran into elsewhere and it repeats
    hostile: bool = False  # it also runs over a wire on which later requests overtake earlier ones
    seconds: float = CASE_SECONDS

    @property
    def family(self) -> str:
        return self.name.partition(".")[0]

    @property
    def summary(self) -> str:
        """What is checked, in one line: the function's, with {variant} and the {arguments} filled in."""
        text = inspect.getdoc(self.function) or ""
        variant = self.name.partition("[")[2].removesuffix("]")
        return " ".join(text.split("\n\n")[0].split()).rstrip(".").format(variant=variant, **self.arguments)


_cases: dict[str, Case] = {}


def case(
    name: str,
    *,
    promise: str,
    kernel: Source | Sequence[Source] = (),
    variants: Mapping[str, Mapping[str, Any]] | None = None,
    ranks: Iterable[int] = (3,),
    registry: dict[str, Case] | None = None,
    **more: Any,
) -> Callable[[Function], Function]:
    """Registers `function(world, **arguments)` as a case, or as one for each of `variants`.

    kernel    what it launches, compiled beforehand: `world.kernel` is the first; {arguments} are filled into the names
    variants  name in brackets -> arguments
    more      other fields of Case
    """
    into = _cases if registry is None else registry
    kernels = _sources(kernel)

    def register(function: Function) -> Function:
        for variant, arguments in (variants or {"": {}}).items():
            full = f"{name}[{variant}]" if variant else name
            if full in into:
                raise ValueError(f"two cases are called {full}")
            named = tuple((source, entry.format(**arguments)) for source, entry in kernels)
            into[full] = Case(full, promise, function, named, arguments, ranks=tuple(ranks), **more)
        return function

    return register


def _sources(kernel: Source | Sequence[Source]) -> tuple[Source, ...]:
    match kernel:
        case (str(source), str(entry)):
            return ((source, entry),)
        case _:
            return tuple((source, entry) for source, entry in kernel)


def all_cases() -> dict[str, Case]:
    """Every case by name, families in order."""
    for family in FAMILIES:
        importlib.import_module(f"gin.conformance.cases.{family}")
    order = {family: number for number, family in enumerate(FAMILIES)}
    return dict(sorted(_cases.items(), key=lambda item: order[item[1].family]))


def select(patterns: Iterable[str] = ()) -> list[Case]:
    """The cases whose name, or name without variant, fits one of the glob patterns; all without patterns.

    Raises ConfigError for a pattern that fits none.
    """
    cases = list(all_cases().values())
    wanted = list(patterns)
    if not wanted:
        return cases
    chosen: set[str] = set()
    for pattern in wanted:
        fitting = {case.name for case in cases if _fits(case, pattern)}
        if not fitting:
            raise ConfigError(f"no case fits {pattern!r}; gin conformance --list names them all")
        chosen |= fitting
    return [case for case in cases if case.name in chosen]


def _fits(case: Case, pattern: str) -> bool:
    if pattern == case.name:
        return True
    plain = pattern.replace("[", "[[]") if pattern.endswith("]") else pattern
    names = (case.name, case.name.partition("[")[0], case.family)
    return any(fnmatch.fnmatchcase(name, plain) for name in names)
