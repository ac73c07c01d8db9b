"""gin's own speed beside what the machine does without it, measured in one run, as ratios.

    python benchmarks/speed.py [--json FILE] [--repeats N] [FIGURE...]

Each figure alternates between gin and its baseline; the table shows medians over the repeats. Needs gin installed, and
a machine with two free cores: a loaded one slows spinning processes far more than it slows memcpy.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gin
from gin import _core
from gin.bench import baseline, results, sweep
from gin.bench.plan import Plan
from gin.bench.tests import operation

BACKENDS = ("nvshmem", "nccl_gin", "ibrc_proxy")
MiB = 1 << 20


@dataclass(frozen=True)
class Line:
    """One line of the table: gin's value, the baseline's, their ratio, and the bound on one of them."""

    name: str
    value: float
    unit: str
    baseline: float | None
    ratio: float | None
    bound: str
    met: bool


def rows_of(plan: Plan) -> dict[tuple[str, str], dict[str, Any]]:
    rows = []

    def keep(event: sweep.Event) -> None:
        if event["event"] == "row":
            rows.append(event["row"])

    sweep.run_here(plan, 2, keep)
    if any(row["wrong"] for row in rows):
        raise SystemExit("wrong data: no figure of this run counts")
    return {(row["backend"], row["route"]): row for row in rows}


def alternate(
    plan: Plan, field: str, bare: Callable[[], float], repeats: int
) -> tuple[dict[tuple[str, str], float], float]:
    """Medians of one row field per backend and route, and of the baseline, measured in turn."""
    ours: dict[tuple[str, str], list[float]] = {}
    bares = []
    for _ in range(repeats):
        bares.append(bare())
        for key, row in rows_of(plan).items():
            ours.setdefault(key, []).append(row[field])
    return {key: statistics.median(values) for key, values in ours.items()}, statistics.median(bares)


def ping_pong(repeats: int) -> Iterator[Line]:
    plan = Plan("latency", BACKENDS, True, ("direct", "native"), (8,), iterations=20_000, warmup=2_000)
    ours, bare = alternate(plan, "median_us", baseline.flag_pingpong_us, repeats)
    for (backend, route), value in ours.items():
        ratio = value / bare
        bound = "ratio <= 3" if route == "direct" else ""
        yield Line(f"8-byte ping-pong {backend} {route}", value, "us", bare, ratio, bound, not bound or ratio <= 3)


def bandwidth(repeats: int) -> Iterator[Line]:
    """Puts of data that nobody touches against memcpy of such data; then of data written before and read after each."""
    nbytes = baseline.MEMCPY_BYTES
    assert operation("bandwidth", "put_signal").messages(nbytes) == baseline.MEMCPY_SLOTS
    for touched in (False, True):
        for backend, route in itertools.product(BACKENDS, ("direct", "native")):
            # One at a time: the windows of several would take each other's place in the cache.
            plan = Plan("bandwidth", (backend,), True, (route,), (nbytes,), iterations=60, warmup=5, verify=touched)
            ours, bare = alternate(plan, "bandwidth_GBps", lambda t=touched: baseline.memcpy_GBps(touched=t), repeats)
            (value,) = ours.values()
            ratio = value / bare
            name = f"4M put bandwidth {backend} {route}{', verified' if touched else ''}"
            bound = "" if touched else "ratio >= 0.8"
            yield Line(name, value, "GB/s", bare, ratio, bound, touched or ratio >= 0.8)


def ring(repeats: int) -> Iterator[Line]:
    count, depth = baseline.RING_DESCRIPTORS, baseline.RING_DEPTH
    ours, bares = [], []
    for _ in range(repeats):
        bares.append(baseline.ring_Mops(count, depth))
        ours.append(_core.ring_rate(count, depth) / 1e6)
    value, bare = statistics.median(ours), statistics.median(bares)
    least = min(20.0, bare / 2)
    yield Line("descriptors over null", value, "M/s", bare, value / bare, f">= {least:.3g} M/s", value >= least)


def simulated(repeats: int) -> Iterator[Line]:
    rates = [_core.sim_rate(300_000, 2, {"seed": seed})[0] / 1e6 for seed in range(repeats)]
    value = statistics.median(rates)
    yield Line("simulated operations", value, "M/s", None, None, ">= 0.3 M/s", value >= 0.3)


BARRIERS = r"""
#include <gin/gin.cuh>
extern "C" __global__ void barriers(gin::Comm comm, gin::Window entered, gin::Window wrong, int rounds) {
  const uint32_t context = blockIdx.x % comm.contexts, index = blockIdx.x / comm.contexts;
  gin::Context net(comm, context);
  const uint32_t right = (net.rank() + 1) % net.size(), left = (net.rank() + net.size() - 1) % net.size();
  for (int round = 1; round <= rounds; ++round) {
    if (threadIdx.x == 0) net.put_value(right, entered, 8 * (blockIdx.x * net.size() + net.rank()), uint64_t(round));
    if (!net.barrier(gin::block, gin::world, index, true).ok()) return;
    const uint64_t* seen = static_cast<const uint64_t*>(entered.local(8 * (blockIdx.x * net.size() + left)));
    if (*seen != uint64_t(round)) atomicAdd(static_cast<int*>(wrong.local()), 1);
    if (!net.barrier(gin::block, gin::world, index, false).ok()) return;
  }
}
"""


def run_barriers(rounds: int) -> tuple[float, int]:
    with gin.init() as comm:
        entered, wrong = comm.window(8 * 8 * comm.size), comm.window(4)
        kernel = comm.compile(BARRIERS, "barriers")
        comm.barrier()
        start = time.perf_counter()
        kernel.launch(entered, wrong, rounds, grid=8, block=256)
        comm.synchronize()
        return time.perf_counter() - start, int(wrong.array("int32")[0])


def barrier(repeats: int) -> Iterator[Line]:
    rounds = 10
    seconds = []
    for _ in range(repeats):
        answers = gin.spawn(8, run_barriers, rounds)
        if any(wrong for _, wrong in answers):
            raise SystemExit("a rank left a barrier early")
        seconds.append(max(took for took, _ in answers))
    value = statistics.median(seconds)
    name = f"{2 * rounds} barriers, 8 ranks x 8 blocks x 256 threads"
    yield Line(name, value, "s", None, None, "<= 10 s", value <= 10)


SMALL = """
#include <gin/gin.cuh>
extern "C" __global__ void small(gin::Comm comm, gin::Window dst) {
  gin::Context net(comm);
  net.put_value((net.rank() + 1) % net.size(), dst, 0, net.rank(), gin::signal_inc{0});
  net.wait(gin::thread, 0, net.epoch(0) + 1);
}
"""


def objects(folder: Path) -> set[tuple[str, int]]:
    """What the cache of compiled kernels holds; a compiler run changes it."""
    return {(str(path), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def run_compile() -> tuple[float, float, int]:
    with gin.init() as comm:
        window = comm.window(4)
        start = time.perf_counter()
        comm.compile(SMALL, "small").launch(window, grid=1, block=1)
        comm.synchronize()
        first = time.perf_counter() - start
        compiled = objects(comm.config.cache_dir)
        start = time.perf_counter()
        comm.compile(SMALL, "small").launch(window, grid=1, block=1)
        comm.synchronize()
        return first, time.perf_counter() - start, len(objects(comm.config.cache_dir) - compiled)


def compiling(repeats: int) -> Iterator[Line]:
    answers = []
    before = os.environ.get("GIN_CACHE_DIR")
    try:
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                os.environ["GIN_CACHE_DIR"] = folder
                answers += gin.spawn(1, run_compile)
    finally:
        if before is None:
            del os.environ["GIN_CACHE_DIR"]
        else:
            os.environ["GIN_CACHE_DIR"] = before
    first, second = (statistics.median(answer[i] for answer in answers) for i in (0, 1))
    runs = max(answer[2] for answer in answers)
    yield Line("first compilation and launch of a small kernel", first, "s", None, None, "< 5 s", first < 5)
    yield Line("second launch, new files in the cache", runs, "", None, None, "0", runs == 0)
    yield Line("second compilation and launch", second * 1e3, "ms", None, None, "", True)


SWITCHES = """
extern "C" __global__ void switches(int n) {
  for (int i = 0; i < n; ++i) __syncthreads();
}
"""


def run_switches(repeats: int) -> list[float]:
    threads, n = 256, 2000
    with gin.init() as comm:
        kernel = comm.compile(SWITCHES, "switches")
        took = []
        for _ in range(repeats + 1):
            start = time.perf_counter()
            kernel.launch(n, grid=1, block=threads)
            comm.synchronize()
            took.append((time.perf_counter() - start) / n / threads * 1e9)
        return took[1:]


def fibers(repeats: int) -> Iterator[Line]:
    """At a __syncthreads each thread is switched away from once; the barrier's own work is counted too."""
    value = statistics.median(gin.spawn(1, run_switches, repeats)[0])
    yield Line("fiber switch (__syncthreads of 256, per thread)", value, "ns", None, None, "< 100 ns", value < 100)


