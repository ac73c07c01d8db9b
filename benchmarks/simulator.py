"""What the simulator costs and what it predicts: operations a second, seeds a second, memory of a rank, 1,024 ranks.

python benchmarks/simulator.py [--json FILE [--note TEXT]] [rate|check|scale|predict]...

Each figure is compared with its bound where there is one. One core; nothing else should run.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gin
from gin.bench.results import environment
from gin.config import Config
from gin.sim.check import Plan, check
from gin.sim.job import Job
from gin.sim.launch import Script
from gin.sim.model import PRESETS, model_options
from gin.sim.options import simulation_options

PROGRAMS = Path(__file__).parents[1] / "tests" / "sim" / "programs"
Figure = dict[str, Any]

ALLTOALL = r"""
#include <gin/gin.cuh>
extern "C" __global__ void alltoall(gin::Comm comm, gin::Window recv, int rounds) {
  gin::Context net(comm);
  for (int round = 0; round < rounds; ++round) {
    const unsigned long long until = net.epoch(0) + net.size();
    for (unsigned i = 1; i <= net.size(); ++i) {
      const unsigned peer = (net.rank() + i) % net.size();
      net.put_value(peer, recv, 4 * net.rank(), net.rank() + 1, gin::signal_inc{0});
    }
    if (!net.wait(gin::thread, 0, until).ok()) return;
    net.barrier(gin::thread);
  }
}
"""

PINGPONG = r"""
#include <gin/gin.cuh>
// Rank 0 leaves the clock's readings before and after its turns at the beginning of `times`.
extern "C" __global__ void pingpong(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window times,
                                    unsigned long long bytes, int turns) {
  gin::Context net(comm);
  const unsigned long long from = net.epoch(0);
  long long* clock = static_cast<long long*>(times.local());
  for (int turn = 0; turn < turns; ++turn) {
    if (turn == 1 && threadIdx.x == 0) clock[0] = clock64();
    if (net.rank() == 1 && !net.wait(gin::block, 0, from + turn + 1).ok()) return;
    net.put(gin::block, 1 - net.rank(), dst, 0, src, 0, bytes, gin::signal_inc{0});
    if (net.rank() == 0 && !net.wait(gin::block, 0, from + turn + 1).ok()) return;
  }
  if (threadIdx.x == 0) clock[1] = clock64();
}
"""


def resident() -> int:
    """Bytes of this process that are in memory now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def job(size: int, body: Callable[[], Any], *, trace: bool = False, **options: Any) -> tuple[Job, float]:
    """The job after `body` has run on every rank, and the seconds that took."""
    made = Job(size, {**simulation_options(Config.from_sources(platform="sim"), size), **options}, trace=trace)
    start = time.perf_counter()
    made.run([body] * size)
    seconds = time.perf_counter() - start
    for place in made.places:
        if place.error is not None:
            raise place.error
    return made, seconds


def exchange(backend: str, rounds: int) -> Callable[[], None]:
    def body() -> None:
        with gin.init(backend=backend, contexts=1) as comm:
            recv = comm.window(4 * comm.size)
            comm.compile(ALLTOALL, "alltoall").launch(recv, rounds)
            comm.synchronize()
            assert (recv.read("u4") == range(1, comm.size + 1)).all()

    return body


def rate() -> Iterator[Figure]:
    """Operations a second, and what recording them costs."""
    for backend in ("nvshmem", "nccl_gin", "ibrc_proxy"):
        for hostile in (1, 0):
            exchange_once = exchange(backend, 100)
            job(16, exchange(backend, 1), hostile=hostile)  # compiles
            plain, traced = [], []
            for _ in range(3):
                made, seconds = job(16, exchange_once, hostile=hostile)
                plain.append(seconds)
                operations = int(made.simulation.operations)
                made, seconds = job(16, exchange_once, hostile=hostile, trace=True)
                traced.append(seconds)
                assert int(made.simulation.operations) == operations
            name = f"{backend}, {'hostile' if hostile else 'as modelled'}"
            yield figure(f"simulated operations: {name}", operations / min(plain), "1/s", at_least=300_000)
            yield figure(f"recorded over not recorded: {name}", min(traced) / min(plain), "ratio", at_most=2)


def seeds() -> Iterator[Figure]:
    """Seconds for 2,000 seeds of each corrected program, and the seed that breaks each wrong one."""
    for path in sorted(PROGRAMS.glob("*.py")):
        for backend in ("nvshmem", "nccl_gin", "ibrc_proxy"):
            settings = {"GIN_BACKEND": backend}
            wrong = check(Plan(Script.of_file(str(path), ("wrong",)), 2, 0, 200, settings))
            if wrong.failure is None:  # NVSHMEM has one context, and a fence in each value with a signal
                assert backend == "nvshmem" and path.stem in ("missing_fence", "other_context"), (
                    f"{path.name}, {backend}"
                )
            else:
                name = f"{path.stem}, {backend}: seeds until the wrong one breaks"
                yield figure(name, wrong.runs, "seeds", at_most=200)
            right = check(Plan(Script.of_file(str(path), ("right",)), 2, 0, 2000, settings))
            assert right.failure is None, f"{path.name} right, {backend}: {right.failure}"
            yield figure(f"{path.stem}, {backend}: 2,000 seeds of the right one", right.seconds, "s")


