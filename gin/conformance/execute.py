"""One case on one rank: run it, and say what came of it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gin
from gin.conformance.plan import WAIT_SECONDS, Job
from gin.conformance.registry import Case
from gin.conformance.results import FAIL, PASS, REFUSED, Result
from gin.conformance.wire import faulty
from gin.conformance.world import Place, World, load
from gin.errors import CompileError, Error, RemoteError, UnsupportedError

if TYPE_CHECKING:
    from gin.comm import Comm
    from gin.kernel import Kernel

__all__ = ["Answer", "Tidier", "execute", "merge", "opener"]

TIDY = r"""
#include <gin/gin.cuh>
// Between cases: first nothing of this rank is under way any more; then, when that is so on all ranks, everything is 0.
extern "C" __global__ void tidy(gin::Comm comm, int step) {
  for (uint32_t index = 0; index < comm.contexts; ++index) {
    gin::Context net(comm, index);
    if (step == 0) {
      net.quiet(gin::block);
    } else {
      for (uint32_t id = threadIdx.x; id < comm.signals; id += blockDim.x) net.reset(id);
      for (uint32_t id = threadIdx.x; id < comm.counters; id += blockDim.x) net.reset_counter(id);
    }
  }
}
"""


@dataclass
class Answer:
    """What one rank has to say about a case."""

    failures: list[str] = field(default_factory=list)
    refused: str = ""  # the refusal's text
    remote: bool = False  # only told of another rank's failure
    broken: bool = False  # the communicator cannot be used any more


class Tidier:
    """Takes a communicator that cases share back to its beginnings."""

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self._kernel: Kernel | None = None

    def tidy(self) -> None:
        """Collective. Raises what the communicator raises."""
        if self._kernel is None:
            self._kernel = self._comm.compile(TIDY, "tidy")
        for step in (0, 1):
            self._kernel.launch(step, block=64)
            self._comm.synchronize()
            self._comm.barrier()


def opener(job: Job, settings: Mapping[str, Any]) -> Callable[..., Comm]:
    """Opens communicators as a job's cases need them."""

    wait = f"{WAIT_SECONDS * job.patience:g}s"

    def open_comm(**more: Any) -> Comm:
        chosen = {"backend": job.backend, "route": job.route, "platform": job.platform, "wire": job.wire}
        with faulty(job.faults):
            return gin.init(**{**chosen, "timeout": wait, **job.settings, **settings, **more})

    return open_comm


def execute(job: Job, case: Case, place: Place, comm: Comm | None, tidier: Tidier | None) -> Answer:
    """Runs a case on this rank. Collective; raises nothing that a case can cause."""
    lacking = job.lacking(case)
    answer = Answer()
    for capability in lacking:
        answer.failures += _unrefused(job, capability)
    world = World(job, case, place, comm, opener(job, case.settings))
    try:
        if tidier is not None:
            tidier.tidy()
        if comm is not None:
            load(world, case.kernels)
        case.function(world, **case.arguments)
    except (UnsupportedError, CompileError) as error:
        unopened = isinstance(error, UnsupportedError) and case.opens and not _names(error, case.needs)
        if _names(error, lacking) or unopened:
            answer.refused = _refusal(error, lacking)
        else:
            claims = f"the backend claims {' and '.join(case.needs)}, but: " if case.needs else ""
            answer.failures.append(claims + _told(error, case))
        answer.broken = bool(answer.failures)
    except Exception as error:
        answer.failures.append(_told(error, case))
        answer.remote = isinstance(error, RemoteError) and not world.failures
        answer.broken = True
        if comm is not None:
            comm.__exit__(type(error), error, None)  # the other ranks are told
    else:
        if lacking and not world.failures:
            world.failures.append(f"not refused, though the backend lacks {' and '.join(lacking)}")
    answer.failures += world.failures
    try:
        world.end()
    except Error as error:
        answer.failures.append(f"at its end: {_told(error, case)}")
    return answer


def _unrefused(job: Job, capability: str) -> list[str]:
    """What is wrong with how a backend refuses, when opened, a capability that it lacks."""
    try:
        chosen = {"platform": job.platform, "wire": job.wire, "route": job.route}
        gin.init(backend=job.backend, rank=0, size=1, require=[capability], **chosen).close()
    except UnsupportedError as error:
        if job.backend in str(error) and capability in str(error):
            return []
        return [f"init(require={capability!r}) does not name backend and capability: {error}"]
    except Error as error:
        return [f"init(require={capability!r}) raises {type(error).__name__}: {error}"]
    return [f"init(require={capability!r}) is not refused, though the backend lacks it"]


def _names(error: Exception, lacking: Sequence[str]) -> bool:
    """Whether a refusal names a capability that is lacking, in one word or several."""
    text = str(error)
    return any(name in text or name.replace("_", " ") in text for name in lacking)


def _refusal(error: Exception, lacking: Sequence[str]) -> str:
    """The line of a refusal that says what is lacking."""
    lines = str(error).splitlines()
    told = (line[line.index("gin:") :] for line in lines if "gin:" in line and _names(Error(line), lacking))
    return next(told, lines[0])


def _told(error: Exception, case: Case) -> str:
    """An exception in one line, with the case's own line that it came through."""
    code = getattr(case.function, "__code__", None)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if code and f.filename == code.co_filename]
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def merge(job: Job, case: Case, answers: Sequence[dict[str, Any]], seconds: float) -> Result:
    """What came of a case, from all ranks' answers."""
    ranks = [Answer(**answer) for answer in answers]
    failed = [(rank, answer) for rank, answer in enumerate(ranks) if answer.failures]
    if failed:
        failed.sort(key=lambda item: item[1].remote)
        told = [f"rank {rank}: {'; '.join(answer.failures)}" for rank, answer in failed if not answer.remote]
        told = told or [f"rank {failed[0][0]}: {'; '.join(failed[0][1].failures)}"]
        return job.result(case, FAIL, " | ".join(told[:3]), seconds=seconds)
    if all(answer.refused for answer in ranks):
        return job.result(case, REFUSED, ranks[0].refused, ", ".join(job.lacking(case)), seconds)
    if any(answer.refused for answer in ranks):
        some = [str(rank) for rank, answer in enumerate(ranks) if answer.refused]
        return job.result(case, FAIL, f"refused on rank {', '.join(some)} alone", seconds=seconds)
    return job.result(case, PASS, seconds=seconds)


def as_json(answer: Answer) -> dict[str, Any]:
    """An answer for other ranks."""
    return asdict(answer)