FIGURES: dict[str, Callable[[int], Iterator[Line]]] = {
    "ping_pong": ping_pong,
    "bandwidth": bandwidth,
    "ring": ring,
    "simulated": simulated,
    "fibers": fibers,
    "barrier": barrier,
    "compiling": compiling,
}


def show(line: Line) -> None:
    bare = "" if line.baseline is None else f"{line.baseline:9.4g}"
    ratio = "" if line.ratio is None else f"{line.ratio:6.3f}"
    verdict = "" if not line.bound else "yes" if line.met else "NO"
    print(
        f"{line.name:<52} {line.value:9.4g} {line.unit:<5} {bare:>9} {ratio:>6}  {line.bound:<14} {verdict}", flush=True
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"some of {', '.join(FIGURES)}; by default all")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", metavar="FILE", help="a new file for the figures")
    options = parser.parse_args()
    unknown = set(options.figures) - set(FIGURES)
    if unknown or options.repeats < 1:
        parser.error(f"no such figure: {', '.join(sorted(unknown))}" if unknown else "--repeats is at least 1")
    output = None
    if options.json:
        Path(options.json).parent.mkdir(parents=True, exist_ok=True)
        output = results.Output(options.json)
    print("# EMULATION: timings are not hardware timings")
    print(f"# {results.cpu_name()}, {results.usable_cores()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{'figure':<52} {'gin':>9} {'':<5} {'without':>9} {'ratio':>6}  {'bound':<14} met")
    lines = []
    try:
        for name in options.figures or FIGURES:
            for line in FIGURES[name](options.repeats):
                show(line)
                lines.append(line)
        if output:
            document = {"environment": results.environment(), "load": os.getloadavg(), "figures": [*map(asdict, lines)]}
            output.write(json.dumps(document, indent=1) + "\n")
    finally:
        if output:
            output.discard()
    return 0 if all(line.met for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
