"""How much a ratio of two backends changes from one run of the benchmark to the next, and whether intervals hold that.

    python benchmarks/spread.py [--runs N] [--bytes N] [--json FILE]

Each run is a latency sweep of one size with processes of its own, all backends in turn. For each route, the ratio of each
backend to the first one: the median over the runs, the spread (the largest less the smallest, in per cent of the median),
and in how many runs the 95 % interval that the run gave holds that median. Then each backend's own medians, which tell
whether the machine was the same in all runs; where virtual processors are moved it is not. Needs gin installed, and two
free cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from typing import Any

from gin.bench import results, sweep
from gin.bench.plan import Plan
from gin.compare.ratio import Ratio, ratio_of

BACKENDS = ("nvshmem", "nccl_gin", "ibrc_proxy")
BOUND = 10.0  # per cent, on a quiet machine


ROUTES = ("native", "direct")
Rows = dict[tuple[str, str], Any]  # by backend and route


def measured(nbytes: int) -> Rows:
    """One run: the rows of a latency sweep with processes of its own."""
    rows: Rows = {}

    def keep(event: sweep.Event) -> None:
        if event["event"] == "row":
            rows[event["row"]["backend"], event["row"]["route"]] = event["row"]

    sweep.run_here(Plan("latency", BACKENDS, True, ROUTES, (nbytes,)), 2, keep)
    return rows


def ratios(rows: Rows) -> dict[str, Ratio]:
    """For each route, each backend's median latency divided by the first one's."""
    found = {}
    for route in ROUTES:
        for backend in BACKENDS[1:]:
            ratio = ratio_of(rows[backend, route], rows[BACKENDS[0], route], "median_us", interleaved=True)
            if ratio is None:
                raise SystemExit(f"{backend} {route}: nothing to divide")
            found[f"{backend} / {BACKENDS[0]} {route}"] = ratio
    return found


def summary(name: str, runs: list[Ratio]) -> dict[str, Any]:
    """What the runs say of one ratio."""
    values = [ratio.value for ratio in runs]
    middle = statistics.median(values)
    held = sum(ratio.low is not None and ratio.high is not None and ratio.low <= middle <= ratio.high for ratio in runs)
    return {"ratio": name, "median": middle, "spread_percent": spread(values), "held": held, "runs": values}


def spread(values: list[float]) -> float:
    """The largest less the smallest, in per cent of the median."""
    return 100 * (max(values) - min(values)) / statistics.median(values)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--bytes", type=int, default=8)
    parser.add_argument("--json", metavar="FILE", help="a new file for the figures")
    options = parser.parse_args()
    if options.runs < 2 or options.bytes < 0:
        parser.error("--runs is at least 2, --bytes at least 0")
    output = results.Output(options.json) if options.json else None
    try:
        load = os.getloadavg()
        rows = [measured(options.bytes) for _ in range(options.runs)]
        runs = [ratios(found) for found in rows]
        lines = [summary(name, [run[name] for run in runs]) for name in runs[0]]
        print("# EMULATION: timings are not hardware timings")
        print(f"# {results.cpu_name()}, {results.usable_cores()} cores, load {load[0]:.1f}, {options.runs} runs")
        for line in lines:
            verdict = "yes" if line["spread_percent"] < BOUND else "NO"
            print(
                f"{line['ratio']:<32} {line['median']:8.3f}  spread {line['spread_percent']:5.1f} %"
                f"  below {BOUND:g} %: {verdict}  inside the interval: {line['held']} of {options.runs} runs"
            )
        medians = {
            f"{backend} {route}": [found[backend, route]["median_us"] for found in rows]
            for route in ROUTES
            for backend in BACKENDS
        }
        for name, values in medians.items():
            middle = statistics.median(values)
            print(f"{name:<32} {middle:8.3f} us  {min(values):.3f}-{max(values):.3f}  spread {spread(values):5.1f} %")
        if output:
            document = {
                "emulated": True,
                "environment": results.environment(),
                "bytes": options.bytes,
                "load": load,
                "ratios": lines,
                "median_us": medians,
            }
            output.write(json.dumps(document, indent=1) + "\n")
    finally:
        if output:
            output.discard()
    return 0 if all(line["spread_percent"] < BOUND for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
