"""What a case is given: a communicator, its kernels, and the means to say what is wrong."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gin.errors import Error

if TYPE_CHECKING:
    import numpy.typing as npt

    from gin.collective import Exchange
    from gin.comm import Comm
    from gin.conformance.plan import Job
    from gin.conformance.registry import Case
    from gin.kernel import Kernel
    from gin.window import Window

__all__ = ["Place", "World", "load"]

Open = Callable[..., "Comm"]


@dataclass(frozen=True)
class Place:
    """A rank among those of its job, and their channel beside all communicators."""

    rank: int
    size: int
    exchange: Exchange


_MOST_FAILURES = 5  # that one rank tells of


class World:
    """One rank's side of one case.

    On the communicator nothing is under way, and all signals, epochs and counters are 0, when a case begins. What a case
    sends it also waits for. `check` and `equal` note what is wrong and go on, so that ranks stay together.
    """

    def __init__(self, job: Job, case: Case, place: Place, comm: Comm | None, open_comm: Open) -> None:
        self.case = case
        self.platform, self.backend, self.route = job.platform, job.backend, job.route
        self.capabilities = job.capabilities
        self.rank, self.size = place.rank, place.size
        self.patience = job.patience
        self.failures: list[str] = []
        self.kernels: list[Kernel] = []
        self._exchange = place.exchange
        self._comm = comm
        self._open = open_comm
        self._windows: list[Window] = []
        self._opened: list[Comm] = []

    # -- the communicator -------------------------------------------------------------------------------------------------

    @property
    def comm(self) -> Comm:
        assert self._comm is not None, "the case opens its communicators itself"
        return self._comm

    @property
    def right(self) -> int:
        """The next rank around the ring."""
        return (self.rank + 1) % self.size

    @property
    def left(self) -> int:
        """The rank before this one around the ring."""
        return (self.rank - 1) % self.size

    def open(self, **settings: Any) -> Comm:
        """Opens a communicator on the case's backend, platform and route. Collective unless rank and size are given."""
        comm = self._open(**settings)
        self._opened.append(comm)
        return comm

    # -- memory and kernels -----------------------------------------------------------------------------------------------

    def window(self, nbytes: int, values: npt.ArrayLike | None = None) -> Window:
        """A new window, given back when the case ends. Collective; what is written to it is there before others send.

        values  what to write to this rank's part
        """
        window = self.comm.window(nbytes)
        self._windows.append(window)
        if values is not None:
            window.write(values)
        return window

    @property
    def kernel(self) -> Kernel:
        """The case's first kernel."""
        return self.kernels[0]

    def array(self, values: npt.ArrayLike) -> Any:
        """An array that is no window, in the memory that kernels use: NumPy's, or CuPy's where that is a GPU's."""
        if self.platform != "cuda":
            return np.array(values)
        import cupy

        return cupy.asarray(np.asarray(values))

    def run(self, *args: Any, kernel: Kernel | None = None, grid: Any = 1, block: Any = 1, shared: int = 0) -> None:
        """Launches the case's kernel, or another, and waits for it."""
        (kernel or self.kernel).launch(*args, grid=grid, block=block, shared=shared)
        self.comm.synchronize()

    def barrier(self) -> None:
        """On the host, for all ranks."""
        self.comm.barrier()

    def pause(self, seconds: float) -> None:
        """Lets the other ranks go ahead for a while. In the simulator who goes ahead is up to the seed."""
        if self.platform != "sim":
            time.sleep(seconds)

    def gather(self, value: Any = None) -> list[Any]:
        """Every rank's value (anything JSON can say), by a way of its own: also while a communicator has failed."""
        answers: list[Any] = self._exchange.gather("a case's values", lambda: value)
        return answers

    # -- the oracle -------------------------------------------------------------------------------------------------------

    def check(self, condition: Any, message: str) -> bool:
        """Notes a failure unless the condition (of an array: every element) is true."""
        right = bool(np.all(condition))
        if not right:
            self._note(message)
        return right

    def equal(self, found: Any, wanted: Any, what: str) -> bool:
        """Notes a failure, with the first difference, unless two values or arrays are equal."""
        have, want = np.asarray(found), np.asarray(wanted)
        if have.shape != want.shape and want.shape != ():
            self._note(f"{what}: shape {have.shape}, not {want.shape}")
            return False
        wrong = np.flatnonzero(np.asarray(have != want))
        if wrong.size:
            at = int(wrong[0])
            seen = have.reshape(-1)[at]
            should = want.reshape(-1)[at] if want.shape else want
            where = f" at {at} ({wrong.size} of {have.size} are wrong)" if have.size > 1 else ""
            self._note(f"{what}: {seen}, not {should}{where}")
        return not wrong.size

    def raised(self, call: Callable[[], Any], what: str) -> tuple[BaseException | None, float]:
        """The gin.Error of a call that has to raise one, and the seconds that it took."""
        start = time.monotonic()
        error = self.refuses(Error, "", call, what)
        return error, time.monotonic() - start

    def refuses(
        self, kind: type[BaseException], words: str, call: Callable[[], Any], what: str
    ) -> BaseException | None:
        """The exception of a call that has to raise it, with a message that the pattern is found in; else a failure."""
        try:
            call()
        except kind as error:
            self.check(
                re.search(words, str(error), re.DOTALL) is not None, f"{what}: says {str(error)!r}, not {words!r}"
            )
            return error
        except Error as error:
            self._note(f"{what}: {type(error).__name__} ({error}), not {kind.__name__}")
            return error
        self._note(f"{what}: not refused, {kind.__name__} was due")
        return None

    def _note(self, message: str) -> None:
        if len(self.failures) < _MOST_FAILURES:
            self.failures.append(message)
        elif len(self.failures) == _MOST_FAILURES:
            self.failures.append("and more")

    # -- the end ----------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Gives back what the case has used. Local."""
        for window in self._windows:
            window.close()
        self._windows.clear()
        self.kernels.clear()
        for comm in self._opened:
            comm.close()
        self._opened.clear()


def load(world: World, sources: Sequence[tuple[str, str]]) -> None:
    """Compiles the kernels of the world's case."""
    world.kernels = [world.comm.compile(source, name) for source, name in sources]
