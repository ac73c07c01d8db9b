"""What is to be run, cut into jobs: processes of ranks that go through cases together."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gin.backends import NAMES, Capabilities, capabilities, effective
from gin.config import Config
from gin.conformance.registry import Case
from gin.conformance.results import SKIPPED, Result

__all__ = ["ROUTES", "Job", "Part", "Plan"]

ROUTES = ("direct", "native")
WAIT_SECONDS = 20.0  # deadline of waits on the device, where a case says nothing else


@dataclass(frozen=True)
class Plan:
    """Cases, and where they are run.

    ranks     how often each case runs and with how many ranks; None: as the case says
    settings  of all communicators, e.g. check=True
    faults    of the wire, see csrc/wire/faulty.h
    patience  how many times as long everything may take, where processors or the network are emulated
    """

    cases: Sequence[Case]
    backends: Sequence[str] = NAMES
    routes: Sequence[str] = ROUTES
    ranks: Sequence[int] | None = None
    platform: str | None = None
    wire: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    faults: Mapping[str, int] = field(default_factory=dict)
    patience: float = 1.0

    @property
    def where(self) -> tuple[str, str]:
        """(platform, wire), settled as gin.init does. Raises ConfigError, UnsupportedError."""
        from gin.comm import _choose

        config = _choose(Config.from_sources(platform=self.platform, wire=self.wire))
        return config.platform, config.wire

    def jobs(self) -> Iterator[Job]:
        """The jobs, one after the other. Every case that can run here is in one for each backend, route and ranks."""
        platform, wire = self.where
        for backend in self.backends:
            for route in self.routes:
                fitting = self.fitting(route, platform)
                numbers = {case.name: self._numbers(case, backend) for case in fitting}
                for ranks in sorted({n for those in numbers.values() for n in those}):
                    chosen = [case for case in fitting if ranks in numbers[case.name]]
                    job = Job(
                        backend,
                        route,
                        ranks,
                        platform,
                        wire,
                        tuple(chosen),
                        self.settings,
                        self.faults,
                        self.patience,
                    )
                    if job.cases:
                        yield job

    def fitting(self, route: str, platform: str) -> list[Case]:
        """The cases that can be run by a route."""
        return [case for case in self.cases if not self._unfit(case, route, platform)]

    def skipped(self) -> Iterator[Result]:
        """What the jobs leave out, and why."""
        platform, wire = self.where
        for backend in self.backends:
            for route in self.routes:
                for case in self.cases:
                    if reason := self._unfit(case, route, platform):
                        yield Result(case.name, case.promise, backend, platform, wire, route, 0, SKIPPED, reason)

    def ranks_of(self, case: Case) -> list[int]:
        """With how many ranks a case is run."""
        if self.ranks is None:
            return sorted(case.ranks)
        return sorted(n for n in set(self.ranks) if case.least <= n <= case.most)

    def _numbers(self, case: Case, backend: str) -> list[int]:
        """With how many ranks a case is run on a backend: to be refused, with as few as will do."""
        able = all(capabilities(backend)[name] for name in case.needs)
        return self.ranks_of(case) if able else self.ranks_of(case)[:1]

    def _unfit(self, case: Case, route: str, platform: str) -> str:
        """Why a case is not run, empty when it is."""
        if case.platforms and platform not in case.platforms:
            return f"it is for platform {' or '.join(case.platforms)}"
        if not set(ROUTES if route == "auto" else (route,)) <= set(case.routes):
            return f"it is for route {' or '.join(case.routes)}"
        if self.faults and not case.hostile:
            return "the wire's faults say nothing about it"
        if not self.ranks_of(case):
            most = "" if case.most > 4096 else f" to {case.most}"
            return f"it is for {case.least}{most or ' or more'} ranks"
        return ""


@dataclass(frozen=True)
class Part:
    """Cases that share a communicator; or one that has its own, or opens some itself."""

    cases: tuple[Case, ...]

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.cases[0].settings

    @property
    def opens(self) -> bool:
        return self.cases[0].opens


@dataclass(frozen=True)
class Job:
    """Cases for one set of processes, each a rank."""

    backend: str
    route: str
    ranks: int
    platform: str
    wire: str
    cases: tuple[Case, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    faults: Mapping[str, int] = field(default_factory=dict)
    patience: float = 1.0

    @property
    def capabilities(self) -> Capabilities:
        """What the backend claims on this platform, by this wire and route."""
        chosen = {"backend": self.backend, "platform": self.platform, "wire": self.wire, "route": self.route}
        return effective(Config.from_sources(**chosen))

    def lacking(self, case: Case) -> list[str]:
        """Capabilities that a case needs and the backend does not claim."""
        able = self.capabilities
        return [name for name in case.needs if not able[name]]

    def parts(self) -> list[Part]:
        """The cases by communicator: those of the default settings first, those that spend or open one last."""
        shared: dict[str, list[Case]] = {}
        single = []
        for case in self.cases:
            if case.alone or case.opens:
                single.append(Part((case,)))
            else:
                shared.setdefault(json.dumps(dict(case.settings), sort_keys=True), []).append(case)
        return [Part(tuple(shared[key])) for key in sorted(shared, key=lambda key: key != "{}")] + single

    def without(self, names: Collection[str]) -> Job:
        """The same without the cases of these names."""
        return replace(self, cases=tuple(case for case in self.cases if case.name not in names))

    def result(self, case: Case, outcome: str, reason: str = "", capability: str = "", seconds: float = 0.0) -> Result:
        """What came of a case of this job."""
        return Result(
            case.name,
            case.promise,
            self.backend,
            self.platform,
            self.wire,
            self.route,
            self.ranks,
            outcome,
            reason,
            capability,
            round(seconds, 3),
        )
