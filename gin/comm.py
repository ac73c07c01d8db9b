"""Communicators: what a rank opens, allocates from, compiles for, launches on and closes."""

from __future__ import annotations

import contextlib
import operator
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gin import _core, backends
from gin.backends import Capabilities
from gin.backends.base import Job, Region
from gin.collective import Exchange, error_text
from gin.config import Config, check_agreement, format_ranks, parse_duration
from gin.errors import ArgumentError, Error, RemoteError, UnsupportedError
from gin.failure import Story, exception, loss
from gin.kernel import Kernel
from gin.layout import barrier_rounds
from gin.platforms import open_platform
from gin.rendezvous import join
from gin.sim import simulated, simulated_defaults
from gin.window import Window

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Comm", "init"]

CLOSE_SECONDS = 5.0  # at most, for each thing that close has to wait for


def init(
    backend: str | None = None,
    platform: str | None = None,
    wire: str | None = None,
    route: str | None = None,
    *,
    rank: int | None = None,
    size: int | None = None,
    require: Iterable[str] = (),
    bootstrap: Any = None,
    **settings: Any,
) -> Comm:
    """Opens a communicator over all ranks of the job. Collective: every rank calls it, with equal settings.

    backend    nvshmem, nccl_gin, ibrc_proxy or auto
    platform   host, cuda, sim or auto
    wire       shm, verbs, cuda, null or auto: what proxies and emulated libraries post to
    route      direct (load and store), native (the backend's own operations), or auto: direct where it exists
    rank, size this rank and how many there are, together; otherwise bootstrap, GIN_RANK and GIN_SIZE, or the launcher
    require    capabilities without which opening fails, see gin.backends.capabilities
    bootstrap  an mpi4py communicator or an initialised torch.distributed, to find the other ranks by
    settings   any other knob of gin.config, e.g. timeout="5s", signals=128, check=True

    What is not given comes from GIN_* variables, gin.toml, and defaults. Raises ConfigError, UnsupportedError,
    BootstrapError, OutOfMemoryError.
    """
    given = {"backend": backend, "platform": platform, "wire": wire, "route": route, **settings}
    config = _choose(Config.from_sources(**given))
    backends.require(config, (require,) if isinstance(require, str) else require)
    store = join(config, rank=rank, size=size, bootstrap=bootstrap)
    try:
        return Comm(config, store)
    except BaseException as error:
        store.fail(error_text(error))
        store.close(timeout=CLOSE_SECONDS)
        raise


def _choose(config: Config) -> Config:
    """Settles what was left to detection. Raises UnsupportedError for what this machine cannot do."""
    found: dict[str, Any] = {}
    if config.platform == "auto":
        found["platform"] = "sim" if simulated() else "host"
    platform = found.get("platform", config.platform)
    if simulated() and platform != "sim":
        raise UnsupportedError(
            f"this rank is simulated: platform {platform} ({config.origin('platform')}) cannot run here"
        )
    if config.backend == "auto":
        found["backend"] = "ibrc_proxy"
    if platform == "sim":
        found |= simulated_defaults(config)
    wires = {"cuda": ["cuda", "null", "verbs"], "sim": ["sim"]}.get(platform, ["shm", "null", "verbs"])
    if config.wire == "auto":
        found["wire"] = wires[0]
    elif config.wire not in wires:
        raise UnsupportedError(
            f"wire {config.wire} does not work on platform {platform} in this version of gin; use {' or '.join(wires)}"
        )
    chosen = config.detected(**found) if found else config
    if (platform, chosen.wire) == ("cuda", "verbs") and chosen.backend != "ibrc_proxy":
        raise UnsupportedError(
            f"backend {chosen.backend} has its own way between GPUs; wire verbs is for ibrc_proxy there: leave wire out"
        )
    return chosen


