"""What each process of a job does: goes through the cases with the other ranks, and logs what came of them."""

from __future__ import annotations

import faulthandler
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from gin.collective import Exchange
from gin.config import Config
from gin.conformance.execute import Tidier, as_json, execute, merge, opener
from gin.conformance.plan import Job, Part
from gin.conformance.registry import Case
from gin.conformance.results import FAIL, REFUSED
from gin.conformance.world import Place
from gin.errors import Error, UnsupportedError
from gin.rendezvous import join

if TYPE_CHECKING:
    from gin.comm import Comm

__all__ = ["LOG", "STACKS", "STOP", "work"]

LOG, STACKS, STOP = "log", "stacks", "stop"  # files of a job's folder
OPEN_SECONDS = 120.0
COMPILE_SECONDS = 900.0
COMPILED_FOR = ("check", "on_peer_failure", "route")


def work(job: Job, folder: str, variables: Mapping[str, str] | None = None) -> None:
    """Goes through a job's cases as one of its ranks. Ends early when a case fails: what is left wants new processes.

    variables  this rank's place and where the ranks meet, where the environment does not say so

    Rank 0 writes to the folder's log, line by line: `begin` with a case's name, `result`. A rank that is too long at a case
    writes its stacks and ends.
    """
    if variables is not None:
        for name in ("GIN_RANK", "GIN_SIZE", "GIN_LOCAL_RANK", "GIN_LOCAL_SIZE"):
            os.environ.pop(name, None)
        os.environ.update(variables)
    store = join(Config.from_sources())
    with open(os.path.join(folder, f"{STACKS}.{store.rank}"), "w") as stacks:
        rank = _Rank(job, folder, Place(store.rank, store.size, Exchange(store, store.rank)), stacks)
        try:
            rank.go()
        except BaseException as error:
            store.fail(f"{type(error).__name__}: {error}")
            raise
        finally:
            with rank.within(OPEN_SECONDS):
                store.close(5.0)


class _Rank:
    def __init__(self, job: Job, folder: str, place: Place, stacks: Any) -> None:
        self._job, self._folder, self._place, self._stacks = job, folder, place, stacks
        self._rank, self._exchange = place.rank, place.exchange
        self._compiled: set[tuple[tuple[str, Any], ...]] = set()  # for which of the parts' settings

    def go(self) -> None:
        for part in self._job.parts():
            if not self._run(part):
                return

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """What takes longer, or so many times longer as the job's patience says, ends this process, and the folder tells
        where it stood. Of simulated ranks, which share one, the first looks after all."""
        if self._job.platform == "sim" and self._rank != 0:
            yield
            return
        faulthandler.dump_traceback_later(seconds * self._job.patience, exit=True, file=self._stacks)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _log(self, event: str, **more: Any) -> None:
        if self._rank == 0:
            with open(os.path.join(self._folder, LOG), "a", encoding="utf-8") as file:
                file.write(json.dumps({"event": event, **more}) + "\n")

    def _run(self, part: Part) -> bool:
        """The cases of a part; whether the processes may go on."""
        if part.opens:
            return self._go_through(part, None)
        with self.within(OPEN_SECONDS):
            comm, error = self._open(part)
        if comm is None:
            for case in part.cases:
                self._log("result", result=vars(self._not_opened(case, error)))
            return True
        try:
            if (settings := _compiled_for(part.settings)) not in self._compiled:
                self._compiled.add(settings)
                with self.within(COMPILE_SECONDS):
                    self._compile_alike(comm, settings)
            return self._go_through(part, comm)
        finally:
            with self.within(OPEN_SECONDS), suppress(Error):
                comm.close()

    def _compile_alike(self, comm: Comm, settings: tuple[tuple[str, Any], ...]) -> None:
        """Compiles what all parts need of a communicator with such settings."""
        alike = [case for case in self._job.cases if _compiled_for(case.settings) == settings]
        self._log("compile", kernels=len({kernel for case in alike for kernel in case.kernels}))
        compile_ahead(comm, alike, self._stopped)

    def _open(self, part: Part) -> tuple[Comm | None, list[Any]]:
        """The part's communicator; where some rank has none, every rank's error (class and text)."""
        comm, error = None, ["", ""]
        try:
            comm = opener(self._job, part.settings)()
        except Exception as caught:
            refusal = isinstance(caught, UnsupportedError)
            error = [UnsupportedError.__name__ if refusal else type(caught).__name__, str(caught)]
        errors = self._exchange.gather("opened", lambda: error)
        if any(kind for kind, _ in errors):
            if comm is not None:
                comm.close()
            return None, errors
        return comm, errors

    def _not_opened(self, case: Case, errors: list[Any]) -> Any:
        refused = [text for kind, text in errors if kind == UnsupportedError.__name__]
        if refused:
            lacking = [name for name in self._job.lacking(case) if f"'{name}'" in refused[0]]
            return self._job.result(case, REFUSED, refused[0], ", ".join(lacking) or f"route {self._job.route}")
        told = [f"rank {rank}: {kind}: {text}" for rank, (kind, text) in enumerate(errors) if kind]
        told.sort(key=lambda text: "RemoteError" in text)
        return self._job.result(case, FAIL, f"its communicator does not open: {told[0]}")

    def _go_through(self, part: Part, comm: Comm | None) -> bool:
        tidier = None if comm is None or part.cases[0].alone else Tidier(comm)
        for case in part.cases:
            self._log("begin", case=case.name)
            start = time.monotonic()
            with self.within(case.seconds):
                answer = as_json(execute(self._job, case, self._place, comm, tidier))
            answers = self._gather(case, answer)
            result = merge(self._job, case, answers, time.monotonic() - start)
            self._log("result", result=vars(result))
            if result.outcome == FAIL or self._any(self._rank == 0 and self._stopped()):
                return False
        return True

    def _stopped(self) -> bool:
        return os.path.exists(os.path.join(self._folder, STOP))

    def _any(self, stop: bool) -> bool:
        """Whether some rank wants to stop."""
        return any(self._exchange.gather("go on", lambda: stop))

    def _gather(self, case: Case, answer: Any) -> list[Any]:
        with self.within(2 * case.seconds):
            return self._exchange.gather(f"result of {case.name}", lambda: answer)


def _compiled_for(settings: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Those of a case's settings that its kernels are compiled for."""
    return tuple(sorted((name, value) for name, value in settings.items() if name in COMPILED_FOR))


def compile_ahead(comm: Comm, cases: Sequence[Case], stopped: Callable[[], bool]) -> None:
    """Fills the cache with this rank's share of the cases' kernels; what does not compile is its case's to tell."""
    able = [case for case in cases if all(comm.capabilities[name] for name in case.needs)]
    kernels = sorted({kernel for case in able for kernel in case.kernels})
    comm.compile_ahead(kernels[comm.rank :: comm.size], stopped=stopped)