def scale() -> Iterator[Figure]:
    """1,024 ranks, and how costs grow up to there."""
    for backend in ("nvshmem", "nccl_gin", "ibrc_proxy"):
        job(2, exchange(backend, 1))
        each: list[float] = []
        for size in (64, 256, 1024):
            made, seconds = job(size, exchange(backend, 1), hostile=0)
            each.append(seconds / int(made.simulation.operations))
            if size == 1024:
                yield figure(f"all-to-all and barrier, 1,024 ranks, {backend}", seconds, "s", at_most=60)
            del made
            gc.collect()
        yield figure(f"time per message, 1,024 ranks over 64, {backend}", each[2] / each[0], "ratio")
        yield idle(backend)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    yield figure("most memory of all that", peak / 2**30, "GiB", at_most=8)


def idle(backend: str) -> Figure:
    """Memory of a rank that has opened a communicator and waits, measured in a process of its own."""
    done = subprocess.run([sys.executable, __file__, "--idle", backend], capture_output=True, text=True, check=True)
    return figure(f"memory of an idle rank, {backend}", float(done.stdout), "KiB", at_most=64)


def idle_KiB(backend: str, size: int = 1024) -> float:  # noqa: N802 - the unit
    taken: list[int] = []

    def body() -> None:
        comm = gin.init(backend=backend)
        comm.barrier()
        if comm.rank == 0:
            gc.collect()
            taken.append(resident())
        comm.barrier()
        comm.close()

    job(2, body)
    gc.collect()
    before = resident()
    job(size, body)
    return (taken[-1] - before) / size / 1024


def round_trip_us(model: str, backend: str, nbytes: int, turns: int = 21) -> float:
    """The round trip of a put with a signal, in virtual time, without the first one."""
    taken: list[float] = []

    def body() -> None:
        with gin.init(backend=backend, heap=64 << 20) as comm:
            windows = comm.window(nbytes), comm.window(nbytes), comm.window(16)
            comm.compile(PINGPONG, "pingpong").launch(*windows, nbytes, turns, block=32)
            comm.synchronize()
            if comm.rank == 0:
                before, after = windows[2].read("i8")
                taken.append((after - before) / (turns - 1) / 1e3)

    job(2, body, **model_options(model), hostile=0)
    return taken[0]


# Round trips of put with signal, us, by bytes. Of NVLink, 8 bytes and the bandwidth of 32 MiB made the model, and the rest
# is predicted; of InfiniBand, what is published made it.
MEASURED = {
    "nvlink-h200": {8: 5.00, 1 << 10: 5.06, 64 << 10: 8.38, 1 << 20: 58.1},
    "ib400-proxy": {128: 18.0},
    "ib400-gpu": {128: 16.7},
}


def predict() -> Iterator[Figure]:
    """Predictions beside what was measured or published."""
    for name in PRESETS:
        model = name if name.startswith("nvlink") else f"{name},ranks_per_node=1"
        for nbytes, measured in MEASURED[name].items():
            predicted = round_trip_us(model, "nvshmem", nbytes)
            made = figure(f"{name}: round trip of put and signal, {nbytes} bytes", predicted, "us")
            yield {**made, "measured": measured, "error_percent": round(100 * (predicted / measured - 1), 1)}


def figure(
    name: str, value: float, unit: str, *, at_least: float | None = None, at_most: float | None = None
) -> Figure:
    made: Figure = {"name": name, "value": round(value, 4), "unit": unit}
    if at_least is not None:
        made |= {"bound": f">= {at_least:g}", "met": value >= at_least}
    if at_most is not None:
        made |= {"bound": f"<= {at_most:g}", "met": value <= at_most}
    return made


PARTS = {"rate": rate, "check": seeds, "scale": scale, "predict": predict}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], metavar="|".join(PARTS))
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--note", metavar="TEXT", help="what a reader of the file should know of this run")
    parser.add_argument("--idle", metavar="BACKEND", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.idle:
        print(idle_KiB(given.idle))
        return
    figures: list[Figure] = []
    for part in given.parts or PARTS:
        for made in PARTS[part]():
            figures.append(made)
            more = f" ({made['bound']}: {'met' if made['met'] else 'MISSED'})" if "bound" in made else ""
            if "measured" in made:
                more = f" (measured {made['measured']:g}: {made['error_percent']:+g} %)"
            print(f"{made['name']:<72} {made['value']:>14,.4g} {made['unit']}{more}", flush=True)
    if given.json:
        note = {"note": given.note} if given.note else {}
        text = json.dumps({"environment": environment(), "emulated": True, **note, "figures": figures}, indent=1)
        Path(given.json).write_text(text + "\n")


if __name__ == "__main__":
    main()
