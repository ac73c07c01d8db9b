"""Kernels compiled ahead of their use, several at once; for NVRTC by processes, each of which is in `main`."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import gin
from gin.config import Config
from gin.errors import CompileError
from gin.platforms.cuda_compile import COMPILE_SECONDS, CudaCompiler, DeviceCode

__all__ = ["Kernel", "by_processes", "by_threads"]

Kernel = tuple[str, str]  # source and name
Job = tuple[Config, DeviceCode, str]  # what a CudaCompiler is made of
_AFTER = 60.0  # seconds past a compiler's own deadline, after which its process is given up


def by_threads(
    compile_one: Callable[[Kernel], Any], kernels: Sequence[Kernel], workers: int, stopped: Callable[[], bool]
) -> None:
    """For compilers that are programs. What does not compile is left for its use to tell."""

    def serve(left: Iterator[Kernel]) -> None:
        for kernel in left:
            with suppress(CompileError):
                compile_one(kernel)

    _share_out(serve, kernels, workers, stopped)


def by_processes(job: Job, flags: int, kernels: Sequence[Kernel], workers: int, stopped: Callable[[], bool]) -> None:
    """For NVRTC, which compiles one kernel at a time in a process. What does not compile, or comes to a process that ends,
    is left for its use to tell."""

    def serve(left: Iterator[Kernel]) -> None:
        with _worker() as worker:
            try:
                while (kernel := next(left, None)) and _asked(worker, (job, flags, kernel)):
                    pass
            except BrokenPipeError:
                pass
            finally:
                worker.kill()

    _share_out(serve, kernels, workers, stopped)


def _share_out(
    serve: Callable[[Iterator[Kernel]], None], kernels: Sequence[Kernel], workers: int, stopped: Callable[[], bool]
) -> None:
    """Runs `serve` in so many threads, which take kernels in turn until there are none left or it is to stop."""
    over = threading.Event()
    taking = iter(list(kernels))  # whose `next` is one step for all threads

    def left() -> Iterator[Kernel]:
        while not over.is_set() and not stopped() and (kernel := next(taking, None)) is not None:
            yield kernel

    if not kernels:
        return
    workers = max(1, min(workers, len(kernels)))
    with ThreadPoolExecutor(workers) as pool:
        try:
            list(pool.map(lambda _: serve(left()), range(workers)))
        except BaseException:
            over.set()
            raise


def _worker() -> subprocess.Popen[bytes]:
    """Ends when its input does, also where this process is killed; Ctrl-C is this process's to handle."""
    start = f"import sys; sys.path.append(sys.argv[1]); from {__spec__.name} import main; main()"
    return subprocess.Popen(
        [sys.executable, "-P", "-c", start, str(Path(gin.__file__).parents[1])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        bufsize=0,
    )


def _asked(worker: subprocess.Popen[bytes], question: Any) -> bool:
    """Whether the process has done what it was asked, well or not. One that does not in time is ended."""
    assert worker.stdin is not None and worker.stdout is not None
    deadline = threading.Timer(COMPILE_SECONDS + _AFTER, worker.kill)
    deadline.start()
    try:
        left = memoryview(pickle.dumps(question))
        while left:
            left = left[worker.stdin.write(left) :]
        return bool(worker.stdout.read(1))
    finally:
        deadline.cancel()


def main() -> None:
    """Compiles what comes in by the standard input, and answers each with a byte."""
    while True:
        try:
            job, flags, (source, name) = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        with suppress(CompileError):
            CudaCompiler(*job).compile(source, name, flags)
        os.write(1, b".")
