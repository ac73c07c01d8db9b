"""Every case of gin.conformance, on every backend and route, and over a wire on which later requests overtake earlier ones.

The cases of a backend and route run in one job of processes per number of ranks, started when the first is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from worlds import BACKENDS, ROUTES

from gin.conformance import Case, Plan, Result, run, select
from gin.conformance.results import FAIL, PASS, REFUSED
from gin.conformance.wire import OVERTAKING


@dataclass(frozen=True)
class Run:
    """One case, where and with how many ranks."""

    backend: str
    route: str
    overtaking: bool
    case: Case
    ranks: int

    @property
    def group(self) -> tuple[str, str, bool]:
        """What runs in one go."""
        return self.backend, self.route, self.overtaking

    def __str__(self) -> str:
        wire = "-overtaking" if self.overtaking else ""
        return f"{self.backend}-{self.route}{wire}-{self.ranks}-{self.case.name}"


def runs() -> list[Run]:
    """All runs, those of a group together and in the order in which they end."""
    places = [(backend, route, False) for backend in BACKENDS for route in ROUTES]
    if "ibrc_proxy" in BACKENDS and "native" in ROUTES:
        places.append(("ibrc_proxy", "native", True))
    cases = select()
    found = []
    for backend, route, overtaking in places:
        for job in plan(backend, route, overtaking, cases).jobs():
            ended = [case for part in job.parts() for case in part.cases]
            found += [Run(backend, route, overtaking, case, job.ranks) for case in ended]
    return found


def plan(backend: str, route: str, overtaking: bool, cases: list[Case]) -> Plan:
    # The proxy's kernels without range checks, the others' with them: both are compiled in some.
    settings = {"check": backend != "ibrc_proxy"}
    return Plan(cases, (backend,), (route,), settings=settings, faults=OVERTAKING if overtaking else {})


class Group:
    """The runs of a group that the session wants, and what came of them so far."""

    def __init__(self, wanted: list[Run]) -> None:
        numbers: dict[str, list[int]] = {}
        for item in wanted:
            numbers.setdefault(item.case.name, []).append(item.ranks)
        chosen = [replace(case, ranks=tuple(numbers[case.name])) for case in select() if case.name in numbers]
        self._results = run(plan(*wanted[0].group, chosen))
        self._found: dict[tuple[str, int], Result] = {}
        self._left = {(item.case.name, item.ranks) for item in wanted}

    def result(self, item: Run) -> Result:
        while (item.case.name, item.ranks) not in self._found:
            result = next(self._results)
            self._found[result.case, result.ranks] = result
        self._left.discard((item.case.name, item.ranks))
        return self._found[item.case.name, item.ranks]

    def close(self) -> list[Result]:
        """Ends what runs; when that is all, the failures that came after the last case."""
        late = [] if self._left else [result for result in self._results if result.outcome == FAIL]
        self._results.close()
        return late


@pytest.fixture(scope="module")
def groups(request: pytest.FixtureRequest) -> Iterator[dict[tuple[str, str, bool], Group]]:
    wanted: dict[tuple[str, str, bool], list[Run]] = {}
    for item in request.session.items:
        if item.path == request.path:
            wanted.setdefault(item.callspec.params["item"].group, []).append(item.callspec.params["item"])
    made = {group: Group(members) for group, members in wanted.items()}
    yield made
    assert not [late for group in made.values() for late in group.close()]


@pytest.mark.timeout(300)  # the first of a job also waits for its kernels to be compiled
@pytest.mark.parametrize("item", runs(), ids=str)
def test_case(item: Run, groups: dict[tuple[str, str, bool], Group]) -> None:
    result = groups[item.group].result(item)
    assert result.outcome != FAIL, result.reason
    assert result.outcome in (PASS, REFUSED)
    assert result.outcome == PASS or result.capability in item.case.needs, result