class Comm:
    """The ranks of a job, as one of them sees it. Made by `gin.init`; a context manager that closes.

    `rank`, `size`, `config` and `capabilities` are fixed. `window`, `register` and `barrier` are collective.
    """

    def __init__(self, config: Config, store: Any) -> None:
        self.config = config
        self.rank: int = store.rank
        self.size: int = store.size
        self.capabilities: Capabilities = backends.effective(config)
        self._store = store
        self._exchange: Exchange = store.exchange()
        self._windows = 0
        self._flights: list[Any] = []  # what launches that were not waited for hold on to
        self._error: BaseException | None = None
        self._closed = False
        self._process = os.getpid()
        self._arrays_used = False
        self._exchange.reduce("settings", config.agreement, check_agreement)
        with contextlib.ExitStack() as undo:
            kind = backends.load(config.backend, config.platform)
            local_size = store.ranks.local_size
            self._platform = open_platform(config, store.ranks, self._exchange, kind.threads(config))
            undo.callback(self._platform.close, CLOSE_SECONDS)
            job = Job(
                self.rank,
                self.size,
                local_size,
                config,
                self._exchange,
                self._platform,
                barrier_rounds(self.size),
                store.ranks.local_rank,
            )
            self._backend = kind(job)
            undo.callback(self._backend.close, CLOSE_SECONDS)
            self._backend.open()
            self._direct = self._require_route()
            undo.pop_all()
        store.on_failure(self._peer_failed)

    @property
    def backend(self) -> str:
        """The backend's name."""
        return self.config.backend

    @property
    def platform(self) -> str:
        """The platform's name."""
        return self.config.platform

    def about(self) -> str:
        """What this rank uses, in words: backend, platform, wire, and for wire verbs which NICs and why these."""
        text = f"{self.backend} on platform {self.platform} over wire {self.config.wire}"
        return f"{text}: {self._backend.about}" if self._backend.about else text

    def routes(self) -> list[str]:
        """The route that an operation takes to each rank: `direct` or `native`."""
        return ["direct" if direct else "native" for direct in self._direct]

    @property
    def lost(self) -> dict[int, RemoteError]:
        """Why each peer is lost that this rank has lost, by rank. With on_peer_failure=peer, otherwise always empty.

        Kernels go on without these (gin::Context::alive), `synchronize` does not raise for them; collective calls do.
        """
        if self._platform.losses is None:
            return {}
        reasons, story = self._store.failures, self._story()
        return {peer: loss(record, story, reasons.get(peer)) for peer, record in self._platform.losses.read().items()}

    # -- memory ----------------------------------------------------------------------------------------------------

    def window(self, nbytes: int) -> Window:
        """New zeroed memory that kernels of all ranks can reach. Collective.

        nbytes  bytes on this rank; ranks may ask for different sizes, 0 is one

        Raises OutOfMemoryError where a rank cannot have its part, on that rank; RemoteError on the others.
        """
        size = _nbytes(nbytes)
        self._check_usable()
        tag = self._next_tag("window")
        self._meet(tag)
        return self._opened(self._backend.window(tag, size))

    def register(self, array: npt.NDArray[Any]) -> Window:
        """A window over an array's own memory, which has to live as long as the window. Collective.

        array  on the platform host a writable contiguous NumPy array, which other ranks reach by the wire and not by load
               and store; on cuda one of this rank's GPU, from CuPy, PyTorch or Numba, whose memory comes from cudaMalloc

        Capability `register_memory`. Raises ArgumentError for another array, UnsupportedError where it cannot be.
        """
        self._check_usable()
        tag = self._next_tag("register")
        self._meet(tag)
        return self._opened(self._backend.register(tag, array))

    def barrier(self) -> None:
        """Waits until every rank has called it. Collective, on the host; launches are not waited for.

        Raises RemoteError, like all collective calls, where a rank has failed or is lost to any other.
        """
        self._check_usable()
        if self._arrays_used:
            self._platform.arrays_settled()
        if self._platform.losses is None:
            self._store.barrier("barrier")
        else:
            self._meet("barrier")

    # -- kernels ---------------------------------------------------------------------------------------------------

    def compile(self, source: str | os.PathLike[str], name: str) -> Kernel:
        """Compiles a kernel for this communicator's backend, or finds it compiled. Not collective.

        source  CUDA C++, or the path of a file of it, beside which its own headers may lie
        name    the __global__ function, with its template arguments if it has any

        Raises CompileError with the compiler's message, whose lines are the source's own.
        """
        self._check_open()
        if not isinstance(source, (str, os.PathLike)) or not isinstance(name, str):
            what = f"compile({source!r:.60}, {name!r:.60})"
            raise ArgumentError(f"{what}: pass a kernel's source, or its file's path, and its name")
        beside = None
        if not isinstance(source, str):
            path = Path(source)
            try:
                source = path.read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise ArgumentError(f"{path}: a kernel's source is UTF-8 text: {error}") from None
            beside = path.resolve().parent
        return Kernel(self, self._platform.compile(source, name, self._flags(), beside), name)

    def compile_ahead(
        self,
        kernels: Iterable[tuple[str, str]],
        workers: int | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Compiles several kernels at once, for `compile` to find in the cache; that one tells which do not compile.

        kernels  (source, name) of each, as `compile` takes them; no paths
        workers  how many at once; this rank's share of the host's cores by default
        stopped  asked before each kernel: whether to leave the rest
        """
        self._check_open()
        kernels = list(kernels)
        for kernel in kernels:
            if not (isinstance(kernel, (tuple, list)) and [type(text) for text in kernel] == [str, str]):
                raise ArgumentError(f"compile_ahead: {kernel!r:.60} is no pair of a kernel's source and its name")
        cores = len(os.sched_getaffinity(0))
        workers = workers or max(1, cores // self._store.ranks.local_size)
        self._platform.compile_ahead(kernels, self._flags(), workers, stopped)

    def synchronize(self, timeout: float | str | None = None) -> None:
        """Waits until all launches have finished, and raises what went wrong in them: who waited for what from whom.

        timeout  seconds (or text such as 5s) to wait for, by default and with 0 without end: the waits inside kernels have
                 their own deadlines

        Raises TimeoutError, RemoteError or KernelError; the communicator has then failed: every call raises the same.
        ArgumentError for what is no duration.
        """
        self._check_open()
        seconds = _seconds(timeout)
        flights, self._flights = self._flights, []
        try:
            self._platform.synchronize(seconds)
        except BaseException as error:
            self._flights += flights  # which may still be under way
            if not isinstance(error, Error):
                raise
            self._fail(error)
        else:
            _land(flights)
        self._raise_failure()

    # -- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Waits for launches and gives everything back; bounded, also after a failure. Not collective."""
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        try:
            self._finish_launches()
        finally:
            self._store.leaving()
            self._backend.close(CLOSE_SECONDS)
            if self._platform.idle:
                _land(self._flights)
            self._end_kernels()
            self._store.close(timeout=CLOSE_SECONDS)

    def __enter__(self) -> Comm:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None and self._error is None and not self._closed:
            self._error = error
            self._store.fail(error_text(error))
            self._platform.fail(_core.code_internal, -1)
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_platform") and not self._closed and os.getpid() == self._process:
            self._end_kernels()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "failed" if self._error else "open"
        return f"<gin.Comm rank {self.rank} of {self.size}, {self.backend} on {self.platform}, {state}>"

    # -- inside ----------------------------------------------------------------------------------------------------

    def _opened(self, region: Region) -> Window:
        self._backend.regions.open(region)
        return Window(self, region)

    def _array(self, lease: Any) -> Any:
        self._arrays_used = True
        return self._platform.array(lease)

    def _meet(self, tag: str) -> None:
        """Where peers may be lost: proves that nobody is, before a step that needs everybody. Collective."""
        if self._platform.losses is not None:
            self._exchange.agree(f"{tag}: all ranks", self._raise_lost)

    def _raise_lost(self) -> None:
        if lost := self.lost:
            reasons = "; ".join(str(error) for error in lost.values())
            raise RemoteError(reasons, record={"rank": min(lost), "ranks": sorted(lost)})

    def _story(self) -> Story:
        """What this rank knows beside its records."""
        losses = self._platform.losses
        return Story(
            self.rank,
            self.config,
            self._store.failure,
            self._store.departed,
            self._platform.captured(),
            lost=() if losses is None else losses.read(),
        )

    def _next_tag(self, what: str) -> str:
        self._windows += 1
        return f"{what} {self._windows}"

    def _require_route(self) -> bytes:
        """Whether (0 or 1) each rank's memory is loaded and stored. Raises UnsupportedError when it should be and cannot."""
        reachable = [bool(row[0]) for row in self._backend.control.peers]
        if self.config.route == "direct" and not all(reachable):
            far = [rank for rank, near in enumerate(reachable) if not near]
            raise UnsupportedError(
                f"route=direct, but rank {self.rank} cannot load and store the memory of {format_ranks(far)}"
                f"{self._platform.why_far(far)}; use route=auto"
            )
        everywhere = self._exchange.reduce("routes", lambda: all(reachable), all)
        self._all_direct = everywhere and self.config.route != "native"
        return bytes(near and self.config.route != "native" for near in reachable)

    def _flags(self) -> int:
        """gin::Comm::flags."""
        flags: int = _core.all_direct if self._all_direct else 0
        flags |= _core.native_only if self.config.route == "native" else 0
        flags |= _core.mixed if self._backend.mixed and self.config.route != "native" else 0
        flags |= _core.peers_fail if self._platform.losses is not None else 0
        flags |= _core.few if self.size <= _core.near_ranks else 0
        return flags

    def _pod(self) -> bytes:
        """gin::Comm for the next launch."""
        fields = {
            "rank": self.rank,
            "size": self.size,
            "contexts": self.config.contexts,
            "signals": self.config.signals,
            "counters": self.config.counters,
            "barriers": self.config.barriers,
            "rounds": barrier_rounds(self.size),
            "flags": self._flags(),
            "timeout_ns": round(self.config.timeout * 1e9),
            "max_message": self._backend.max_message,
            "control": self._backend.control.fields,
            "backend": self._backend.device_state,
            **self._platform.words(),
        }
        pod: bytes = _core.comm_bytes(fields)
        return pod

    def _launch(
        self,
        kernel: Kernel,
        args: list[bytes],
        held: list[Any],
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        stream: Any,
    ) -> None:
        self._platform.launch(kernel.module, kernel.name, args, grid, block, shared, stream, self._backend.library)
        self._flights += held
        for item in held:
            if isinstance(item, Region):
                item.in_use += 1

    def _end_kernels(self) -> None:
        """Before anything goes that they reach. What one that cannot be stopped reaches stays."""
        if not self._platform.abandon():
            _core.keep(self)

    def _forget(self, region: Region) -> None:
        if not self._closed:
            self._backend.forget(region)

    def _check_open(self) -> None:
        if os.getpid() != self._process:
            raise Error(
                f"this communicator belongs to process {self._process}, of which this one ({os.getpid()}) was forked; "
                "open one here"
            )
        if self._closed:
            raise Error("this communicator is closed")

    def _check_usable(self) -> None:
        self._check_open()
        self._raise_failure()

    def _raise_failure(self) -> None:
        """Raises what has failed, if anything has: the first failure, every time."""
        if self._error is None:
            record = self._platform.read_record()
            if record is None:
                return
            self._fail(exception(record, self._story()))
        assert self._error is not None
        raise self._error

    def _fail(self, error: Error) -> None:
        """This rank has failed: the others are told, later calls raise the same."""
        if self._error is None:
            self._error = error
            self._store.fail(error_text(error))
            self._platform.fail(_core.code_internal, -1)

    def _peer_failed(self, rank: int, reason: str) -> None:
        """Another rank has failed or gone. Called by the store's thread."""
        if self._platform.losses is None:
            self._platform.fail(_core.code_remote, rank)
        self._backend.peer_failed(rank)

    def _finish_launches(self) -> None:
        deadline = time.monotonic() + (CLOSE_SECONDS if self._error is not None else self._patience())
        try:
            self._platform.close(max(0.0, deadline - time.monotonic()))
        except Error as error:
            if self._error is None:
                self._fail(error)
                raise

    def _patience(self) -> float:
        """How long close waits for launches of a healthy communicator: longer than their own waits may take."""
        return self.config.timeout + CLOSE_SECONDS if self.config.timeout else 3600.0


def _land(flights: list[Any]) -> None:
    """Lets go of what finished launches held."""
    for item in flights:
        if isinstance(item, Region):
            item.in_use -= 1
    flights.clear()


def _seconds(timeout: float | str | None) -> float | None:
    """How long to wait; None for without end."""
    if timeout is None:
        return None
    try:
        return parse_duration(timeout) or None
    except ValueError as error:
        raise ArgumentError(f"synchronize: timeout={timeout!r:.80} is not {error}") from None


def _nbytes(value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"window({value!r}): a size in bytes is a whole number") from None
    if not 0 <= number < 1 << 48:
        raise ArgumentError(f"window({number}): a size in bytes is 0 to 2^48 - 1")
    return number
